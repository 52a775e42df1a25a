//! Linear layers.

use super::check::{Checked, apart, f32s, rank, require, rows as weight_rows, weight};
use crate::View;

/// How a linear weight is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[out, in]`, as nearly all are.
    #[default]
    OutIn,
    /// `[in, out]`, as the published fused experts of Qwen3-VL MoE are.
    InOut,
}

/// What is applied to each output of a linear layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `0.5 x (1 + erf(x / sqrt 2))`.
    GeluErf,
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// `out = residual + activation(x W^T + bias)`.
///
/// Rows before `prompt_rows` take the device's matrix kernels, the others its row kernels, so that a row's
/// bits depend on what it is and not on what is beside it. `out` may be `residual`.
#[derive(Clone, Copy, Debug)]
pub struct Matmul<'a> {
    /// f32 `[rows, k]`.
    pub x: View<'a>,
    /// `[n, k]`, or `[k, n]` by `layout`; a block type as `[n, k]` only.
    pub weight: View<'a>,
    /// How the weight is stored.
    pub layout: WeightLayout,
    /// `[n]`, any float type.
    pub bias: Option<View<'a>>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// f32 `[rows, n]`, added last.
    pub residual: Option<View<'a>>,
    /// f32 `[rows, n]`.
    pub out: View<'a>,
    /// Rows that belong to a prompt; they come first.
    pub prompt_rows: usize,
}

impl<'a> Matmul<'a> {
    /// `out = x W^T` for rows of a prompt; the other fields are set by struct update.
    pub fn new(x: View<'a>, weight: View<'a>, out: View<'a>) -> Self {
        Matmul {
            x,
            weight,
            layout: WeightLayout::OutIn,
            bias: None,
            activation: None,
            residual: None,
            out,
            prompt_rows: if x.shape().rank() == 2 { x.dim(0) } else { 0 },
        }
    }

    pub(super) fn check(&self) -> Checked {
        rank("x", &self.x, 2)?;
        rank("out", &self.out, 2)?;
        let (rows, k, n) = (self.x.dim(0), self.x.dim(1), self.out.dim(1));
        f32s("x", &self.x, &[rows, k])?;
        linear("weight", &self.weight, self.layout, n, k)?;
        f32s("out", &self.out, &[rows, n])?;
        apart("x", &self.x, "out", &self.out)?;
        self.bias.iter().try_for_each(|b| weight("bias", b, &[n]))?;
        self.residual.iter().try_for_each(|r| f32s("residual", r, &[rows, n]))?;
        prompt_rows(self.prompt_rows, rows)
    }
}

pub(super) fn linear(name: &str, w: &View<'_>, layout: WeightLayout, n: usize, k: usize) -> Checked {
    match layout {
        WeightLayout::OutIn => weight_rows(name, w, &[n, k]),
        WeightLayout::InOut => {
            // Half of a fused [k, 2n] tensor has gaps between its rows.
            require(!w.dtype().is_block(), || format!("{name} is {} in [in, out], expected [out, in]", w.dtype()))?;
            require(w.dtype().is_float(), || format!("{name} is {}, expected a float type", w.dtype()))?;
            super::check::sides(name, w, &[k, n])
        }
    }
}

pub(super) fn prompt_rows(prompt: usize, rows: usize) -> Checked {
    require(prompt <= rows, || format!("{prompt} prompt rows among {rows} rows"))
}

/// `out = silu(x G^T) * (x U^T)`: the first half of a SwiGLU MLP.
#[derive(Clone, Copy, Debug)]
pub struct GatedMatmul<'a> {
    /// f32 `[rows, k]`.
    pub x: View<'a>,
    /// `G`: `[n, k]`, or `[k, n]` by `layout`; a block type as `[n, k]` only.
    pub gate: View<'a>,
    /// `U`, as `gate`.
    pub up: View<'a>,
    /// How both weights are stored.
    pub layout: WeightLayout,
    /// f32 `[rows, n]`.
    pub out: View<'a>,
    /// Rows that belong to a prompt; they come first.
    pub prompt_rows: usize,
}

impl GatedMatmul<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("x", &self.x, 2)?;
        rank("out", &self.out, 2)?;
        let (rows, k, n) = (self.x.dim(0), self.x.dim(1), self.out.dim(1));
        f32s("x", &self.x, &[rows, k])?;
        linear("gate", &self.gate, self.layout, n, k)?;
        linear("up", &self.up, self.layout, n, k)?;
        f32s("out", &self.out, &[rows, n])?;
        apart("x", &self.x, "out", &self.out)?;
        prompt_rows(self.prompt_rows, rows)
    }
}
