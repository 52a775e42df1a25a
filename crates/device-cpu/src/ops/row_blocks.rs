//! The row kernel on quantised weights.
//!
//! The activations become codes (`codes.rs`) and products are summed in integers over the sixteen elements of a lane's
//! group, exactly; a superblock's lanes are then scaled and added in f32.
//!
//! A weight is unpacked once for all rows (`row_products.rs`).

use std::ops::Range;

use turbospark_tensor::{Code, DType};

use super::Engine;
use super::codes::codes;
use super::finish::{Finishing, Job, Linear};
use super::outputs::{UNIT, WIDTH, pieces, together};
use super::row_products::{Products, Sums};
use crate::isa::Kernels;
use crate::scratch::local;
use crate::simd::bytes;
use crate::simd::bytes::formats::{Iq4Nl, MxFp4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::simd::bytes::grid_formats::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Tq1_0};
use crate::simd::bytes::k_formats::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K, Tq2_0};
use crate::simd::bytes::rows::{
    Apart, Bf16Biased, Blocks, Eights, F16Biased, F32Biased, Few, Floats, Known, Nothing, Powers, Signed, Unsigned,
};
use crate::simd::stored::Weight;
use crate::simd::{Simd, Task};

/// Whether there is a kernel for such a weight.
pub(super) fn takes(kernels: Kernels, w: &Weight) -> bool {
    bytes::go_with(kernels)
        && match &w.scales {
            Some(scales) => scales.form.code() != Code::E4M3,
            None => w.dtype.is_block(),
        }
}

/// All of `jobs`, as if they were one layer; there are kernels for their weights.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix), for each of them; none reads what another writes.
pub(super) unsafe fn rows(engine: &mut Engine, jobs: &[Job<'_>]) {
    // SAFETY: the caller's promise.
    let codes = unsafe { codes(engine, jobs) };
    let kernels = engine.kernels;
    together(
        engine,
        jobs,
        |job| UNIT * job.linear.k * (2 + job.rows) / 4,
        |i, units| {
            let Job { rows, linear, .. } = &jobs[i];
            let mut local = local(Finishing::size(*rows, WIDTH) + Sums::scratch(*rows));
            let mut finishing = Finishing::cut(local.all(), *rows, WIDTH);
            let scratch = finishing.rest.as_mut_ptr();
            for outputs in pieces(units, linear.n) {
                let codes = codes[i];
                let sums = |out| Sums { k: linear.k, codes, rows: *rows, outputs: &outputs, scratch, out };
                products(kernels, &linear.weight, sums(finishing.sums));
                if let Some(gate) = &linear.gate {
                    products(kernels, gate, sums(finishing.gates));
                }
                kernels.run(Finish { finishing: &mut finishing, linear, rows: *rows, outputs });
            }
        },
    );
}

/// Some outputs of a layer, from their sums.
pub(super) struct Finish<'a, 'b> {
    pub finishing: &'a mut Finishing<'b>,
    pub linear: &'a Linear<'a>,
    pub rows: usize,
    pub outputs: Range<usize>,
}

impl Task for Finish<'_, '_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the layer is valid (`row`), and these outputs are this part's alone.
        unsafe { self.finishing.finish(s, self.linear, self.rows, self.outputs) };
    }
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
            Code::E2M1 if Eights::fits(s) => of!(Apart::<Floats, Eights>::new(w, s)),
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
