//! One decoder layer of Qwen3.5, dense or mixture of experts.
//!
//! x += mixer(rms(x));  x += mlp(rms(x))   where every fourth mixer is gated attention, the others gated
//! DeltaNet, and every norm multiplies by `1 + weight` but the one inside DeltaNet.

use turbospark_device::Pass;

use crate::blocks::{attention, delta, mlp};
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
    match &layer.mixer {
        Mixer::Attention(w) => {
            let s = s.attention.as_ref().expect("scratch is planned by layer kind");
            let kv = cache.kv(index).expect("the cache is made by layer kind");
            attention::attend(pass, w, s, kv, step);
        }
        Mixer::Delta(w) => {
            let s = s.delta.as_ref().expect("scratch is planned by layer kind");
            let state = cache.state(index).expect("the cache is made by layer kind");
            delta::mix(pass, w, s, state, index, step);
        }
    }
    pass.tap("mid", index, step.x);
    mlp::guess(pass, step.next, Seen::Mixer, &s.mlp, step);
    layer.post_attention_norm.apply(pass, step.x, step.normed);
    mlp::mlp(pass, &layer.mlp, &s.mlp, index, step);
    pass.tap("out", index, step.x);
}
