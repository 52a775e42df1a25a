//! AVX2 with FMA and F16C: eight lanes.

use std::arch::x86_64::*;

use super::tile::tiles;
use super::{Simd, Task, TileArgs};

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// The proof, where there is one.
    pub(crate) fn new() -> Option<Self> {
        let found =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    /// Runs a loop compiled for these instructions.
    pub(crate) fn run(self, task: impl Task) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner(task: impl Task, s: Avx2) {
            task.run(s);
        }
        // SAFETY: `self` exists only where `new` found the instructions.
        unsafe { inner(task, self) }
    }
}

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx2` exists only where `Avx2::new` found the instructions.
        unsafe { $e }
    };
}

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 6;
    const TILE_COLS: usize = 16;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        op!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        op!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        op!(_mm256_blendv_ps(no, yes, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }

    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        op!({
            let bits = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)));
            _mm256_mul_ps(v, _mm256_castsi256_ps(bits))
        })
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        op!({
            let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        op!({
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn any_above(self, v: Self::V, limit: f32) -> bool {
        op!(_mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(v, _mm256_set1_ps(limit))) != 0)
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_some(self, p: *const f32, n: usize) -> Self::V {
        let mut all = [0f32; 8];
        // SAFETY: the token, and the caller's promise of `n <= 8` elements.
        unsafe {
            std::ptr::copy_nonoverlapping(p.cast::<u8>(), all.as_mut_ptr().cast::<u8>(), 4 * n);
            _mm256_loadu_ps(all.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            // Its bits are those of an f16 that is 256 times smaller; but all ones are NaN.
            let bits = _mm_slli_epi16::<7>(_mm_cvtepi8_epi16(_mm_loadl_epi64(p.cast())));
            let bits = _mm_and_si128(bits, _mm_set1_epi16(0xbfff_u16 as i16));
            let ones = _mm_set1_epi16(0x3f80);
            let nan = _mm_cmpeq_epi16(_mm_and_si128(bits, ones), ones);
            _mm256_cvtph_ps(_mm_or_si128(bits, nan))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn store_some(self, p: *mut f32, v: Self::V, n: usize) {
        if n == 8 {
            // SAFETY: as below.
            return unsafe { _mm256_storeu_ps(p, v) };
        }
        let mut all = [0f32; 8];
        // SAFETY: the token, and the caller's promise of `n <= 8` elements.
        unsafe {
            _mm256_storeu_ps(all.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(all.as_ptr().cast::<u8>(), p.cast::<u8>(), 4 * n);
        }
    }

    #[inline(always)]
    unsafe fn store_transposed(self, rows: &[Self::V], out: *mut f32, ld: usize) {
        let mut a = [self.splat(0.0); 8];
        a.copy_from_slice(rows);
        // SAFETY: the token, and the caller's promise of 8 rows of 8.
        unsafe {
            let mut b = a;
            for i in 0..4 {
                b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
            }
            // Within each 128-bit lane: c[4 g + j] holds column j of rows 4 g .. 4 g + 4.
            let mut c = b;
            for g in 0..2 {
                c[4 * g] = _mm256_shuffle_ps::<0x44>(b[4 * g], b[4 * g + 2]);
                c[4 * g + 1] = _mm256_shuffle_ps::<0xee>(b[4 * g], b[4 * g + 2]);
                c[4 * g + 2] = _mm256_shuffle_ps::<0x44>(b[4 * g + 1], b[4 * g + 3]);
                c[4 * g + 3] = _mm256_shuffle_ps::<0xee>(b[4 * g + 1], b[4 * g + 3]);
            }
            for j in 0..4 {
                _mm256_storeu_ps(out.add(j * ld), _mm256_permute2f128_ps::<0x20>(c[j], c[4 + j]));
                _mm256_storeu_ps(out.add((4 + j) * ld), _mm256_permute2f128_ps::<0x31>(c[j], c[4 + j]));
            }
        }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_stream_ps(p, v) }
    }

    #[inline(always)]
    fn streamed(self) {
        op!(_mm_sfence())
    }

    #[inline(always)]
    fn prefetch(self, p: *const u8) {
        op!(_mm_prefetch::<_MM_HINT_T0>(p.cast()))
    }

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        tiles!(self, self, a, 2, 1, Self::LEFT, [2 4 6]);
    }

    #[inline(always)]
    unsafe fn tile_rows<const STRIDE: usize>(self, a: TileArgs) {
        tiles!(self, self, a, 2, STRIDE, 1, [2 4 6]);
    }
}
