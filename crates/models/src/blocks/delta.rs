//! The gated DeltaNet mixer of Qwen3.5.
//!
//! q, k, v = conv(in_proj_qkv x);  o = delta_rule(q, k, v, gates(a, b));  x += out_proj(norm(o) * silu(z))
//!
//! The norm here multiplies by its plain weight, unlike every other norm of this family.

use turbospark_device::op::{CausalConv, DeltaGates, DeltaScan, Matmul, RmsNorm};
use turbospark_device::{Pass, View};

use crate::config::DeltaConfig;
use crate::trunk::Step;
use crate::weight::{Matrix, Weight};

#[derive(Clone, Debug)]
pub(crate) struct DeltaWeights {
    pub in_proj_qkv: Matrix,
    pub in_proj_z: Matrix,
    pub in_proj_b: Matrix,
    pub in_proj_a: Matrix,
    /// `[channels, kernel]`.
    pub conv: Weight,
    /// `A_log`, or `-exp(A_log)` where `is_rate`.
    pub a_log: Weight,
    pub is_rate: bool,
    pub dt_bias: Weight,
    pub norm: Weight,
    pub out_proj: Matrix,
    /// Whether value heads that share a key head lie as far apart as there are key heads.
    pub tiled: bool,
    pub eps: f32,
    pub config: DeltaConfig,
}

#[derive(Clone, Copy)]
pub(crate) struct DeltaScratch<'a> {
    /// `[rows, channels]`: before the convolution.
    pub u: View<'a>,
    /// `[rows, channels]`: after it.
    pub y: View<'a>,
    /// `[rows, value_heads * value_dim]`.
    pub z: View<'a>,
    pub out: View<'a>,
    /// `[rows, value_heads]`.
    pub a: View<'a>,
    pub b: View<'a>,
}

/// The layer's part of the cache.
#[derive(Clone, Copy)]
pub(crate) struct LayerState<'a> {
    /// `[slots, channels, kernel]`.
    pub conv: View<'a>,
    /// `[slots, value_heads, K, V]`.
    pub delta: View<'a>,
}

/// Adds the mixer's output for `normed` to `x`.
pub(crate) fn mix<'a>(
    pass: &mut Pass<'a>,
    w: &'a DeltaWeights,
    s: &DeltaScratch<'a>,
    state: LayerState<'a>,
    layer: usize,
    step: &Step<'a>,
) {
    let (x, prompt_rows) = (step.x, step.prompt_rows);
    for (weight, out) in [(&w.in_proj_qkv, s.u), (&w.in_proj_z, s.z), (&w.in_proj_b, s.b), (&w.in_proj_a, s.a)] {
        pass.matmul(Matmul { prompt_rows, ..Matmul::new(step.normed, weight.view(), out) });
    }
    pass.causal_conv(CausalConv { x: s.u, weight: w.conv.view(), state: state.conv, spans: step.spans, out: s.y });
    pass.tap("delta_conv", layer, s.y);
    pass.delta_gates(DeltaGates {
        a: s.a,
        b: s.b,
        a_log: w.a_log.view(),
        is_rate: w.is_rate,
        dt_bias: w.dt_bias.view(),
        g: s.a,
        beta: s.b,
    });
    for (name, view) in [("delta_z", s.z), ("delta_g", s.a), ("delta_beta", s.b)] {
        pass.tap(name, layer, view);
    }
    let c = &w.config;
    let keys = c.num_key_heads * c.key_head_dim;
    let part = |r, d| s.y.narrow(1, r).split_last(d);
    let out = s.out.split_last(c.value_head_dim);
    pass.delta_scan(DeltaScan {
        q: part(0..keys, c.key_head_dim),
        k: part(keys..2 * keys, c.key_head_dim),
        v: part(2 * keys..s.y.dim(1), c.value_head_dim),
        g: s.a,
        beta: s.b,
        state: state.delta,
        tiled: w.tiled,
        spans: step.spans,
        out,
    });
    let gate = Some(s.z.split_last(c.value_head_dim));
    pass.tap("delta_core", layer, s.out);
    pass.rms_norm(RmsNorm { x: out, weight: w.norm.view(), one_plus: false, eps: w.eps, gate, out });
    pass.matmul(Matmul { residual: Some(x), prompt_rows, ..Matmul::new(s.out, w.out_proj.view(), x) });
}
