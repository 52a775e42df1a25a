//! Fields of a few bits and small floats on AVX-512 VBMI: a byte may be any byte of two vectors, and any eight bits of
//! its word.

use std::arch::x86_64::*;

use turbospark_tensor::e4m3_to_f32;

use super::group;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn load(p: *const u8) -> __m512i {
    // SAFETY: the caller's promise of 64 readable bytes.
    unsafe { _mm512_loadu_si512(p.cast()) }
}

/// A superblock's fields, transposed: of two to six bits.
///
/// # Safety
/// `32 BITS` bytes are readable; VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn fields<const BITS: usize>(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise; arrays of 64 bytes.
    unsafe {
        if BITS > 4 {
            return wide_fields::<BITS>(p);
        }
        let (bytes, bits) = const { &windows::<BITS>() };
        let low = load(p);
        // A lane's four bytes hold eight of its fields, of two bits all sixteen.
        let (first, second) = if BITS == 2 {
            let all = _mm512_permutexvar_epi8(load(bytes[0].as_ptr()), low);
            (all, all)
        } else {
            let high =
                if BITS == 3 { _mm512_castsi256_si512(_mm256_loadu_si256(p.add(64).cast())) } else { load(p.add(64)) };
            let pick = |at: &[u8; 64]| _mm512_permutex2var_epi8(low, load(at.as_ptr()), high);
            (pick(&bytes[0]), pick(&bytes[1]))
        };
        let mut out = [first, first, second, second];
        for (out, bits) in out.iter_mut().zip(bits) {
            let shifted = _mm512_multishift_epi64_epi8(load(bits.as_ptr()), *out);
            *out = _mm512_and_si512(shifted, _mm512_set1_epi8((1 << BITS) - 1));
        }
        out
    }
}

/// For the first and the last eight of a lane's fields: the four bytes that hold them (of two bits, all sixteen). For
/// each four of them: where they begin in the word of two lanes.
const fn windows<const BITS: usize>() -> ([[u8; 64]; 2], [[u8; 64]; 4]) {
    let (mut bytes, mut bits, mut at) = ([[0; 64]; 2], [[0; 64]; 4], 0);
    while at < 64 {
        let (lane, byte) = (at / 4, at % 4);
        let mut half = 0;
        while half < 2 {
            let first = if BITS == 2 { 0 } else { 8 * half };
            let from = (16 * group(lane) + first) * BITS / 8 + byte;
            bytes[half][at] = if from < 32 * BITS { from as u8 } else { 0 };
            half += 1;
        }
        let mut i = 0;
        while i < 4 {
            let field = if BITS == 2 { 4 * i + byte } else { 4 * (i % 2) + byte };
            bits[i][at] = (lane % 2 * 32 + field * BITS) as u8;
            i += 1;
        }
        at += 1;
    }
    (bytes, bits)
}

/// [`fields`] of five or six bits, which two vectors don't hold: the last groups are picked from a third.
///
/// # Safety
/// As [`fields`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn wide_fields<const BITS: usize>(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise; all three vectors lie in the superblock.
    unsafe {
        let windows = const { &wide_windows::<BITS>() };
        let (low, high) = (load(p), load(p.add(64)));
        let mut out = [low; 4];
        for (i, (out, w)) in out.iter_mut().zip(windows).enumerate() {
            let picked = _mm512_permutex2var_epi8(low, load(w.bytes.as_ptr()), high);
            let last = load(p.add(last_begin::<BITS>(i)));
            let picked = _mm512_mask_permutexvar_epi8(picked, w.last, load(w.bytes.as_ptr()), last);
            let shifted = _mm512_multishift_epi64_epi8(load(w.bits.as_ptr()), picked);
            *out = _mm512_and_si512(shifted, _mm512_set1_epi8((1 << BITS) - 1));
        }
        out
    }
}

/// Where each byte of a vector of fields comes from.
struct Window {
    /// Its byte: of the first 128, or of the last vector.
    bytes: [u8; 64],
    /// Where it begins in the word of two lanes.
    bits: [u8; 64],
    /// Those that come from the last vector.
    last: u64,
}

/// First byte of the last vector, for fields `4 i ..` of all groups.
const fn last_begin<const BITS: usize>(i: usize) -> usize {
    // Bytes of the group that the first two vectors hold no longer whole, and the end of the superblock.
    let (first, most) = (128 / (2 * BITS) * 2 * BITS + i * BITS / 2, 32 * BITS - 64);
    if first < most { first } else { most }
}

const fn wide_windows<const BITS: usize>() -> [Window; 4] {
    let mut out = [const { Window { bytes: [0; 64], bits: [0; 64], last: 0 } }; 4];
    let mut at = 0;
    while at < 256 {
        let (i, lane, byte) = (at / 64, at % 64 / 4, at % 4);
        let first = (16 * group(lane) + 4 * i) * BITS;
        let (begin, last) = (first / 8, last_begin::<BITS>(i));
        // Three bytes hold four fields; a fourth one may lie past the end, and nothing of it is used.
        let wanted = begin + if byte < 3 { byte } else { 2 };
        if begin + 2 < 128 {
            out[i].bytes[at % 64] = wanted as u8;
        } else {
            out[i].bytes[at % 64] = (wanted - last) as u8;
            out[i].last |= 1 << (at % 64);
        }
        out[i].bits[at % 64] = (lane % 2 * 32 + first % 8 + byte * BITS) as u8;
        at += 1;
    }
    out
}

/// 64 codes of E4M3, widened: lanes `4 g ..` of all four are of codes `16 g ..`, see [`e4m3_place`].
///
/// # Safety
/// VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn e4m3(codes: __m512i) -> [__m512; 4] {
    // SAFETY: arrays of 64 bytes.
    unsafe {
        // As bf16, which holds every one: both bytes of one without its sign from a table.
        let tables = const { &e4m3_tables() };
        let pick = |t: &[[u8; 64]; 2]| _mm512_permutex2var_epi8(load(t[0].as_ptr()), codes, load(t[1].as_ptr()));
        let (low, high) = (pick(&tables[0]), pick(&tables[1]));
        // high | codes & 128
        let high = _mm512_ternarylogic_epi32::<0xf8>(high, codes, _mm512_set1_epi8(-128));
        let (first, last) = (_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high));
        let even = |v| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v));
        let odd = |v| _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
        [even(first), odd(first), even(last), odd(last)]
    }
}

/// Which of 64 codes lane `at % 16` of vector `at / 16` of [`e4m3`] is.
pub(super) const fn e4m3_place(at: usize) -> usize {
    let (vector, lane) = (at / 16, at % 16);
    lane / 4 * 16 + vector / 2 * 8 + lane % 4 * 2 + vector % 2
}

/// The low and the high byte of each code without its sign, as bf16.
const fn e4m3_tables() -> [[[u8; 64]; 2]; 2] {
    let (mut out, mut code) = ([[[0; 64]; 2]; 2], 0);
    while code < 128 {
        let bits = e4m3_to_f32(code as u8).to_bits();
        out[0][code / 64][code % 64] = (bits >> 16) as u8;
        out[1][code / 64][code % 64] = (bits >> 24) as u8;
        code += 1;
    }
    out
}
