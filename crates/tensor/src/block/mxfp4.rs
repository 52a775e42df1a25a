//! Blocks of 32 four-bit floats with a power of two as scale, in GGUF's order.
//!
//! The elements are E2M1 ([`e2m1_to_f32`](crate::e2m1_to_f32)) and the scale is E8M0, with two departures from the
//! OCP format that are GGUF's: code 8 is a zero without a sign, and scale 255 is no NaN but 2^128, applied as 2^127
//! to twice the element, so that sizes from 1 on are infinite.

use super::{legacy::halves, part};

/// Twice the value of an E2M1 float, by its code.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn mxfp4(b: &[u8; 17], out: &mut [f32; 32]) {
    let half = f32::from_bits(match b[0] {
        e @ (0 | 1) => 1 << (21 + e), // subnormal
        e => u32::from(e - 1) << 23,
    });
    halves(part(b, 1), out, |n, _| half * f32::from(DOUBLED[usize::from(n)]));
}
