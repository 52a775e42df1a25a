//! Blocks of 256 elements that are `-d`, 0 or `d`.
//!
//! Two bits can say a fourth thing and a byte holds 13 codes that no five digits give. Neither is refused: the
//! formulas give them a meaning, `2 d` in `TQ2_0`, and that is what every reader does.

use super::{half_at, part};

pub(super) fn tq1_0(b: &[u8; 54], out: &mut [f32; 256]) {
    let d = half_at(b, 52);
    let (wide, rest) = out.split_at_mut(160);
    let (narrow, last) = rest.split_at_mut(80);
    digits(d, part::<32>(b, 0), wide);
    digits(d, part::<16>(b, 32), narrow);
    digits(d, part::<4>(b, 48), last);
}

/// The first digit of every byte, then the second of every byte, and so on.
#[inline(always)]
fn digits<const N: usize>(d: f32, q: &[u8; N], out: &mut [f32]) {
    // A byte is a fraction in units of 1/256: times 3, what is above the point is the first digit. Times 3 modulo
    // 256, the next one is first.
    let mut q = *q;
    for row in out.as_chunks_mut::<N>().0 {
        for (o, q) in row.iter_mut().zip(&mut q) {
            *o = d * f32::from(((u16::from(*q) * 3) >> 8) as i8 - 1);
            *q = q.wrapping_mul(3);
        }
    }
}

pub(super) fn tq2_0(b: &[u8; 66], out: &mut [f32; 256]) {
    let (q, d) = (part::<64>(b, 0), half_at(b, 64));
    for (j, group) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (o, &q) in group.iter_mut().zip(part::<32>(q, j / 4 * 32)) {
            *o = d * f32::from((q >> (j % 4 * 2) & 3) as i8 - 1);
        }
    }
}
