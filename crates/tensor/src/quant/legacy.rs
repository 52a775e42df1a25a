//! `Q4_0` and `Q5_0`, a scale of either sign; `Q4_1` and `Q5_1`, a scale and a min of either sign.

use half::f16;

use super::{affine_group, search, to_f16};
use crate::DType;

/// One block of `Q4_0` (`top` 8) or `Q5_0` (16); `None` where the scale is too large for f16.
pub(super) fn symmetric(x: &[f32], top: f32, out: &mut [u8]) -> Option<()> {
    let (d, rounded) = to_f16(search::scale(x, top))?;
    let inverse = if rounded == 0.0 { 0.0 } else { 1.0 / rounded };
    out[..2].copy_from_slice(&d.to_le_bytes());
    pack(&mut out[2..], |i| (search::nearest(x[i] * inverse, -top, top - 1.0) + top) as u8);
    Some(())
}

/// One block of `Q4_1` (`top` 15) or `Q5_1` (31): an affine group with its scale and bias in f16. `None` where they
/// are too large.
pub(super) fn with_min(x: &[f32], top: f32, out: &mut [u8]) -> Option<()> {
    let (d, m, codes) = affine_group(x, top, DType::F16, |v| f16::from_f32(v).to_f32()).ok()?;
    out[..2].copy_from_slice(&crate::f32_to_f16(d).to_le_bytes());
    out[2..4].copy_from_slice(&crate::f32_to_f16(m).to_le_bytes());
    pack(&mut out[4..], |i| codes[i]);
    Some(())
}

/// The codes of 32 elements: in sixteen bytes their low four bits, before them, if there is room, the fifth ones.
fn pack(out: &mut [u8], code: impl Fn(usize) -> u8) {
    let (fifth, low) = out.split_at_mut(out.len() - 16);
    for (i, q) in low.iter_mut().enumerate() {
        *q = code(i) & 15 | code(i + 16) << 4;
    }
    for (i, h) in fifth.iter_mut().enumerate() {
        *h = (0..8).fold(0, |h, bit| h | code(8 * i + bit) >> 4 << bit);
    }
}
