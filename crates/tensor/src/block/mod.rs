//! The public GGML block formats, read as they lie in a file.
//!
//! A block holds 32 or 256 elements of one row. Its scales are f16 (`MXFP4`: a power of two); every product below is
//! exact in f32 but for overflow, so only the last sum of an element rounds, and a device that fuses or reorders a
//! formula gets the same bits. Byte offsets within a block, all little-endian; `n` is an element's code:
//!
//! | type | bytes | layout | element `i` |
//! | --- | --- | --- | --- |
//! | `Q8_0` | 34 for 32 | `d` f16, `q` i8 x 32 | `d q[i]` |
//! | `Q4_0` | 18 for 32 | `d` f16, `q` u8 x 16 | `d (n - 8)` |
//! | `Q4_1` | 20 for 32 | `d` f16, `m` f16, `q` u8 x 16 | `d n + m` |
//! | `Q5_0` | 22 for 32 | `d` f16, `h` u32, `q` u8 x 16 | `d (n - 16)`; bit `i` of `h` is worth 16 |
//! | `Q5_1` | 24 for 32 | `d` f16, `m` f16, `h` u32, `q` u8 x 16 | `d n + m`; bit `i` of `h` is worth 16 |
//! | `IQ4_NL` | 18 for 32 | `d` f16, `q` u8 x 16 | `d curve[n]` |
//! | `MXFP4` | 17 for 32 | `e` u8, `q` u8 x 16 | `2^(e - 128) v`, `v` twice the E2M1 float `n` |
//! | `Q2_K` | 84 for 256 | `s` u8 x 16, `q` u8 x 64, `d` f16, `dmin` f16 | `(d (s[j] % 16)) n - dmin (s[j] / 16)`, `j = i / 16` |
//! | `Q3_K` | 110 for 256 | `h` u8 x 32, `q` u8 x 64, `s` u8 x 12, `d` f16 | `(d (scale[i / 16] - 32)) (n - 4)`; bit `i / 32` of `h[i % 32]` is worth 4 |
//! | `Q4_K` | 144 for 256 | `d` f16, `dmin` f16, `s` u8 x 12, `q` u8 x 128 | `(d scale[j]) n - dmin min[j]`, `j = i / 32` |
//! | `Q5_K` | 176 for 256 | `d` f16, `dmin` f16, `s` u8 x 12, `h` u8 x 32, `q` u8 x 128 | as `Q4_K`; bit `j` of `h[i % 32]` is worth 16 |
//! | `Q6_K` | 210 for 256 | `l` u8 x 128, `h` u8 x 64, `scale` i8 x 16, `d` f16 | `(d scale[i / 16]) (n - 32)` |
//! | `TQ1_0` | 54 for 256 | `q` u8 x 48, `h` u8 x 4, `d` f16 | `d (n - 1)`, `n` a digit to base 3 |
//! | `TQ2_0` | 66 for 256 | `q` u8 x 64, `d` f16 | `d (n - 1)` |
//! | `IQ4_XS` | 136 for 256 | `d` f16, `h` u16, `s` u8 x 4, `q` u8 x 128 | `(d (scale[i / 32] - 32)) curve[n]` |
//! | `IQ3_XXS` | 98 for 256 | `d` f16, `q` u8 x 64, `w` u32 x 8 | `± d (0.5 + w[i / 32] / 2^28) 0.5 g` |
//! | `IQ3_S` | 110 for 256 | `d` f16, `q` u8 x 64, `h` u8 x 8, `sign` u8 x 32, `s` u8 x 4 | `± d (1 + 2 scale[i / 32]) g` |
//! | `IQ2_XXS` | 66 for 256 | `d` f16, (`q` u8 x 4, `w` u32) x 8 | `± d (0.5 + w[i / 32] / 2^28) 0.25 g` |
//! | `IQ2_XS` | 74 for 256 | `d` f16, `w` u16 x 32, `s` u8 x 8 | `± d (0.5 + scale[i / 16]) 0.25 g` |
//! | `IQ2_S` | 82 for 256 | `d` f16, `q` u8 x 32, `sign` u8 x 32, `h` u8 x 8, `s` u8 x 8 | `± d (0.5 + scale[i / 16]) 0.25 g` |
//! | `IQ1_S` | 50 for 256 | `d` f16, `q` u8 x 32, `w` u16 x 8 | `d (1 + 2 scale[i / 32]) (g ± 1/8)` |
//! | `IQ1_M` | 56 for 256 | `q` u8 x 32, `h` u8 x 16, `w` u16 x 4 | `d (1 + 2 scale[i / 16]) (g ± 1/8)` |
//!
//! Where the code of an element lies:
//!
//! * In blocks of 32, `n` is the low half of `q[i]` for `i < 16`, else the high half of `q[i - 16]`; so it is in each
//!   32 of `IQ4_XS`, from `q[16 (i / 32)]` on.
//! * In `Q4_K` and `Q5_K`, groups `2c` and `2c + 1` are the low and high halves of `q[32 c ..][.. 32]`; the six-bit
//!   scales and mins are packed as [`k_scale`] has it.
//! * In `Q2_K`, `Q3_K` and `TQ2_0`, the elements of each half `c` (128 of them) are four groups `g` of 32: bits `2 g`
//!   and up of `q[32 c ..][.. 32]`. Scale `j` of `Q3_K` is the low (`j < 8`) or high half of `s[j % 8]`, and above it
//!   bits `2 (j / 4)` of `s[8 + j % 4]`.
//! * In `Q6_K` the groups are the same: the low four bits of group `g` are the low (`g < 2`) or high half of
//!   `l[64 c + 32 (g % 2) ..][.. 32]`, its upper two are bits `2 g` of `h[32 c ..][.. 32]`.
//! * In `TQ1_0`, digit `k` of a byte `q` is `3 (3^k q % 256) / 256`. The first 160 elements are the first digits of
//!   `q[.. 32]`, then the second ones, up to the fifth; the next 80 so from `q[32 ..]`; the last 16 four each from `h`.
//! * In `IQ4_XS`, scale `j` is the low (`j` even) or high half of `s[j / 2]`, and above it bits `2 j` of `h`.
//!   `curve` is that of `IQ4_NL`.
//!
//! In the formats with a grid, `g` is an element of the grid's entry for its four (`IQ3`) or eight (`IQ2`, `IQ1`). For
//! four or eight `k`, the entry's index is:
//!
//! * `IQ3_XXS`, `IQ2_XXS`: `q[k]` (of `IQ2_XXS`, counted without the `w` between). Bits `7 (i / 8 % 4)` and up of
//!   `w[i / 32]` are seven signs of an eight, a set bit for minus; its eighth makes the number of minuses even.
//! * `IQ2_XS`: the low nine bits of `w[k]`; the seven above are the signs.
//! * `IQ3_S`: `q[k]` and bit `k % 8` of `h[k / 8]` above; `IQ2_S`: `q[k]` and bits `2 (k % 4)` of `h[k / 4]` above.
//!   Bit `i % 8` of `sign[i / 8]` is set for minus.
//! * `IQ1_S`: `q[k]` and bits `3 (k % 4)` of `w[k / 4]` above; bits 12 to 14 of that word are the scale, and bit 15 is
//!   set for minus.
//! * `IQ1_M`: `q[k]` and three bits of the low (`k` even) or high half of `h[k / 2]` above; the half's fourth is set
//!   for minus. Scale `j` is bits `3 (j % 4)` of `w[j / 4]`, and `d` the upper four bits of the words, the first
//!   lowest.
//!
//! Four-bit scales of the other `IQ` formats are the low (even) or high (odd) halves of `s`.
//!
//! What goes wrong unseen: a code or a grid entry read from the other end. The model still speaks, only worse;
//! `tests/blocks.rs` holds the bits of every format against the public implementation.

pub mod grids;
mod iq;
mod k;
mod legacy;
mod mxfp4;
mod ternary;

use crate::{DType, f16_to_f32};

/// The unit in which elements of a type are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Elements in it, consecutive ones of a row; 1 for a plain type.
    pub elements: usize,
    /// Bytes of it.
    pub bytes: usize,
}

/// The scale and the min of group `j < 8` from the twelve bytes of a `Q4_K` or `Q5_K` block, six bits each.
///
/// Groups 0 to 3 have theirs in the low six bits of bytes `j` and `j + 4`. Groups 4 to 7 have the low four bits
/// in the halves of byte `j + 4`, and the upper two on top of bytes `j - 4` and `j`.
#[inline]
pub const fn k_scale(packed: &[u8; 12], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let low = packed[j + 4];
        (low & 15 | packed[j - 4] >> 6 << 4, low >> 4 | packed[j] >> 6 << 4)
    }
}

/// The values that the indices of an `IQ1`, `IQ2` or `IQ3` format name, for devices that look them up themselves:
/// entry after entry, eight values each, of `IQ3` four. `None` for formats without a grid.
pub fn grid(dtype: DType) -> Option<&'static [i8]> {
    grids::of(dtype)
}

/// Whole blocks of a block type, dequantised exactly. `bytes` and `out` are as many blocks of it.
pub(crate) fn widen_blocks(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::Q8_0 => each(bytes, out, legacy::q8_0),
        DType::Q4_0 => each(bytes, out, legacy::q4_0),
        DType::Q4_1 => each(bytes, out, legacy::q4_1),
        DType::Q5_0 => each(bytes, out, legacy::q5_0),
        DType::Q5_1 => each(bytes, out, legacy::q5_1),
        DType::Q2_K => each(bytes, out, k::q2_k),
        DType::Q3_K => each(bytes, out, k::q3_k),
        DType::Q4_K => each(bytes, out, k::q4_k),
        DType::Q5_K => each(bytes, out, k::q5_k),
        DType::Q6_K => each(bytes, out, k::q6_k),
        DType::IQ4_NL => each(bytes, out, iq::iq4_nl),
        DType::IQ4_XS => each(bytes, out, iq::iq4_xs),
        DType::IQ3_S => each(bytes, out, iq::iq3_s),
        DType::IQ3_XXS => each(bytes, out, iq::iq3_xxs),
        DType::IQ2_S => each(bytes, out, iq::iq2_s),
        DType::IQ2_XS => each(bytes, out, iq::iq2_xs),
        DType::IQ2_XXS => each(bytes, out, iq::iq2_xxs),
        DType::IQ1_M => each(bytes, out, iq::iq1_m),
        DType::IQ1_S => each(bytes, out, iq::iq1_s),
        DType::TQ1_0 => each(bytes, out, ternary::tq1_0),
        DType::TQ2_0 => each(bytes, out, ternary::tq2_0),
        DType::MXFP4 => each(bytes, out, mxfp4::mxfp4),
        other => unreachable!("{other} has no blocks"),
    }
}

/// Widens block by block. The sizes are part of the types, so that loops within a block have no checks and become
/// vector code.
#[inline(always)]
fn each<const B: usize, const N: usize>(bytes: &[u8], out: &mut [f32], widen: impl Fn(&[u8; B], &mut [f32; N])) {
    for (block, out) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        widen(block, out);
    }
}

/// `N` bytes of a block or a part of one.
#[inline(always)]
fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a part lies within its block")
}

/// The f16 at a place in a block.
#[inline(always)]
fn half_at(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes(*part(block, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bit_scales_are_unpacked_by_hand() {
        // scales 1, 2, 3, 4, 21, 38, 55, 8; mins 9, 10, 11, 12, 61, 30, 47, 16
        let scales = [1u8, 2, 3, 4, 21, 38, 55, 8];
        let mins = [9u8, 10, 11, 12, 61, 30, 47, 16];
        let mut packed = [0u8; 12];
        for j in 0..4 {
            packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
            packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
            packed[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
        }
        for j in 0..8 {
            assert_eq!(k_scale(&packed, j), (scales[j], mins[j]));
        }
    }
}
