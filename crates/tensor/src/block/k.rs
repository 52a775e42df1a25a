//! The `K` formats: blocks of 256 whose groups of 16 or 32 have scales in units of the block's.

use super::{half_at, k_scale, part};

pub(super) fn q2_k(b: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, q, d, dmin) = (part::<16>(b, 0), part::<64>(b, 16), half_at(b, 80), half_at(b, 82));
    let scales = scales.map(|s| (d * f32::from(s & 15), dmin * f32::from(s >> 4)));
    quarters(q, out, |j, _, q, group| {
        let (scale, min) = scales[j];
        for (o, &n) in group.iter_mut().zip(q) {
            *o = scale * f32::from(n) - min;
        }
    });
}

pub(super) fn q3_k(b: &[u8; 110], out: &mut [f32; 256]) {
    let (h, q, packed, d) = (part::<32>(b, 0), part::<64>(b, 32), part::<12>(b, 96), half_at(b, 108));
    quarters(q, out, |j, first, q, group| {
        let (low, high) = (packed[j % 8] >> (4 * (j / 8)) & 15, packed[8 + j % 4] >> (2 * (j / 4)) & 3);
        let scale = d * f32::from((low | high << 4) as i8 - 32);
        for ((o, &n), &h) in group.iter_mut().zip(q).zip(part::<16>(h, first)) {
            *o = scale * f32::from((n | (h >> (j / 2) & 1) << 2) as i8 - 4);
        }
    });
}

pub(super) fn q4_k(b: &[u8; 144], out: &mut [f32; 256]) {
    let q = part::<128>(b, 16);
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(part(b, 0), j);
        for (o, &q) in group.iter_mut().zip(part::<32>(q, j / 2 * 32)) {
            *o = scale * f32::from(q >> (j % 2 * 4) & 15) - min;
        }
    }
}

pub(super) fn q5_k(b: &[u8; 176], out: &mut [f32; 256]) {
    let (h, q) = (part::<32>(b, 16), part::<128>(b, 48));
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(part(b, 0), j);
        for ((o, &q), &h) in group.iter_mut().zip(part::<32>(q, j / 2 * 32)).zip(h) {
            *o = scale * f32::from(q >> (j % 2 * 4) & 15 | (h >> j & 1) << 4) - min;
        }
    }
}

pub(super) fn q6_k(b: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales, d) = (part::<128>(b, 0), part::<64>(b, 128), part::<16>(b, 192), half_at(b, 208));
    for (j, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[j] as i8);
        let (half, g, first) = (j / 8, j / 2 % 4, j % 2 * 16);
        let low = part::<16>(low, 64 * half + 32 * (g % 2) + first);
        let high = part::<16>(high, 32 * half + first);
        for ((o, &l), &h) in group.iter_mut().zip(low).zip(high) {
            let n = l >> (g / 2 * 4) & 15 | (h >> (2 * g) & 3) << 4;
            *o = scale * f32::from(n as i8 - 32);
        }
    }
}

/// Scale and min of group `j` of a `Q4_K` or `Q5_K` block, from its head.
#[inline(always)]
fn scale_and_min(head: &[u8; 16], j: usize) -> (f32, f32) {
    let (scale, min) = k_scale(part(head, 4), j);
    (half_at(head, 0) * f32::from(scale), half_at(head, 2) * f32::from(min))
}

/// Calls `widen` for each group of 16 with its number `j`, where it starts within its 32, its two-bit codes and its
/// place in `out`.
#[inline(always)]
fn quarters(q: &[u8; 64], out: &mut [f32; 256], widen: impl Fn(usize, usize, &[u8; 16], &mut [f32; 16])) {
    for (j, group) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (half, g, first) = (j / 8, j / 2 % 4, j % 2 * 16);
        widen(j, first, &part::<16>(q, 32 * half + first).map(|q| q >> (2 * g) & 3), group);
    }
}
