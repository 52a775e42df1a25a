//! The second half of a decoder layer: a SwiGLU MLP, or a mixture of them.
//!
//! x += down(silu(gate x) * up x)
//! x += sum over the top k experts e of p_e * expert_e(x)  [+ sigmoid(shared_gate x) * shared(x)]

use std::ops::Range;

use turbospark_device::op::{Experts, GatedMatmul, Matmul, Router, SigmoidGate, UseExpert, UseExperts};
use turbospark_device::{DeviceError, Expert, ExpertSource, LinearWeight, Pass, ScaledWeight, View, WeightLayout};
use turbospark_tensor::mutant::{Mutant, active};

use crate::stream::{PooledExperts, Seen};
use crate::trunk::{Layer, Step};
use crate::weight::Matrix;

#[derive(Clone, Debug)]
pub(crate) struct DenseWeights {
    /// `[intermediate, hidden]`.
    pub gate: Matrix,
    pub up: Matrix,
    /// `[hidden, intermediate]`.
    pub down: Matrix,
}

#[derive(Debug)]
pub(crate) struct MoeWeights {
    /// `[experts, hidden]`.
    pub router: Matrix,
    pub experts: Routed,
    pub width: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub norm_topk_prob: bool,
    /// The shared expert and its gate, `[1, hidden]`.
    pub shared: Option<(DenseWeights, Matrix)>,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer, and never moved")]
pub(crate) enum Mlp {
    Dense(DenseWeights),
    Moe(MoeWeights),
}

#[derive(Clone, Copy)]
pub(crate) struct MlpScratch<'a> {
    /// `[rows, intermediate]` of the dense MLP or the shared expert.
    pub inner: View<'a>,
    /// `[rows, experts]`, `[rows, k]`, `[rows, k]`, `[rows, 1]`, `[rows, hidden]`; a mixture only.
    pub routed: Option<RoutedScratch<'a>>,
}

#[derive(Clone, Copy)]
pub(crate) struct RoutedScratch<'a> {
    pub logits: View<'a>,
    pub ids: View<'a>,
    pub weights: View<'a>,
    pub shared_gate: View<'a>,
    pub shared: View<'a>,
}

/// Puts the router of the next layer to what is there now, so that experts which aren't in memory are read early: to what
/// this layer's mixer left, and to what all of it did.
pub(crate) fn guess<'a>(pass: &mut Pass<'a>, next: Option<&'a Layer>, seen: Seen, s: &MlpScratch<'a>, step: &Step<'a>) {
    let Some(next) = next else { return };
    let (Mlp::Moe(w), Some(r)) = (&next.mlp, &s.routed) else { return };
    let Some(guesses) = w.experts.guesses(seen) else { return };
    next.post_attention_norm.apply(pass, step.x, step.normed);
    pass.matmul(Matmul { prompt_rows: step.prompt_rows, ..Matmul::new(step.normed, w.router.view(), r.logits) });
    pass.router(Router { logits: r.logits, normalise: false, ids: r.ids, weights: r.weights, source: Some(guesses) });
}

/// Adds the output for `normed` to `x`.
pub(crate) fn mlp<'a>(pass: &mut Pass<'a>, w: &'a Mlp, s: &MlpScratch<'a>, layer: usize, step: &Step<'a>) {
    let (x, prompt_rows) = (step.x, step.prompt_rows);
    match w {
        Mlp::Dense(w) => dense(pass, w, s.inner, Some(x), x, step),
        Mlp::Moe(w) => {
            let r = s.routed.expect("planned for a mixture");
            pass.matmul(Matmul { prompt_rows, ..Matmul::new(step.normed, w.router.view(), r.logits) });
            let normalise = w.norm_topk_prob && !active(Mutant::TopKNotNormalised);
            let source = w.experts.source();
            pass.router(Router { logits: r.logits, normalise, ids: r.ids, weights: r.weights, source: Some(source) });
            pass.tap("router_logits", layer, r.logits);
            pass.tap("router_weights", layer, r.weights);
            pass.tap("router_experts", layer, r.ids);
            let ungated = active(Mutant::SharedExpertUngated);
            // Before the routed ones, though it is added after them: experts are read meanwhile.
            if let Some((shared, gate)) = w.shared.as_ref().filter(|_| !ungated) {
                pass.matmul(Matmul { prompt_rows, ..Matmul::new(step.normed, gate.view(), r.shared_gate) });
                dense(pass, shared, s.inner, None, r.shared, step);
                pass.tap("shared_gate", layer, r.shared_gate);
                pass.tap("shared_expert", layer, r.shared);
            }
            pass.experts(Experts {
                x: step.normed,
                ids: r.ids,
                weights: r.weights,
                source,
                width: w.width,
                residual: Some(x),
                out: x,
                prompt_rows,
            });
            pass.tap("experts", layer, x);
            if let Some((shared, _)) = &w.shared {
                if ungated {
                    return dense(pass, shared, s.inner, Some(x), x, step);
                }
                let (out, gate) = (x.split_last(x.dim(1)), r.shared_gate.split_last(1));
                let x = r.shared.split_last(r.shared.dim(1)); // [rows, 1, hidden]
                pass.sigmoid_gate(SigmoidGate { x, gate, residual: Some(out), out });
            }
        }
    }
}

fn dense<'a>(
    pass: &mut Pass<'a>,
    w: &'a DenseWeights,
    inner: View<'a>,
    residual: Option<View<'a>>,
    out: View<'a>,
    step: &Step<'a>,
) {
    let prompt_rows = step.prompt_rows;
    let (gate, up) = if active(Mutant::GateUpExchanged) { (&w.up, &w.gate) } else { (&w.gate, &w.up) };
    pass.gated_matmul(GatedMatmul {
        x: step.normed,
        gate: gate.view(),
        up: up.view(),
        layout: WeightLayout::OutIn,
        out: inner,
        prompt_rows,
    });
    pass.matmul(Matmul { residual, prompt_rows, ..Matmul::new(inner, w.down.view(), out) });
}

/// Where a layer's experts are.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer, and never moved")]
pub(crate) enum Routed {
    /// In memory.
    Resident(ResidentExperts),
    /// On the disk and, some of them, in a pool.
    Pooled(PooledExperts),
    /// In no pool yet: while a model is loaded.
    Awaited,
}

impl Routed {
    fn guesses(&self, seen: Seen) -> Option<&dyn ExpertSource> {
        let Routed::Pooled(experts) = self else { return None };
        Some(experts.guesses(seen)?)
    }

    fn source(&self) -> &dyn ExpertSource {
        match self {
            Routed::Resident(experts) => experts,
            Routed::Pooled(experts) => experts,
            Routed::Awaited => unreachable!("a loaded model's experts are somewhere"),
        }
    }
}

/// A layer's experts, all in memory, in the layout the checkpoint has.
#[derive(Debug)]
pub(crate) enum ResidentExperts {
    /// `gate_up [E, 2I, H]` and `down [E, H, I]`, or both transposed.
    Fused { gate_up: Matrix, down: Matrix, layout: WeightLayout },
    /// `gate` and `up` `[E, I, H]`, `down [E, H, I]`.
    Stacked { gate: Matrix, up: Matrix, down: Matrix },
    /// One MLP an expert.
    Split(Vec<DenseWeights>),
}

impl ResidentExperts {
    fn expert(&self, e: usize) -> Expert<'_> {
        let swapped = active(Mutant::GateUpExchanged);
        let (gate, up, down, layout) = match self {
            ResidentExperts::Split(all) => {
                let w = &all[e];
                (w.gate.view(), w.up.view(), w.down.view(), WeightLayout::OutIn)
            }
            ResidentExperts::Stacked { gate, up, down } => (gate.of(e), up.of(e), down.of(e), WeightLayout::OutIn),
            ResidentExperts::Fused { gate_up, down, layout } => {
                let (gate, up) = match (gate_up.of(e), layout) {
                    (LinearWeight::View(both), WeightLayout::InOut) => {
                        let width = both.dim(1) / 2;
                        (both.narrow(1, 0..width).into(), both.narrow(1, width..2 * width).into())
                    }
                    (both, _) => {
                        let width = gate_up.shape().dims()[1] / 2;
                        (both.rows(0..width), both.rows(width..2 * width))
                    }
                };
                (gate, up, down.of(e), *layout)
            }
        };
        let (gate, up) = if swapped { (up, gate) } else { (gate, up) };
        Expert { gate, up, down, layout }
    }
}

impl ExpertSource for ResidentExperts {
    fn experts(&self) -> usize {
        match self {
            ResidentExperts::Fused { down, .. } | ResidentExperts::Stacked { down, .. } => down.shape().dims()[0],
            ResidentExperts::Split(all) => all.len(),
        }
    }

    fn stacked(&self) -> Option<Expert<'_>> {
        let swapped = active(Mutant::GateUpExchanged);
        let (gate, up, down, layout) = match self {
            ResidentExperts::Split(_) => return None,
            ResidentExperts::Stacked { gate, up, down } => (gate.view(), up.view(), down.view(), WeightLayout::OutIn),
            ResidentExperts::Fused { gate_up, down, layout } => {
                let axis = if *layout == WeightLayout::InOut { 2 } else { 1 };
                let width = gate_up.shape().dims()[axis] / 2;
                let [gate, up] = [0..width, width..2 * width].map(|part| narrowed(gate_up.view(), axis, part));
                (gate?, up?, down.view(), *layout)
            }
        };
        let (gate, up) = if swapped { (up, gate) } else { (gate, up) };
        Some(Expert { gate, up, down, layout })
    }

    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        wanted.iter().try_for_each(|&e| each(e, self.expert(e)))
    }

    fn as_ready(&self, wanted: &[usize], some: &mut UseExperts<'_>) -> Result<(), DeviceError> {
        some(&wanted.iter().map(|&e| (e, self.expert(e))).collect::<Vec<_>>())
    }
}

/// Outputs `part` of every expert; `None` where some of them share a scale across the border.
fn narrowed(weight: LinearWeight<'_>, axis: usize, part: Range<usize>) -> Option<LinearWeight<'_>> {
    let w = match weight {
        LinearWeight::View(v) => return Some(v.narrow(axis, part).into()),
        LinearWeight::Scaled(w) => w,
    };
    let shared = w.form.rows();
    if !part.start.is_multiple_of(shared) || !part.end.is_multiple_of(shared) {
        return None;
    }
    let grid = part.start / shared..part.end / shared;
    let (scales, biases) = (w.scales.narrow(axis, grid.clone()), w.biases.map(|b| b.narrow(axis, grid)));
    Some(ScaledWeight { codes: w.codes.narrow(axis, part), scales, biases, form: w.form, order: w.order }.into())
}
