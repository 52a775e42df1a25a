//! Gated DeltaNet: convolution, gates and the delta rule (Yang et al., "Gated Delta Networks", 2024).

use super::check::{Checked, apart, dense, f32s, rank, require, weight};
use super::mix::{Span, spans_fit, states_fit};
use crate::View;

/// Depthwise causal convolution with SiLU: `out_t = silu(sum_j weight[c, j] x_{t - kernel + 1 + j})`.
///
/// What came before a span's first row is the state's columns, oldest first; they end as the last `kernel`
/// columns of `x` (before convolution). A span that begins a sequence finds zeros there.
#[derive(Clone, Copy, Debug)]
pub struct CausalConv<'a> {
    /// f32 `[rows, channels]`.
    pub x: View<'a>,
    /// `[channels, kernel]`, any float type.
    pub weight: View<'a>,
    /// f32 `[slots, channels, kernel]`, dense.
    pub state: View<'a>,
    /// Which rows belong to which sequence.
    pub spans: &'a [Span],
    /// f32 `[rows, channels]`.
    pub out: View<'a>,
}

impl CausalConv<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("x", &self.x, 2)?;
        rank("weight", &self.weight, 2)?;
        rank("state", &self.state, 3)?;
        let (rows, channels, kernel) = (self.x.dim(0), self.x.dim(1), self.weight.dim(1));
        f32s("x", &self.x, &[rows, channels])?;
        f32s("out", &self.out, &[rows, channels])?;
        apart("x", &self.x, "out", &self.out)?;
        weight("weight", &self.weight, &[channels, kernel])?;
        f32s("state", &self.state, &[self.state.dim(0), channels, kernel])?;
        dense("state", &self.state)?;
        spans_fit(self.spans, rows)?;
        states_fit(self.spans, self.state.dim(0))
    }
}

/// `beta = sigmoid(b)` and `g = -exp(A_log) * softplus(a + dt_bias)`.
#[derive(Clone, Copy, Debug)]
pub struct DeltaGates<'a> {
    /// f32 `[rows, heads]`.
    pub a: View<'a>,
    /// f32 `[rows, heads]`.
    pub b: View<'a>,
    /// `[heads]`, any float type: `A_log`, or `-exp(A_log)` where `is_rate`.
    pub a_log: View<'a>,
    /// Whether `a_log` holds the rate itself, as GGUF files do.
    pub is_rate: bool,
    /// `[heads]`, any float type.
    pub dt_bias: View<'a>,
    /// f32 `[rows, heads]`: the logarithm of the decay. May be `a`.
    pub g: View<'a>,
    /// f32 `[rows, heads]`: the write strength. May be `b`.
    pub beta: View<'a>,
}

impl DeltaGates<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("a", &self.a, 2)?;
        for (name, v) in [("a", &self.a), ("b", &self.b), ("g", &self.g), ("beta", &self.beta)] {
            f32s(name, v, self.a.dims())?;
        }
        weight("a_log", &self.a_log, &[self.a.dim(1)])?;
        weight("dt_bias", &self.dt_bias, &[self.a.dim(1)])
    }
}

/// The gated delta rule over the rows of each sequence, state in f32.
///
/// With `q = l2(q) / sqrt(K)`, `k = l2(k)`, `l2(x) = x / sqrt(sum x^2 + 1e-6)` and value head `i` reading key
/// head `i / (value_heads / key_heads)`, or `i % key_heads` where heads are tiled, per token
/// `S *= exp(g); d = (v - S^T k) beta; S += k d^T; out = S^T q`.
/// Rows of a prompt may be scanned in chunks; these start at indices that are multiples of 64.
#[derive(Clone, Copy, Debug)]
pub struct DeltaScan<'a> {
    /// f32 `[rows, key_heads, K]`.
    pub q: View<'a>,
    /// f32 `[rows, key_heads, K]`.
    pub k: View<'a>,
    /// f32 `[rows, value_heads, V]`.
    pub v: View<'a>,
    /// f32 `[rows, value_heads]`.
    pub g: View<'a>,
    /// f32 `[rows, value_heads]`.
    pub beta: View<'a>,
    /// f32 `[slots, value_heads, K, V]`, dense.
    pub state: View<'a>,
    /// Whether value heads that share a key head lie `key_heads` apart and not beside each other.
    pub tiled: bool,
    /// Which rows belong to which sequence.
    pub spans: &'a [Span],
    /// f32 `[rows, value_heads, V]`.
    pub out: View<'a>,
}

impl DeltaScan<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("q", &self.q, 3)?;
        rank("v", &self.v, 3)?;
        rank("state", &self.state, 4)?;
        let (rows, key_heads, k) = (self.q.dim(0), self.q.dim(1), self.q.dim(2));
        let (heads, v) = (self.v.dim(1), self.v.dim(2));
        require(key_heads > 0 && heads % key_heads == 0, || format!("{heads} value heads, {key_heads} key heads"))?;
        f32s("q", &self.q, &[rows, key_heads, k])?;
        f32s("k", &self.k, &[rows, key_heads, k])?;
        f32s("v", &self.v, &[rows, heads, v])?;
        f32s("g", &self.g, &[rows, heads])?;
        f32s("beta", &self.beta, &[rows, heads])?;
        f32s("out", &self.out, &[rows, heads, v])?;
        apart("v", &self.v, "out", &self.out)?;
        f32s("state", &self.state, &[self.state.dim(0), heads, k, v])?;
        dense("state", &self.state)?;
        spans_fit(self.spans, rows)?;
        states_fit(self.spans, self.state.dim(0))
    }
}
