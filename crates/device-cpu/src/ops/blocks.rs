//! Which kernel takes a linear layer, by the kind of its rows and the form of its weights.
//!
//! A gated layer of which one weight is quantised and the other plain is decoded some outputs at a time, on weights
//! dequantised to f32: nobody makes such, so it need not be fast.

use super::finish::{Finish, Linear};
use super::{Engine, Rows, Shared, matrix, row, row_blocks};
use crate::scratch::Scratch;
use crate::simd::stored::{Vector, Weight};

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
    let (weight, gate) = (linear.weight.dtype.is_block(), linear.gate.map(|g| g.dtype.is_block()));
    if weight && gate != Some(false) {
        // SAFETY: the caller's promise.
        return unsafe { row_blocks::row(engine, x, rows, linear) };
    }
    if (!weight && gate != Some(true)) || rows == 0 {
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

/// Rows `first..first + rows` of a `[n, k]` weight as f32: dequantised to `out` where they are blocks, else as is.
///
/// # Safety
/// The weight has these rows; `out` is writable for as many elements, and nobody else touches it.
unsafe fn widened(engine: &Engine, w: &Weight, first: usize, rows: usize, k: usize, out: Shared<f32>) -> Weight {
    let bytes = |elements: usize| w.dtype.bytes(elements).expect("checked: rows of whole blocks");
    let ptr = w.ptr.wrapping_add(bytes(first * w.stride));
    if !w.dtype.is_block() {
        return Weight { ptr, ..*w };
    }
    let (ptr, stored) = (Shared(ptr.cast_mut()), *w);
    engine.split(rows, 4 * k, |range| {
        for r in range {
            // SAFETY: the caller's promise; row `r` of `out` is this part's alone.
            let (from, to) = unsafe {
                let from = std::slice::from_raw_parts(ptr.at(bytes(r * stored.stride)).cast_const(), bytes(k));
                (from, std::slice::from_raw_parts_mut(out.at(r * k), k))
            };
            turbospark_tensor::widen_into(from, stored.dtype, to);
        }
    });
    Weight { ptr: out.at(0).cast_const().cast(), dtype: turbospark_tensor::DType::F32, stride: k, ..*w }
}
