//! The two inner loops, shaped so that the compiler turns them into vector code on every target.

use super::taps::Axis;

/// Bytes of a row that are summed at once: the accumulators of one block fit the vector registers.
const BLOCK: usize = 32;
/// Four pixels of three samples: lane k always holds channel k % 3.
const LANES: usize = 12;

/// One output row: the sum of `inputs` times `weights`.
pub(super) fn rows(inputs: &[&[u8]], weights: &[i16], bits: u32, out: &mut [u8]) {
    let whole = out.len() / BLOCK * BLOCK;
    let (blocks, tail) = out.split_at_mut(whole);
    for (b, out) in blocks.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        let mut sums = [half(bits); BLOCK];
        for (input, &weight) in inputs.iter().zip(weights) {
            let input: &[u8; BLOCK] =
                input[b * BLOCK..].first_chunk().expect("every input row is as long as the output row");
            for k in 0..BLOCK {
                sums[k] += i32::from(weight) * i32::from(input[k]);
            }
        }
        for k in 0..BLOCK {
            out[k] = to_u8(sums[k], bits);
        }
    }
    for (x, out) in (whole..).zip(tail) {
        let sum: i32 = inputs.iter().zip(weights).map(|(r, &w)| i32::from(w) * i32::from(r[x])).sum();
        *out = to_u8(sum + half(bits), bits);
    }
}

/// Column taps laid out for [`LANES`]: each weight three times, zeros up to a whole number of lanes.
pub(super) struct Columns {
    first: Vec<usize>,
    weights: Vec<[i16; LANES]>,
    groups: usize,
    bits: u32,
}

impl Columns {
    pub fn new(axis: &Axis) -> Self {
        let groups = axis.longest().div_ceil(LANES / 3);
        let mut weights = vec![[0; LANES]; groups * axis.len()];
        let mut first = Vec::with_capacity(axis.len());
        for i in 0..axis.len() {
            let tap = axis.tap(i);
            first.push(tap.first * 3);
            for (k, &weight) in tap.weights.iter().enumerate() {
                let at = k * 3 % LANES;
                weights[i * groups + k * 3 / LANES][at..at + 3].fill(weight);
            }
        }
        Columns { first, weights, groups, bits: axis.bits }
    }

    /// Bytes past the end of a row that may be read, under weights of zero.
    pub fn overrun(&self) -> usize {
        self.groups * LANES
    }

    /// One row; `row` is followed by [`Columns::overrun`] bytes of anything.
    pub fn run(&self, row: &[u8], out: &mut [u8]) {
        let taps = self.first.iter().zip(self.weights.chunks_exact(self.groups));
        for (out, (&first, weights)) in out.as_chunks_mut::<3>().0.iter_mut().zip(taps) {
            let pixels = row[first..first + self.groups * LANES].as_chunks::<LANES>().0;
            let mut sums = [0; LANES];
            for (pixels, weights) in pixels.iter().zip(weights) {
                for k in 0..LANES {
                    sums[k] += i32::from(weights[k]) * i32::from(pixels[k]);
                }
            }
            for c in 0..3 {
                out[c] = to_u8(sums[c] + sums[c + 3] + sums[c + 6] + sums[c + 9] + half(self.bits), self.bits);
            }
        }
    }
}

fn half(bits: u32) -> i32 {
    (1 << bits) >> 1
}

fn to_u8(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}
