//! One block of a loaded model alone, and everything that a pass taps, for traces and tests.
//!
//! A whole model hides its faults: an error in the first layer shows in every later one, and one that only
//! shifts the answer shows nowhere. The probes feed a single block a given input, so that a golden that
//! fails names the block.

use turbospark_device::op::Zero;
use turbospark_device::{Device, Pass, Span, TapSink, View};
use turbospark_tensor::DType;

use crate::blocks::{delta, mlp};
use crate::cache::{Cache, CacheShape};
use crate::layout::{LayerScratch, Layout};
use crate::scratch::Scratch;
use crate::trunk::{Mixer, Step, Trunk};
use crate::vision_tower;
use crate::{ModelError, Result};

/// A tapped value.
#[derive(Clone, Debug, PartialEq)]
pub struct Tapped {
    /// What it is, such as `hidden`.
    pub name: &'static str,
    /// Of which layer or block.
    pub index: Option<usize>,
    /// The sides, outermost first.
    pub dims: Vec<usize>,
    /// The elements, dense.
    pub values: Vec<f32>,
}

/// Keeps everything that a pass taps, in order.
#[derive(Clone, Debug, Default)]
pub struct Taps(Vec<Tapped>);

impl Taps {
    /// The first value tapped under a name.
    pub fn get(&self, name: &str, index: impl Into<Option<usize>>) -> Option<&Tapped> {
        let index = index.into();
        self.0.iter().find(|t| t.name == name && t.index == index)
    }

    /// All values, in the order they were tapped.
    pub fn iter(&self) -> impl Iterator<Item = &Tapped> {
        self.0.iter()
    }
}

impl TapSink for Taps {
    fn tap(&mut self, name: &'static str, index: Option<usize>, dims: &[usize], values: Vec<f32>) {
        self.0.push(Tapped { name, index, dims: dims.to_vec(), values });
    }
}

/// What [`delta_net`] gives.
#[derive(Clone, Debug)]
pub struct DeltaRun {
    /// The mixer's output before the residual add, `[tokens, hidden]`.
    pub out: Vec<f32>,
    /// `[channels, kernel]` at the end.
    pub conv_state: Vec<f32>,
    /// `[value_heads, K, V]` at the end.
    pub recurrent_state: Vec<f32>,
    /// Of each piece: `delta_conv`, `delta_z`, `delta_g`, `delta_beta` and `delta_core` of the layer.
    pub pieces: Vec<Taps>,
}

/// Runs the gated DeltaNet of `layer` on `x`, `[tokens, hidden]` and normalised already, in `pieces` with the
/// state carried from each to the next. A piece of one token that is not the first takes the row kernels.
///
/// # Errors
/// [`ModelError::Batch`] where the layer is not of this kind or the pieces do not add up; the device's.
pub fn delta_net(trunk: &Trunk, device: &dyn Device, layer: usize, x: &[f32], pieces: &[usize]) -> Result<DeltaRun> {
    let (c, hidden) = (&trunk.config, trunk.config.hidden_size);
    let Some(Mixer::Delta(weights)) = trunk.layers.get(layer).map(|l| &l.mixer) else {
        return Err(ModelError::Batch(format!("layer {layer} has no DeltaNet")));
    };
    if pieces.contains(&0) || pieces.iter().sum::<usize>() * hidden != x.len() {
        return Err(ModelError::Batch(format!("{} values in pieces {pieces:?} of width {hidden}", x.len())));
    }
    let shape = CacheShape { pages: 1, page_len: CacheShape::PAGE_LEN, states: 1, kv_dtype: DType::F32 };
    let cache = Cache::new(device, c, shape)?;
    let state = cache.state(layer).expect("the layer is a DeltaNet");
    let mut scratch = Scratch::default();
    let mut run = DeltaRun { out: vec![], conv_state: vec![], recurrent_state: vec![], pieces: vec![] };
    let mut start = 0;
    for &rows in pieces {
        let decode = rows == 1 && start > 0;
        let spans = [Span { first_row: 0, rows, start, decode, table: 0, state: 0, snapshots: vec![] }];
        let mut taps = Taps::default();
        let input = &x[start * hidden..(start + rows) * hidden];
        run.out.extend(alone(trunk, device, layer, &mut scratch, &spans, input, &mut taps, |pass, s, step| {
            let s = s.delta.as_ref().expect("planned for this layer");
            delta::mix(pass, weights, s, state, layer, step);
        })?);
        run.pieces.push(taps);
        start += rows;
    }
    if let Some([conv, recurrent]) = cache.read_state(device, layer, 0)? {
        (run.conv_state, run.recurrent_state) = (conv, recurrent);
    }
    Ok(run)
}

/// Runs the MLP or mixture of experts of `layer` on `x`, `[tokens, hidden]` and normalised already; gives its
/// output before the residual add. A mixture taps `router_logits`, `router_weights`, `router_experts`,
/// `experts` (their sum), and with a shared expert `shared_expert` and `shared_gate` (before the sigmoid).
///
/// # Errors
/// [`ModelError::Batch`] where `x` does not fit; the device's.
pub fn feed_forward(
    trunk: &Trunk,
    device: &dyn Device,
    layer: usize,
    x: &[f32],
    taps: &mut dyn TapSink,
) -> Result<Vec<f32>> {
    let hidden = trunk.config.hidden_size;
    let Some(weights) = trunk.layers.get(layer).map(|l| &l.mlp).filter(|_| x.len().is_multiple_of(hidden)) else {
        return Err(ModelError::Batch(format!("layer {layer} on {} values of width {hidden}", x.len())));
    };
    let rows = x.len() / hidden;
    let spans = [Span { first_row: 0, rows, start: 0, decode: false, table: 0, state: 0, snapshots: vec![] }];
    alone(trunk, device, layer, &mut Scratch::default(), &spans, x, taps, |pass, s, step| {
        mlp::mlp(pass, weights, &s.mlp, layer, step);
    })
}

/// Records one block with `x` as the normalised rows and zeros as the residual.
#[allow(clippy::too_many_arguments, reason = "one helper of two probes")]
fn alone<'s>(
    trunk: &'s Trunk,
    device: &'s dyn Device,
    layer: usize,
    scratch: &'s mut Scratch,
    spans: &'s [Span],
    x: &[f32],
    taps: &mut dyn TapSink,
    record: impl FnOnce(&mut Pass<'s>, &LayerScratch<'s>, &Step<'s>),
) -> Result<Vec<f32>> {
    let rows = spans.iter().map(|s| s.rows).sum();
    let layout = Layout::plan(&trunk.config, trunk.rope.half(), rows, [1, 1], 0);
    let buffer = scratch.hold(device, "decoder scratch", layout.bytes)?;
    let step = Step {
        x: layout.x.of(buffer),
        normed: layout.normed.of(buffer),
        cos: layout.cos.of(buffer),
        sin: layout.sin.of(buffer),
        slots: layout.slots.of(buffer),
        pages: layout.pages.of(buffer),
        spans,
        prompt_rows: spans.iter().filter(|s| !s.decode).map(|s| s.rows).sum(),
        next: None,
    };
    device.write_f32(step.normed, x)?;
    let mut pass = Pass::new(device).keep_taps(true);
    pass.scope("block alone", layer);
    let out: View<'s> = step.x;
    pass.zero(Zero { out });
    record(&mut pass, &layout.layers(buffer, &trunk.config, layer), &step);
    pass.submit_to(Some(taps))?;
    Ok(device.read_f32(out)?)
}

/// Where a tower places patches: what [`VisionTower::encode`](crate::VisionTower::encode) looks up and turns by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PatchPositions {
    /// Rows of the position table, four a patch.
    pub index: Vec<i32>,
    /// Their weights.
    pub weights: Vec<f32>,
    /// Row and column of each patch.
    pub row_column: Vec<[usize; 2]>,
}

/// Positions of the patches of one image or video in a table of `side * side` rows.
pub fn patch_positions(side: usize, grid_thw: [usize; 3], merge: usize) -> PatchPositions {
    let [t, h, w] = grid_thw;
    let mut p = PatchPositions::default();
    for (r, c) in (0..t).flat_map(|_| vision_tower::merge_block_order(h, w, merge)) {
        vision_tower::interpolate(side, (r, h), (c, w), &mut p.index, &mut p.weights);
        p.row_column.push([r, c]);
    }
    p
}
