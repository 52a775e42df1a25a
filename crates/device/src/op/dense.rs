//! Linear layers.

use std::ops::Range;

use turbospark_tensor::{AffineForm, DType};

use super::check::{Checked, apart, dense, f32s, rank, require, rows as weight_rows, sides, weight};
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

/// A linear weight or a table, in one tensor or in affine groups.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "copied a few times a recorded op, and never stored in numbers")]
pub enum LinearWeight<'a> {
    /// A float or block type.
    View(View<'a>),
    /// Codes, scales and biases.
    Affine(AffineWeight<'a>),
}

/// `[out, in]` weights in affine groups along `in`: `w = scale q + bias`.
#[derive(Clone, Copy, Debug)]
pub struct AffineWeight<'a> {
    /// u32 `[out, form.words(in)]`, dense; the first code in the low bits.
    pub codes: View<'a>,
    /// `[out, in / form.group()]`, dense, any float type.
    pub scales: View<'a>,
    /// As `scales`.
    pub biases: View<'a>,
    /// Bits of a code, elements of a group.
    pub form: AffineForm,
}

impl<'a> From<View<'a>> for LinearWeight<'a> {
    fn from(view: View<'a>) -> Self {
        LinearWeight::View(view)
    }
}

impl<'a> From<AffineWeight<'a>> for LinearWeight<'a> {
    fn from(weight: AffineWeight<'a>) -> Self {
        LinearWeight::Affine(weight)
    }
}

impl<'a> LinearWeight<'a> {
    /// Indices `range` of the outermost axis only.
    ///
    /// # Panics
    /// When the range leaves the axis.
    pub fn rows(self, range: Range<usize>) -> Self {
        match self {
            LinearWeight::View(v) => v.rows(range).into(),
            LinearWeight::Affine(w) => AffineWeight {
                codes: w.codes.rows(range.clone()),
                scales: w.scales.rows(range.clone()),
                biases: w.biases.rows(range),
                ..w
            }
            .into(),
        }
    }

    /// The tensors that it is made of.
    pub fn views(&self) -> impl Iterator<Item = &View<'a>> {
        match self {
            LinearWeight::View(v) => [Some(v), None, None],
            LinearWeight::Affine(w) => [Some(&w.codes), Some(&w.scales), Some(&w.biases)],
        }
        .into_iter()
        .flatten()
    }
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
    pub weight: LinearWeight<'a>,
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
    pub fn new(x: View<'a>, weight: impl Into<LinearWeight<'a>>, out: View<'a>) -> Self {
        Matmul {
            x,
            weight: weight.into(),
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

pub(super) fn linear(name: &str, w: &LinearWeight<'_>, layout: WeightLayout, n: usize, k: usize) -> Checked {
    let w = match w {
        LinearWeight::View(w) => w,
        LinearWeight::Affine(w) => {
            require(layout == WeightLayout::OutIn, || {
                format!("{name} is in affine groups in [in, out], expected [out, in]")
            })?;
            return affine(name, w, n, k);
        }
    };
    match layout {
        WeightLayout::OutIn => weight_rows(name, w, &[n, k]),
        WeightLayout::InOut => {
            // Half of a fused [k, 2n] tensor has gaps between its rows.
            require(!w.dtype().is_block(), || format!("{name} is {} in [in, out], expected [out, in]", w.dtype()))?;
            require(w.dtype().is_float(), || format!("{name} is {}, expected a float type", w.dtype()))?;
            sides(name, w, &[k, n])
        }
    }
}

pub(super) fn affine(name: &str, w: &AffineWeight<'_>, n: usize, k: usize) -> Checked {
    let (group, codes) = (w.form.group(), &w.codes);
    require(k.is_multiple_of(group), || format!("{name}: rows of {k} are no whole groups of {group}"))?;
    require(codes.dtype() == DType::U32, || format!("{name} codes are {}, expected U32", codes.dtype()))?;
    sides(&format!("{name} codes"), codes, &[n, w.form.words(k)])?;
    dense(&format!("{name} codes"), codes)?;
    weight(&format!("{name} scales"), &w.scales, &[n, k / group])?;
    weight(&format!("{name} biases"), &w.biases, &[n, k / group])?;
    let (scales, biases) = (w.scales.dtype(), w.biases.dtype());
    require(scales == biases, || format!("{name} scales are {scales}, its biases {biases}"))
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
    pub gate: LinearWeight<'a>,
    /// `U`, as `gate`.
    pub up: LinearWeight<'a>,
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
