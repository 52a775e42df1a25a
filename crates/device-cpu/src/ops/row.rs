//! The row kernel: a linear layer on rows that are being decoded.
//!
//! Each weight is read from memory once for all rows, and memory is what bounds it; several rows take turns at a piece
//! of the sums that stays in the first cache, where the activations are packed piece by piece: rows that lie a power of
//! two apart would push each other out. A dot product always runs in one vector of partial sums, however many rows and
//! outputs are computed beside it.
//!
//! Weights in bf16 are multiplied as they are where the CPU has fast products of bf16 and the precision allows to round
//! the activations: in f32, eight rows take longer than memory does. Weights in `[in, out]` have a kernel of their own
//! (`row_columns.rs`), and so have quantised ones (`row_blocks.rs`).

use std::ops::Range;

use turbospark_device::op::WeightLayout;
use turbospark_tensor::DType;

use super::dot::{Steps, accumulate};
use super::finish::{Dots, Job, Linear, Part};
use super::outputs::{AHEAD, SIDE, Streams, UNIT, WIDTH, together};
use super::{Engine, Rows, Shared, row_columns};
use crate::isa::OnVectors;
use crate::simd::Simd;
use crate::simd::stored::{Bf16, F32, Stored, Weight, with_stored};
use crate::simd::unit::{Unit, UnitTask};

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
    // SAFETY: the caller's promise.
    unsafe { self::rows(engine, &[Job { x, rows, linear: *linear }]) };
}

/// All of `jobs`, whose weights are plain and lie in `[out, in]`, as if they were one layer.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix), for each of them; none reads what another writes.
pub(super) unsafe fn rows(engine: &mut Engine, jobs: &[Job<'_>]) {
    let may_pair = !engine.exact && engine.kernels.has_pairs();
    // Of each for itself: no bit depends on the company.
    let pairs = |job: &Job<'_>| {
        let mut weights = [Some(job.linear.weight), job.linear.gate].into_iter().flatten();
        may_pair && weights.all(|w| w.dtype == DType::BF16)
    };
    let words = |job: &Job<'_>| if pairs(job) { job.linear.k.div_ceil(2) } else { job.linear.k };
    let room = jobs.iter().map(|job| job.rows * words(job)).sum::<usize>();
    let mut to = Shared::new(engine.packed.get(room.max(1)));
    let kernels = engine.kernels;
    let mut packed = Vec::with_capacity(jobs.len());
    for job in jobs {
        let (words, rows, k, x) = (words(job), job.rows, job.linear.k, job.x);
        let piece = if rows == 1 { words.max(1) } else { PIECE };
        let own = Packed { rows, k, words, piece, to };
        to = Shared(to.at(rows * words));
        engine.split(rows, k, |range| {
            let task = Pack { x, range, packed: own };
            if pairs(job) { kernels.pairs(task) } else { kernels.run(OnVectors(task)) }
        });
        packed.push(own);
    }
    together(
        engine,
        jobs,
        |job| UNIT * job.linear.k * (1 + job.rows / 4),
        |i, units| {
            let Job { x, rows, linear } = &jobs[i];
            let task = Task { part: Part { linear, x: *x, rows: *rows, units }, packed: packed[i] };
            if pairs(&jobs[i]) { kernels.pairs(task) } else { kernels.run(OnVectors(task)) }
        },
    );
}

/// Words of a sum that all rows take before the next: both sides stay in the first cache.
const PIECE: usize = 512;

/// Activations as words, `[pieces, rows, piece]`; the last piece may be shorter.
#[derive(Clone, Copy)]
struct Packed {
    rows: usize,
    /// Elements of a sum.
    k: usize,
    words: usize,
    piece: usize,
    to: Shared<f32>,
}

impl Packed {
    /// Where the words of a row from `first` on, the first of a piece, lie.
    #[inline(always)]
    fn at(&self, first: usize, row: usize) -> *mut f32 {
        self.to.at(first * self.rows + row * self.piece.min(self.words - first))
    }
}

/// Packs some rows.
struct Pack<'a> {
    x: Rows<'a>,
    range: Range<usize>,
    packed: Packed,
}

impl UnitTask for Pack<'_> {
    #[inline(always)]
    fn run<U: Unit>(self, u: U) {
        let (s, lanes, packed) = (u.simd(), U::S::LANES, self.packed);
        for row in self.range {
            let x = self.x.row(row).cast_const();
            for first in (0..packed.words).step_by(packed.piece) {
                let count = packed.piece.min(packed.words - first);
                for i in (0..count).step_by(lanes) {
                    let from = (first + i) * U::PER_WORD;
                    // SAFETY: the rows are valid (`row`), and these words are this part's alone.
                    unsafe {
                        let words = u.words::<F32>(x.add(from).cast(), packed.k - from);
                        s.store_some(packed.at(first, row).add(i), words, lanes.min(count - i));
                    }
                }
            }
        }
    }
}

/// Some outputs.
struct Task<'a> {
    part: Part<'a>,
    packed: Packed,
}

impl UnitTask for Task<'_> {
    #[inline(always)]
    fn run<U: Unit>(self, u: U) {
        // SAFETY: the weights are valid (`row`).
        unsafe { Plain { u, packed: self.packed }.run(&self.part, u.simd()) };
    }
}

/// The kernel.
struct Plain<U> {
    u: U,
    packed: Packed,
}

impl<U: Unit> Dots<U::S> for Plain<U> {
    const AT_ONCE: usize = 8;

    fn scratch(rows: usize) -> usize {
        rows * SIDE * 16
    }

    #[inline(always)]
    unsafe fn products(
        &self,
        _: &Part<'_>,
        _: U::S,
        w: &Weight,
        outputs: &Range<usize>,
        scratch: *mut f32,
        out: *mut f32,
    ) {
        let streams = Streams::new(outputs.len());
        for i in 0..streams.steps() {
            let apart = streams.apart();
            let (u, packed, out) = (self.u, &self.packed, out.wrapping_add(i));
            let side = Side { u, packed, w, row: outputs.start + i, apart, scratch, out };
            // SAFETY: the caller's promise; only weights in bf16 are multiplied in pairs (`row`).
            unsafe {
                if U::PER_WORD == 2 {
                    side.rows::<Bf16>(streams.at(i));
                } else {
                    with_stored!(w.dtype, T => side.rows::<T>(streams.at(i)));
                }
            }
        }
    }
}

/// Weight rows side by side: `row` and those of further streams.
struct Side<'a, U> {
    u: U,
    packed: &'a Packed,
    w: &'a Weight,
    row: usize,
    /// Outputs from one stream to the next.
    apart: usize,
    /// `[SIDE, rows, 16]`, whole groups of rows.
    scratch: *mut f32,
    out: *mut f32,
}

impl<U: Unit> Side<'_, U> {
    /// The products of all rows with the first `some` weights.
    ///
    /// # Safety
    /// As [`Dots::products`].
    #[inline(always)]
    unsafe fn rows<T: Stored>(&self, some: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            // As many sums as fit the registers: eight on AVX2, else sixteen.
            match self.packed.rows {
                _ if some < SIDE => self.pieces::<T, 1, 1>(some),
                1 => self.pieces::<T, 1, SIDE>(SIDE),
                2 => self.pieces::<T, 2, SIDE>(SIDE),
                _ if U::S::TILE_ROWS < 8 => self.pieces::<T, 4, 2>(SIDE),
                3..=4 => self.pieces::<T, 4, SIDE>(SIDE),
                _ => self.pieces::<T, 8, 2>(SIDE),
            }
        }
    }

    /// The same, `R` rows and `O` weights at a time, piece by piece of the sums, which wait in memory meanwhile.
    ///
    /// # Safety
    /// As [`Dots::products`]; `O` divides `some`.
    #[inline(always)]
    unsafe fn pieces<T: Stored, const R: usize, const O: usize>(&self, some: usize) {
        let Packed { rows, words, piece, .. } = *self.packed;
        let (u, s) = (self.u, self.u.simd());
        let waiting = |o: usize, r: usize| self.scratch.wrapping_add((r * SIDE + o) * U::S::LANES);
        let mut begin = 0;
        loop {
            let end = words.min(begin + piece);
            for o in (0..some).step_by(O) {
                let mut w = [self.w.ptr; O];
                for (i, w) in w.iter_mut().enumerate() {
                    let row = (self.row + (o + i) * self.apart) * self.w.stride;
                    *w = w.wrapping_add((row + begin * U::PER_WORD) * T::SIZE);
                }
                for first in (0..rows).step_by(R) {
                    // Rows past the last repeat it.
                    let mut x = [std::ptr::null(); R];
                    for (r, x) in x.iter_mut().enumerate() {
                        *x = self.packed.at(begin, (first + r).min(rows - 1)).cast_const();
                    }
                    let mut acc = [[s.splat(0.0); O]; R];
                    // SAFETY: the caller's promise; the scratch has a place for each row, of whole groups.
                    unsafe {
                        if begin > 0 {
                            for (r, acc) in acc.iter_mut().enumerate() {
                                for (i, acc) in acc.iter_mut().enumerate() {
                                    *acc = s.load(waiting(o + i, first + r));
                                }
                            }
                        }
                        // What comes next is asked for once, as these weights are first read.
                        let k = self.packed.k.min(end * U::PER_WORD) - begin * U::PER_WORD;
                        let steps = Steps { k, ahead: if first == 0 { AHEAD } else { 0 } };
                        accumulate::<U, T, R, O>(u, steps, x, w, &mut acc);
                        for (r, acc) in acc.iter().enumerate() {
                            for (i, &acc) in acc.iter().enumerate() {
                                if end < words {
                                    s.store(waiting(o + i, first + r), acc);
                                } else {
                                    *self.out.add((first + r) * WIDTH + (o + i) * self.apart) = s.sum(acc);
                                }
                            }
                        }
                    }
                }
            }
            begin = end;
            if begin == words {
                return;
            }
        }
    }
}
