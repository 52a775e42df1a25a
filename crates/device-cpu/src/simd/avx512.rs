//! AVX-512 (F, BW, DQ, VL): sixteen lanes.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::tile::tiles;
use super::{Simd, Task, TileArgs};

/// Proof that the CPU has AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    /// The proof, where there is one.
    pub(crate) fn new() -> Option<Self> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl");
        found.then(Avx2::new)?.map(Avx512)
    }

    /// The shorter vectors, which go with them.
    pub(crate) fn avx2(self) -> Avx2 {
        self.0
    }

    /// Runs a loop compiled for these instructions.
    pub(crate) fn run(self, task: impl Task) {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        fn inner(task: impl Task, s: Avx512) {
            task.run(s);
        }
        // SAFETY: `self` exists only where `new` found the instructions.
        unsafe { inner(task, self) }
    }
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx512` exists only where `Avx512::new` found the instructions.
        unsafe { $e }
    };
}

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 14;
    const TILE_COLS: usize = 32;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        op!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn quotient(self, a: Self::V, b: Self::V) -> Self::V {
        // A division takes as long as eight of the others. 14 bits, then one step of Newton's.
        op!({
            let r = _mm512_rcp14_ps(b);
            let r = _mm512_fmadd_ps(r, _mm512_fnmadd_ps(b, r, _mm512_set1_ps(1.0)), r);
            _mm512_mul_ps(a, r)
        })
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        op!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        op!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn less(self, a: Self::V, b: Self::V, yes: Self::V, no: Self::V) -> Self::V {
        op!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), no, yes))
    }

    #[inline(always)]
    fn scale2(self, v: Self::V, n: Self::V) -> Self::V {
        op!(_mm512_scalef_ps(v, n))
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        op!({
            let low = _mm512_castps512_ps256(v);
            let high = _mm512_extractf32x8_ps::<1>(v);
            let eight = _mm256_add_ps(low, high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        })
    }

    #[inline(always)]
    fn largest(self, v: Self::V) -> f32 {
        op!(_mm512_reduce_max_ps(v))
    }

    #[inline(always)]
    fn any_above(self, v: Self::V, limit: f32) -> bool {
        op!(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(v, _mm512_set1_ps(limit)) != 0)
    }

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn load_some(self, p: *const f32, n: usize) -> Self::V {
        // SAFETY: the token, and the caller's promise; masked lanes are not touched.
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }

    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }

    #[inline(always)]
    unsafe fn load_e4m3(self, p: *const u8) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            // Its bits are those of an f16 that is 256 times smaller; but all ones are NaN.
            let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())));
            let bits = _mm256_and_si256(bits, _mm256_set1_epi16(0xbfff_u16 as i16));
            let ones = _mm256_set1_epi16(0x3f80);
            let nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, ones), ones);
            _mm512_cvtph_ps(_mm256_or_si256(bits, nan))
        }
    }

    #[inline(always)]
    unsafe fn store(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn store_some(self, p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the token, and the caller's promise; masked lanes are not touched.
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }

    #[inline(always)]
    unsafe fn store_transposed(self, rows: &[Self::V], out: *mut f32, ld: usize) {
        let mut a = [self.splat(0.0); 16];
        a.copy_from_slice(rows);
        // SAFETY: the token, and the caller's promise of 16 rows of 16.
        unsafe {
            let mut b = a;
            for i in 0..8 {
                b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
            }
            // Within each 128-bit lane: c[4 g + j] holds column j of rows 4 g .. 4 g + 4.
            let mut c = b;
            for g in 0..4 {
                let pair = |x: __m512, y: __m512| (_mm512_castps_pd(x), _mm512_castps_pd(y));
                let (x, y) = pair(b[4 * g], b[4 * g + 2]);
                c[4 * g] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                c[4 * g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
                let (x, y) = pair(b[4 * g + 1], b[4 * g + 3]);
                c[4 * g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                c[4 * g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
            }
            for j in 0..4 {
                // The 4 x 4 transpose of the 128-bit lanes.
                let lo01 = _mm512_shuffle_f32x4::<0x88>(c[j], c[4 + j]);
                let hi01 = _mm512_shuffle_f32x4::<0xdd>(c[j], c[4 + j]);
                let lo23 = _mm512_shuffle_f32x4::<0x88>(c[8 + j], c[12 + j]);
                let hi23 = _mm512_shuffle_f32x4::<0xdd>(c[8 + j], c[12 + j]);
                _mm512_storeu_ps(out.add(j * ld), _mm512_shuffle_f32x4::<0x88>(lo01, lo23));
                _mm512_storeu_ps(out.add((4 + j) * ld), _mm512_shuffle_f32x4::<0x88>(hi01, hi23));
                _mm512_storeu_ps(out.add((8 + j) * ld), _mm512_shuffle_f32x4::<0xdd>(lo01, lo23));
                _mm512_storeu_ps(out.add((12 + j) * ld), _mm512_shuffle_f32x4::<0xdd>(hi01, hi23));
            }
        }
    }

    #[inline(always)]
    unsafe fn stream(self, p: *mut f32, v: Self::V) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_stream_ps(p, v) }
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
        tiles!(self, self, a, 2, 1, Self::LEFT, [2 4 8 14]);
    }

    #[inline(always)]
    unsafe fn tile_rows<const STRIDE: usize>(self, a: TileArgs) {
        tiles!(self, self, a, 2, STRIDE, 1, [2 4 8 14]);
    }
}
