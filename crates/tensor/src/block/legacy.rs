//! Blocks of 32 with a scale and perhaps a min, and no scales within.

use super::{half_at, part};

pub(super) fn q8_0(b: &[u8; 34], out: &mut [f32; 32]) {
    let (d, q) = (half_at(b, 0), part::<32>(b, 2));
    for (o, &q) in out.iter_mut().zip(q) {
        *o = d * f32::from(q as i8);
    }
}

pub(super) fn q4_0(b: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(b, 0);
    halves(part(b, 2), out, |n, _| d * f32::from(n as i8 - 8));
}

pub(super) fn q4_1(b: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    halves(part(b, 4), out, |n, _| d * f32::from(n) + m);
}

pub(super) fn q5_0(b: &[u8; 22], out: &mut [f32; 32]) {
    let (d, h) = (half_at(b, 0), u32::from_le_bytes(*part(b, 2)));
    halves(part(b, 6), out, |n, i| d * f32::from((n | fifth(h, i)) as i8 - 16));
}

pub(super) fn q5_1(b: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, h) = (half_at(b, 0), half_at(b, 2), u32::from_le_bytes(*part(b, 4)));
    halves(part(b, 8), out, |n, i| d * f32::from(n | fifth(h, i)) + m);
}

/// Each element from its four bits and its index: the low halves of `q` and then the high ones.
#[inline(always)]
pub(super) fn halves(q: &[u8; 16], out: &mut [f32; 32], element: impl Fn(u8, usize) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for (i, (o, q)) in low.iter_mut().zip(q).enumerate() {
        *o = element(q & 15, i);
    }
    for (i, (o, q)) in high.iter_mut().zip(q).enumerate() {
        *o = element(q >> 4, i + 16);
    }
}

/// The fifth bit of element `i`, in its place.
#[inline(always)]
fn fifth(h: u32, i: usize) -> u8 {
    ((h >> i & 1) << 4) as u8
}
