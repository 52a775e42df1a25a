//! `Q4_K` and `Q5_K`: eight groups of 32 with six-bit scales and mins in units of two f16.

use super::search::{nearest, scale_and_min, sums};
use super::to_f16;

/// A block's scales without its codes, which are the nearest ones.
#[derive(Clone, Copy)]
struct Scales {
    d: f32,
    dmin: f32,
    scale: [f32; 8],
    min: [f32; 8],
    error: f32,
}

/// The squared error of a group at `x ~ a n - b`.
#[inline(always)]
fn error(x: &[f32], a: f32, b: f32, top: f32) -> f32 {
    let inverse = if a > 0.0 { 1.0 / a } else { 0.0 };
    let [e] = sums(x, |v| {
        let e = a * nearest((v + b) * inverse, 0.0, top) - b - v;
        [e * e]
    });
    e
}

impl Scales {
    /// The integers for `d` and `dmin` that leave the least error: those nearest to what is `wanted` of each group
    /// and their neighbours, together.
    fn around(x: &[f32], d: f32, dmin: f32, wanted: &[(f32, f32); 8], top: f32) -> Self {
        let mut out = Scales { d, dmin, scale: [0.0; 8], min: [0.0; 8], error: 0.0 };
        let ratio = |x: f32, unit: f32| if unit > 0.0 { nearest(x / unit, 0.0, 63.0) } else { 0.0 };
        for (j, group) in x.chunks_exact(32).enumerate() {
            let (s, m) = (ratio(wanted[j].0, d), ratio(wanted[j].1, dmin));
            let mut best = f32::INFINITY;
            for (scale, min) in [(s, m), (s - 1.0, m), (s + 1.0, m), (s, m - 1.0), (s, m + 1.0)] {
                if (0.0..=63.0).contains(&scale) && (0.0..=63.0).contains(&min) {
                    let e = error(group, d * scale, dmin * min, top);
                    if e < best {
                        (best, out.scale[j], out.min[j]) = (e, scale, min);
                    }
                }
            }
            out.error += best;
        }
        out
    }

    /// What each group has.
    fn wanted(&self) -> [(f32, f32); 8] {
        std::array::from_fn(|j| (self.d * self.scale[j], self.dmin * self.min[j]))
    }

    /// `d` and `dmin` by least squares over the whole block, with the integers and codes as they are.
    fn refit(&self, x: &[f32], top: f32) -> (f32, f32) {
        // x ~ d a - dmin b, with a = scale n and b = min
        let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0f64, 0f64, 0f64, 0f64, 0f64);
        for (j, group) in x.chunks_exact(32).enumerate() {
            let (s, m) = (self.scale[j], self.min[j]);
            let (a, b) = (self.d * s, self.dmin * m);
            let inverse = if a > 0.0 { 1.0 / a } else { 0.0 };
            let [n, nn, xn, sum] = sums(group, |v| {
                let n = nearest((v + b) * inverse, 0.0, top);
                [n, n * n, v * n, v]
            });
            let (s, m) = (f64::from(s), f64::from(m));
            aa += s * s * f64::from(nn);
            ab += s * m * f64::from(n);
            bb += m * m * 32.0;
            xa += s * f64::from(xn);
            xb += m * f64::from(sum);
        }
        let determinant = aa * bb - ab * ab;
        if determinant > 1e-9 * aa * bb {
            (((xa * bb - xb * ab) / determinant) as f32, ((xa * ab - xb * aa) / determinant) as f32)
        } else if aa > 0.0 {
            (((xa + f64::from(self.dmin) * ab) / aa) as f32, self.dmin)
        } else {
            (self.d, self.dmin)
        }
    }
}

/// One block; `None` where a scale is too large for f16.
pub(super) fn quantise(x: &[f32], top: f32, out: &mut [u8]) -> Option<()> {
    let mut wanted = [(0.0, 0.0); 8];
    for (w, group) in wanted.iter_mut().zip(x.chunks_exact(32)) {
        *w = scale_and_min(group, top, false);
    }
    let most = wanted.iter().fold((0f32, 0f32), |m, w| (m.0.max(w.0), m.1.max(w.1)));
    let (_, d) = to_f16(most.0 / 63.0)?;
    let (_, dmin) = to_f16(most.1 / 63.0)?;
    let mut best = Scales::around(x, d, dmin, &wanted, top);
    for _ in 0..2 {
        let (d, dmin) = best.refit(x, top);
        let (Some((_, d)), Some((_, dmin))) = (to_f16(d.max(0.0)), to_f16(dmin.max(0.0))) else { break };
        if (d, dmin) == (best.d, best.dmin) {
            break;
        }
        let next = Scales::around(x, d, dmin, &best.wanted(), top);
        if next.error >= best.error {
            break;
        }
        best = next;
    }
    write(x, &best, top, out);
    Some(())
}

/// The block's bytes, as [`block`](crate::block) has them.
fn write(x: &[f32], s: &Scales, top: f32, out: &mut [u8]) {
    out.fill(0);
    out[..2].copy_from_slice(&crate::f32_to_f16(s.d).to_le_bytes());
    out[2..4].copy_from_slice(&crate::f32_to_f16(s.dmin).to_le_bytes());
    for j in 0..4 {
        let (scale, min) = (s.scale.map(|v| v as u8), s.min.map(|v| v as u8));
        out[4 + j] = scale[j] | scale[j + 4] >> 4 << 6;
        out[8 + j] = min[j] | min[j + 4] >> 4 << 6;
        out[12 + j] = scale[j + 4] & 15 | min[j + 4] << 4;
    }
    let codes = out.len() - 128;
    for (j, group) in x.chunks_exact(32).enumerate() {
        let (a, b) = (s.d * s.scale[j], s.dmin * s.min[j]);
        let inverse = if a > 0.0 { 1.0 / a } else { 0.0 };
        for (i, &v) in group.iter().enumerate() {
            let n = nearest((v + b) * inverse, 0.0, top) as u8;
            out[codes + j / 2 * 32 + i] |= (n & 15) << (4 * (j % 2));
            if n > 15 {
                out[16 + i] |= 1 << j;
            }
        }
    }
}
