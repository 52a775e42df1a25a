//! The `IQ` formats: indices into a curve of 16 values, or into a grid of fours or eights.

use super::{grids, half_at, legacy::halves, part};
use crate::f16_to_f32;

/// What the codes of `IQ4_NL` and `IQ4_XS` stand for.
pub(super) const CURVE: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(super) fn iq4_nl(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    halves(part(b, 2), out, |n, _| d * f32::from(CURVE[usize::from(n)]));
}

pub(super) fn iq4_xs(b: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high, low) = (half_at(b, 0), u16::from_le_bytes(*part(b, 2)), part::<4>(b, 4));
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = u16::from(low[j / 2] >> (4 * (j % 2)) & 15) | (high >> (2 * j) & 3) << 4;
        let scale = d * f32::from(scale as i8 - 32);
        halves(part(b, 8 + 16 * j), group, |n, _| scale * f32::from(CURVE[usize::from(n)]));
    }
}

pub(super) fn iq2_xxs(b: &[u8; 66], out: &mut [f32; 256]) {
    let d = half_at(b, 0);
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (indices, word) = (part::<4>(b, 2 + 8 * j), u32::from_le_bytes(*part(b, 6 + 8 * j)));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (k, (eight, &index)) in group.as_chunks_mut().0.iter_mut().zip(indices).enumerate() {
            signed(scale, &grids::IQ2_XXS.0[usize::from(index)], even_signs(word >> (7 * k)), eight);
        }
    }
}

pub(super) fn iq2_xs(b: &[u8; 74], out: &mut [f32; 256]) {
    let (d, codes, scales) = (half_at(b, 0), part::<64>(b, 2), part::<8>(b, 66));
    for (k, (eight, code)) in out.as_chunks_mut().0.iter_mut().zip(codes.as_chunks().0).enumerate() {
        let code = u16::from_le_bytes(*code);
        let scale = d * (0.5 + f32::from(scales[k / 4] >> (k / 2 % 2 * 4) & 15)) * 0.25;
        signed(scale, &grids::IQ2_XS.0[usize::from(code & 511)], even_signs(u32::from(code >> 9)), eight);
    }
}

pub(super) fn iq2_s(b: &[u8; 82], out: &mut [f32; 256]) {
    let (d, low, signs) = (half_at(b, 0), part::<32>(b, 2), part::<32>(b, 34));
    let (high, scales) = (part::<8>(b, 66), part::<8>(b, 74));
    for (k, (eight, &low)) in out.as_chunks_mut().0.iter_mut().zip(low).enumerate() {
        let index = usize::from(low) | usize::from(high[k / 4] >> (k % 4 * 2) & 3) << 8;
        let scale = d * (0.5 + f32::from(scales[k / 4] >> (k / 2 % 2 * 4) & 15)) * 0.25;
        signed(scale, &grids::IQ2_S.0[index], signs[k], eight);
    }
}

pub(super) fn iq3_xxs(b: &[u8; 98], out: &mut [f32; 256]) {
    let d = half_at(b, 0);
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (indices, word) = (part::<8>(b, 2 + 8 * j), u32::from_le_bytes(*part(b, 66 + 4 * j)));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (k, (four, &index)) in group.as_chunks_mut().0.iter_mut().zip(indices).enumerate() {
            let signs = even_signs(word >> (7 * (k / 2))) >> (k % 2 * 4);
            signed(scale, &grids::IQ3_XXS.0[usize::from(index)], signs, four);
        }
    }
}

pub(super) fn iq3_s(b: &[u8; 110], out: &mut [f32; 256]) {
    let (d, low, high) = (half_at(b, 0), part::<64>(b, 2), part::<8>(b, 66));
    let (signs, scales) = (part::<32>(b, 74), part::<4>(b, 106));
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (low, signs) = (part::<8>(low, 8 * j), part::<4>(signs, 4 * j));
        let scale = d * f32::from(2 * (scales[j / 2] >> (j % 2 * 4) & 15) + 1);
        for (k, (four, &low)) in group.as_chunks_mut().0.iter_mut().zip(low).enumerate() {
            let index = usize::from(low) | usize::from(high[j] >> k & 1) << 8;
            signed(scale, &grids::IQ3_S.0[index], signs[k / 2] >> (k % 2 * 4), four);
        }
    }
}

pub(super) fn iq1_s(b: &[u8; 50], out: &mut [f32; 256]) {
    let (d, low) = (half_at(b, 0), part::<32>(b, 2));
    for (k, (eight, &low)) in out.as_chunks_mut().0.iter_mut().zip(low).enumerate() {
        let word = u16::from_le_bytes(*part(b, 34 + k / 4 * 2));
        let index = usize::from(low) | usize::from(word >> (k % 4 * 3) & 7) << 8;
        shifted(d * f32::from(2 * (word >> 12 & 7) + 1), &grids::IQ1.0[index], word >> 15 == 1, eight);
    }
}

pub(super) fn iq1_m(b: &[u8; 56], out: &mut [f32; 256]) {
    let (low, high) = (part::<32>(b, 0), part::<16>(b, 32));
    let words: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes(*part(b, 48 + 2 * i)));
    // The block's scale has four bits on top of each word; below them are four group scales of three.
    let d = f16_to_f32(words.iter().rev().fold(0, |d, w| d << 4 | w >> 12));
    for (k, (eight, &low)) in out.as_chunks_mut().0.iter_mut().zip(low).enumerate() {
        let high = high[k / 2] >> (k % 2 * 4);
        let index = usize::from(low) | usize::from(high & 7) << 8;
        let scale = d * f32::from(2 * (words[k / 8] >> (k / 2 % 4 * 3) & 7) + 1);
        shifted(scale, &grids::IQ1.0[index], high & 8 != 0, eight);
    }
}

/// Seven signs from the low bits of `code`, and the eighth that makes the number of minuses even.
#[inline(always)]
fn even_signs(code: u32) -> u8 {
    let seven = code as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Grid values times `scale`, the `i`-th negative where bit `i` of `signs` is set.
#[inline(always)]
fn signed<const N: usize>(scale: f32, grid: &[i8; N], signs: u8, out: &mut [f32; N]) {
    for (i, (o, &g)) in out.iter_mut().zip(grid).enumerate() {
        // A comparison with a constant of the lane: shifting by its number is no vector instruction of the base x86.
        let minus = if u32::from(signs) & 1 << i != 0 { 1 << 31 } else { 0 };
        *o = f32::from_bits((scale * f32::from(g)).to_bits() ^ minus);
    }
}

/// Grid values, moved an eighth down or up, times `scale`.
#[inline(always)]
fn shifted(scale: f32, grid: &[i8; 8], down: bool, out: &mut [f32; 8]) {
    let by = if down { -0.125 } else { 0.125 };
    for (o, &g) in out.iter_mut().zip(grid) {
        *o = scale * (f32::from(g) + by);
    }
}
