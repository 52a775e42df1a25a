//! Norms over the innermost axis.

use super::check::{Checked, f32s, weight};
use crate::View;

/// `out = x / sqrt(mean(x^2) + eps) * weight`, and with a gate `* silu(gate)`.
///
/// `out` may be `x`. With `[rows, heads, n]` each head is normalised on its own.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm<'a> {
    /// f32 `[rows, n]` or `[rows, heads, n]`.
    pub x: View<'a>,
    /// `[n]`, any float type.
    pub weight: View<'a>,
    /// Multiply by `1 + weight`: Qwen3.5's norms, but for the gated one.
    pub one_plus: bool,
    /// Added to the mean.
    pub eps: f32,
    /// f32, the sides of `x`.
    pub gate: Option<View<'a>>,
    /// f32, the sides of `x`.
    pub out: View<'a>,
}

impl RmsNorm<'_> {
    pub(super) fn check(&self) -> Checked {
        f32s("x", &self.x, self.x.dims())?;
        f32s("out", &self.out, self.x.dims())?;
        weight("weight", &self.weight, &[self.x.shape().last()])?;
        self.gate.iter().try_for_each(|g| f32s("gate", g, self.x.dims()))
    }
}

/// `out = (x - mean) / sqrt(var + eps) * weight + bias`, with the population variance. `out` may be `x`.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// f32 `[rows, n]`.
    pub x: View<'a>,
    /// `[n]`, any float type.
    pub weight: View<'a>,
    /// `[n]`, any float type.
    pub bias: View<'a>,
    /// Added to the variance.
    pub eps: f32,
    /// f32 `[rows, n]`.
    pub out: View<'a>,
}

impl LayerNorm<'_> {
    pub(super) fn check(&self) -> Checked {
        let n = self.x.shape().last();
        f32s("x", &self.x, self.x.dims())?;
        f32s("out", &self.out, self.x.dims())?;
        weight("weight", &self.weight, &[n])?;
        weight("bias", &self.bias, &[n])
    }
}
