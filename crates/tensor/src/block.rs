//! The public GGML block formats, read as they lie in a file.
//!
//! A block holds 32 or 256 elements of one row. Its scales are f16; every product below is exact in f32, so that
//! each formula rounds once at most (in Q4_K's and Q5_K's subtraction, and in Q6_K's last product) and a device
//! that fuses or reorders it gets the same bits. Byte offsets within a block, all little-endian:
//!
//! | type | bytes | layout | element `i` |
//! | --- | --- | --- | --- |
//! | `Q8_0` | 34 for 32 | `d` f16, `q` i8 x 32 | `d q[i]` |
//! | `Q4_0` | 18 for 32 | `d` f16, `q` u8 x 16 | `d (n - 8)`, `n` the low half of `q[i]` for `i < 16`, else the high half of `q[i - 16]` |
//! | `Q4_K` | 144 for 256 | `d` f16, `dmin` f16, `s` u8 x 12, `q` u8 x 128 | `(d scale[j]) n - dmin min[j]`, `j = i / 32` |
//! | `Q5_K` | 176 for 256 | `d` f16, `dmin` f16, `s` u8 x 12, `h` u8 x 32, `q` u8 x 128 | as `Q4_K`; bit `j` of `h[i % 32]` is worth 16 |
//! | `Q6_K` | 210 for 256 | `l` u8 x 128, `h` u8 x 64, `scale` i8 x 16, `d` f16 | `(d scale[i / 16]) (n - 32)` |
//!
//! In `Q4_K` and `Q5_K`, groups `2c` and `2c + 1` are the low and high halves of `q[32 c ..][.. 32]`; the six-bit
//! scales and mins are packed as [`k_scale`] has it. In `Q6_K`, the elements of each half `c` (128 of them) are four
//! groups `g` of 32: the low four bits of group `g` are the low (`g < 2`) or high half of
//! `l[64 c + 32 (g % 2) ..][.. 32]`, its upper two are bits `2 g` of `h[32 c ..][.. 32]`.

use half::f16;

use crate::DType;

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

fn scale_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// One block of a block type, dequantised exactly. `block` and `out` have its sizes.
pub(crate) fn widen_block(dtype: DType, block: &[u8], out: &mut [f32]) {
    match dtype {
        DType::Q8_0 => {
            let d = scale_at(block, 0);
            for (o, &q) in out.iter_mut().zip(&block[2..34]) {
                *o = d * f32::from(q as i8);
            }
        }
        DType::Q4_0 => {
            let d = scale_at(block, 0);
            let (low, high) = out.split_at_mut(16);
            for ((l, h), &q) in low.iter_mut().zip(high).zip(&block[2..18]) {
                *l = d * f32::from((q & 15) as i8 - 8);
                *h = d * f32::from((q >> 4) as i8 - 8);
            }
        }
        DType::Q4_K => widen_k(block, None, &block[16..144], out),
        DType::Q5_K => widen_k(block, Some(&block[16..48]), &block[48..176], out),
        DType::Q6_K => widen_q6(block, out),
        other => unreachable!("{other} has no blocks"),
    }
}

/// `Q4_K`, and `Q5_K` with its fifth bits.
fn widen_k(block: &[u8], fifth: Option<&[u8]>, codes: &[u8], out: &mut [f32]) {
    let (d, dmin) = (scale_at(block, 0), scale_at(block, 2));
    let packed: &[u8; 12] = block[4..16].try_into().expect("twelve bytes");
    for (j, group) in out.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scale(packed, j);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let codes = &codes[j / 2 * 32..][..32];
        for (i, (o, &q)) in group.iter_mut().zip(codes).enumerate() {
            let low = if j % 2 == 0 { q & 15 } else { q >> 4 };
            let n = low | fifth.map_or(0, |h| (h[i] >> j & 1) << 4);
            *o = scale * f32::from(n) - min;
        }
    }
}

fn widen_q6(block: &[u8], out: &mut [f32]) {
    let d = scale_at(block, 208);
    for (j, group) in out.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(block[192 + j] as i8);
        let (half, g, first) = (j / 8, j / 2 % 4, j % 2 * 16);
        let low = &block[64 * half + 32 * (g % 2) + first..][..16];
        let high = &block[128 + 32 * half + first..][..16];
        for ((o, &l), &h) in group.iter_mut().zip(low).zip(high) {
            let l = if g < 2 { l & 15 } else { l >> 4 };
            let n = l | (h >> (2 * g) & 3) << 4;
            *o = scale * f32::from(n as i8 - 32);
        }
    }
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
