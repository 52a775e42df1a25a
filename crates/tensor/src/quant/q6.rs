//! `Q6_K`: sixteen groups of 16 with eight-bit scales in units of one f16.

use super::search::{nearest, scale, sums};
use super::to_f16;

const TOP: f32 = 32.0;

#[inline(always)]
fn code(v: f32, inverse: f32) -> f32 {
    nearest(v * inverse, -TOP, TOP - 1.0)
}

fn inverse(a: f32) -> f32 {
    if a == 0.0 { 0.0 } else { 1.0 / a }
}

/// A block's scales without its codes, which are the nearest ones.
#[derive(Clone, Copy)]
struct Scales {
    d: f32,
    scale: [f32; 16],
    error: f32,
}

impl Scales {
    /// The integers for `d` that leave the least error: those nearest to what is `wanted`, and their neighbours.
    fn around(x: &[f32], d: f32, wanted: &[f32; 16]) -> Self {
        let mut out = Scales { d, scale: [0.0; 16], error: 0.0 };
        for (j, group) in x.chunks_exact(16).enumerate() {
            let s = if d == 0.0 { 0.0 } else { nearest(wanted[j] / d, -128.0, 127.0) };
            let mut best = f32::INFINITY;
            for scale in [s, s - 1.0, s + 1.0] {
                if !(-128.0..=127.0).contains(&scale) {
                    continue;
                }
                let (a, inverse) = (d * scale, inverse(d * scale));
                let [e] = sums(group, |v| {
                    let e = a * code(v, inverse) - v;
                    [e * e]
                });
                if e < best {
                    (best, out.scale[j]) = (e, scale);
                }
            }
            out.error += best;
        }
        out
    }

    /// `d` by least squares over the whole block, with the integers and codes as they are.
    fn refit(&self, x: &[f32]) -> f32 {
        let (mut xa, mut aa) = (0f64, 0f64); // x ~ d a, with a = scale n
        for (group, &s) in x.chunks_exact(16).zip(&self.scale) {
            let inverse = inverse(self.d * s);
            let [xn, nn] = sums(group, |v| {
                let n = code(v, inverse);
                [v * n, n * n]
            });
            xa += f64::from(s) * f64::from(xn);
            aa += f64::from(s).powi(2) * f64::from(nn);
        }
        if aa > 0.0 { (xa / aa) as f32 } else { self.d }
    }
}

/// One block; `None` where its scale is too large for f16.
pub(super) fn quantise(x: &[f32], out: &mut [u8]) -> Option<()> {
    let mut wanted = [0.0; 16];
    for (w, group) in wanted.iter_mut().zip(x.chunks_exact(16)) {
        *w = scale(group, TOP);
    }
    // The largest scale becomes -128, the integer of the largest size.
    let (_, d) = to_f16(super::largest(&wanted) / -128.0)?;
    let mut best = Scales::around(x, d, &wanted);
    for _ in 0..2 {
        let Some((_, d)) = to_f16(best.refit(x)) else { break };
        if d == best.d {
            break;
        }
        let next = Scales::around(x, d, &best.scale.map(|s| s * best.d));
        if next.error >= best.error {
            break;
        }
        best = next;
    }
    write(x, &best, out);
    Some(())
}

/// The block's bytes, as [`block`](crate::block) has them.
fn write(x: &[f32], s: &Scales, out: &mut [u8]) {
    out.fill(0);
    out[208..].copy_from_slice(&crate::f32_to_f16(s.d).to_le_bytes());
    for (j, group) in x.chunks_exact(16).enumerate() {
        out[192 + j] = s.scale[j] as i8 as u8;
        let inverse = inverse(s.d * s.scale[j]);
        let (half, g, first) = (j / 8, j / 2 % 4, j % 2 * 16);
        for (i, &v) in group.iter().enumerate() {
            let n = (code(v, inverse) + TOP) as u8;
            out[64 * half + 32 * (g % 2) + first + i] |= (n & 15) << (g / 2 * 4);
            out[128 + 32 * half + first + i] |= (n >> 4) << (2 * g);
        }
    }
}
