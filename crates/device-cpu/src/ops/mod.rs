//! The ops: each resolves and checks its views, splits its work, and runs a task on the pool.

mod attention;
mod blocks;
mod codes;
mod conv;
mod data;
mod delta;
mod delta_chunk;
mod dot;
mod experts;
mod finish;
mod gates;
mod heads;
mod matmul;
mod matrix;
mod norm;
mod order;
mod outputs;
mod paged;
mod row;
mod row_blocks;
mod row_columns;
mod row_e4m3;
mod row_e4m3_wide;
mod row_exact;
mod row_products;
mod softmax;
mod weighed;

use std::sync::Arc;

use turbospark_device::{DeviceError, Op, Span};

use crate::isa::Kernels;
use crate::memory::{Access, Tensor, refused};
use crate::pool::Pool;
use crate::scratch::Scratch;

type Done = Result<(), DeviceError>;

/// What ops run with.
pub(crate) struct Engine {
    pub kernels: Kernels,
    /// Matrix products in f32 only.
    pub exact: bool,
    pub pool: Pool,
    /// Activations packed for the tile kernels; shared by the threads of a region.
    pub packed: Scratch,
    /// The rows that lie packed there whole, as long as nothing can have changed them.
    pub kept: Option<RowsPlace>,
    /// Whether the op at work may use and leave such.
    pub keeps: bool,
    /// Partial results that a second region puts together.
    pub partial: Scratch,
    /// Activations in the order of a weight's columns.
    pub ordered: Scratch,
    /// What ops took, while they are timed.
    pub times: Option<turbospark_device::OpTimes>,
    pub owner: usize,
    pub name: Arc<str>,
}

impl Engine {
    fn access<'a>(&self) -> Access<'a> {
        Access::new(self.owner, Arc::clone(&self.name))
    }

    /// Runs `f` on ranges that together are `0..items`, in parallel where an item of `cost` elementary steps
    /// makes that worth while.
    fn split(&self, items: usize, cost: usize, f: impl Fn(std::ops::Range<usize>) + Sync) {
        let worth = (items * cost.max(1)).div_ceil(SMALL);
        let parts = items.min(worth).min(4 * self.pool.threads());
        self.pool.run(parts, |part| f(share(items, parts, part)));
    }
}

/// Elementary steps (an element read, a few operations) below which a second thread doesn't pay.
const SMALL: usize = 1 << 14;

/// The `part`th of `parts` nearly equal ranges of `0..items`.
fn share(items: usize, parts: usize, part: usize) -> std::ops::Range<usize> {
    items * part / parts..items * (part + 1) / parts
}

/// Refuses spans that share a row: their parts would write the same outputs at once.
fn apart(spans: &[Span]) -> Done {
    for (i, a) in spans.iter().enumerate() {
        for b in &spans[i + 1..] {
            if a.rows > 0 && b.rows > 0 && a.first_row < b.first_row + b.rows && b.first_row < a.first_row + a.rows {
                return Err(refused(format!("two sequences share rows from {} on", a.first_row.max(b.first_row))));
            }
        }
    }
    Ok(())
}

/// An address that threads may share. What it points to is split between them.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: an address; every use says who else touches what is there.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        Shared(slice.as_mut_ptr())
    }

    /// The element `i` after the first; may lie anywhere.
    pub(crate) fn at(self, i: usize) -> *mut T {
        self.0.wrapping_add(i)
    }
}

/// Rows of f32: evenly spaced, or picked from such by index.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    base: *mut f32,
    stride: usize,
    index: Option<&'a [u32]>,
}

// SAFETY: addresses; see `Shared`.
unsafe impl Send for Rows<'_> {}
// SAFETY: as above.
unsafe impl Sync for Rows<'_> {}

/// Evenly spaced rows: address, distance, number and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowsPlace([usize; 4]);

impl<'a> Rows<'a> {
    /// The rows of an f32 tensor of rank 2, from row `first` on.
    pub(crate) fn of(t: &Tensor, first: usize) -> Rows<'a> {
        Rows { base: t.row(first), stride: t.stride(0), index: None }
    }

    /// Rows in scratch.
    pub(crate) fn dense(base: *mut f32, stride: usize) -> Rows<'a> {
        Rows { base, stride, index: None }
    }

    /// Only the rows listed, in that order.
    pub(crate) fn pick(self, index: &'a [u32]) -> Rows<'a> {
        Rows { index: Some(index), ..self }
    }

    /// Where `rows` rows of `n` elements lie, unless they are picked.
    pub(crate) fn place(&self, rows: usize, n: usize) -> Option<RowsPlace> {
        self.index.is_none().then(|| RowsPlace([self.base.addr(), self.stride, rows, n]))
    }

    /// Start of row `i`.
    #[inline(always)]
    pub(crate) fn row(&self, i: usize) -> *mut f32 {
        let i = self.index.map_or(i, |index| index[i] as usize);
        self.base.wrapping_add(i * self.stride)
    }
}

/// Runs one op.
pub(crate) fn run(engine: &mut Engine, op: &Op<'_>) -> Done {
    if !matches!(op, Op::Matmul(_) | Op::GatedMatmul(_)) {
        engine.kept = None;
    }
    engine.keeps = false;
    match op {
        Op::Gather(op) => data::gather(engine, op),
        Op::Copy(op) => data::copy(engine, op),
        Op::Zero(op) => data::zero(engine, op),
        Op::StoreKv(op) => data::store_kv(engine, op),
        Op::Matmul(op) => matmul::matmul(engine, op),
        Op::GatedMatmul(op) => matmul::gated_matmul(engine, op),
        Op::RmsNorm(op) => norm::rms_norm(engine, op),
        Op::LayerNorm(op) => norm::layer_norm(engine, op),
        Op::SigmoidGate(op) => gates::sigmoid_gate(engine, op),
        Op::Rope(op) => gates::rope(engine, op),
        Op::DeltaGates(op) => gates::delta_gates(engine, op),
        Op::Attention(op) => attention::attention(engine, op),
        Op::PagedAttention(op) => paged::paged_attention(engine, op),
        Op::CausalConv(op) => conv::causal_conv(engine, op),
        Op::DeltaScan(op) => delta::delta_scan(engine, op),
        Op::Router(op) => experts::router(engine, op),
        Op::Experts(op) => experts::experts(engine, op),
        Op::Acquire(op) => op.source.acquire(op.unit),
        Op::Release(op) => {
            op.source.release(op.unit);
            Ok(())
        }
    }
}
