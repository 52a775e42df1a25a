//! The row kernel on weights in `[in, out]`.
//!
//! Memory is read fastest in long streams (`outputs.rs`), and here rows of the weight are steps of the sums. So steps
//! are cut into spans of 128, of which a thread takes whole ones: eight streams of sixteen rows each. A second region
//! adds up the spans. An output's sum is that of its spans in order; in a span, of the groups of steps that the eight
//! streams have at a time.

use std::ops::Range;

use super::finish::{Finishing, Linear};
use super::outputs::{UNIT, WIDTH, pieces};
use super::{Engine, Rows, Shared};
use crate::scratch::local;
use crate::simd::stored::{Stored, Weight, with_stored};
use crate::simd::{Simd, Task};

/// Steps that one thread takes.
const SPAN: usize = 128;

/// Streams of a span.
const STREAMS: usize = 8;

/// Bytes ahead of a stream that are asked for.
const AHEAD: usize = 512;

/// As [`row`](super::row::row).
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let Linear { k, n, .. } = *linear;
    let spans = k.div_ceil(SPAN).max(1);
    // Whole vectors, so that none is cut short.
    let width = n.next_multiple_of(16);
    let weights = 1 + linear.gate.is_some() as usize;
    let partial = Shared::new(engine.packed.get(weights * spans * rows * width));
    let layer = Layer { linear, x, rows, spans, width, partial };
    engine.split(weights * spans, SPAN * n * (1 + rows / 4), |spans| {
        engine.kernels.run(Spans { layer, spans });
    });
    engine.split(n.div_ceil(UNIT), UNIT * spans * rows * weights, |units| {
        engine.kernels.run(Total { layer, units });
    });
}

/// A layer and its partial sums, `[weights, spans, rows, width]`.
#[derive(Clone, Copy)]
struct Layer<'a> {
    linear: &'a Linear<'a>,
    x: Rows<'a>,
    rows: usize,
    spans: usize,
    width: usize,
    partial: Shared<f32>,
}

/// Some spans, those of the gate after those of the weight.
struct Spans<'a> {
    layer: Layer<'a>,
    spans: Range<usize>,
}

impl Task for Spans<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layer { linear, rows, spans, width, partial, .. } = self.layer;
        for span in self.spans {
            let weight = if span < spans { linear.weight } else { linear.gate.unwrap_or(linear.weight) };
            let first = span % spans * SPAN;
            let steps = first..linear.k.min(first + SPAN);
            // SAFETY: the weights are valid (`row`), and a span's partial sums are this part's alone.
            unsafe { self.layer.span(s, &weight, steps, partial.at(span * rows * width)) };
        }
    }
}

impl Layer<'_> {
    /// `out[row][j] = sum over p in steps of x[row][p] * w[p][j]`.
    ///
    /// # Safety
    /// The weight covers the layer; `out` is writable for `[rows, width]`.
    #[inline(always)]
    unsafe fn span<S: Simd>(&self, s: S, w: &Weight, steps: Range<usize>, out: *mut f32) {
        let each = steps.len().div_ceil(STREAMS);
        with_stored!(w.dtype, T => {
            // SAFETY: the caller's promise.
            unsafe {
                for i in (0..self.rows * self.width).step_by(S::LANES) {
                    s.store(out.add(i), s.splat(0.0));
                }
                for p in steps.start..steps.start + each {
                    if p + (STREAMS - 1) * each < steps.end {
                        self.group::<S, T, STREAMS>(s, w, p, each, out);
                    } else {
                        for p in (p..steps.end).step_by(each) {
                            self.group::<S, T, 1>(s, w, p, each, out);
                        }
                    }
                }
            }
        })
    }

    /// Adds `P` steps to all outputs: `p` and others, `apart` from each other.
    ///
    /// # Safety
    /// As [`Layer::span`].
    #[inline(always)]
    unsafe fn group<S: Simd, T: Stored, const P: usize>(
        &self,
        s: S,
        w: &Weight,
        p: usize,
        apart: usize,
        out: *mut f32,
    ) {
        let n = self.linear.n;
        let mut wide = [s.splat(0.0); P];
        let mut x = wide;
        for (i, x) in x.iter_mut().enumerate() {
            // SAFETY: the caller's promise: rows of `k` activations, of which there is one at least.
            *x = unsafe { s.splat(*self.x.row(0).add(p + i * apart)) };
        }
        for j in (0..n).step_by(S::LANES) {
            let some = S::LANES.min(n - j);
            let row = |i: usize| w.ptr.wrapping_add(((p + i * apart) * w.stride + j) * T::SIZE);
            if (j * T::SIZE).is_multiple_of(64) {
                (0..P).for_each(|i| s.prefetch(row(i).wrapping_add(AHEAD)));
            }
            // SAFETY: the caller's promise; a vector cut short loads what is left, and sums are whole vectors.
            unsafe {
                if some == S::LANES {
                    for (i, v) in wide.iter_mut().enumerate() {
                        *v = T::load(s, row(i));
                    }
                } else {
                    for (i, v) in wide.iter_mut().enumerate() {
                        *v = T::load_some(s, row(i), some);
                    }
                }
                add(s, &x, &wide, out.add(j));
                for r in 1..self.rows {
                    let from = self.x.row(r).add(p).cast_const();
                    let mut x = wide;
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = s.splat(*from.add(i * apart));
                    }
                    add(s, &x, &wide, out.add(r * self.width + j));
                }
            }
        }
    }
}

/// Adds the sum of some products to a vector in memory.
///
/// # Safety
/// It is readable and writable.
#[inline(always)]
unsafe fn add<S: Simd, const P: usize>(s: S, x: &[S::V; P], w: &[S::V; P], to: *mut f32) {
    let mut sum = s.mul(x[0], w[0]);
    for i in 1..P {
        sum = s.fma(x[i], w[i], sum);
    }
    // SAFETY: the caller's promise.
    unsafe { s.store(to, s.add(s.load(to), sum)) };
}

/// Some outputs of all spans.
struct Total<'a> {
    layer: Layer<'a>,
    units: Range<usize>,
}

impl Task for Total<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layer { linear, rows, spans, width, partial, .. } = self.layer;
        let mut local = local(Finishing::size(rows, WIDTH));
        let mut finishing = Finishing::cut(local.all(), rows, WIDTH);
        for outputs in pieces(self.units.clone(), linear.n) {
            let targets = [Some(finishing.sums), linear.gate.map(|_| finishing.gates)];
            for (i, to) in targets.into_iter().flatten().enumerate() {
                for row in 0..rows {
                    for j in (0..outputs.len()).step_by(S::LANES) {
                        let mut sum = s.splat(0.0);
                        // SAFETY: whole vectors of the partial sums and of the scratch.
                        unsafe {
                            for span in i * spans..(i + 1) * spans {
                                let at = (span * rows + row) * width + outputs.start + j;
                                sum = s.add(sum, s.load(partial.at(at).cast_const()));
                            }
                            s.store(to.add(row * WIDTH + j), sum);
                        }
                    }
                }
            }
            // SAFETY: the layer is valid (`row`), and these outputs are this part's alone.
            unsafe { finishing.finish(s, linear, rows, outputs) };
        }
    }
}
