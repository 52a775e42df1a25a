//! Bytes on AVX2: two vectors of each kind, with AVX-VNNI where the CPU has it.

use std::arch::x86_64::*;

use turbospark_tensor::DType;

use super::super::Simd;
use super::super::avx2::Avx2;
use super::{ByteTask, Bytes, Spread};

/// AVX2, with AVX-VNNI where `VNNI`.
#[derive(Clone, Copy)]
pub(super) struct Avx2Bytes<const VNNI: bool>(Avx2);

/// Runs a loop compiled for the best that goes with AVX2.
pub(super) fn run(s: Avx2, task: impl ByteTask) {
    if is_x86_feature_detected!("avxvnni") {
        Avx2Bytes::<true>(s).outlined(task);
    } else {
        plain(s, task);
    }
}

/// [`run`] without VNNI.
fn plain(s: Avx2, task: impl ByteTask) {
    Avx2Bytes::<false>(s).outlined(task);
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
#[inline(never)]
fn with_vnni<const VNNI: bool>(task: impl ByteTask, b: Avx2Bytes<VNNI>) {
    task.run(b);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
fn without_vnni<const VNNI: bool>(task: impl ByteTask, b: Avx2Bytes<VNNI>) {
    task.run(b);
}

/// An intrinsic without memory operands.
macro_rules! op {
    ($e:expr) => {
        // SAFETY: an `Avx2Bytes` exists only where its instructions were found.
        unsafe { $e }
    };
}

#[inline(always)]
fn shift_half<const LOW: i32, const HIGH: i32>(v: __m256i) -> __m256i {
    op!({
        let by = _mm256_setr_epi32(LOW, LOW, LOW, LOW, HIGH, HIGH, HIGH, HIGH);
        let back = _mm256_sub_epi32(_mm256_setzero_si256(), by);
        // A count out of range gives zeros.
        match (LOW >= 0 && HIGH >= 0, LOW <= 0 && HIGH <= 0) {
            (true, true) => v,
            (true, _) => _mm256_srlv_epi32(v, by),
            (_, true) => _mm256_sllv_epi32(v, back),
            _ => _mm256_or_si256(_mm256_srlv_epi32(v, by), _mm256_sllv_epi32(v, back)),
        }
    })
}

/// Where eight fields lie in the `BITS` bytes from `first` on: for each the two bytes that hold it, and the power of two
/// that brings it to the upper byte. With the second eight after them.
const fn windows<const BITS: usize>(first: usize) -> ([[u8; 16]; 2], [i16; 8]) {
    let (mut bytes, mut factors, mut i) = ([[0; 16]; 2], [0; 8], 0);
    while i < 16 {
        let at = i % 8 * BITS;
        let byte = first + i / 8 * BITS + at / 8;
        bytes[i / 8][i % 8 * 2] = byte as u8;
        // Past the last byte there is nothing of the field.
        bytes[i / 8][i % 8 * 2 + 1] = if byte < 15 { byte as u8 + 1 } else { 128 };
        factors[i % 8] = 1 << (8 - at % 8);
        i += 1;
    }
    (bytes, factors)
}

/// 32 fields of `BITS`, a little-endian stream, as bytes. Sixteen bytes are read for each sixteen fields, of the `last`
/// ones those before their end.
///
/// # Safety
/// They are readable; AVX2 is there.
#[inline(always)]
pub(super) unsafe fn fields<const BITS: usize>(p: *const u8, last: bool) -> __m256i {
    // SAFETY: the caller's promise; arrays of as many bytes as are loaded.
    unsafe {
        let (first, factors) = const { windows::<BITS>(0) };
        let (end, _) = const { windows::<BITS>(16 - 2 * BITS) };
        let load = |p: *const u8| _mm_loadu_si128(p.cast());
        let high = if last { p.add(4 * BITS - 16) } else { p.add(2 * BITS) };
        let v = _mm256_set_m128i(load(high), load(p));
        let factors = _mm256_broadcastsi128_si256(load(factors.as_ptr().cast()));
        let eight = |i: usize| {
            let high = if last { &end[i] } else { &first[i] };
            let windows = _mm256_shuffle_epi8(v, _mm256_set_m128i(load(high.as_ptr()), load(first[i].as_ptr())));
            _mm256_srli_epi16::<8>(_mm256_mullo_epi16(windows, factors))
        };
        _mm256_and_si256(_mm256_packus_epi16(eight(0), eight(1)), _mm256_set1_epi8((1 << BITS) - 1))
    }
}

impl<const VNNI: bool> Bytes for Avx2Bytes<VNNI> {
    type S = Avx2;
    type V = [__m256i; 2];
    type I = [__m256i; 2];
    type F = [__m256; 2];
    #[inline(always)]
    fn outlined(self, task: impl ByteTask) {
        // SAFETY: `self` exists only where its instructions were found.
        unsafe { if VNNI { with_vnni(task, self) } else { without_vnni(task, self) } }
    }

    #[inline(always)]
    fn simd(self) -> Avx2 {
        self.0
    }

    #[inline(always)]
    unsafe fn load(self, p: *const u8) -> Self::V {
        // SAFETY: the caller's promise.
        unsafe { self.load_halves(p, p.add(32)) }
    }

    #[inline(always)]
    unsafe fn load_halves(self, a: *const u8, b: *const u8) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe { [_mm256_loadu_si256(a.cast()), _mm256_loadu_si256(b.cast())] }
    }

    #[inline(always)]
    unsafe fn load_twice(self, a: *const u8, b: *const u8) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe { [a, b].map(|p| _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()))) }
    }

    #[inline(always)]
    fn and(self, v: Self::V, mask: u8) -> Self::V {
        let mask = op!(_mm256_set1_epi8(mask as i8));
        [op!(_mm256_and_si256(v[0], mask)), op!(_mm256_and_si256(v[1], mask))]
    }

    #[inline(always)]
    fn or(self, a: Self::V, b: Self::V) -> Self::V {
        [op!(_mm256_or_si256(a[0], b[0])), op!(_mm256_or_si256(a[1], b[1]))]
    }

    #[inline(always)]
    fn shift<const Q0: i32, const Q1: i32, const Q2: i32, const Q3: i32>(self, v: Self::V) -> Self::V {
        [shift_half::<Q0, Q1>(v[0]), shift_half::<Q2, Q3>(v[1])]
    }

    #[inline(always)]
    fn transpose(self, [a, b, c, d]: [Self::V; 4]) -> [Self::V; 4] {
        let mut out = [a; 4];
        for h in 0..2 {
            op!({
                let (ab, ab2) = (_mm256_unpacklo_epi32(a[h], b[h]), _mm256_unpackhi_epi32(a[h], b[h]));
                let (cd, cd2) = (_mm256_unpacklo_epi32(c[h], d[h]), _mm256_unpackhi_epi32(c[h], d[h]));
                out[0][h] = _mm256_unpacklo_epi64(ab, cd);
                out[1][h] = _mm256_unpackhi_epi64(ab, cd);
                out[2][h] = _mm256_unpacklo_epi64(ab2, cd2);
                out[3][h] = _mm256_unpackhi_epi64(ab2, cd2);
            });
        }
        out
    }

    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> Self::V {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let half = |p: *const u8| {
                let wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast()));
                _mm256_or_si256(wide, _mm256_slli_epi16::<4>(wide))
            };
            self.and([half(p), half(p.add(16))], 15)
        }
    }

    #[inline(always)]
    fn lookup(self, v: Self::V, table: &[u8; 16]) -> Self::V {
        // SAFETY: the token; an array of sixteen bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [_mm256_shuffle_epi8(table, v[0]), _mm256_shuffle_epi8(table, v[1])]
        }
    }

    #[inline(always)]
    fn spread_bits(self, bits: u64, value: u8) -> Self::V {
        let half = |bits: i32| {
            op!({
                // The byte that holds each bit, and in it that bit alone.
                let from = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
                let each = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
                let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), from);
                let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
                _mm256_and_si256(set, _mm256_set1_epi8(value as i8))
            })
        };
        [half(bits as i32), half((bits >> 32) as i32)]
    }

    #[inline(always)]
    fn words(self, w: [u64; 8]) -> Self::V {
        let half = |w: &[u64]| op!(_mm256_setr_epi64x(w[0] as i64, w[1] as i64, w[2] as i64, w[3] as i64));
        [half(&w[..4]), half(&w[4..])]
    }

    #[inline(always)]
    fn negate(self, mut v: Self::V, bits: u64) -> Self::V {
        for (v, mask) in v.iter_mut().zip(self.spread_bits(bits, 255)) {
            *v = op!(_mm256_sub_epi8(_mm256_xor_si256(*v, mask), mask));
        }
        v
    }

    #[inline(always)]
    unsafe fn fields<const BITS: usize>(self, p: *const u8) -> [Self::V; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let mut q = [self.load_nibbles(p); 4];
            for (i, q) in q.iter_mut().enumerate() {
                let from = p.add(8 * BITS * i);
                *q = match BITS {
                    4 => self.load_nibbles(from),
                    _ => [fields::<BITS>(from, false), fields::<BITS>(from.add(4 * BITS), i == 3)],
                };
            }
            self.transpose(q)
        }
    }

    const WIDE: bool = VNNI;

    #[inline(always)]
    unsafe fn dots(self, mut sums: Self::I, q: &[Self::V; 4], x: *const i8) -> Self::I {
        for (h, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the token, and the caller's promise.
            unsafe {
                let x = |i: usize| _mm256_loadu_si256(x.add(64 * i + 32 * h).cast());
                if VNNI {
                    *sum = _mm256_dpbusd_avx_epi32(*sum, q[0][h], x(0));
                    *sum = _mm256_dpbusd_avx_epi32(*sum, q[1][h], x(1));
                    *sum = _mm256_dpbusd_avx_epi32(*sum, q[2][h], x(2));
                    *sum = _mm256_dpbusd_avx_epi32(*sum, q[3][h], x(3));
                } else {
                    // Two products of 63 * 127, twice over, are 32004: two vectors are added in i16.
                    let one = _mm256_set1_epi16(1);
                    let (a, b) = (_mm256_maddubs_epi16(q[0][h], x(0)), _mm256_maddubs_epi16(q[1][h], x(1)));
                    let (c, d) = (_mm256_maddubs_epi16(q[2][h], x(2)), _mm256_maddubs_epi16(q[3][h], x(3)));
                    let ab = _mm256_madd_epi16(_mm256_add_epi16(a, b), one);
                    let cd = _mm256_madd_epi16(_mm256_add_epi16(c, d), one);
                    *sum = _mm256_add_epi32(*sum, _mm256_add_epi32(ab, cd));
                }
            }
        }
        sums
    }

    #[inline(always)]
    unsafe fn dots_signed(self, offset: Self::I, q: &[Self::V; 4], x: *const i8) -> Self::I {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            if VNNI {
                let flip = _mm256_set1_epi8(-128);
                let mut flipped = *q;
                for v in flipped.as_flattened_mut() {
                    *v = _mm256_xor_si256(*v, flip);
                }
                return self.dots(offset, &flipped, x);
            }
            let mut sums = self.zeros();
            for (i, q) in q.iter().enumerate() {
                for (h, sum) in sums.iter_mut().enumerate() {
                    // The sign goes to `x`: 2 * 128 * 127 is within i16.
                    let x = _mm256_sign_epi8(_mm256_loadu_si256(x.add(64 * i + 32 * h).cast()), q[h]);
                    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(q[h]), x);
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
            }
            sums
        }
    }

    #[inline(always)]
    fn zeros(self) -> Self::I {
        [op!(_mm256_setzero_si256()); 2]
    }

    #[inline(always)]
    unsafe fn load_shifted(self, by: u32, p: *const i32) -> Self::I {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let (v, by) = (self.load(p.cast()), _mm_cvtsi32_si128(by as i32));
            [_mm256_sll_epi32(v[0], by), _mm256_sll_epi32(v[1], by)]
        }
    }

    #[inline(always)]
    fn to_f32(self, v: Self::I) -> Self::F {
        [op!(_mm256_cvtepi32_ps(v[0])), op!(_mm256_cvtepi32_ps(v[1]))]
    }

    #[inline(always)]
    fn half(self, bits: u16) -> f32 {
        op!(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits as i32))))
    }

    #[inline(always)]
    unsafe fn scales_f16(self, p: *const u8, stride: usize) -> Self::F {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let one = |i: usize| p.add(i * stride).cast::<i16>().read_unaligned();
            let halves = _mm_setr_epi16(one(0), one(2), one(4), one(6), one(1), one(3), one(5), one(7));
            let eight = _mm256_cvtph_ps(halves);
            [_mm256_permute2f128_ps::<0x00>(eight, eight), _mm256_permute2f128_ps::<0x11>(eight, eight)]
        }
    }

    #[inline(always)]
    fn scales_u8(self, bytes: u64) -> Self::F {
        op!({
            let order = _mm_setr_epi8(0, 2, 4, 6, 0, 2, 4, 6, 1, 3, 5, 7, 1, 3, 5, 7);
            let bytes = _mm_shuffle_epi8(_mm_cvtsi64_si128(bytes as i64), order);
            let wide = |v| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v));
            [wide(bytes), wide(_mm_unpackhi_epi64(bytes, bytes))]
        })
    }

    #[inline(always)]
    unsafe fn scales_i8(self, p: *const u8) -> Self::F {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let bytes = _mm_shuffle_epi8(_mm_loadu_si128(p.cast()), order);
            let wide = |v| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v));
            [wide(bytes), wide(_mm_unpackhi_epi64(bytes, bytes))]
        }
    }

    #[inline(always)]
    unsafe fn scales(self, p: *const u8, dtype: DType, spread: &Spread, factor: f32) -> Self::F {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let few = match (dtype.size(), spread.count) {
                (2, 2) => _mm_cvtsi32_si128(p.cast::<i32>().read_unaligned()),
                (2, 4) => _mm_loadl_epi64(p.cast()),
                (2, 8) => _mm_loadu_si128(p.cast()),
                _ => return self.times(self.scales_singly(p, dtype, spread), factor),
            };
            let wide = match dtype {
                DType::F16 => _mm256_cvtph_ps(few),
                _ => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(few))),
            };
            let lanes = |at: usize| {
                let index = _mm256_loadu_si256(spread.index.as_ptr().add(at).cast());
                _mm256_permutevar8x32_ps(wide, index)
            };
            self.times([lanes(0), lanes(8)], factor)
        }
    }

    #[inline(always)]
    unsafe fn load_f32(self, p: *const f32) -> Self::F {
        // SAFETY: the caller's promise.
        unsafe { [self.0.load(p), self.0.load(p.add(8))] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::bytes::tests::agrees_with_portable;

    #[test]
    fn products_without_vnni_are_exact() {
        match Avx2::new() {
            Some(s) => agrees_with_portable(|task| plain(s, task)),
            None => println!("skipped: no AVX2"),
        }
    }
}
