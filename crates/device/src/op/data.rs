//! Moving rows, and the gates that touch each element once.

use super::check::{Checked, apart, dense, f32s, i32s, rank, require, sides};
use super::dense::{LinearWeight, scaled};
use crate::View;

/// `out[r] (+)= sum over taps t of weights[r, t] * table[index[r, t]]`.
///
/// Token embeddings, image rows, deepstack rows, position rows and the choice of rows for the head are all
/// this op. A row with a negative index (in its first tap) is left as it is; an index past the table is an
/// error of the caller, which validates ids when a prompt is built.
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// `[m, n]`, any float or block type, or codes with scales apart.
    pub table: LinearWeight<'a>,
    /// i32 `[rows]`, or `[rows, taps]` with weights.
    pub index: View<'a>,
    /// f32 `[rows, taps]`.
    pub weights: Option<View<'a>>,
    /// f32 `[rows, n]`.
    pub out: View<'a>,
    /// Add to `out` instead of replacing it.
    pub accumulate: bool,
}

impl Gather<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("out", &self.out, 2)?;
        let (rows, n) = (self.out.dim(0), self.out.dim(1));
        match &self.table {
            LinearWeight::View(table) => {
                rank("table", table, 2)?;
                super::check::rows("table", table, &[table.dim(0), n])?;
            }
            LinearWeight::Scaled(table) => {
                rank("table codes", &table.codes, 2)?;
                scaled("table", table, table.codes.dim(0), n)?;
            }
        }
        f32s("out", &self.out, &[rows, n])?;
        self.table.views().try_for_each(|v| apart("table", v, "out", &self.out))?;
        match &self.weights {
            None => i32s("index", &self.index, &[rows]),
            Some(w) => {
                rank("weights", w, 2)?;
                i32s("index", &self.index, &[rows, w.dim(1)])?;
                f32s("weights", w, &[rows, w.dim(1)])?;
                dense("weights", w)
            }
        }
    }
}

fn plain(name: &str, v: &View<'_>) -> Checked {
    require(!v.dtype().is_block(), || format!("{name} is {}, expected a plain type", v.dtype()))
}

/// `to = from`, converting between float types by rounding to nearest even.
#[derive(Clone, Copy, Debug)]
pub struct Copy<'a> {
    /// Any shape and plain type, innermost axis dense.
    pub from: View<'a>,
    /// The same sides.
    pub to: View<'a>,
}

impl Copy<'_> {
    pub(super) fn check(&self) -> Checked {
        plain("from", &self.from)?;
        sides("from", &self.from, self.from.dims())?;
        sides("to", &self.to, self.from.dims())?;
        apart("from", &self.from, "to", &self.to)?;
        let float = self.from.dtype().is_float() && self.to.dtype().is_float();
        require(float || self.from.dtype() == self.to.dtype(), || {
            format!("{} cannot become {}", self.from.dtype(), self.to.dtype())
        })
    }
}

/// `out = 0`.
#[derive(Clone, Copy, Debug)]
pub struct Zero<'a> {
    /// Dense, any plain type.
    pub out: View<'a>,
}

impl Zero<'_> {
    pub(super) fn check(&self) -> Checked {
        plain("out", &self.out)?;
        sides("out", &self.out, self.out.dims())?;
        dense("out", &self.out)
    }
}

/// `out = residual + x * sigmoid(gate)`.
///
/// The output gate of Qwen3.5 attention (`gate` as wide as `x`) and the gate of its shared expert (one value
/// a row). `out` may be `x` or `residual`.
#[derive(Clone, Copy, Debug)]
pub struct SigmoidGate<'a> {
    /// f32 `[rows, heads, n]`.
    pub x: View<'a>,
    /// f32 `[rows, heads, n]`, or `[rows, heads, 1]`.
    pub gate: View<'a>,
    /// f32 `[rows, heads, n]`.
    pub residual: Option<View<'a>>,
    /// f32 `[rows, heads, n]`.
    pub out: View<'a>,
}

impl SigmoidGate<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("x", &self.x, 3)?;
        rank("gate", &self.gate, 3)?;
        let want = [self.x.dim(0), self.x.dim(1), self.x.dim(2)];
        f32s("x", &self.x, &want)?;
        f32s("out", &self.out, &want)?;
        let gate_last = if self.gate.dim(2) == 1 { 1 } else { want[2] };
        f32s("gate", &self.gate, &[want[0], want[1], gate_last])?;
        self.residual.iter().try_for_each(|r| f32s("residual", r, &want))
    }
}
