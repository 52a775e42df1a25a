//! Activations as signed bytes, for products in integers.
//!
//! Of each 16 elements of a row, with `a` the largest absolute value: `d = a / 127`, and an element is the whole
//! number nearest to `x * (127 / a)`, ties to even. Where `a` is below 2^-100 all are zero. Where an element is not
//! finite `d` is NaN, so that the products are.
//!
//! Sixteen, as a lane takes them: blocks of 32 would cost the same and round half as much again where one element is
//! large (docs/quantisation.md).

use super::finish::Job;
use super::{Engine, Rows, Shared};
use crate::simd::bytes::{SUPER, group};
use crate::simd::{Simd, Task};

/// A superblock's codes, four elements of each lane's group after the other's, and what goes with the lanes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Codes {
    pub codes: [[[i8; 4]; 16]; 4],
    /// `d`.
    pub scale: [f32; 16],
    /// The sum of the codes, negated.
    pub minus_sum: [i32; 16],
    /// `d` times the sum.
    pub sum: [f32; 16],
}

/// f32 that one of them takes in scratch.
const SIZE: usize = size_of::<Codes>() / 4;

/// The codes of each of `jobs`' rows, by superblock and then by row; past `k` they are zero.
///
/// # Safety
/// The rows are readable for `k` elements, while the codes are made.
pub(super) unsafe fn codes(engine: &mut Engine, jobs: &[Job<'_>]) -> Vec<Shared<Codes>> {
    let items = |job: &Job<'_>| job.linear.k.div_ceil(SUPER) * job.rows;
    let all = jobs.iter().map(items).sum::<usize>();
    let out = Shared(Shared::new(engine.packed.get(all * SIZE)).at(0).cast::<Codes>());
    let mut next = 0;
    let of = |job: &Job<'_>| {
        let (out, k, rows, x) = (Shared(out.at(next)), job.linear.k, job.rows, job.x);
        next += items(job);
        engine.split(items(job), 2 * SUPER, |items| engine.kernels.run(Quantise { x, rows, k, items, out }));
        out
    };
    jobs.iter().map(of).collect()
}

struct Quantise<'a> {
    x: Rows<'a>,
    rows: usize,
    k: usize,
    items: std::ops::Range<usize>,
    out: Shared<Codes>,
}

impl Task for Quantise<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for item in self.items {
            let (first, row) = (item / self.rows * SUPER, item % self.rows);
            let some = SUPER.min(self.k - first);
            let mut x = [0.0; SUPER];
            // SAFETY: the row has `some` elements from `first` on; place `item` is this part's alone.
            unsafe {
                std::ptr::copy_nonoverlapping(self.x.row(row).add(first).cast_const(), x.as_mut_ptr(), some);
                quantise(&x, &mut *self.out.at(item));
            }
        }
    }
}

#[inline(always)]
fn quantise(x: &[f32; SUPER], out: &mut Codes) {
    let mut codes = [0i8; SUPER];
    let mut scales = [0f32; SUPER / 16];
    for (b, scale) in scales.iter_mut().enumerate() {
        // By their bits, so that infinity and NaN are the largest.
        let mut largest = 0;
        for i in 0..16 {
            largest = largest.max(x[16 * b + i].to_bits() & 0x7fff_ffff);
        }
        let a = f32::from_bits(largest);
        *scale = if a.is_finite() { a / 127.0 } else { f32::NAN };
        let inverse = if (f32::from_bits(27 << 23)..=f32::MAX).contains(&a) { 127.0 / a } else { 0.0 };
        if inverse == 0.0 && a.is_finite() {
            *scale = 0.0;
        }
        for i in 0..16 {
            // Adding 1.5 * 2^23 leaves the whole number in the low bits.
            codes[16 * b + i] = (x[16 * b + i] * inverse + 12_582_912.0).to_bits() as i8;
        }
    }
    for lane in 0..16 {
        let from: &[i8; 16] = codes[16 * group(lane)..][..16].try_into().expect("sixteen");
        for (four, out) in from.as_chunks::<4>().0.iter().zip(&mut out.codes) {
            out[lane] = *four;
        }
        let sum: i32 = from.iter().map(|&code| i32::from(code)).sum();
        out.scale[lane] = scales[group(lane)];
        out.minus_sum[lane] = -sum;
        out.sum[lane] = scales[group(lane)] * sum as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_the_rule() {
        let mut x: [f32; SUPER] =
            std::array::from_fn(|i| ((i * 37 % 101) as f32 - 50.0) * if i < 64 { 1.0 } else { 1e-3 });
        x[96..128].fill(f32::MIN_POSITIVE);
        x[130] = f32::INFINITY;
        x[160] = f32::NAN;
        // SAFETY: numbers; any bits are valid.
        let mut out: Codes = unsafe { std::mem::zeroed() };
        quantise(&x, &mut out);
        for lane in 0..16 {
            let of = |i: usize| x[16 * group(lane) + i];
            let all = &x[16 * group(lane)..][..16];
            let a = all.iter().fold(0f32, |a, x| a.max(x.abs()));
            let bad = all.iter().any(|x| !x.is_finite());
            let zero = a < 2f32.powi(-100);
            assert_eq!(out.scale[lane].is_nan(), bad);
            if !bad {
                assert_eq!(out.scale[lane], if zero { 0.0 } else { a / 127.0 });
                let want = |i: usize| if zero { 0 } else { (of(i) * (127.0 / a)).round_ties_even() as i8 };
                let sum: i32 = (0..16).map(|i| i32::from(want(i))).sum();
                (0..16).for_each(|i| assert_eq!(out.codes[i / 4][lane][i % 4], want(i)));
                assert_eq!((out.minus_sum[lane], out.sum[lane]), (-sum, out.scale[lane] * sum as f32));
            }
        }
    }
}
