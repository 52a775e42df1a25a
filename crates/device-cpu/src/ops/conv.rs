//! The causal convolution of gated DeltaNet, parallel over channels.

use std::ops::Range;

use turbospark_device::Span;
use turbospark_device::op::CausalConv;

use super::{Done, Engine};
use crate::memory::Tensor;
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{Stored, with_stored};
use crate::simd::{Simd, Task, math};

/// Channels of a part are a multiple of this, and at most [`MOST`]: rows lie far apart, so long pieces of them.
const CHANNELS: usize = 64;

/// Pieces of a kernel's rows stay in the first cache.
const MOST: usize = 512;

pub(super) fn causal_conv(engine: &mut Engine, op: &CausalConv<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read("x", &op.x)?;
    let weight = a.weight("weight", &op.weight)?;
    let state = a.write("state", &op.state)?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let channels = x.dim(1);
    let rows: usize = op.spans.iter().map(|s| s.rows).sum();
    let piece = channels.div_ceil(4 * engine.pool.threads()).next_multiple_of(CHANNELS).min(MOST);
    engine.split(channels.div_ceil(piece), piece * weight.dim(1) * rows, |blocks| {
        for block in blocks {
            let channels = block * piece..channels.min((block + 1) * piece);
            engine.kernels.run(Conv { x, weight, state, spans: op.spans, out, channels });
        }
    });
    Ok(())
}

struct Conv<'a> {
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    spans: &'a [Span],
    out: Tensor,
    channels: Range<usize>,
}

impl Task for Conv<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let kernel = self.weight.dim(1);
        let width = self.channels.len();
        let first = self.channels.start;
        let stride = width.next_multiple_of(S::LANES);
        let mut local = local(2 * rounded(kernel * stride));
        let mut scratch = local.all();
        // Both [kernel, stride], so that a tap is a run of channels.
        let taps = cut(&mut scratch, kernel * stride);
        let before = cut(&mut scratch, kernel * stride);
        // The columns of a row.
        let mut at = vec![std::ptr::null(); kernel];
        with_stored!(self.weight.dtype, T => {
            for c in 0..width {
                for j in 0..kernel {
                    // SAFETY: channel and tap are in the weight.
                    taps[j * stride + c] = unsafe { T::one(self.weight.byte((first + c) * kernel + j)) };
                }
            }
        });
        for span in self.spans {
            let column = |c: usize, slot: usize| self.state.head(slot, first + c);
            for c in 0..width {
                for j in 0..kernel {
                    // SAFETY: the slot is in the state (checked); its channels are this part's alone.
                    before[j * stride + c] = unsafe { *column(c, span.state).add(j) };
                }
            }
            // The channels of the column `back` places before row `row` of the span.
            let columns = |row: usize, back: usize| match (span.first_row + row).checked_sub(back) {
                Some(r) if back <= row => self.x.row(r).wrapping_add(first).cast_const(),
                _ => before[(kernel + row - back) * stride..].as_ptr(),
            };
            for row in 0..span.rows {
                let out = self.out.row(span.first_row + row).wrapping_add(first);
                for (j, at) in at.iter_mut().enumerate() {
                    *at = columns(row, kernel - 1 - j);
                }
                for c in (0..width).step_by(S::LANES) {
                    let some = S::LANES.min(width - c);
                    let mut acc = s.splat(0.0);
                    for (j, at) in at.iter().enumerate() {
                        // SAFETY: rows of the span, which the check keeps within `x`; `some` channels are left.
                        unsafe {
                            let x = s.load_some(at.add(c), some);
                            acc = s.fma(s.load(taps.as_ptr().add(j * stride + c)), x, acc);
                        }
                    }
                    // SAFETY: these channels of `out` are this part's alone.
                    unsafe { s.store_some(out.add(c), math::silu(s, acc), some) };
                }
            }
            let shots = span.snapshots.iter().map(|shot| (shot.after, shot.slot));
            for (after, slot) in shots.chain([(span.rows, span.state)]) {
                for c in 0..width {
                    for j in 0..kernel {
                        // SAFETY: as above; the last columns before row `after`, oldest first.
                        unsafe { *column(c, slot).add(j) = *columns(after, kernel - j).add(c) };
                    }
                }
            }
        }
    }
}
