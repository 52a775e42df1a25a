//! The row kernel: a linear layer on rows that are being decoded.
//!
//! Each weight is read from memory once for all rows, and memory is what bounds it. A dot product always runs in one
//! vector of partial sums, however many rows and outputs are computed beside it. Weights in `[in, out]` have a kernel
//! of their own (`row_columns.rs`), and so have quantised ones (`row_blocks.rs`).

use std::ops::Range;

use turbospark_device::op::WeightLayout;

use super::finish::{Dots, Linear, Part};
use super::outputs::{AHEAD, SIDE, Streams, UNIT, WIDTH};
use super::{Engine, Rows, row_columns};
use crate::simd::stored::{Stored, Weight, with_stored};
use crate::simd::{self, Simd};

/// `Linear` on `rows` rows of `x`.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(crate) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    if rows == 0 || linear.n == 0 {
        return;
    }
    if linear.weight.layout == WeightLayout::InOut {
        // SAFETY: the caller's promise.
        return unsafe { row_columns::row(engine, x, rows, linear) };
    }
    engine.split(linear.n.div_ceil(UNIT), UNIT * linear.k * (1 + rows / 4), |units| {
        engine.kernels.run(Task(Part { linear, x, rows, units }));
    });
}

/// The kernel.
struct Plain;

/// Some outputs by it.
struct Task<'a>(Part<'a>);

impl simd::Task for Task<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are valid (`row`).
        unsafe { Plain::run(&self.0, s) };
    }
}

impl Dots for Plain {
    const AT_ONCE: usize = 4;

    #[inline(always)]
    unsafe fn products<S: Simd>(part: &Part<'_>, s: S, w: &Weight, outputs: &Range<usize>, out: *mut f32) {
        let streams = Streams::new(outputs.len());
        with_stored!(w.dtype, T => {
            for i in 0..streams.steps() {
                let (row, out) = (outputs.start + i, out.wrapping_add(i));
                // SAFETY: the caller's promise.
                unsafe {
                    match (streams.at(i), part.rows) {
                        (SIDE, 1) => dots::<S, T, 1, SIDE>(part, s, w, row, streams, out),
                        (SIDE, 2) => dots::<S, T, 2, SIDE>(part, s, w, row, streams, out),
                        // More sums than eight don't fit the registers of AVX2.
                        (SIDE, _) if S::TILE_ROWS >= 8 => dots::<S, T, 4, SIDE>(part, s, w, row, streams, out),
                        (some, rows) => {
                            for stream in 0..some {
                                let (row, out) = (row + stream * streams.apart(), out.add(stream * streams.apart()));
                                match rows {
                                    1 => dots::<S, T, 1, 1>(part, s, w, row, streams, out),
                                    _ => dots::<S, T, 4, 1>(part, s, w, row, streams, out),
                                }
                            }
                        }
                    }
                }
            }
        })
    }
}

/// Weight rows `row` and those of further streams times all rows, `R` at a time.
///
/// # Safety
/// As [`Dots::products`].
#[inline(always)]
unsafe fn dots<S: Simd, T: Stored, const R: usize, const O: usize>(
    part: &Part<'_>,
    s: S,
    w: &Weight,
    row: usize,
    streams: Streams,
    out: *mut f32,
) {
    let mut weights = [w.ptr; O];
    for (o, at) in weights.iter_mut().enumerate() {
        *at = w.ptr.wrapping_add((row + o * streams.apart()) * w.stride * T::SIZE);
    }
    for first in (0..part.rows).step_by(R) {
        let mut x = [std::ptr::null(); R];
        for (r, x) in x.iter_mut().enumerate() {
            *x = part.x.row((first + r).min(part.rows - 1)).cast_const();
        }
        // What comes next is asked for once, as these weights are first read.
        let steps = Steps { k: part.linear.k, ahead: if first == 0 { AHEAD } else { 0 } };
        let sums = Sums { out: out.wrapping_add(first * WIDTH), row: WIDTH, weight: streams.apart() };
        // SAFETY: the caller's promise.
        unsafe { dot::<S, T, R, O>(s, steps, x, weights, sums) };
    }
}

/// The steps of a sum.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// How many.
    pub k: usize,
    /// Bytes ahead of the weights that are fetched meanwhile; 0 for none.
    pub ahead: usize,
}

impl Steps {
    /// `k` of them on what is near.
    pub(super) fn all(k: usize) -> Self {
        Steps { k, ahead: 0 }
    }
}

/// Where the sums go: of row `r` and weight `o`, `r * row + o * weight` places on.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub out: *mut f32,
    pub row: usize,
    pub weight: usize,
}

/// `R` rows times `O` rows of weights.
///
/// # Safety
/// All rows are readable for `k` elements; the places of `sums` are writable.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd, T: Stored, const R: usize, const O: usize>(
    s: S,
    steps: Steps,
    x: [*const f32; R],
    w: [*const u8; O],
    sums: Sums,
) {
    let lanes = S::LANES;
    // An array, and its step a function: indexed by a loop's variable it would live in memory.
    let mut acc = [[s.splat(0.0); O]; R];
    let mut p = 0;
    // SAFETY: the caller's promise; every load ends at or before `k`.
    unsafe {
        while p + 2 * lanes <= steps.k {
            if steps.ahead > 0 {
                for w in w {
                    for line in (0..2 * lanes * T::SIZE).step_by(64) {
                        s.prefetch(w.wrapping_add(p * T::SIZE + line + steps.ahead));
                    }
                }
            }
            step::<S, T, R, O>(s, p, &x, &w, &mut acc);
            step::<S, T, R, O>(s, p + lanes, &x, &w, &mut acc);
            p += 2 * lanes;
        }
        while p < steps.k {
            let some = lanes.min(steps.k - p);
            for o in 0..O {
                let from = w[o].add(p * T::SIZE);
                let wide = if some == lanes { T::load(s, from) } else { T::load_some(s, from, some) };
                for r in 0..R {
                    acc[r][o] = s.fma(s.load_some(x[r].add(p), some), wide, acc[r][o]);
                }
            }
            p += some;
        }
        for (r, row) in acc.iter().enumerate() {
            for (o, &v) in row.iter().enumerate() {
                *sums.out.add(r * sums.row + o * sums.weight) = s.sum(v);
            }
        }
    }
}

/// One vector of each row times one of each row of weights.
///
/// # Safety
/// Both are readable at `at`.
#[inline(always)]
unsafe fn step<S: Simd, T: Stored, const R: usize, const O: usize>(
    s: S,
    at: usize,
    x: &[*const f32; R],
    w: &[*const u8; O],
    acc: &mut [[S::V; O]; R],
) {
    let mut wide = [s.splat(0.0); O];
    for o in 0..O {
        // SAFETY: the caller's promise.
        wide[o] = unsafe { T::load(s, w[o].add(at * T::SIZE)) };
    }
    for r in 0..R {
        // SAFETY: the caller's promise.
        let v = unsafe { s.load(x[r].add(at)) };
        for o in 0..O {
            acc[r][o] = s.fma(v, wide[o], acc[r][o]);
        }
    }
}
