//! The row kernel on E4M3 codes, whose scales lie apart: floats, so that sums are f32 whatever the precision.
//!
//! Codes are widened as they are loaded. A group's sum is scaled once, which rounds less than scaling its weights.

use std::ops::Range;

use turbospark_tensor::Code;

use super::finish::{Dots, Linear, Part};
use super::outputs::{AHEAD, SIDE, Streams, UNIT, WIDTH};
use super::{Engine, Rows};
use crate::simd::scaled::Row;
use crate::simd::stored::Weight;
use crate::simd::{self, Simd};

/// Whether this is a kernel for such a weight.
pub(super) fn takes(w: &Weight) -> bool {
    w.scales.is_some_and(|s| s.form.code() == Code::E4M3 && s.biases.is_none())
}

/// `Linear` on `rows` rows of `x`; this is a kernel for its weights.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    engine.split(linear.n.div_ceil(UNIT), UNIT * linear.k * (1 + rows / 2), |units| {
        engine.kernels.run(Task(Part { linear, x, rows, units }));
    });
}

/// The kernel.
struct E4m3;

/// Some outputs by it.
struct Task<'a>(Part<'a>);

impl simd::Task for Task<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are valid (`row`).
        unsafe { E4m3.run(&self.0, s) };
    }
}

impl<S: Simd> Dots<S> for E4m3 {
    const AT_ONCE: usize = 2;

    #[inline(always)]
    unsafe fn products(&self, part: &Part<'_>, s: S, w: &Weight, outputs: &Range<usize>, _: *mut f32, out: *mut f32) {
        let Some(scales) = &w.scales else { unreachable!("taken for its scales") };
        let streams = Streams::new(outputs.len());
        for i in 0..streams.steps() {
            let some = streams.at(i);
            // A stream that has no such step repeats the first one's; its sums go nowhere that is kept.
            let mut rows = [outputs.start + i; SIDE];
            for (stream, row) in rows.iter_mut().enumerate().take(some) {
                *row += stream * streams.apart();
            }
            let weights = rows.map(|r| scales.row(w.ptr.wrapping_add(r * w.stride * w.dtype.size()), r));
            // With more rows than two the sums of AVX-512 no longer fit its registers: four rows take twice as long.
            for first in (0..part.rows).step_by(2) {
                let mut sums = [[0.0; SIDE]; 2];
                // SAFETY: the caller's promise.
                unsafe {
                    if part.rows == 1 {
                        sums[..1].copy_from_slice(&dots::<S, 1>(part, s, &weights, first));
                    } else {
                        sums = dots::<S, 2>(part, s, &weights, first);
                    }
                    for (r, sums) in sums.iter().enumerate() {
                        for (stream, &sum) in sums.iter().enumerate().take(some) {
                            *out.add((first + r) * WIDTH + stream * streams.apart() + i) = sum;
                        }
                    }
                }
            }
        }
    }
}

/// Rows `first ..` times some of weights.
///
/// # Safety
/// The rows of weights are readable.
#[inline(always)]
unsafe fn dots<S: Simd, const R: usize>(part: &Part<'_>, s: S, w: &[Row; SIDE], first: usize) -> [[f32; SIDE]; R] {
    let k = part.linear.k;
    let mut x = [std::ptr::null(); R];
    for (r, x) in x.iter_mut().enumerate() {
        *x = part.x.row((first + r).min(part.rows - 1)).cast_const();
    }
    let group = w[0].form.group().min(k);
    let mut total = [[s.splat(0.0); SIDE]; R];
    for (g, begin) in (0..k).step_by(group.max(1)).enumerate() {
        let end = k.min(begin + group);
        let mut acc = [[s.splat(0.0); SIDE]; R];
        let mut p = begin;
        // SAFETY: the caller's promise; every load ends at or before `k`.
        unsafe {
            while p + S::LANES <= end {
                if first == 0 && p.is_multiple_of(64) {
                    for w in w {
                        s.prefetch(w.codes.wrapping_add(p + AHEAD));
                    }
                }
                let wide = load(s, w, p);
                for r in 0..R {
                    let x = s.load(x[r].add(p));
                    for o in 0..SIDE {
                        acc[r][o] = s.fma(x, wide[o], acc[r][o]);
                    }
                }
                p += S::LANES;
            }
            if p < end {
                let mut last = *w;
                let mut codes = [[0u8; 16]; SIDE];
                for o in 0..SIDE {
                    std::ptr::copy_nonoverlapping(w[o].codes.add(p), codes[o].as_mut_ptr(), end - p);
                    last[o].codes = codes[o].as_ptr();
                }
                let wide = load(s, &last, 0);
                for r in 0..R {
                    let x = s.load_some(x[r].add(p), end - p);
                    for o in 0..SIDE {
                        acc[r][o] = s.fma(x, wide[o], acc[r][o]);
                    }
                }
            }
            for o in 0..SIDE {
                let scale = s.splat(256.0 * w[o].scale(g));
                for r in 0..R {
                    total[r][o] = s.fma(acc[r][o], scale, total[r][o]);
                }
            }
        }
    }
    let mut sums = [[0.0; SIDE]; R];
    for r in 0..R {
        for o in 0..SIDE {
            sums[r][o] = s.sum(total[r][o]);
        }
    }
    sums
}

/// Elements `p ..` of the rows, over 256.
///
/// # Safety
/// The rows have as many as a vector.
#[inline(always)]
unsafe fn load<S: Simd>(s: S, w: &[Row; SIDE], p: usize) -> [S::V; SIDE] {
    let mut wide = [s.splat(0.0); SIDE];
    for o in 0..SIDE {
        // SAFETY: the caller's promise.
        wide[o] = unsafe { s.load_e4m3(w[o].codes.add(p)) };
    }
    wide
}
