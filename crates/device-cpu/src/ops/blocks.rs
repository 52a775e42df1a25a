//! Which kernel takes a linear layer, by the kind of its rows and the form of its weights.
//!
//! Weights with scales apart, and a gated layer of which one weight is quantised and the other plain, are decoded some
//! outputs at a time, on weights dequantised to f32.

use std::ops::Range;

use turbospark_tensor::DType;

use super::finish::{Finish, Linear};
use super::{Engine, Rows, Shared, matrix, row, row_blocks};
use crate::scratch::Scratch;
use crate::simd::stored::{Vector, Weight};
use crate::simd::{Simd, Task};

/// Dequantised weights at a time, in elements (8 MiB).
const WIDENED: usize = 2 << 20;

/// Which kernel takes the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Rows of a prompt.
    Matrix,
    /// Rows being decoded.
    Row,
}

/// `Linear` on `rows` rows of `x`, by the kernel of their kind.
///
/// # Safety
/// As for [`matrix`](matrix::matrix).
pub(super) unsafe fn linear(engine: &mut Engine, kind: Kind, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    if kind == Kind::Matrix {
        // SAFETY: the caller's promise.
        return unsafe { matrix::matrix(engine, x, rows, linear) };
    }
    let all = |is: fn(&Weight) -> bool| is(&linear.weight) && linear.gate.as_ref().is_none_or(is);
    if all(|w| w.dtype.is_block()) {
        // SAFETY: the caller's promise.
        return unsafe { row_blocks::row(engine, x, rows, linear) };
    }
    if all(|w| !w.is_quantised()) || rows == 0 {
        // SAFETY: the caller's promise.
        return unsafe { row::row(engine, x, rows, linear) };
    }
    let Linear { k, n, weight, gate, finish } = *linear;
    let weights = 1 + gate.is_some() as usize;
    let most = (WIDENED / (k * weights).max(1)).max(1);
    // Taken out of the engine while the kernels borrow it.
    let mut scratch = std::mem::replace(&mut engine.widened, Scratch::new());
    for first in (0..n).step_by(most) {
        let some = most.min(n - first);
        let wide = Shared::new(scratch.get(weights * some * k));
        let mut wanted = [weight, gate.unwrap_or(weight)];
        for (i, w) in wanted.iter_mut().enumerate().take(weights) {
            // SAFETY: `some` rows of the weight, and as many of the scratch, which this op alone has.
            *w = unsafe { widened(engine, w, first, some, k, Shared(wide.at(i * some * k))) };
        }
        let bias = finish.bias.map(|b| Vector { ptr: b.ptr.wrapping_add(first * b.dtype.size()), ..b });
        let residual = finish.residual.map(|r| r.columns(first));
        let finish = Finish { bias, residual, out: finish.out.columns(first), ..finish };
        let [weight, gate] = [wanted[0], wanted[1]];
        // SAFETY: the caller's promise, for some of the outputs.
        unsafe { row::row(engine, x, rows, &Linear { k, n: some, weight, gate: linear.gate.map(|_| gate), finish }) };
    }
    engine.widened = scratch;
}

/// Dequantises `rows`, counted from row `first` of the weight.
struct Widen<'a> {
    w: &'a Weight,
    first: usize,
    rows: Range<usize>,
    k: usize,
    out: Shared<f32>,
}

impl Task for Widen<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for r in self.rows {
            // SAFETY: the weight has the row (`widened`); row `r` of `out` is this part's alone.
            unsafe {
                let out = std::slice::from_raw_parts_mut(self.out.at(r * self.k), self.k);
                self.w.dequantise(s, self.first + r, 0, out);
            }
        }
    }
}

/// Rows `first..first + rows` of a `[n, k]` weight as f32: dequantised to `out` where they are blocks, else as is.
///
/// # Safety
/// The weight has these rows; `out` is writable for as many elements, and nobody else touches it.
unsafe fn widened(engine: &Engine, w: &Weight, first: usize, rows: usize, k: usize, out: Shared<f32>) -> Weight {
    if !w.is_quantised() {
        return Weight { ptr: w.ptr.wrapping_add(first * w.stride * w.dtype.size()), ..*w };
    }
    engine.split(rows, 4 * k, |rows| engine.kernels.run(Widen { w, first, rows, k, out }));
    let (ptr, dtype) = (out.at(0).cast_const().cast(), DType::F32);
    Weight { ptr, dtype, layout: w.layout, stride: k, scales: None }
}
