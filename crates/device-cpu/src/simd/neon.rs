//! NEON: four lanes.

use std::arch::aarch64::*;
use std::arch::asm;

use super::tile::tiles;
use super::{Simd, Task, TileArgs};

/// Proof that the CPU has NEON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(());

impl Neon {
    /// The proof, where there is one.
    pub(crate) fn new() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Neon(()))
    }

    /// Runs a loop compiled for these instructions.
    pub(crate) fn run(self, task: impl Task) {
        #[target_feature(enable = "neon")]
        fn inner(task: impl Task, s: Neon) {
            task.run(s);
        }
        // SAFETY: `self` exists only where `new` found the instructions.
        unsafe { inner(task, self) }
    }
}

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {{
        // SAFETY: a `Neon` exists only where `Neon::new` found the instructions.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

/// Widens four f16.
#[inline(always)]
pub(super) fn widen(halves: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: an instruction of every NEON, on registers only.
    unsafe {
        asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) out, in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 12;
    const TILE_COLS: usize = 8;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        op!(vdupq_n_f32(x))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        op!(vaddq_f32(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        op!(vsubq_f32(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        op!(vmulq_f32(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        op!(vdivq_f32(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        op!(vfmaq_f32(c, a, b))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        // Not `vmaxq_f32`: NaN must come from the second operand alone.
        op!(vbslq_f32(vcgtq_f32(a, b), a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        op!(vbslq_f32(vcltq_f32(a, b), a, b))
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        op!(vbslq_f32(vcltq_f32(a, b), yes, no))
    }

    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        op!({
            let bits = vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)));
            vmulq_f32(v, vreinterpretq_f32_s32(bits))
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        op!(vaddvq_f32(v))
    }

    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        op!(vmaxvq_f32(v))
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the token, and the caller's promise; the load is unaligned.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_some(self, p: *const f32, n: usize) -> Self::V {
        let mut all = [0f32; 4];
        // SAFETY: the token, and the caller's promise of `n <= 4` elements.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), all.as_mut_ptr().cast::<u8>(), 4 * n);
            vld1q_f32(all.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the token, and the caller's promise; the load is unaligned.
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vreinterpret_u16_u8(vld1_u8(p.cast()))))) }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token, and the caller's promise; the load is unaligned.
        widen(unsafe { vreinterpret_u16_u8(vld1_u8(p.cast())) })
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token, and the caller's promise; the store is unaligned.
        unsafe { vst1q_u8(p.cast(), vreinterpretq_u8_f32(v)) }
    }

    #[inline(always)]
    unsafe fn store_some(self, p: *mut f32, v: Self::V, n: usize) {
        let mut all = [0f32; 4];
        // SAFETY: the token, and the caller's promise of `n <= 4` elements.
        unsafe {
            vst1q_f32(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr().cast::<u8>(), p.cast::<u8>(), 4 * n);
        }
    }

    #[inline(always)]
    unsafe fn store_transposed(self, rows: &[Self::V], out: *mut f32, ld: usize) {
        // SAFETY: the token, and the caller's promise of 4 rows of 4.
        unsafe {
            let (lo, hi) = (vtrnq_f32(rows[0], rows[1]), vtrnq_f32(rows[2], rows[3]));
            let join = |a: float32x2_t, b: float32x2_t| vcombine_f32(a, b);
            self.store(out, join(vget_low_f32(lo.0), vget_low_f32(hi.0)));
            self.store(out.add(ld), join(vget_low_f32(lo.1), vget_low_f32(hi.1)));
            self.store(out.add(2 * ld), join(vget_high_f32(lo.0), vget_high_f32(hi.0)));
            self.store(out.add(3 * ld), join(vget_high_f32(lo.1), vget_high_f32(hi.1)));
        }
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        // SAFETY: a hint, which no address makes fault.
        unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, preserves_flags, readonly)) }
    }

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        tiles!(self, self, a, 2, 1, Self::LEFT, [2 4 8 12]);
    }

    #[inline(always)]
    unsafe fn tile_rows<const STRIDE: usize>(self, a: TileArgs) {
        tiles!(self, self, a, 2, STRIDE, 1, [2 4 8 12]);
    }
}
