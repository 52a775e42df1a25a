//! Which kernel takes a linear layer, by the kind of its rows and the form of its weights.

use turbospark_device::op::WeightLayout;

use super::finish::{Job, Linear};
use super::{Engine, Rows, matrix, order, row, row_blocks, row_e4m3, row_e4m3_wide, row_exact};
use crate::simd::stored::Weight;

/// Which kernel takes the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows of a prompt.
    Matrix,
    /// Rows being decoded.
    Row,
}

/// The kernels of rows that are being decoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kernel {
    /// Of weights whose columns are in an order of their own.
    Ordered,
    Plain,
    E4m3Wide,
    E4m3,
    Blocks,
    Exact,
}

impl Kernel {
    fn of(engine: &Engine, linear: &Linear<'_>) -> Self {
        let all = |takes: &dyn Fn(&Weight) -> bool| takes(&linear.weight) && linear.gate.as_ref().is_none_or(takes);
        match () {
            () if !all(&|w| w.order().is_none()) => Kernel::Ordered,
            () if all(&|w| !w.is_quantised()) => Kernel::Plain,
            () if all(&|w| row_e4m3_wide::takes(engine.kernels, w, linear.k)) => Kernel::E4m3Wide,
            () if all(&|w| row_e4m3::takes(w)) => Kernel::E4m3,
            () if !engine.exact && all(&|w| row_blocks::takes(engine.kernels, w)) => Kernel::Blocks,
            () => Kernel::Exact,
        }
    }
}

/// All of `jobs`, none of which reads what another writes: together where one kernel takes them, so that threads meet
/// once, and each reads long streams.
///
/// # Safety
/// As for [`matrix`](matrix::matrix), for each of them.
pub(super) unsafe fn rows(engine: &mut Engine, jobs: &[Job<'_>]) {
    let all = |kernel| jobs.iter().all(|job| Kernel::of(engine, &job.linear) == kernel);
    let lies = |w: &Weight| w.layout == WeightLayout::OutIn;
    let lie = || jobs.iter().all(|job| lies(&job.linear.weight) && job.linear.gate.as_ref().is_none_or(lies));
    // SAFETY: the caller's promise.
    unsafe {
        if all(Kernel::Plain) && lie() {
            row::rows(engine, jobs);
        } else if all(Kernel::Blocks) {
            row_blocks::rows(engine, jobs);
        } else {
            jobs.iter().for_each(|job| linear(engine, Kind::Row, job.x, job.rows, &job.linear));
        }
    }
}

/// `Linear` on `rows` rows of `x`, by the kernel of their kind.
///
/// # Safety
/// As for [`matrix`](matrix::matrix).
pub(super) unsafe fn linear(engine: &mut Engine, kind: Kind, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    if rows == 0 || linear.n == 0 {
        return;
    }
    let kernel = Kernel::of(engine, linear);
    // SAFETY: the caller's promise.
    unsafe {
        match kernel {
            Kernel::Ordered => order::linear(engine, kind, x, rows, linear),
            _ if kind == Kind::Matrix => matrix::matrix(engine, x, rows, linear),
            Kernel::Plain => row::row(engine, x, rows, linear),
            Kernel::E4m3Wide => row_e4m3_wide::row(engine, x, rows, linear),
            Kernel::E4m3 => row_e4m3::row(engine, x, rows, linear),
            Kernel::Blocks => row_blocks::rows(engine, &[Job { x, rows, linear: *linear }]),
            Kernel::Exact => row_exact::row(engine, x, rows, linear),
        }
    }
}
