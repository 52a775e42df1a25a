//! The row kernel on weights in quantised blocks.
//!
//! The activations become codes (`codes.rs`) and products are summed in integers over the sixteen elements of a lane's
//! group, exactly; a superblock's lanes are then scaled and added in f32.
//!
//! A weight is unpacked once for all rows. Every row's sums run in the same steps, however many there are.

use std::ops::Range;

use turbospark_tensor::DType;

use super::codes::{Codes, codes};
use super::finish::{Finishing, Linear};
use super::outputs::{AHEAD, SIDE, Streams, UNIT, WIDTH, pieces};
use super::{Engine, Rows, Shared};
use crate::scratch::local;
use crate::simd::Simd;
use crate::simd::bytes::formats::{Format, Q4_0, Q4K, Q5K, Q6K, Q8_0, Unpacked};
use crate::simd::bytes::{self, ByteTask, Bytes, SUPER};
use crate::simd::stored::Weight;

/// Whether there is a kernel for such a weight.
pub(super) fn takes(w: &Weight) -> bool {
    matches!(w.dtype, DType::Q8_0 | DType::Q4_0 | DType::Q4_K | DType::Q5_K | DType::Q6_K)
}

/// `Linear` on `rows` rows of `x`; there are kernels for its weights.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let (units, cost) = (linear.n.div_ceil(UNIT), UNIT * linear.k * (2 + rows) / 4);
    // SAFETY: the caller's promise.
    let codes = Shared(unsafe { codes(engine, x, rows, linear.k) }.cast_mut());
    engine.split(units, cost, |units| {
        bytes::run(engine.kernels, Integers { linear, codes, rows, units });
    });
}

/// The first byte of row `row` of a weight.
#[inline(always)]
fn weight_row(w: &Weight, row: usize) -> *const u8 {
    let block = w.dtype.block();
    w.ptr.wrapping_add(row * w.stride / block.elements * block.bytes)
}

/// Some outputs, in integers.
struct Integers<'a> {
    linear: &'a Linear<'a>,
    codes: Shared<Codes>,
    rows: usize,
    units: Range<usize>,
}

impl ByteTask for Integers<'_> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        let Linear { n, weight, gate, .. } = *self.linear;
        let waiting = self.rows * SIDE * 16;
        let mut local = local(Finishing::size(self.rows, WIDTH) + waiting);
        let mut finishing = Finishing::cut(local.all(), self.rows, WIDTH);
        let waiting = finishing.rest.as_mut_ptr();
        for outputs in pieces(self.units.clone(), n) {
            // SAFETY: the weights are valid (`row`), the scratch is this thread's and large enough.
            unsafe {
                self.products(b, &weight, &outputs, waiting, finishing.sums);
                if let Some(gate) = gate {
                    self.products(b, &gate, &outputs, waiting, finishing.gates);
                }
                finishing.finish(b.simd(), self.linear, self.rows, outputs);
            }
        }
    }
}

impl Integers<'_> {
    /// `out[row][j] = x[row] . w[outputs.start + j]`.
    ///
    /// # Safety
    /// The weight covers the outputs; `out` is writable for `[rows, WIDTH]`, `waiting` for `[SIDE, rows, 16]`.
    #[inline(always)]
    unsafe fn products<B: Bytes>(&self, b: B, w: &Weight, outputs: &Range<usize>, waiting: *mut f32, out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            match w.dtype {
                DType::Q8_0 => self.outputs::<B, Q8_0>(b, w, outputs, waiting, out),
                DType::Q4_0 => self.outputs::<B, Q4_0>(b, w, outputs, waiting, out),
                DType::Q4_K => self.outputs::<B, Q4K>(b, w, outputs, waiting, out),
                DType::Q5_K => self.outputs::<B, Q5K>(b, w, outputs, waiting, out),
                DType::Q6_K => self.outputs::<B, Q6K>(b, w, outputs, waiting, out),
                other => unreachable!("{other} has no blocks"),
            }
        }
    }

    /// [`Integers::products`] for one format.
    ///
    /// # Safety
    /// As [`Integers::products`].
    #[inline(always)]
    unsafe fn outputs<B: Bytes, T: Format>(
        &self,
        b: B,
        w: &Weight,
        outputs: &Range<usize>,
        waiting: *mut f32,
        out: *mut f32,
    ) {
        let streams = Streams::new(outputs.len());
        for i in 0..streams.steps() {
            let some = streams.at(i);
            let rows = std::array::from_fn(|s| weight_row(w, outputs.start + s * streams.apart() + i));
            let out = out.wrapping_add(i);
            // SAFETY: the caller's promise; rows past the streams that have this step are not touched.
            unsafe {
                if self.rows > 1 {
                    self.many::<B, T>(b, &rows[..some], waiting, streams.apart(), out);
                } else if some == SIDE {
                    self.one::<B, T, SIDE>(b, rows, streams.apart(), out);
                } else {
                    for (s, &row) in rows[..some].iter().enumerate() {
                        self.one::<B, T, 1>(b, [row], 0, out.add(s * streams.apart()));
                    }
                }
            }
        }
    }

    /// One row of activations times `O` of weights, whose sums go `apart`.
    ///
    /// # Safety
    /// As [`Integers::products`].
    #[inline(always)]
    unsafe fn one<B: Bytes, T: Format, const O: usize>(&self, b: B, w: [*const u8; O], apart: usize, out: *mut f32) {
        let mut acc = [b.splat(0.0); O];
        let (whole, rest) = (self.linear.k / SUPER, self.linear.k % SUPER);
        // SAFETY: the caller's promise; the codes are whole superblocks.
        unsafe {
            for i in 0..whole {
                let x = self.codes.at(i);
                for o in 0..O {
                    let p = w[o].add(i * T::BYTES);
                    prefetch::<B, T>(b, p);
                    acc[o] = step::<B, T>(b, &T::unpack(b, p), x, acc[o]);
                }
            }
            if rest > 0 {
                for o in 0..O {
                    let last = last::<T>(w[o].add(whole * T::BYTES), rest);
                    acc[o] = step::<B, T>(b, &T::unpack(b, last.as_ptr()), self.codes.at(whole), acc[o]);
                }
            }
            for (o, &acc) in acc.iter().enumerate() {
                *out.add(o * apart) = b.sum(acc);
            }
        }
    }

    /// All rows of activations times some of weights, whose sums go `apart`; meanwhile the lanes wait in memory.
    ///
    /// # Safety
    /// As [`Integers::products`].
    #[inline(always)]
    unsafe fn many<B: Bytes, T: Format>(&self, b: B, w: &[*const u8], waiting: *mut f32, apart: usize, out: *mut f32) {
        let (whole, rest) = (self.linear.k / SUPER, self.linear.k % SUPER);
        // SAFETY: the caller's promise; the codes are whole superblocks.
        unsafe {
            for i in 0..w.len() * self.rows {
                b.store_f32(waiting.add(16 * i), b.splat(0.0));
            }
            for i in 0..whole + (rest > 0) as usize {
                for (o, w) in w.iter().enumerate() {
                    let p = w.add(i * T::BYTES);
                    let unpacked = if i < whole {
                        prefetch::<B, T>(b, p);
                        T::unpack(b, p)
                    } else {
                        T::unpack(b, last::<T>(p, rest).as_ptr())
                    };
                    for r in 0..self.rows {
                        let acc = waiting.add(16 * (o * self.rows + r));
                        let x = self.codes.at(i * self.rows + r);
                        b.store_f32(acc, step::<B, T>(b, &unpacked, x, b.load_f32(acc)));
                    }
                }
            }
            for o in 0..w.len() {
                for r in 0..self.rows {
                    *out.add(r * WIDTH + o * apart) = b.sum(b.load_f32(waiting.add(16 * (o * self.rows + r))));
                }
            }
        }
    }
}

/// Asks for weights that come later.
#[inline(always)]
fn prefetch<B: Bytes, T: Format>(b: B, p: *const u8) {
    for line in (0..T::BYTES).step_by(64) {
        b.simd().prefetch(p.wrapping_add(AHEAD + line));
    }
}

/// The blocks of the last, shorter superblock; the others are zero.
///
/// # Safety
/// `rest` elements are readable.
#[inline(always)]
unsafe fn last<T: Format>(p: *const u8, rest: usize) -> [u8; 272] {
    let mut bytes = [0; 272];
    // SAFETY: the caller's promise; fewer blocks than a superblock has.
    unsafe { std::ptr::copy_nonoverlapping(p, bytes.as_mut_ptr(), rest / T::BLOCK * T::BLOCK_BYTES) };
    bytes
}

/// Adds a superblock's products.
///
/// # Safety
/// `x` is readable.
#[inline(always)]
unsafe fn step<B: Bytes, T: Format>(b: B, w: &Unpacked<B>, x: *const Codes, acc: B::F) -> B::F {
    // SAFETY: the caller's promise; all arrays are as long as is read.
    unsafe {
        let codes = (&raw const (*x).codes).cast();
        let sums = if T::MINS {
            b.dots(b.zeros(), &w.q, codes)
        } else {
            let offset = b.load_shifted(T::SHIFT, (&raw const (*x).minus_sum).cast());
            if T::SIGNED { b.dots_signed(offset, &w.q, codes) } else { b.dots(offset, &w.q, codes) }
        };
        let scale = b.mul(w.scale, b.load_f32((&raw const (*x).scale).cast()));
        let acc = b.fma(b.to_f32(sums), scale, acc);
        if T::MINS { b.fma(w.min, b.load_f32((&raw const (*x).sum).cast()), acc) } else { acc }
    }
}
