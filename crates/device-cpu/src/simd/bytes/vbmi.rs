//! Fields of a few bits on AVX-512 VBMI: a byte may take any eight bits of its word.
//!
//! Instructions by hand: kernels are compiled for VNNI, which some CPUs have without VBMI.

use std::arch::asm;
use std::arch::x86_64::*;

use super::group;

/// Byte `i` of the result is byte `at[i]` of 128: those of `low`, then those of `high`.
///
/// # Safety
/// VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pick(low: __m512i, at: __m512i, high: __m512i) -> __m512i {
    let mut out = low;
    // SAFETY: the caller's promise; registers only.
    unsafe {
        asm!("vpermt2b {0}, {1}, {2}", inout(zmm_reg) out, in(zmm_reg) at, in(zmm_reg) high,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Byte `i` of the result is byte `at[i]` of `v`.
///
/// # Safety
/// VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pick_one(at: __m512i, v: __m512i) -> __m512i {
    let out;
    // SAFETY: the caller's promise; registers only.
    unsafe {
        asm!("vpermb {0}, {1}, {2}", lateout(zmm_reg) out, in(zmm_reg) at, in(zmm_reg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Byte `i` of the result is the eight bits from bit `at[i]` on of the 64 bits that `v` has in its place.
///
/// # Safety
/// VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn shift(at: __m512i, v: __m512i) -> __m512i {
    let out;
    // SAFETY: the caller's promise; registers only.
    unsafe {
        asm!("vpmultishiftqb {0}, {1}, {2}", lateout(zmm_reg) out, in(zmm_reg) at, in(zmm_reg) v,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// A superblock's fields, transposed: of two, three or four bits.
///
/// # Safety
/// `32 BITS` bytes are readable; VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn fields<const BITS: usize>(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise; arrays of 64 bytes.
    unsafe {
        let load = |p: *const u8| _mm512_loadu_si512(p.cast());
        let low = load(p);
        let high = match BITS {
            2 => low,
            3 => _mm512_castsi256_si512(_mm256_loadu_si256(p.add(64).cast())),
            _ => load(p.add(64)),
        };
        let mut out = [low; 4];
        for (i, out) in out.iter_mut().enumerate() {
            let (bytes, bits) = const { windows::<BITS>() }[i];
            let (bytes, bits) = (load(bytes.as_ptr()), load(bits.as_ptr()));
            let windows = if BITS == 2 { pick_one(bytes, low) } else { pick(low, bytes, high) };
            *out = _mm512_and_si512(shift(bits, windows), _mm512_set1_epi8((1 << BITS) - 1));
        }
        out
    }
}

/// For each of four vectors: the bytes that the dword of each lane is picked from, and where its four fields begin in
/// the word of two lanes.
const fn windows<const BITS: usize>() -> [([u8; 64], [u8; 64]); 4] {
    let (mut out, mut at) = ([([0; 64], [0; 64]); 4], 0);
    while at < 256 {
        let (i, lane, byte) = (at / 64, at / 4 % 16, at % 4);
        // Fields `4 i ..` of the lane's sixteen.
        let first = (16 * group(lane) + 4 * i) * BITS;
        let from = first / 8 + byte;
        out[i].0[4 * lane + byte] = if from < 32 * BITS { from as u8 } else { 0 };
        out[i].1[4 * lane + byte] = (lane % 2 * 32 + first % 8 + byte * BITS) as u8;
        at += 1;
    }
    out
}

/// A superblock's fields in their order: of five or six bits.
///
/// # Safety
/// `32 BITS` bytes are readable; VBMI is there.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn stream<const BITS: usize>(p: *const u8) -> [__m512i; 4] {
    // SAFETY: the caller's promise; no byte past `8 BITS` of each is touched.
    unsafe {
        let (bytes, bits) = const { words::<BITS>() };
        let (bytes, bits) = (_mm512_loadu_si512(bytes.as_ptr().cast()), _mm512_loadu_si512(bits.as_ptr().cast()));
        let mut out = [bytes; 4];
        for (i, out) in out.iter_mut().enumerate() {
            let v = _mm512_maskz_loadu_epi8((1 << (8 * BITS)) - 1, p.add(8 * BITS * i).cast());
            *out = _mm512_and_si512(shift(bits, pick_one(bytes, v)), _mm512_set1_epi8((1 << BITS) - 1));
        }
        out
    }
}

/// The bytes of eight fields to a word, and where they begin in it.
const fn words<const BITS: usize>() -> ([u8; 64], [u8; 64]) {
    let (mut bytes, mut bits, mut i) = ([0; 64], [0; 64], 0);
    while i < 64 {
        bytes[i] = (i / 8 * BITS + i % 8) as u8;
        bits[i] = (i % 8 * BITS) as u8;
        i += 1;
    }
    (bytes, bits)
}
