//! Which input samples an output sample is made of, and how much of each.

use turbospark_tensor::mutant::{Mutant, active};

/// Samples reach this far on either side at scale 1.
const SUPPORT: f64 = 2.0;
/// More bits than this would let the i32 sum overflow.
const MAX_BITS: u32 = 22;

/// The taps of one axis, weights as 16-bit integers of `bits` fraction bits.
pub(super) struct Axis {
    spans: Vec<Span>,
    weights: Vec<i16>,
    pub bits: u32,
}

struct Span {
    first: usize,
    start: usize,
    len: usize,
}

/// One output sample: input samples from `first` on, times `weights`.
pub(super) struct Tap<'a> {
    pub first: usize,
    pub weights: &'a [i16],
}

impl Axis {
    pub fn new(from: usize, to: usize) -> Self {
        let scale = from as f64 / to as f64;
        let (support, inverse) = if scale >= 1.0 { (SUPPORT * scale, 1.0 / scale) } else { (SUPPORT, 1.0) };
        let mut spans = Vec::with_capacity(to);
        let mut exact = Vec::new();
        for i in 0..to {
            let centre = scale * (i as f64 + 0.5);
            // Casts to usize cut below zero to zero, as the rule does.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(from);
            let start = exact.len();
            exact.extend((first..end).map(|j| cubic((j as f64 + 0.5 - centre) * inverse)));
            let sum: f64 = exact[start..].iter().sum();
            exact[start..].iter_mut().for_each(|w| *w /= sum);
            spans.push(Span { first, start, len: end - first });
        }
        let top = exact.iter().copied().fold(0.0, f64::max);
        let bits = fraction_bits(top);
        let one = f64::from(1u32 << bits);
        // f64::round takes halves away from zero, as the rule does.
        let weights = exact.iter().map(|w| (w * one).round() as i16).collect();
        Axis { spans, weights, bits }
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn tap(&self, i: usize) -> Tap<'_> {
        let Span { first, start, len } = self.spans[i];
        Tap { first, weights: &self.weights[start..start + len] }
    }

    /// Most taps that any output sample has.
    pub fn longest(&self) -> usize {
        self.spans.iter().map(|s| s.len).max().unwrap_or(0)
    }
}

/// As many fraction bits as let the largest weight stay within an i16.
fn fraction_bits(top: f64) -> u32 {
    (0..MAX_BITS).find(|&bits| (0.5 + top * f64::from(1u32 << (bits + 1))) as i64 >= 1 << 15).unwrap_or(MAX_BITS)
}

fn cubic(x: f64) -> f64 {
    let a = if active(Mutant::ResizeSharperKernel) { -0.75 } else { -0.5 };
    let x = x.abs();
    if x < 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_stay_within_an_i32() {
        for (from, to) in [(1, 64), (2, 3), (64, 1), (4000, 3008), (65535, 32), (3, 2), (100, 99), (12000, 17)] {
            let axis = Axis::new(from, to);
            for i in 0..axis.len() {
                let sum: i64 = axis.tap(i).weights.iter().map(|w| i64::from(w.unsigned_abs()) * 255).sum();
                assert!(sum + (1 << axis.bits) < i64::from(i32::MAX), "{from} -> {to}, sample {i}: {sum}");
            }
        }
    }
}
