//! Which kernel takes a linear layer, by the kind of its rows and the form of its weights.

use turbospark_device::op::WeightLayout;

use super::finish::{Job, Linear};
use super::{Engine, Rows, matrix, order, row, row_blocks, row_e4m3, row_e4m3_wide, row_exact};

/// Which kernel takes the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows of a prompt.
    Matrix,
    /// Rows being decoded.
    Row,
}

/// All of `jobs`, none of which reads what another writes: together where one kernel takes them, so that threads meet
/// once, and each reads long streams.
///
/// # Safety
/// As for [`matrix`](matrix::matrix), for each of them.
pub(super) unsafe fn rows(engine: &mut Engine, jobs: &[Job<'_>]) {
    let plain = |job: &Job<'_>| {
        let mut weights = [Some(job.linear.weight), job.linear.gate].into_iter().flatten();
        weights.all(|w| !w.is_quantised() && w.order().is_none() && w.layout == WeightLayout::OutIn)
    };
    // SAFETY: the caller's promise.
    unsafe {
        if jobs.iter().all(plain) {
            row::rows(engine, jobs);
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
    if linear.weight.order().or(linear.gate.and_then(|g| g.order())).is_some() {
        // SAFETY: the caller's promise.
        return unsafe { order::linear(engine, kind, x, rows, linear) };
    }
    let weights = [Some(linear.weight), linear.gate];
    let mut weights = weights.iter().flatten();
    // SAFETY: the caller's promise.
    unsafe {
        if kind == Kind::Matrix {
            matrix::matrix(engine, x, rows, linear);
        } else if weights.clone().all(|w| !w.is_quantised()) {
            row::row(engine, x, rows, linear);
        } else if weights.clone().all(|w| row_e4m3_wide::takes(engine.kernels, w, linear.k)) {
            row_e4m3_wide::row(engine, x, rows, linear);
        } else if weights.clone().all(row_e4m3::takes) {
            row_e4m3::row(engine, x, rows, linear);
        } else if !engine.exact && weights.all(|w| row_blocks::takes(engine.kernels, w)) {
            row_blocks::row(engine, x, rows, linear);
        } else {
            row_exact::row(engine, x, rows, linear);
        }
    }
}
