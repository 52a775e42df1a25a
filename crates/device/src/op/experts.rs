//! Mixture of experts.

use std::fmt;

use super::check::{Checked, apart, f32s, i32s, rank, require};
use super::dense::{LinearWeight, WeightLayout, linear, prompt_rows};
use crate::{DeviceError, View};

/// `softmax` over all logits, the `k` largest, divided by their sum where `normalise` is set.
///
/// Ties go to the lower index.
#[derive(Clone, Copy)]
pub struct Router<'a> {
    /// f32 `[rows, experts]`, dense.
    pub logits: View<'a>,
    /// Divide the chosen by their sum: both families do.
    pub normalise: bool,
    /// i32 `[rows, k]`, by descending weight.
    pub ids: View<'a>,
    /// f32 `[rows, k]`.
    pub weights: View<'a>,
    /// Told the choice as soon as it is made, so that it can begin to read what it lacks while other ops run.
    pub source: Option<&'a dyn ExpertSource>,
}

impl fmt::Debug for Router<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router").field("logits", &self.logits).field("ids", &self.ids).finish()
    }
}

impl Router<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("logits", &self.logits, 2)?;
        rank("ids", &self.ids, 2)?;
        let (rows, k) = (self.logits.dim(0), self.ids.dim(1));
        f32s("logits", &self.logits, self.logits.dims())?;
        i32s("ids", &self.ids, &[rows, k])?;
        f32s("weights", &self.weights, &[rows, k])?;
        super::check::dense("weights", &self.weights)?;
        require(k >= 1 && k <= self.logits.dim(1), || format!("top {k} of {} experts", self.logits.dim(1)))
    }
}

/// One expert's weights, `down(silu(gate x) * up x)`.
#[derive(Clone, Copy, Debug)]
pub struct Expert<'a> {
    /// `[I, H]`, or `[H, I]` by `layout`; a block type, or scales apart, as `[I, H]` only.
    pub gate: LinearWeight<'a>,
    /// As `gate`.
    pub up: LinearWeight<'a>,
    /// `[H, I]`, or `[I, H]` by `layout`.
    pub down: LinearWeight<'a>,
    /// How all three are stored.
    pub layout: WeightLayout,
}

impl Expert<'_> {
    /// Whether the weights fit a hidden size and an expert width.
    pub fn check(&self, hidden: usize, width: usize) -> Result<(), String> {
        linear("gate", &self.gate, self.layout, width, hidden)?;
        linear("up", &self.up, self.layout, width, hidden)?;
        linear("down", &self.down, self.layout, hidden, width)
    }
}

/// What [`ExpertSource::with`] runs on each expert.
pub type UseExpert<'f> = dyn FnMut(usize, Expert<'_>) -> Result<(), DeviceError> + 'f;

/// What [`ExpertSource::as_ready`] runs on experts that are there together.
pub type UseExperts<'f> = dyn FnMut(&[(usize, Expert<'_>)]) -> Result<(), DeviceError> + 'f;

/// Where a layer's routed experts come from; asked once the router's choice is known.
pub trait ExpertSource: Send + Sync {
    /// Number of experts.
    fn experts(&self) -> usize;

    /// Says what a router has chosen: `ids` `[rows, per_row]`, by descending weight. [`with`](ExpertSource::with) is going
    /// to ask for these next.
    fn announce(&self, ids: &[i32], per_row: usize) {
        let _ = (ids, per_row);
    }

    /// All of them at once, where they lie together and stay: then no choice has to be told to the host.
    ///
    /// Each weight has an axis of experts before its own: `[E, n, k]`, or `[E, k, n]` by `layout`; codes, scales and
    /// biases that are apart have it too. The last two axes of an expert are as [`Expert`] has them; from one expert
    /// to the next there may be gaps.
    fn stacked(&self) -> Option<Expert<'_>> {
        None
    }

    /// Calls `each` with every expert of `wanted` (ascending, distinct), in that order. The weights are
    /// valid during the call only.
    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError>;

    /// As [`with`](ExpertSource::with), in whatever order they are there, and all at once that are: those that have to be
    /// read come last.
    fn as_ready(&self, wanted: &[usize], some: &mut UseExperts<'_>) -> Result<(), DeviceError> {
        self.with(wanted, &mut |e, expert| some(&[(e, expert)]))
    }
}

/// `out = residual + sum over a row's experts e, ascending, of weights[e] * expert_e(x)`.
#[derive(Clone, Copy)]
pub struct Experts<'a> {
    /// f32 `[rows, H]`.
    pub x: View<'a>,
    /// i32 `[rows, k]`, from [`Router`].
    pub ids: View<'a>,
    /// f32 `[rows, k]`, from [`Router`].
    pub weights: View<'a>,
    /// The layer's experts.
    pub source: &'a dyn ExpertSource,
    /// Width `I` of an expert.
    pub width: usize,
    /// f32 `[rows, H]`.
    pub residual: Option<View<'a>>,
    /// f32 `[rows, H]`. May be `residual`.
    pub out: View<'a>,
    /// Rows that belong to a prompt; they come first.
    pub prompt_rows: usize,
}

impl Experts<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("x", &self.x, 2)?;
        rank("ids", &self.ids, 2)?;
        let (rows, hidden, k) = (self.x.dim(0), self.x.dim(1), self.ids.dim(1));
        f32s("x", &self.x, &[rows, hidden])?;
        f32s("out", &self.out, &[rows, hidden])?;
        apart("x", &self.x, "out", &self.out)?;
        i32s("ids", &self.ids, &[rows, k])?;
        f32s("weights", &self.weights, &[rows, k])?;
        super::check::dense("weights", &self.weights)?;
        self.residual.iter().try_for_each(|r| f32s("residual", r, &[rows, hidden]))?;
        prompt_rows(self.prompt_rows, rows)
    }
}

impl fmt::Debug for Experts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Experts").field("x", &self.x).field("ids", &self.ids).field("width", &self.width).finish()
    }
}
