//! The row kernel on E4M3 codes where 64 of them are widened at once; else as `row_e4m3.rs`.
//!
//! They don't come in their order, so the activations are packed in the order that they come in, once for all outputs.

use std::ops::Range;

use super::finish::{Finishing, Linear};
use super::outputs::{AHEAD, SIDE, Streams, UNIT, WIDTH, pieces};
use super::row_blocks::Finish;
use super::{Engine, Rows, Shared, row_e4m3};
use crate::isa::Kernels;
use crate::scratch::local;
use crate::simd::Simd;
use crate::simd::bytes::{ByteTask, Bytes, Spread, run, widens_e4m3};
use crate::simd::scaled::Row;
use crate::simd::stored::Weight;

/// Codes that are widened at once.
const BLOCK: usize = 64;

/// Whether this is a kernel for such a weight, of rows of `k`.
pub(super) fn takes(kernels: Kernels, w: &Weight, k: usize) -> bool {
    let fits = |group: usize| BLOCK.is_multiple_of(group) || group.is_multiple_of(BLOCK) || group >= k;
    widens_e4m3(kernels) && row_e4m3::takes(w) && w.scales.is_some_and(|s| fits(s.form.group()))
}

/// `Linear` on `rows` rows of `x`; this is a kernel for its weights.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(super) unsafe fn row(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let (kernels, k) = (engine.kernels, linear.k);
    let blocks = k.div_ceil(BLOCK);
    let packed = Shared::new(engine.packed.get((blocks * rows * BLOCK).max(1)));
    engine.split(blocks * rows, BLOCK, |items| run(kernels, Pack { x, rows, k, items, packed }));
    engine.split(linear.n.div_ceil(UNIT), UNIT * k * (1 + rows / 2), |units| {
        let mut local = local(Finishing::size(rows, WIDTH));
        let mut finishing = Finishing::cut(local.all(), rows, WIDTH);
        for outputs in pieces(units, linear.n) {
            let products = |w, out| run(kernels, Products { w, k, rows, packed, outputs: &outputs, out });
            products(&linear.weight, finishing.sums);
            if let Some(gate) = &linear.gate {
                products(gate, finishing.gates);
            }
            kernels.run(Finish { finishing: &mut finishing, linear, rows, outputs });
        }
    });
}

/// Packs some blocks, `[blocks, rows, BLOCK]`; past `k` they are zero.
struct Pack<'a> {
    x: Rows<'a>,
    rows: usize,
    k: usize,
    items: Range<usize>,
    packed: Shared<f32>,
}

impl ByteTask for Pack<'_> {
    #[inline(always)]
    fn run<B: Bytes>(self, _: B) {
        for item in self.items {
            let (first, row) = (item / self.rows * BLOCK, item % self.rows);
            let from = self.x.row(row).wrapping_add(first).cast_const();
            let some = BLOCK.min(self.k - first);
            for at in 0..BLOCK {
                let place = B::e4m3_place(at);
                // SAFETY: the row has `some` elements from there on; this block is this part's alone.
                unsafe { *self.packed.at(item * BLOCK + at) = if place < some { *from.add(place) } else { 0.0 } };
            }
        }
    }
}

/// `out[row][j] = x[row] . w[outputs.start + j]`.
struct Products<'a> {
    w: &'a Weight,
    k: usize,
    rows: usize,
    packed: Shared<f32>,
    outputs: &'a Range<usize>,
    /// `[rows, WIDTH]`, of this part alone.
    out: *mut f32,
}

impl ByteTask for Products<'_> {
    #[inline(always)]
    fn run<B: Bytes>(self, b: B) {
        if !B::E4M3 {
            unreachable!("no kernel without it (`takes`)");
        }
        let Some(scales) = &self.w.scales else { unreachable!("taken for its scales") };
        let streams = Streams::new(self.outputs.len());
        for i in 0..streams.steps() {
            let some = streams.at(i);
            // A stream that has no such step repeats the first one's; its sums go nowhere that is kept.
            let mut rows = [self.outputs.start + i; SIDE];
            for (stream, row) in rows.iter_mut().enumerate().take(some) {
                *row += stream * streams.apart();
            }
            let mut weights = [scales.row(self.w.ptr, rows[0]); SIDE];
            for (weight, r) in weights.iter_mut().zip(rows) {
                *weight = scales.row(self.w.ptr.wrapping_add(r * self.w.stride * self.w.dtype.size()), r);
            }
            for first in (0..self.rows).step_by(2) {
                // SAFETY: the weights are valid (`row`), and so are the places of the sums.
                unsafe {
                    if first + 1 < self.rows {
                        let sums = self.dots::<B, 2>(b, &weights, first);
                        self.put(b, &sums[0], first, i, some);
                        self.put(b, &sums[1], first + 1, i, some);
                    } else {
                        let sums = self.dots::<B, 1>(b, &weights, first);
                        self.put(b, &sums[0], first, i, some);
                    }
                }
            }
        }
    }
}

impl Products<'_> {
    /// Stores the sums of a row at step `i` of the streams.
    ///
    /// # Safety
    /// They are writable.
    #[inline(always)]
    unsafe fn put<B: Bytes>(&self, b: B, sums: &[B::F; SIDE], row: usize, i: usize, some: usize) {
        let apart = Streams::new(self.outputs.len()).apart();
        for (stream, &sum) in sums.iter().enumerate().take(some) {
            // SAFETY: the caller's promise.
            unsafe { *self.out.add(row * WIDTH + stream * apart + i) = b.sum(sum) };
        }
    }

    /// Rows `first ..` times some of weights, by lanes.
    ///
    /// # Safety
    /// The rows of weights are readable.
    #[inline(always)]
    unsafe fn dots<B: Bytes, const R: usize>(&self, b: B, w: &[Row; SIDE], first: usize) -> [[B::F; SIDE]; R] {
        let (k, group) = (self.k, w[0].form.group());
        if group < BLOCK && group < k {
            // SAFETY: the caller's promise.
            return unsafe { self.small_groups::<B, R>(b, w, first) };
        }
        let mut total = [[b.splat(0.0); SIDE]; R];
        // No more at a time than lie together in a stream.
        let step = if group.is_multiple_of(2 * BLOCK) || group >= k { 2 * BLOCK } else { BLOCK };
        for begin in (0..k).step_by(step) {
            for o in 0..SIDE {
                // SAFETY: the caller's promise.
                unsafe {
                    let scale = b.splat(w[o].scale(begin / group));
                    let mut acc = [[b.splat(0.0); 2]; R];
                    for block in begin / BLOCK..k.min(begin + step).div_ceil(BLOCK) {
                        self.add::<B, R>(b, &w[o], block, first, &mut acc);
                    }
                    for r in 0..R {
                        total[r][o] = b.fma(b.plus(acc[r][0], acc[r][1]), scale, total[r][o]);
                    }
                }
            }
        }
        total
    }

    /// The same, where a block has several scales: those of four blocks are widened together, and go to the lanes of
    /// their codes.
    ///
    /// # Safety
    /// As [`Products::dots`].
    #[inline(always)]
    unsafe fn small_groups<B: Bytes, const R: usize>(&self, b: B, w: &[Row; SIDE], first: usize) -> [[B::F; SIDE]; R] {
        let (k, dtype, group) = (self.k, w[0].dtype, w[0].form.group());
        let each = BLOCK / group;
        let mut spread = Spread { index: [0; 16], count: 0 };
        let mut lanes = [[0; 16]; 4];
        for lane in 0..16 {
            spread.index[lane] = lane as u32;
            for (block, lanes) in lanes.iter_mut().enumerate() {
                lanes[lane] = (block * each + lane / 4 * 16 / group) as u32;
            }
        }
        let mut total = [[b.splat(0.0); SIDE]; R];
        let (blocks, scales) = (k.div_ceil(BLOCK), k.div_ceil(group));
        for begin in (0..blocks).step_by(4) {
            spread.count = (4 * each).min(scales - begin * each);
            for o in 0..SIDE {
                // SAFETY: the caller's promise.
                unsafe {
                    let all = b.scales(w[o].scales.add(begin * each * dtype.size()), dtype, &spread, 1.0);
                    for block in begin..blocks.min(begin + 4) {
                        let mut acc = [[b.splat(0.0); 2]; R];
                        self.add::<B, R>(b, &w[o], block, first, &mut acc);
                        let scale = b.pick(all, &lanes[block - begin]);
                        for r in 0..R {
                            total[r][o] = b.fma(b.plus(acc[r][0], acc[r][1]), scale, total[r][o]);
                        }
                    }
                }
            }
        }
        total
    }

    /// Adds the products of a block of a row of weights, without its scales, to two sums in turn: one waits for itself.
    ///
    /// # Safety
    /// The row has the block.
    #[inline(always)]
    unsafe fn add<B: Bytes, const R: usize>(
        &self,
        b: B,
        w: &Row,
        block: usize,
        first: usize,
        acc: &mut [[B::F; 2]; R],
    ) {
        let codes = w.codes.wrapping_add(block * BLOCK);
        if first == 0 {
            b.simd().prefetch(codes.wrapping_add(AHEAD));
        }
        // SAFETY: the caller's promise; the packed rows are whole blocks.
        unsafe {
            let some = self.k - block * BLOCK;
            let wide = b.e4m3(if some >= BLOCK { b.load(codes) } else { b.load_some(codes, some) });
            for (r, acc) in acc.iter_mut().enumerate() {
                let x = self.packed.at((block * self.rows + first + r) * BLOCK).cast_const();
                for (i, &wide) in wide.iter().enumerate() {
                    acc[i % 2] = b.fma(wide, b.load_f32(x.add(16 * i)), acc[i % 2]);
                }
            }
        }
    }
}
