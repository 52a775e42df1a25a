//! Bytes on NEON: four vectors of each kind, with `sdot` where the CPU has it.

use std::arch::aarch64::*;
use std::arch::asm;

use turbospark_tensor::DType;

use super::super::Simd;
use super::super::neon::{Neon, widen};
use super::{ByteTask, Bytes, Spread};

/// NEON, with the dot product instructions where `DOT`.
#[derive(Clone, Copy)]
pub(super) struct NeonBytes<const DOT: bool>(Neon);

/// Runs a loop compiled for the best that goes with NEON.
pub(super) fn run(s: Neon, task: impl ByteTask) {
    if std::arch::is_aarch64_feature_detected!("dotprod") {
        NeonBytes::<true>(s).outlined(task);
    } else {
        plain(s, task);
    }
}

/// [`run`] without `sdot`.
fn plain(s: Neon, task: impl ByteTask) {
    NeonBytes::<false>(s).outlined(task);
}

#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
fn with_dot<const DOT: bool>(task: impl ByteTask, b: NeonBytes<DOT>) {
    task.run(b);
}

#[target_feature(enable = "neon")]
#[inline(never)]
fn without_dot<const DOT: bool>(task: impl ByteTask, b: NeonBytes<DOT>) {
    task.run(b);
}

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: a `NeonBytes` exists only where its instructions were found.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

type Four = [uint8x16_t; 4];

/// Adds the products of each lane's four bytes.
#[inline(always)]
fn sdot<const DOT: bool>(sums: int32x4_t, q: int8x16_t, x: int8x16_t) -> int32x4_t {
    if DOT {
        let mut out = sums;
        // SAFETY: `DOT` says that the instruction is there; it touches registers only.
        unsafe {
            asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) out, in(vreg) q, in(vreg) x,
                options(pure, nomem, nostack, preserves_flags));
        }
        return out;
    }
    op!({
        let low = vpaddlq_s16(vmull_s8(vget_low_s8(q), vget_low_s8(x)));
        let high = vpaddlq_s16(vmull_s8(vget_high_s8(q), vget_high_s8(x)));
        vaddq_s32(sums, vpaddq_s32(low, high))
    })
}

#[inline(always)]
fn shift_quarter<const BY: i32>(v: uint8x16_t) -> uint8x16_t {
    if BY == 0 { v } else { op!(vshlq_u8(v, vdupq_n_s8(-BY as i8))) }
}

impl<const DOT: bool> Bytes for NeonBytes<DOT> {
    type S = Neon;
    type V = Four;
    type I = [int32x4_t; 4];
    type F = [float32x4_t; 4];
    #[inline(always)]
    fn outlined(self, task: impl ByteTask) {
        // SAFETY: `self` exists only where its instructions were found.
        unsafe { if DOT { with_dot(task, self) } else { without_dot(task, self) } }
    }

    #[inline(always)]
    fn simd(self) -> Neon {
        self.0
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Four {
        // SAFETY: the caller's promise.
        unsafe { self.load_halves(p, p.add(32)) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, a: *const u8, b: *const u8) -> Four {
        // SAFETY: the token, and the caller's promise.
        unsafe { [vld1q_u8(a), vld1q_u8(a.add(16)), vld1q_u8(b), vld1q_u8(b.add(16))] }
    }

    #[inline(always)]
    unsafe fn load_twice(self, a: *const u8, b: *const u8) -> Four {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let (a, b) = (vld1q_u8(a), vld1q_u8(b));
            [a, a, b, b]
        }
    }

    #[inline(always)]
    fn and(self, mut v: Four, mask: u8) -> Four {
        for v in &mut v {
            *v = op!(vandq_u8(*v, vdupq_n_u8(mask)));
        }
        v
    }

    #[inline(always)]
    fn or(self, mut a: Four, b: Four) -> Four {
        for (a, b) in a.iter_mut().zip(b) {
            *a = op!(vorrq_u8(*a, b));
        }
        a
    }

    #[inline(always)]
    fn shift<const Q0: i32, const Q1: i32, const Q2: i32, const Q3: i32>(self, v: Four) -> Four {
        [shift_quarter::<Q0>(v[0]), shift_quarter::<Q1>(v[1]), shift_quarter::<Q2>(v[2]), shift_quarter::<Q3>(v[3])]
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [Four; 4]) -> [Four; 4] {
        let mut out = [a; 4];
        for r in 0..4 {
            op!({
                let wide = |v: Four| vreinterpretq_u32_u8(v[r]);
                let (ab, cd) = (vtrnq_u32(wide(a), wide(b)), vtrnq_u32(wide(c), wide(d)));
                let low =
                    |x: uint32x4_t, y: uint32x4_t| vreinterpretq_u8_u32(vcombine_u32(vget_low_u32(x), vget_low_u32(y)));
                let high = |x: uint32x4_t, y: uint32x4_t| {
                    vreinterpretq_u8_u32(vcombine_u32(vget_high_u32(x), vget_high_u32(y)))
                };
                out[0][r] = low(ab.0, cd.0);
                out[1][r] = low(ab.1, cd.1);
                out[2][r] = high(ab.0, cd.0);
                out[3][r] = high(ab.1, cd.1);
            });
        }
        out
    }

    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Four {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let (a, b) = (vld1q_u8(p), vld1q_u8(p.add(16)));
            let halves = |v: uint8x16_t| (vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v));
            let ((a, a2), (b, b2)) = (halves(a), halves(b));
            [vzip1q_u8(a, a2), vzip2q_u8(a, a2), vzip1q_u8(b, b2), vzip2q_u8(b, b2)]
        }
    }

    #[inline(always)]
    fn lookup(self, mut v: Four, table: &[u8; 16]) -> Four {
        // SAFETY: the token; an array of sixteen bytes.
        let table = unsafe { vld1q_u8(table.as_ptr()) };
        for v in &mut v {
            *v = op!(vqtbl1q_u8(table, *v));
        }
        v
    }

    #[inline(always)]
    fn spread_bits(self, bits: u64, value: u8) -> Four {
        let mut out = [op!(vdupq_n_u8(0)); 4];
        for (r, out) in out.iter_mut().enumerate() {
            *out = op!({
                let [low, high, ..] = (bits >> (16 * r)).to_le_bytes();
                let each = vcreate_u8(0x8040_2010_0804_0201);
                let set = vtstq_u8(vcombine_u8(vdup_n_u8(low), vdup_n_u8(high)), vcombine_u8(each, each));
                vandq_u8(set, vdupq_n_u8(value))
            });
        }
        out
    }

    #[inline(always)]
    fn negate(self, mut v: Four, bits: u64) -> Four {
        for (v, mask) in v.iter_mut().zip(self.spread_bits(bits, 255)) {
            *v = op!(vsubq_u8(veorq_u8(*v, mask), mask));
        }
        v
    }

    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn dots(self, mut sums: Self::I, q: &[Four; 4], x: *const i8) -> Self::I {
        for (i, q) in q.iter().enumerate() {
            for (r, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the token, and the caller's promise.
                let x = unsafe { vld1q_s8(x.add(64 * i + 16 * r)) };
                *sum = sdot::<DOT>(*sum, op!(vreinterpretq_s8_u8(q[r])), x);
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn dots_signed(self, _: Self::I, q: &[Four; 4], x: *const i8) -> Self::I {
        // SAFETY: the caller's promise.
        unsafe { self.dots(self.zeros(), q, x) }
    }

    #[inline(always)]
    fn zeros(self) -> Self::I {
        [op!(vdupq_n_s32(0)); 4]
    }

    #[inline(always)]
    unsafe fn load_shifted(self, by: u32, p: *const i32) -> Self::I {
        let mut out = self.zeros();
        for (r, v) in out.iter_mut().enumerate() {
            // SAFETY: the token, and the caller's promise; the load is unaligned.
            *v = unsafe { vshlq_s32(vreinterpretq_s32_u8(vld1q_u8(p.add(4 * r).cast())), vdupq_n_s32(by as i32)) };
        }
        out
    }

    #[inline(always)]
    fn to_f32(self, v: Self::I) -> Self::F {
        [op!(vcvtq_f32_s32(v[0])), op!(vcvtq_f32_s32(v[1])), op!(vcvtq_f32_s32(v[2])), op!(vcvtq_f32_s32(v[3]))]
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        op!(vgetq_lane_f32::<0>(widen(vdup_n_u16(bits))))
    }

    #[inline(always)]
    unsafe fn scales_f16(self, p: *const u8, stride: usize) -> Self::F {
        // SAFETY: the token, and the caller's promise; the reads are unaligned.
        unsafe {
            let one = |i: usize| p.add(i * stride).cast::<u16>().read_unaligned();
            let (even, odd) = ([one(0), one(2), one(4), one(6)], [one(1), one(3), one(5), one(7)]);
            let (even, odd) = (widen(vld1_u16(even.as_ptr())), widen(vld1_u16(odd.as_ptr())));
            [even, even, odd, odd]
        }
    }

    #[inline(always)]
    fn scales_u8(self, bytes: u64) -> Self::F {
        op!({
            let wide = vmovl_u8(vcreate_u8(bytes));
            let even = vcvtq_f32_u32(vmovl_u16(vget_low_u16(vuzp1q_u16(wide, wide))));
            let odd = vcvtq_f32_u32(vmovl_u16(vget_low_u16(vuzp2q_u16(wide, wide))));
            [even, even, odd, odd]
        })
    }

    #[inline(always)]
    unsafe fn scales_i8(self, p: *const u8) -> Self::F {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let order: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
            let bytes = vreinterpretq_s8_u8(vqtbl1q_u8(vld1q_u8(p), vld1q_u8(order.as_ptr())));
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
            let wide = |v: int16x4_t| vcvtq_f32_s32(vmovl_s16(v));
            [wide(vget_low_s16(low)), wide(vget_high_s16(low)), wide(vget_low_s16(high)), wide(vget_high_s16(high))]
        }
    }

    #[inline(always)]
    unsafe fn scales(self, p: *const u8, dtype: DType, spread: &Spread, factor: f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { self.times(self.scales_singly(p, dtype, spread), factor) }
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { [self.0.load(p), self.0.load(p.add(4)), self.0.load(p.add(8)), self.0.load(p.add(12))] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::bytes::tests::agrees_with_portable;

    #[test]
    fn products_without_sdot_are_exact() {
        match Neon::new() {
            Some(s) => agrees_with_portable(|task| plain(s, task)),
            None => println!("skipped: no NEON"),
        }
    }
}
