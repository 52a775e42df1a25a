//! The row kernel on quantised weights in f32: with `Precision::F32`, and where no kernel multiplies their codes.
//!
//! Two rows of weights at a time are dequantised in a near cache, and take the kernel of f32 weights. A layer may have a
//! gate of another type, and even a plain one.

use std::ops::Range;

use super::dot::{Steps, Sums, dot};
use super::finish::{Finishing, Linear};
use super::outputs::{UNIT, WIDTH, pieces};
use super::{Engine, Rows};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{F32, Weight};
use crate::simd::{Simd, Task};

/// `Linear` on `rows` rows of `x`; its weights are in `[out, in]`.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    engine.split(linear.n.div_ceil(UNIT), UNIT * linear.k * (2 + rows) / 2, |units| {
        engine.kernels.run(Exact { linear, x, rows, units });
    });
}

/// Some outputs, on dequantised weights.
struct Exact<'a> {
    linear: &'a Linear<'a>,
    x: Rows<'a>,
    rows: usize,
    units: Range<usize>,
}

impl Task for Exact<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Linear { k, n, weight, gate, .. } = *self.linear;
        let mut local = local(Finishing::size(self.rows, WIDTH) + 2 * rounded(k));
        let mut finishing = Finishing::cut(local.all(), self.rows, WIDTH);
        let mut wide = [cut(&mut finishing.rest, k), cut(&mut finishing.rest, k)];
        for outputs in pieces(self.units.clone(), n) {
            // SAFETY: the weights are valid (`row`), the scratch is this thread's and large enough.
            unsafe {
                self.products(s, &weight, &outputs, &mut wide, finishing.sums);
                if let Some(gate) = gate {
                    self.products(s, &gate, &outputs, &mut wide, finishing.gates);
                }
                finishing.finish(s, self.linear, self.rows, outputs);
            }
        }
    }
}

impl Exact<'_> {
    /// `out[row][j] = x[row] . w[outputs.start + j]`, two outputs at a time.
    ///
    /// # Safety
    /// The weight covers the outputs; `out` is writable for `[rows, WIDTH]`, and both of `wide` have `k` elements.
    #[inline(always)]
    unsafe fn products<S: Simd>(
        &self,
        s: S,
        w: &Weight,
        outputs: &Range<usize>,
        wide: &mut [&mut [f32]; 2],
        out: *mut f32,
    ) {
        let steps = Steps::all(self.linear.k);
        for j in (0..outputs.len()).step_by(2) {
            let two = j + 1 < outputs.len();
            // SAFETY: the caller's promise.
            unsafe {
                for (o, wide) in wide.iter_mut().enumerate().take(1 + two as usize) {
                    w.dequantise(s, outputs.start + j + o, 0, wide);
                }
                let from = [wide[0].as_ptr().cast::<u8>(), wide[1].as_ptr().cast()];
                for r in 0..self.rows {
                    let x = [self.x.row(r).cast_const()];
                    let sums = Sums { out: out.wrapping_add(r * WIDTH + j), row: WIDTH, weight: 1 };
                    if two {
                        dot::<S, F32, 1, 2>(s, steps, x, from, sums);
                    } else {
                        dot::<S, F32, 1, 1>(s, steps, x, [from[0]], sums);
                    }
                }
            }
        }
    }
}
