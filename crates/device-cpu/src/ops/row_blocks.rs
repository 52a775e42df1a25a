//! The row kernel on quantised weights.
//!
//! The activations become codes (`codes.rs`) and products are summed in integers over the sixteen elements of a lane's
//! group, exactly; a superblock's lanes are then scaled and added in f32.
//!
//! A weight is unpacked once for all rows. Every row's sums run in the same steps, however many there are.

use std::ops::Range;

use turbospark_tensor::{Code, DType};

use super::codes::{Codes, codes};
use super::finish::{Finishing, Linear};
use super::outputs::{AHEAD, SIDE, Streams, UNIT, WIDTH, pieces};
use super::{Engine, Rows, Shared};
use crate::isa::Kernels;
use crate::scratch::local;
use crate::simd::bytes::formats::{Iq4Nl, MxFp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Unpacked, Values};
use crate::simd::bytes::grid_formats::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Tq1_0};
use crate::simd::bytes::k_formats::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, Tq2_0};
use crate::simd::bytes::rows::{
    Apart, Bf16Biased, Blocks, F16Biased, F32Biased, Few, Floats, Known, Nothing, Packed, Powers, Signed, Unsigned,
};
use crate::simd::bytes::{self, ByteTask, Bytes, SUPER};
use crate::simd::stored::Weight;
use crate::simd::{Simd, Task};

/// Whether there is a kernel for such a weight.
pub(super) fn takes(w: &Weight) -> bool {
    match &w.scales {
        Some(scales) => scales.form.code() != Code::E4M3,
        None => w.dtype.is_block(),
    }
}

/// `Linear` on `rows` rows of `x`; there are kernels for its weights.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let (units, cost) = (linear.n.div_ceil(UNIT), UNIT * linear.k * (2 + rows) / 4);
    // SAFETY: the caller's promise.
    let codes = Shared(unsafe { codes(engine, x, rows, linear.k) }.cast_mut());
    let kernels = engine.kernels;
    engine.split(units, cost, |units| {
        let mut local = local(Finishing::size(rows, WIDTH) + rows * SIDE * 16);
        let mut finishing = Finishing::cut(local.all(), rows, WIDTH);
        let waiting = finishing.rest.as_mut_ptr();
        for outputs in pieces(units, linear.n) {
            let sums = |out| Sums { k: linear.k, codes, rows, outputs: &outputs, waiting, out };
            products(kernels, &linear.weight, sums(finishing.sums));
            if let Some(gate) = &linear.gate {
                products(kernels, gate, sums(finishing.gates));
            }
            kernels.run(Finish { finishing: &mut finishing, linear, rows, outputs });
        }
    });
}

/// Some outputs of a layer, from their sums.
struct Finish<'a, 'b> {
    finishing: &'a mut Finishing<'b>,
    linear: &'a Linear<'a>,
    rows: usize,
    outputs: Range<usize>,
}

impl Task for Finish<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the layer is valid (`row`), and these outputs are this part's alone.
        unsafe { self.finishing.finish(s, self.linear, self.rows, self.outputs) };
    }
}

/// The sums of some outputs: `out[row][j] = x[row] . w[outputs.start + j]`.
#[derive(Clone, Copy)]
struct Sums<'a> {
    k: usize,
    codes: Shared<Codes>,
    rows: usize,
    outputs: &'a Range<usize>,
    /// `[SIDE, rows, 16]`, of this part alone.
    waiting: *mut f32,
    /// `[rows, WIDTH]`, as `waiting`.
    out: *mut f32,
}

/// Computes sums by the kernel of the weight's format.
fn products(kernels: Kernels, w: &Weight, sums: Sums<'_>) {
    // A task for each, and not one for all: compiled in one piece they take minutes.
    macro_rules! of {
        ($w:expr) => {
            bytes::run(kernels, Products { w: $w, sums })
        };
    }
    match (&w.scales, w.dtype) {
        (Some(s), _) => match s.form.code() {
            Code::Unsigned(2) if Bf16Biased::fits(s) => of!(Apart::<Few<2>, Bf16Biased>::new(w, s)),
            Code::Unsigned(2) => of!(Apart::<Few<2>, Nothing>::new(w, s)),
            Code::Unsigned(3) if Bf16Biased::fits(s) => of!(Apart::<Few<3>, Bf16Biased>::new(w, s)),
            Code::Unsigned(3) => of!(Apart::<Few<3>, Nothing>::new(w, s)),
            Code::Unsigned(4) if Bf16Biased::fits(s) => of!(Apart::<Few<4>, Bf16Biased>::new(w, s)),
            Code::Unsigned(4) if F16Biased::fits(s) => of!(Apart::<Few<4>, F16Biased>::new(w, s)),
            Code::Unsigned(4) if F32Biased::fits(s) => of!(Apart::<Few<4>, F32Biased>::new(w, s)),
            Code::Unsigned(4) => of!(Apart::<Few<4>, Nothing>::new(w, s)),
            Code::Unsigned(5) if Bf16Biased::fits(s) => of!(Apart::<Few<5>, Bf16Biased>::new(w, s)),
            Code::Unsigned(5) => of!(Apart::<Few<5>, Nothing>::new(w, s)),
            Code::Unsigned(6) if Bf16Biased::fits(s) => of!(Apart::<Few<6>, Bf16Biased>::new(w, s)),
            Code::Unsigned(6) => of!(Apart::<Few<6>, Nothing>::new(w, s)),
            Code::Unsigned(_) if Bf16Biased::fits(s) => of!(Apart::<Unsigned, Bf16Biased>::new(w, s)),
            Code::Unsigned(_) => of!(Apart::<Unsigned, Nothing>::new(w, s)),
            Code::Signed8 => of!(Apart::<Signed, Nothing>::new(w, s)),
            Code::E2M1 if Powers::fits(s) => of!(Apart::<Floats, Powers>::new(w, s)),
            Code::E2M1 => of!(Apart::<Floats, Nothing>::new(w, s)),
            Code::E4M3 => unreachable!("E4M3 has no kernel"),
        },
        (None, DType::Q8_0) => of!(Blocks::<Q8_0>::new(w)),
        (None, DType::Q4_0) => of!(Blocks::<Q4_0>::new(w)),
        (None, DType::Q4_1) => of!(Blocks::<Q4_1>::new(w)),
        (None, DType::Q5_0) => of!(Blocks::<Q5_0>::new(w)),
        (None, DType::Q5_1) => of!(Blocks::<Q5_1>::new(w)),
        (None, DType::IQ4_NL) => of!(Blocks::<Iq4Nl>::new(w)),
        (None, DType::MXFP4) => of!(Blocks::<MxFp4>::new(w)),
        (None, DType::Q2_K) => of!(Blocks::<Q2K>::new(w)),
        (None, DType::Q3_K) => of!(Blocks::<Q3K>::new(w)),
        (None, DType::Q4_K) => of!(Blocks::<Q4K>::new(w)),
        (None, DType::Q5_K) => of!(Blocks::<Q5K>::new(w)),
        (None, DType::Q6_K) => of!(Blocks::<Q6K>::new(w)),
        (None, DType::IQ4_XS) => of!(Blocks::<Iq4Xs>::new(w)),
        (None, DType::TQ2_0) => of!(Blocks::<Tq2_0>::new(w)),
        (None, DType::IQ2_XXS) => of!(Blocks::<Iq2Xxs>::new(w)),
        (None, DType::IQ2_XS) => of!(Blocks::<Iq2Xs>::new(w)),
        (None, DType::IQ2_S) => of!(Blocks::<Iq2S>::new(w)),
        (None, DType::IQ3_XXS) => of!(Blocks::<Iq3Xxs>::new(w)),
        (None, DType::IQ3_S) => of!(Blocks::<Iq3S>::new(w)),
        (None, DType::IQ1_S) => of!(Blocks::<Iq1S>::new(w)),
        (None, DType::IQ1_M) => of!(Blocks::<Iq1M>::new(w)),
        (None, DType::TQ1_0) => of!(Blocks::<Tq1_0>::new(w)),
        (None, other) => unreachable!("{other} has no kernel"),
    }
}

/// [`Sums`] by one kernel.
struct Products<'a, T> {
    w: T,
    sums: Sums<'a>,
}

impl<T: Packed> ByteTask for Products<'_, T> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        let Sums { outputs, rows, .. } = self.sums;
        let streams = Streams::new(outputs.len());
        for i in 0..streams.steps() {
            let some = streams.at(i);
            let mut weights = [self.w.row(outputs.start + i); SIDE];
            for (s, row) in weights.iter_mut().enumerate().take(some).skip(1) {
                *row = self.w.row(outputs.start + s * streams.apart() + i);
            }
            let out = self.sums.out.wrapping_add(i);
            // SAFETY: the weights are valid (`row`); rows of them past the streams that have this step are not touched,
            // and neither are those of the scratch.
            unsafe {
                if rows == 1 && some == SIDE {
                    self.one(b, weights, streams.apart(), out);
                } else {
                    self.many(b, &weights[..some], streams.apart(), out);
                }
            }
        }
    }
}

impl<T: Packed> Products<'_, T> {
    /// One row of activations times `SIDE` of weights, whose sums go `apart`.
    ///
    /// # Safety
    /// The rows are readable; `out` is writable for their sums.
    #[inline(always)]
    unsafe fn one<B: Bytes>(&self, b: B, rows: [T::Row; SIDE], apart: usize, out: *mut f32) {
        let Sums { k, codes, .. } = self.sums;
        let mut acc = [b.splat(0.0); SIDE];
        let (whole, rest) = (k / SUPER, k % SUPER);
        // SAFETY: the caller's promise; the codes are whole superblocks.
        unsafe {
            for i in 0..whole {
                let x = codes.at(i);
                for o in 0..SIDE {
                    self.w.prefetch(b.simd(), rows[o], i, AHEAD);
                    acc[o] = step::<B, T>(b, &self.w.unpack(b, rows[o], i), x, acc[o]);
                }
            }
            if rest > 0 {
                for o in 0..SIDE {
                    let last = self.w.unpack_some(b, rows[o], whole, rest);
                    acc[o] = step::<B, T>(b, &last, codes.at(whole), acc[o]);
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
    /// As [`Products::one`], and for `waiting`.
    #[inline(always)]
    unsafe fn many<B: Bytes>(&self, b: B, weights: &[T::Row], apart: usize, out: *mut f32) {
        let Sums { k, codes, rows, waiting, .. } = self.sums;
        let (whole, rest) = (k / SUPER, k % SUPER);
        // SAFETY: the caller's promise; the codes are whole superblocks.
        unsafe {
            for i in 0..weights.len() * rows {
                b.store_f32(waiting.add(16 * i), b.splat(0.0));
            }
            for i in 0..whole + (rest > 0) as usize {
                for (o, &row) in weights.iter().enumerate() {
                    let unpacked = if i < whole {
                        self.w.prefetch(b.simd(), row, i, AHEAD);
                        self.w.unpack(b, row, i)
                    } else {
                        self.w.unpack_some(b, row, i, rest)
                    };
                    for r in 0..rows {
                        let acc = waiting.add(16 * (o * rows + r));
                        b.store_f32(acc, step::<B, T>(b, &unpacked, codes.at(i * rows + r), b.load_f32(acc)));
                    }
                }
            }
            for o in 0..weights.len() {
                for r in 0..rows {
                    *out.add(r * WIDTH + o * apart) = b.sum(b.load_f32(waiting.add(16 * (o * rows + r))));
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
        let acc = b.fma(sums, scale, acc);
        if T::MINS { b.fma(w.min, b.load_f32((&raw const (*x).sum).cast()), acc) } else { acc }
    }
}
