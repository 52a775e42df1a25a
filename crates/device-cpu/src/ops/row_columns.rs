//! The row kernel on weights in `[in, out]`.
//!
//! Memory is read fastest in long streams (`outputs.rs`), and here rows of the weight are steps of the sums. So steps
//! are cut into spans of 128, of which a thread takes whole ones: four streams of 32 rows each. A second region adds up
//! the spans. An output's sum is that of its spans in order; in a span, of the groups of steps that the four streams
//! have at a time.
//!
//! Gate and weight of a fused tensor lie side by side in each row. They are read as one weight of twice the columns: half
//! a row each would break every stream off at every row, which halved the bandwidth.

use std::ops::Range;

use super::finish::{Finishing, Linear};
use super::outputs::{UNIT, WIDTH, pieces};
use super::{Engine, Rows, Shared};
use crate::scratch::local;
use crate::simd::stored::{Stored, Weight, with_stored};
use crate::simd::{Simd, Task};

/// Steps that one thread takes.
const SPAN: usize = 128;

/// Streams of a span. Eight are a fifth slower on a Zen 5, and more than some first caches have room for: streams lie
/// apart by whole pages.
const STREAMS: usize = 4;

/// Bytes ahead of a stream that are asked for.
const AHEAD: usize = 512;

/// As [`row`](super::row::row).
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let Linear { k, n, weight, gate, .. } = *linear;
    let spans = k.div_ceil(SPAN).max(1);
    let sweeps = match gate {
        None => Sweeps { first: weight, second: None, columns: n, weight: (0, 0), gate: (0, 0) },
        Some(gate) if beside(&gate, &weight, n) => {
            Sweeps { first: gate, second: None, columns: 2 * n, weight: (0, n), gate: (0, 0) }
        }
        Some(gate) if beside(&weight, &gate, n) => {
            Sweeps { first: weight, second: None, columns: 2 * n, weight: (0, 0), gate: (0, n) }
        }
        Some(gate) => Sweeps { first: weight, second: Some(gate), columns: n, weight: (0, 0), gate: (1, 0) },
    };
    let count = 1 + sweeps.second.is_some() as usize;
    // Whole vectors, so that none is cut short; the last of the first half may reach into the second.
    let width = sweeps.columns.next_multiple_of(16) + 16;
    let partial = Shared::new(engine.packed.get(count * spans * rows * width));
    let layer = Layer { linear, x, rows, spans, width, partial, sweeps };
    engine.split(count * spans, SPAN * sweeps.columns * (1 + rows / 4), |spans| {
        engine.kernels.run(Spans { layer, spans });
    });
    engine.split(n.div_ceil(UNIT), UNIT * spans * rows * count, |units| {
        engine.kernels.run(Total { layer, units });
    });
}

/// Whether the columns of `right` follow those of `left` in each row.
fn beside(left: &Weight, right: &Weight, columns: usize) -> bool {
    let same = (left.dtype, left.stride) == (right.dtype, right.stride) && left.layout == right.layout;
    same && right.ptr.addr().checked_sub(left.ptr.addr()) == left.dtype.bytes(columns)
}

/// What is read from end to end: the weight, and the gate with it or after it.
#[derive(Clone, Copy)]
struct Sweeps {
    first: Weight,
    second: Option<Weight>,
    columns: usize,
    /// Which sweep has the sums of the weight, and from which column on.
    weight: (usize, usize),
    /// Those of the gate.
    gate: (usize, usize),
}

/// A layer and its partial sums, `[sweeps, spans, rows, width]`.
#[derive(Clone, Copy)]
struct Layer<'a> {
    linear: &'a Linear<'a>,
    x: Rows<'a>,
    rows: usize,
    spans: usize,
    width: usize,
    partial: Shared<f32>,
    sweeps: Sweeps,
}

/// Some spans, those of the second sweep after those of the first.
struct Spans<'a> {
    layer: Layer<'a>,
    spans: Range<usize>,
}

impl Task for Spans<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layer { linear, rows, spans, width, partial, sweeps, .. } = self.layer;
        for span in self.spans {
            let weight = if span < spans { sweeps.first } else { sweeps.second.unwrap_or(sweeps.first) };
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
        let n = self.sweeps.columns;
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
        let Layer { linear, rows, spans, width, partial, sweeps, .. } = self.layer;
        let mut local = local(Finishing::size(rows, WIDTH));
        let mut finishing = Finishing::cut(local.all(), rows, WIDTH);
        for outputs in pieces(self.units.clone(), linear.n) {
            let gate = linear.gate.map(|_| (finishing.gates, sweeps.gate));
            for (to, (sweep, column)) in [Some((finishing.sums, sweeps.weight)), gate].into_iter().flatten() {
                for row in 0..rows {
                    for j in (0..outputs.len()).step_by(S::LANES) {
                        let mut sum = s.splat(0.0);
                        // SAFETY: whole vectors of the partial sums and of the scratch.
                        unsafe {
                            for span in sweep * spans..(sweep + 1) * spans {
                                let at = (span * rows + row) * width + column + outputs.start + j;
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
