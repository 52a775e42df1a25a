//! Products of activations as codes with quantised weights.
//!
//! A weight is unpacked once for all rows, whose sums wait in memory where they are several. Every row's sums run in the
//! same steps, however many there are.

use std::ops::Range;

use super::Shared;
use super::codes::Codes;
use super::outputs::{AHEAD, SIDE, Streams, WIDTH};
use crate::simd::bytes::formats::{Unpacked, Values};
use crate::simd::bytes::rows::Packed;
use crate::simd::bytes::{ByteTask, Bytes, SUPER};

/// The sums of some outputs: `out[row][j] = x[row] . w[outputs.start + j]`.
#[derive(Clone, Copy)]
pub(super) struct Sums<'a> {
    pub k: usize,
    pub codes: Shared<Codes>,
    pub rows: usize,
    pub outputs: &'a Range<usize>,
    /// [`Sums::scratch`] elements, of this part alone.
    pub scratch: *mut f32,
    /// `[rows, WIDTH]`, as `scratch`.
    pub out: *mut f32,
}

impl Sums<'_> {
    /// Elements of scratch for so many rows.
    pub(super) fn scratch(rows: usize) -> usize {
        SIDE * 16 * rows
    }

    /// Where the lanes of weight `o` of those that are taken together and a row wait.
    #[inline(always)]
    fn waiting(&self, o: usize, row: usize) -> *mut f32 {
        self.scratch.wrapping_add(16 * (o * self.rows + row))
    }
}

/// [`Sums`] by one kernel.
pub(super) struct Products<'a, T> {
    pub w: T,
    pub sums: Sums<'a>,
}

impl<T: Packed> ByteTask for Products<'_, T> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        let Sums { k, rows, outputs, .. } = self.sums;
        let streams = Streams::new(outputs.len());
        let (whole, all) = (k / SUPER, k.div_ceil(SUPER));
        for i in 0..streams.steps() {
            let count = streams.at(i);
            let mut weights = [self.w.row(outputs.start + i); SIDE];
            for (stream, row) in weights.iter_mut().enumerate().take(count).skip(1) {
                *row = self.w.row(outputs.start + stream * streams.apart() + i);
            }
            // One that is left over takes another beside it, whose sums go nowhere.
            let even = if B::GRID { count.next_multiple_of(2) } else { count };
            // SAFETY: the weights are valid (`row`), and so is the scratch.
            unsafe {
                // In a function of its own, for it is large and not what is hurried.
                let many = |supers| b.outlined(Many { products: &self, weights: &weights[..even], supers });
                if rows == 1 && count == SIDE {
                    for (o, acc) in self.one(b, weights, whole).into_iter().enumerate() {
                        b.store_f32(self.sums.waiting(o, 0), acc);
                    }
                    if whole < all {
                        many(whole..all);
                    }
                } else {
                    for o in 0..even {
                        for r in 0..rows {
                            b.store_f32(self.sums.waiting(o, r), b.splat(0.0));
                        }
                    }
                    many(0..all);
                }
                for o in 0..count {
                    for r in 0..rows {
                        let out = self.sums.out.wrapping_add(r * WIDTH + o * streams.apart() + i);
                        *out = b.sum(b.load_f32(self.sums.waiting(o, r)));
                    }
                }
            }
        }
    }
}

impl<T: Packed> Products<'_, T> {
    /// One row of activations times `SIDE` of weights, as far as superblocks are whole.
    ///
    /// # Safety
    /// The rows are readable.
    #[inline(always)]
    unsafe fn one<B: Bytes>(&self, b: B, rows: [T::Row; SIDE], whole: usize) -> [B::F; SIDE] {
        let mut acc = [b.splat(0.0); SIDE];
        // SAFETY: the caller's promise; the codes are whole superblocks.
        unsafe {
            for i in 0..whole {
                let x = self.sums.codes.at(i);
                for o in 0..SIDE {
                    self.w.prefetch(b.simd(), rows[o], i, AHEAD);
                    acc[o] = step::<B, T>(b, &self.w.unpack(b, rows[o], i), x, acc[o]);
                }
            }
        }
        acc
    }
}

/// Adds the products of all rows of activations and some of weights to what waits.
struct Many<'a, 'b, T: Packed> {
    products: &'a Products<'b, T>,
    /// An even number with [`Bytes::GRID`].
    weights: &'a [T::Row],
    supers: Range<usize>,
}

impl<T: Packed> ByteTask for Many<'_, '_, T> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        let Sums { codes, rows, .. } = self.products.sums;
        for i in self.supers.clone() {
            // SAFETY: the weights are valid (`row`), and the sums wait.
            unsafe {
                if B::GRID {
                    for o in (0..self.weights.len()).step_by(2) {
                        let w = [self.unpacked(b, o, i), self.unpacked(b, o + 1, i)];
                        for r in (0..rows & !1).step_by(2) {
                            self.grid::<B, 2>(b, &w, i, o, r);
                        }
                        if rows % 2 == 1 {
                            self.grid::<B, 1>(b, &w, i, o, rows - 1);
                        }
                    }
                    continue;
                }
                for o in 0..self.weights.len() {
                    let w = self.unpacked(b, o, i);
                    for r in 0..rows {
                        let to = self.products.sums.waiting(o, r);
                        b.store_f32(to, step::<B, T>(b, &w, codes.at(i * rows + r), b.load_f32(to)));
                    }
                }
            }
        }
    }
}

impl<T: Packed> Many<'_, '_, T> {
    /// Superblock `i` of weight `o`.
    ///
    /// # Safety
    /// There is one.
    #[inline(always)]
    unsafe fn unpacked<B: Bytes>(&self, b: B, o: usize, i: usize) -> Unpacked<B> {
        let Products { w, sums } = self.products;
        // SAFETY: the caller's promise.
        unsafe {
            if i < sums.k / SUPER {
                w.prefetch(b.simd(), self.weights[o], i, AHEAD);
                w.unpack(b, self.weights[o], i)
            } else {
                w.unpack_some(b, self.weights[o], i, sums.k % SUPER)
            }
        }
    }

    /// Weights `o` and `o + 1` times rows `r..r + R`, their sums in turn: one alone waits for itself.
    ///
    /// # Safety
    /// `w` are superblocks `i` of these weights; their sums wait.
    #[inline(always)]
    unsafe fn grid<B: Bytes, const R: usize>(&self, b: B, w: &[Unpacked<B>; 2], i: usize, o: usize, r: usize) {
        let sums = &self.products.sums;
        // SAFETY: the caller's promise; all arrays are as long as is read.
        unsafe {
            let x = |j: usize| sums.codes.at(i * sums.rows + r + j).cast_const();
            let mut dots = [[b.zeros(); 2]; R];
            for (j, dots) in dots.iter_mut().enumerate() {
                let less = |by| b.load_shifted(by, (&raw const (*x(j)).minus_sum).cast());
                *dots = match T::VALUES {
                    Values::Small | Values::Wide => [b.zeros(); 2],
                    Values::Less(by) => [less(by); 2],
                    Values::Signed => [less(7); 2],
                };
            }
            for quarter in 0..4 {
                let mut q = [w[0].q[quarter], w[1].q[quarter]];
                if T::VALUES == Values::Signed {
                    q = [b.flip(q[0]), b.flip(q[1])];
                }
                for (j, dots) in dots.iter_mut().enumerate() {
                    let x = (&raw const (*x(j)).codes).cast::<i8>().add(64 * quarter);
                    *dots = [b.dot(dots[0], q[0], x), b.dot(dots[1], q[1], x)];
                }
            }
            for (j, dots) in dots.iter().enumerate() {
                let scale = b.load_f32((&raw const (*x(j)).scale).cast());
                for (o2, &dots) in dots.iter().enumerate() {
                    let to = sums.waiting(o + o2, r + j);
                    let acc = b.fma(b.to_f32(dots), b.mul(w[o2].scale, scale), b.load_f32(to));
                    b.store_f32(to, minned::<B, T>(b, &w[o2], x(j), acc));
                }
            }
        }
    }
}

/// Adds a superblock's products.
///
/// # Safety
/// `x` is readable.
#[inline(always)]
unsafe fn step<B: Bytes, T: Packed>(b: B, w: &Unpacked<B>, x: *const Codes, acc: B::F) -> B::F {
    // SAFETY: the caller's promise; all arrays are as long as is read.
    unsafe {
        let codes = (&raw const (*x).codes).cast();
        let less = |by| b.load_shifted(by, (&raw const (*x).minus_sum).cast());
        let sums = match T::VALUES {
            Values::Small => b.to_f32(b.dots(b.zeros(), &w.q, codes)),
            Values::Less(by) => b.to_f32(b.dots(less(by), &w.q, codes)),
            Values::Signed => b.to_f32(b.dots_signed(less(7), &w.q, codes)),
            Values::Wide => b.dots_wide(&w.q, codes),
        };
        let scale = b.mul(w.scale, b.load_f32((&raw const (*x).scale).cast()));
        minned::<B, T>(b, w, x, b.fma(sums, scale, acc))
    }
}

/// Adds what a superblock's mins are for.
///
/// # Safety
/// `x` is readable.
#[inline(always)]
unsafe fn minned<B: Bytes, T: Packed>(b: B, w: &Unpacked<B>, x: *const Codes, acc: B::F) -> B::F {
    // SAFETY: the caller's promise.
    if T::MINS { b.fma(w.min, unsafe { b.load_f32((&raw const (*x).sum).cast()) }, acc) } else { acc }
}
