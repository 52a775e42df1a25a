//! Linear layers.

use std::ops::Range;

use turbospark_tensor::{DType, ScaledForm};

use super::check::{Checked, apart, dense, f32s, i32s, rank, require, rows as weight_rows, sides, weight};
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

/// A linear weight or a table, in one tensor or as codes and scales apart.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant, reason = "copied a few times a recorded op, and never stored in numbers")]
pub enum LinearWeight<'a> {
    /// A float or block type.
    View(View<'a>),
    /// Codes, scales and perhaps biases.
    Scaled(ScaledWeight<'a>),
}

/// `[out, in]` weights whose scales lie in a tensor of their own: `w = value(code) scale + bias`.
#[derive(Clone, Copy, Debug)]
pub struct ScaledWeight<'a> {
    /// `[out, bytes]`, dense, of any integer type of one or four bytes, or F8_E4M3: `form.bytes(in)` in whole elements.
    /// Whatever the type, it holds bytes.
    pub codes: View<'a>,
    /// `form.grid(out, in)`, dense: a float type, F8_E8M0 or F8_E4M3.
    pub scales: View<'a>,
    /// As `scales`, of a float type.
    pub biases: Option<View<'a>>,
    /// I32 `[in]`, dense, each input once: column `j` of the codes belongs to input `order[j]`. Only for a device that
    /// [takes it](crate::Device::takes_order).
    pub order: Option<View<'a>>,
    /// What a code stands for, and how many elements share a scale.
    pub form: ScaledForm,
}

impl<'a> ScaledWeight<'a> {
    /// Outputs `range` only.
    ///
    /// # Panics
    /// When the range leaves the axis, or begins among outputs that share a scale with others, unless all do.
    pub fn rows(self, range: Range<usize>) -> Self {
        let shared = self.form.rows();
        let of = |v: View<'a>| {
            if range.is_empty() || v.dim(0) == 1 {
                return v.rows(0..1.min(range.len()));
            }
            assert!(range.start.is_multiple_of(shared), "{range:?} starts among {shared} outputs that share a scale");
            v.rows(range.start / shared..range.end.div_ceil(shared))
        };
        let (scales, biases) = (of(self.scales), self.biases.map(of));
        ScaledWeight { codes: self.codes.rows(range), scales, biases, ..self }
    }
}

impl<'a> From<View<'a>> for LinearWeight<'a> {
    fn from(view: View<'a>) -> Self {
        LinearWeight::View(view)
    }
}

impl<'a> From<ScaledWeight<'a>> for LinearWeight<'a> {
    fn from(weight: ScaledWeight<'a>) -> Self {
        LinearWeight::Scaled(weight)
    }
}

impl<'a> LinearWeight<'a> {
    /// Indices `range` of the outermost axis only.
    ///
    /// # Panics
    /// When the range leaves the axis, or as [`ScaledWeight::rows`].
    pub fn rows(self, range: Range<usize>) -> Self {
        match self {
            LinearWeight::View(v) => v.rows(range).into(),
            LinearWeight::Scaled(w) => w.rows(range).into(),
        }
    }

    /// The tensors that it is made of.
    pub fn views(&self) -> impl Iterator<Item = &View<'a>> {
        match self {
            LinearWeight::View(v) => [Some(v), None, None, None],
            LinearWeight::Scaled(w) => [Some(&w.codes), Some(&w.scales), w.biases.as_ref(), w.order.as_ref()],
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
    /// `[n, k]`, or `[k, n]` by `layout`; a block type, or scales apart, as `[n, k]` only.
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
        LinearWeight::Scaled(w) => {
            require(layout == WeightLayout::OutIn, || {
                format!("{name} has scales of its own in [in, out], expected [out, in]")
            })?;
            return scaled(name, w, n, k);
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

pub(super) fn scaled(name: &str, w: &ScaledWeight<'_>, n: usize, k: usize) -> Checked {
    let (form, codes, scales) = (w.form, &w.codes, &w.scales);
    let bytes = matches!(codes.dtype(), DType::U32 | DType::I32 | DType::U8 | DType::I8 | DType::F8_E4M3);
    require(bytes, || format!("{name} codes are {}, expected U32, I32, U8, I8 or F8_E4M3", codes.dtype()))?;
    let codes_name = format!("{name} codes");
    sides(&codes_name, codes, &[n, form.bytes(k).div_ceil(codes.dtype().size())])?;
    dense(&codes_name, codes)?;
    let known = ScaledForm::takes(scales.dtype());
    require(known, || format!("{name} scales are {}, expected a float type, F8_E8M0 or F8_E4M3", scales.dtype()))?;
    let (scales_name, grid) = (format!("{name} scales"), form.grid(n, k));
    sides(&scales_name, scales, &grid)?;
    dense(&scales_name, scales)?;
    if let Some(order) = &w.order {
        i32s(&format!("{name} order"), order, &[k])?;
    }
    let Some(biases) = &w.biases else { return Ok(()) };
    weight(&format!("{name} biases"), biases, &grid)?;
    let (scales, biases) = (scales.dtype(), biases.dtype());
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
    /// `G`: `[n, k]`, or `[k, n]` by `layout`; a block type, or scales apart, as `[n, k]` only.
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
