//! Bytes on AVX-512 with VNNI and VBMI: one vector of each kind.

use std::arch::x86_64::*;

use turbospark_tensor::DType;

use super::super::avx512::Avx512;
use super::avx2;
use super::vbmi;
use super::{ByteTask, Bytes, Spread};

/// AVX-512 with VNNI and VBMI.
#[derive(Clone, Copy)]
pub(super) struct Avx512Bytes(Avx512);

/// Runs a loop compiled for the best that goes with AVX-512.
pub(super) fn run(s: Avx512, task: impl ByteTask) {
    match Avx512Bytes::new(s) {
        Some(b) => b.outlined(task),
        // No copy of every kernel for CPUs with a part of them: memory is as fast for vectors half as long.
        None => avx2::run(s.avx2(), task),
    }
}

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx512Bytes` exists only where its instructions were found.
        unsafe { $e }
    };
}

impl Avx512Bytes {
    /// The proof, where there is one.
    pub(super) fn new(s: Avx512) -> Option<Self> {
        let found = is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512vbmi");
        found.then_some(Avx512Bytes(s))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512vnni,avx512vbmi")]
#[inline(never)]
fn vnni(task: impl ByteTask, b: Avx512Bytes) {
    task.run(b);
}

impl Avx512Bytes {
    /// Sixteen E8M0.
    #[inline(always)]
    fn powers(self, bytes: __m128i) -> __m512 {
        op!({
            let bytes = _mm512_cvtepu8_epi32(bytes);
            // 2^-127 is half of the least exponent, and 255 is NaN and not infinite.
            let half = _mm512_set1_epi32(1 << 22);
            let bits = _mm512_max_epu32(_mm512_slli_epi32::<23>(bytes), half);
            let nan = _mm512_cmpeq_epi32_mask(bytes, _mm512_set1_epi32(255));
            _mm512_castsi512_ps(_mm512_mask_or_epi32(bits, nan, bits, half))
        })
    }

    /// Sixteen E4M3, divided by 256.
    #[inline(always)]
    fn e4m3_over_256(self, bytes: __m128i) -> __m512 {
        op!({
            let bits = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(bytes));
            let bits = _mm256_and_si256(bits, _mm256_set1_epi16(0xbfff_u16 as i16));
            let ones = _mm256_set1_epi16(0x3f80);
            let nan = _mm256_cmpeq_epi16(_mm256_and_si256(bits, ones), ones);
            _mm512_cvtph_ps(_mm256_or_si256(bits, nan))
        })
    }
}

impl Bytes for Avx512Bytes {
    type S = Avx512;
    type V = __m512i;
    type I = __m512i;
    type F = [__m512; 1];
    const GRID: bool = true;

    #[inline(always)]
    fn simd(self) -> Avx512 {
        self.0
    }

    #[inline(always)]
    fn outlined(self, task: impl ByteTask) {
        // SAFETY: `self` exists only where its instructions were found.
        unsafe { vnni(task, self) }
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, a: *const u8, b: *const u8) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let low = _mm512_castsi256_si512(_mm256_loadu_si256(a.cast()));
            _mm512_inserti64x4::<1>(low, _mm256_loadu_si256(b.cast()))
        }
    }

    #[inline(always)]
    unsafe fn load_twice(self, a: *const u8, b: *const u8) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let (a, b) = (_mm_loadu_si128(a.cast()), _mm_loadu_si128(b.cast()));
            _mm512_mask_broadcast_i32x4(_mm512_broadcast_i32x4(a), 0xff00, b)
        }
    }

    #[inline(always)]
    fn and(self, v: __m512i, mask: u8) -> __m512i {
        op!(_mm512_and_si512(v, _mm512_set1_epi8(mask as i8)))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        op!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn shift<const Q0: i32, const Q1: i32, const Q2: i32, const Q3: i32>(self, v: __m512i) -> __m512i {
        // A rotation goes both ways in one instruction.
        op!({
            let by = _mm512_set_epi32(Q3, Q3, Q3, Q3, Q2, Q2, Q2, Q2, Q1, Q1, Q1, Q1, Q0, Q0, Q0, Q0);
            _mm512_rorv_epi32(v, by)
        })
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
        op!({
            let (ab, ab2) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (cd, cd2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab2, cd2),
                _mm512_unpackhi_epi64(ab2, cd2),
            ]
        })
    }

    #[inline(always)]
    unsafe fn k_codes(self, p: *const u8, fifth: Option<*const u8>) -> [__m512i; 4] {
        // Picked from their places at once, with half the shuffles of a transposition.
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let (first, second) = (self.load(p), self.load(p.add(64)));
            let mut q = [first; 4];
            for (i, q) in q.iter_mut().enumerate() {
                // Dword `i` of the first or second sixteen bytes of all four chunks.
                let (low, high) = (_mm_set1_epi32(i as i32), _mm_set1_epi32(4 + i as i32));
                let chunks = _mm256_broadcastsi128_si256(_mm_setr_epi32(0, 8, 16, 24));
                let from = _mm256_add_epi32(chunks, _mm256_set_m128i(high, low));
                let picked = _mm512_permutex2var_epi32(first, _mm512_broadcast_i64x4(from), second);
                *q = self.and(self.shift::<0, 0, 4, 4>(picked), 15);
            }
            let Some(fifth) = fifth else { return q };
            let bits = _mm512_castsi256_si512(_mm256_loadu_si256(fifth.cast()));
            // Chunk `c` wants bits `2 c` and, of its upper half bytes, `2 c + 1`, each as bit 4.
            let by = _mm512_broadcast_i32x4(_mm_setr_epi32(-4, -2, 0, 2));
            let by = _mm512_mask_add_epi32(by, 0xff00, by, _mm512_set1_epi32(1));
            for (i, q) in q.iter_mut().enumerate() {
                let (low, high) = (_mm_set1_epi32(i as i32), _mm_set1_epi32(4 + i as i32));
                let from = _mm512_broadcast_i64x4(_mm256_set_m128i(high, low));
                let picked = _mm512_rorv_epi32(_mm512_permutexvar_epi32(from, bits), by);
                *q = self.or(*q, self.and(picked, 16));
            }
            q
        }
    }

    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256(p.cast()));
            self.and(_mm512_or_si512(wide, _mm512_slli_epi16::<4>(wide)), 15)
        }
    }

    #[inline(always)]
    fn lookup(self, v: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: the token; an array of sixteen bytes.
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), v) }
    }

    #[inline(always)]
    fn spread_bits(self, bits: u64, value: u8) -> __m512i {
        op!(_mm512_maskz_set1_epi8(bits, value as i8))
    }

    #[inline(always)]
    fn words(self, w: [u64; 8]) -> __m512i {
        let [a, b, c, d, e, f, g, h] = w.map(|w| w as i64);
        op!(_mm512_setr_epi64(a, b, c, d, e, f, g, h))
    }

    #[inline(always)]
    fn negate(self, v: __m512i, bits: u64) -> __m512i {
        op!(_mm512_mask_sub_epi8(v, bits, _mm512_setzero_si512(), v))
    }

    #[inline(always)]
    unsafe fn fields<const BITS: usize>(self, p: *const u8) -> [__m512i; 4] {
        // SAFETY: the token, and the caller's promise.
        unsafe { vbmi::fields::<BITS>(p) }
    }

    const E4M3: bool = true;

    #[inline(always)]
    fn e4m3_place(at: usize) -> usize {
        vbmi::e4m3_place(at)
    }

    #[inline(always)]
    fn e4m3(self, codes: __m512i) -> [[__m512; 1]; 4] {
        // SAFETY: the token.
        let [a, b, c, d] = unsafe { vbmi::e4m3(codes) };
        [[a], [b], [c], [d]]
    }

    #[inline(always)]
    fn pick(self, [v]: [__m512; 1], index: &[u32; 16]) -> [__m512; 1] {
        // SAFETY: the token; an array of sixteen.
        unsafe { [_mm512_permutexvar_ps(_mm512_loadu_si512(index.as_ptr().cast()), v)] }
    }

    #[inline(always)]
    unsafe fn load_some(self, p: *const u8, some: usize) -> __m512i {
        // SAFETY: the token, and the caller's promise; nothing is read that the mask leaves out.
        unsafe { _mm512_maskz_loadu_epi8(u64::MAX >> (64 - some), p.cast()) }
    }

    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn dots(self, mut sums: __m512i, q: &[__m512i; 4], x: *const i8) -> __m512i {
        for (i, &q) in q.iter().enumerate() {
            // SAFETY: the caller's promise.
            sums = unsafe { self.dot(sums, q, x.add(64 * i)) };
        }
        sums
    }

    #[inline(always)]
    unsafe fn dot(self, sums: __m512i, q: __m512i, x: *const i8) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sums, q, _mm512_loadu_si512(x.cast())) }
    }

    #[inline(always)]
    fn flip(self, q: __m512i) -> __m512i {
        op!(_mm512_xor_si512(q, _mm512_set1_epi8(-128)))
    }

    #[inline(always)]
    unsafe fn dots_signed(self, offset: __m512i, q: &[__m512i; 4], x: *const i8) -> __m512i {
        let q = [self.flip(q[0]), self.flip(q[1]), self.flip(q[2]), self.flip(q[3])];
        // SAFETY: the caller's promise.
        unsafe { self.dots(offset, &q, x) }
    }

    #[inline(always)]
    fn zeros(self) -> __m512i {
        op!(_mm512_setzero_si512())
    }

    #[inline(always)]
    unsafe fn load_shifted(self, by: u32, p: *const i32) -> __m512i {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_sll_epi32(_mm512_loadu_si512(p.cast()), _mm_cvtsi32_si128(by as i32)) }
    }

    #[inline(always)]
    fn to_f32(self, v: __m512i) -> [__m512; 1] {
        [op!(_mm512_cvtepi32_ps(v))]
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        op!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits as i32))))
    }

    #[inline(always)]
    unsafe fn scales_f16(self, p: *const u8, stride: usize) -> [__m512; 1] {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let one = |i: usize| p.add(i * stride).cast::<i16>().read_unaligned();
            let halves = _mm_setr_epi16(one(0), one(2), one(4), one(6), one(1), one(3), one(5), one(7));
            let eight = _mm512_castps256_ps512(_mm256_cvtph_ps(halves));
            [_mm512_shuffle_f32x4::<0b01_01_00_00>(eight, eight)]
        }
    }

    #[inline(always)]
    fn scales_u8(self, bytes: u64) -> [__m512; 1] {
        op!({
            let order = _mm_setr_epi8(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
            let bytes = _mm_shuffle_epi8(_mm_cvtsi64_si128(bytes as i64), order);
            [_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))]
        })
    }

    #[inline(always)]
    fn scales_half_e8m0(self, bytes: u64) -> [__m512; 1] {
        op!({
            let order = _mm_setr_epi8(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
            let e = _mm512_cvtepu8_epi32(_mm_shuffle_epi8(_mm_cvtsi64_si128(bytes as i64), order));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let small = _mm512_sllv_epi32(_mm512_set1_epi32(1 << 21), _mm512_min_epi32(e, _mm512_set1_epi32(1)));
            [_mm512_castsi512_ps(_mm512_max_epi32(normal, small))]
        })
    }

    #[inline(always)]
    unsafe fn scales_i8(self, p: *const u8) -> [__m512; 1] {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let bytes = _mm_shuffle_epi8(_mm_loadu_si128(p.cast()), order);
            [_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))]
        }
    }

    #[inline(always)]
    unsafe fn scales(self, p: *const u8, dtype: DType, spread: &Spread, factor: f32) -> [__m512; 1] {
        let mask = ((1u32 << spread.count) - 1) as u16;
        // SAFETY: the token, and the caller's promise; nothing is read that the mask leaves out.
        unsafe {
            let index = _mm512_loadu_si512(spread.index.as_ptr().cast());
            match dtype {
                DType::F32 => {
                    let wide = _mm512_maskz_loadu_ps(mask, p.cast());
                    self.times([_mm512_permutexvar_ps(index, wide)], factor)
                }
                DType::BF16 if spread.count <= 8 => {
                    // Both bytes of a scale go to the upper half of its lanes, in one shuffle.
                    let few = _mm512_broadcast_i32x4(_mm_maskz_loadu_epi16(mask as u8, p.cast()));
                    let low = _mm512_or_si512(_mm512_slli_epi32::<17>(index), _mm512_set1_epi32(0x0100_8080));
                    let at = _mm512_or_si512(low, _mm512_slli_epi32::<25>(index));
                    self.times([_mm512_castsi512_ps(_mm512_shuffle_epi8(few, at))], factor)
                }
                DType::BF16 => {
                    let bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
                    let wide = _mm512_slli_epi32::<16>(_mm512_permutexvar_epi32(index, bits));
                    self.times([_mm512_castsi512_ps(wide)], factor)
                }
                DType::F16 => {
                    let wide = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p.cast()));
                    self.times([_mm512_permutexvar_ps(index, wide)], factor)
                }
                _ => {
                    let bytes = _mm_maskz_loadu_epi8(mask, p.cast());
                    let bytes = _mm_shuffle_epi8(bytes, _mm512_cvtepi32_epi8(index));
                    if dtype == DType::F8_E8M0 {
                        self.times([self.powers(bytes)], factor)
                    } else {
                        // As f16, whose exponents count from 15 and not from 7.
                        self.times([self.e4m3_over_256(bytes)], 256.0 * factor)
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> [__m512; 1] {
        // SAFETY: the token, and the caller's promise.
        [unsafe { _mm512_loadu_ps(p) }]
    }
}
