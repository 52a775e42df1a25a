//! What is done to the sums of a linear layer before they are stored.

use std::ops::Range;

use turbospark_device::Activation;

use super::Rows;
use super::outputs::{WIDTH, pieces};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{Vector, Weight};
use crate::simd::{Simd, math};

/// A linear layer without its inputs.
#[derive(Clone, Copy)]
pub(crate) struct Linear<'a> {
    /// Length of the sums.
    pub k: usize,
    /// Number of outputs.
    pub n: usize,
    /// The weight; of a gated layer the one without activation.
    pub weight: Weight,
    /// A gated layer: `silu(x gate) * (x weight)`.
    pub gate: Option<Weight>,
    /// The rest.
    pub finish: Finish<'a>,
}

/// A layer and rows that are being decoded.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a> {
    pub x: Rows<'a>,
    pub rows: usize,
    pub linear: Linear<'a>,
}

/// `out = residual + activation(sum + bias)`, or `out += scale * sum`.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    /// `[n]`.
    pub bias: Option<Vector>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// Added last.
    pub residual: Option<Rows<'a>>,
    /// Where it goes.
    pub out: Rows<'a>,
    /// One factor a row; then the result is added to `out`.
    pub scale: Option<&'a [f32]>,
    /// Whether the outputs are too many for the caches to hold them until they are read.
    pub stream: bool,
}

/// Bytes of outputs from which on they are streamed to memory: more than the second cache of any core.
const STREAMED: usize = 8 << 20;

/// Some outputs of one row.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub row: usize,
    /// The first of them.
    pub col: usize,
    /// How many.
    pub cols: usize,
}

impl<'a> Finish<'a> {
    /// Stores the sums as they are.
    pub(crate) fn plain(out: Rows<'a>) -> Self {
        Finish { bias: None, activation: None, residual: None, out, scale: None, stream: false }
    }

    /// Streams the outputs of `rows` rows of `n` where they are many, and not read here first.
    pub(crate) fn streaming(self, rows: usize, n: usize) -> Self {
        let stream = 4 * rows * n >= STREAMED && self.residual.is_none() && self.scale.is_none();
        Finish { stream, ..self }
    }

    /// Finishes the outputs at a place; `sums` (and `gate`, of a gated layer) are theirs.
    ///
    /// # Safety
    /// `sums` and `gate` have a whole number of vectors that cover the place's columns, `bias` too where there is one;
    /// the rows are valid and nobody else touches these elements of `out`.
    #[inline(always)]
    pub(crate) unsafe fn row<S: Simd>(
        &self,
        s: S,
        at: Place,
        sums: *const f32,
        gate: Option<*const f32>,
        bias: &[f32],
    ) {
        let Place { row, col, cols } = at;
        let out = self.out.row(row).wrapping_add(col);
        let residual = self.residual.map(|r| r.row(row).wrapping_add(col));
        for j in (0..cols).step_by(S::LANES) {
            let some = S::LANES.min(cols - j);
            // SAFETY: the caller's promise; `some` elements are left in the rows.
            unsafe {
                let mut v = s.load(sums.add(j));
                if self.bias.is_some() {
                    v = s.add(v, s.load(bias.as_ptr().add(j)));
                }
                v = math::activate(s, self.activation, v);
                if let Some(gate) = gate {
                    v = s.mul(math::silu(s, s.load(gate.add(j))), v);
                }
                if let Some(residual) = residual {
                    v = s.add(s.load_some(residual.add(j), some), v);
                }
                if let Some(scale) = self.scale {
                    v = s.fma(s.splat(scale[row]), v, s.load_some(out.add(j), some));
                }
                let to = out.add(j);
                if self.stream && some == S::LANES && to.addr().is_multiple_of(4 * S::LANES) {
                    s.stream(to, v);
                } else {
                    s.store_some(to, v, some);
                }
            }
        }
    }
}

/// Some outputs of a layer on rows that are being decoded.
#[derive(Clone)]
pub(crate) struct Part<'a> {
    pub linear: &'a Linear<'a>,
    pub x: Rows<'a>,
    pub rows: usize,
    /// Outputs, [`UNIT`](super::outputs::UNIT) at a time.
    pub units: Range<usize>,
}

/// A kernel that computes sums.
pub(crate) trait Dots<S: Simd> {
    /// Rows that it takes at a time; those past the last repeat it and go nowhere.
    const AT_ONCE: usize;

    /// Elements of scratch that it wants for so many rows, a multiple of `AT_ONCE`.
    fn scratch(_rows: usize) -> usize {
        0
    }

    /// `out[row][j] = x[row] . w[outputs.start + j]`.
    ///
    /// # Safety
    /// The weight covers the outputs; `scratch` is writable, and so is `out` for `[rows, WIDTH]`, with rows a multiple of
    /// `AT_ONCE`.
    unsafe fn products(
        &self,
        part: &Part<'_>,
        s: S,
        w: &Weight,
        outputs: &Range<usize>,
        scratch: *mut f32,
        out: *mut f32,
    );

    /// Computes and finishes the outputs.
    ///
    /// # Safety
    /// The layer is valid and its outputs are this part's alone.
    #[inline(always)]
    unsafe fn run(&self, part: &Part<'_>, s: S) {
        let Linear { n, weight, gate, .. } = *part.linear;
        let rows = part.rows.next_multiple_of(Self::AT_ONCE);
        let mut local = local(Finishing::size(rows, WIDTH) + Self::scratch(rows));
        let mut finishing = Finishing::cut(local.all(), rows, WIDTH);
        let scratch = finishing.rest.as_mut_ptr();
        for outputs in pieces(part.units.clone(), n) {
            // SAFETY: the caller's promise; the scratch is this thread's and large enough.
            unsafe {
                self.products(part, s, &weight, &outputs, scratch, finishing.sums);
                if let Some(gate) = gate {
                    self.products(part, s, &gate, &outputs, scratch, finishing.gates);
                }
                finishing.finish(s, part.linear, part.rows, outputs);
            }
        }
    }
}

/// Scratch for the sums of some outputs, and their finish.
pub(crate) struct Finishing<'a> {
    /// `[rows, width]` sums of the weight.
    pub sums: *mut f32,
    /// The gate's.
    pub gates: *mut f32,
    /// What is left of the scratch.
    pub rest: &'a mut [f32],
    bias: &'a mut [f32],
    width: usize,
}

impl<'a> Finishing<'a> {
    /// What [`Finishing::cut`] takes.
    pub(crate) const fn size(rows: usize, width: usize) -> usize {
        2 * rounded(rows * width) + rounded(width)
    }

    /// Takes it off the front of `scratch`; `width` is a whole number of vectors.
    pub(crate) fn cut(mut scratch: &'a mut [f32], rows: usize, width: usize) -> Self {
        let sums = cut(&mut scratch, rows * width).as_mut_ptr();
        let gates = cut(&mut scratch, rows * width).as_mut_ptr();
        let bias = cut(&mut scratch, width);
        Finishing { sums, gates, bias, width, rest: scratch }
    }

    /// Finishes outputs `outputs` of the layer, at most `width`.
    ///
    /// # Safety
    /// The layer is valid, and these outputs are the caller's alone.
    #[inline(always)]
    pub(crate) unsafe fn finish<S: Simd>(&mut self, s: S, linear: &Linear<'_>, rows: usize, outputs: Range<usize>) {
        let (col, cols) = (outputs.start, outputs.len());
        if let Some(b) = linear.finish.bias {
            // SAFETY: the bias has `n` elements.
            unsafe { b.widen(s, col, &mut self.bias[..cols]) };
        }
        for row in 0..rows {
            let gate = linear.gate.map(|_| self.gates.wrapping_add(row * self.width).cast_const());
            let sums = self.sums.wrapping_add(row * self.width).cast_const();
            // SAFETY: the caller's promise; the scratch has these sums.
            unsafe { linear.finish.row(s, Place { row, col, cols }, sums, gate, self.bias) };
        }
    }
}
