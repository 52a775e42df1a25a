//! One decoder layer of Qwen3-VL, dense or mixture of experts.
//!
//! x += attention(rms(x));  x += mlp(rms(x));  then, after layer k, deepstack set k on the image rows.
//!
//! The fluent slips are in the deepstack rows: one layer late, at the layers numbered as the vision blocks
//! are, or in reverse.

use turbospark_device::Pass;

use crate::blocks::{attention, mlp};
use crate::cache::Cache;
use crate::layout::LayerScratch;
use crate::stream::Seen;
use crate::trunk::{Layer, Mixer, Step};

pub(crate) fn decoder_layer<'a>(
    pass: &mut Pass<'a>,
    layer: &'a Layer,
    index: usize,
    s: &LayerScratch<'a>,
    cache: &'a Cache,
    step: &Step<'a>,
) {
    layer.input_norm.apply(pass, step.x, step.normed);
    let Mixer::Attention(w) = &layer.mixer else { unreachable!("every mixer of this family is attention") };
    let scratch = s.attention.as_ref().expect("scratch is planned by layer kind");
    let kv = cache.kv(index).expect("the cache is made by layer kind");
    attention::attend(pass, w, scratch, kv, step);
    pass.tap("mid", index, step.x);
    mlp::guess(pass, step.next, Seen::Mixer, &s.mlp, step);
    layer.post_attention_norm.apply(pass, step.x, step.normed);
    mlp::mlp(pass, &layer.mlp, &s.mlp, index, step);
    pass.tap("out", index, step.x);
}
