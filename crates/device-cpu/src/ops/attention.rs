//! Attention on the tile kernels, with the softmax taken as the keys go by: no matrix of scores is kept.
//!
//! A task takes some queries of one KV head and steps over the keys in blocks of [`BLOCK`], which for cached
//! keys begin at absolute multiples of it. A query's sums depend on its own keys alone: a block that it
//! doesn't see leaves it as it is.

use std::ops::Range;

use turbospark_device::op::Attention;
use turbospark_tensor::DType;

use super::matrix::{pack_rows, pack_transposed, widen_row};
use super::{Done, Engine};
use crate::memory::Tensor;
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{Stored, with_stored};
use crate::simd::tile::tile_blocked;
use crate::simd::{BLOCK, Simd, Task, TileArgs, math};

/// Queries of a task at most: enough that packing keys costs little beside multiplying them.
pub(super) const QUERIES: usize = 126;

/// Keys and values of one KV head.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    /// Key 0, or place 0 of the cache.
    pub k: *const u8,
    /// Value 0, or place 0 of the cache.
    pub v: *const u8,
    /// Bytes from one place to the next, of keys and of values.
    pub stride: (usize, usize),
    /// Of both.
    pub dtype: DType,
    /// The sequence's pages and their length, where the keys lie in a cache.
    pub pages: Option<(&'a [i32], usize)>,
}

// SAFETY: addresses of memory that is only read while the op holds it.
unsafe impl Send for Keys<'_> {}
// SAFETY: as above.
unsafe impl Sync for Keys<'_> {}

impl Keys<'_> {
    #[inline(always)]
    fn place(&self, t: usize) -> usize {
        self.pages.map_or(t, |(pages, len)| pages[t / len] as usize * len + t % len)
    }

    /// Key `t`.
    #[inline(always)]
    pub(super) fn key(&self, t: usize) -> *const u8 {
        self.k.wrapping_add(self.place(t) * self.stride.0)
    }

    /// Value `t`.
    #[inline(always)]
    pub(super) fn value(&self, t: usize) -> *const u8 {
        self.v.wrapping_add(self.place(t) * self.stride.1)
    }
}

/// Which queries see which keys.
#[derive(Clone, Copy)]
pub(super) struct Queries {
    /// f32 `[rows, heads, n]`.
    pub q: Tensor,
    /// As `q`.
    pub out: Tensor,
    /// Row of the first query.
    pub first_row: usize,
    /// First of the query heads.
    pub head: usize,
    /// How many query heads share the KV head; queries are numbered row by row, heads innermost.
    pub group: usize,
    /// Keys that a query of the first row sees.
    pub visible: usize,
    /// Whether each further row sees one more.
    pub causal: bool,
}

impl Queries {
    #[inline(always)]
    fn visible(&self, query: usize) -> usize {
        self.visible + if self.causal { query / self.group } else { 0 }
    }

    #[inline(always)]
    fn at(&self, t: &Tensor, query: usize) -> *mut f32 {
        t.head(self.first_row + query / self.group, self.head + query % self.group)
    }
}

pub(super) fn attention(engine: &mut Engine, op: &Attention<'_>) -> Done {
    let mut a = engine.access();
    let (q, k, v) = (a.read("q", &op.q)?, a.read("k", &op.k)?, a.read("v", &op.v)?);
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let mut blocks = Vec::new();
    for segment in op.cu_seqlens.windows(2) {
        for first in (segment[0]..segment[1]).step_by(QUERIES) {
            blocks.push((segment[0]..segment[1], first..segment[1].min(first + QUERIES)));
        }
    }
    let (kernels, heads) = (engine.kernels, q.dim(1));
    // Heads outermost: threads that work at the same time share keys in the last cache.
    engine.pool.run(heads * blocks.len(), |part| {
        let (head, (segment, rows)) = (part / blocks.len(), &blocks[part % blocks.len()]);
        let keys = Keys {
            k: k.head(segment.start, head).cast(),
            v: v.head(segment.start, head).cast(),
            stride: (4 * k.stride(0), 4 * v.stride(0)),
            dtype: DType::F32,
            pages: None,
        };
        let queries =
            Queries { q, out, first_row: segment.start, head, group: 1, visible: segment.len(), causal: false };
        let range = rows.start - segment.start..rows.end - segment.start;
        kernels.run(Attend { queries, keys, range, scale: op.scale });
    });
    Ok(())
}

/// Some queries over all the keys that they see.
///
/// Whoever makes one has checked that rows, heads and places lie in their tensors, and that no other part
/// writes these queries' outputs.
pub(super) struct Attend<'a> {
    pub queries: Queries,
    pub keys: Keys<'a>,
    pub range: Range<usize>,
    pub scale: f32,
}

/// Lane numbers, to mask the end of a block.
pub(super) const IOTA: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// A task's working memory.
struct Work {
    /// Queries, packed in row tiles.
    q: *mut f32,
    /// A block of keys, `[n, TILE_COLS]` a panel.
    k: *mut f32,
    /// A block of values, `[BLOCK, TILE_COLS]` a panel.
    v: *mut f32,
    /// A row tile's scores, `[TILE_ROWS, BLOCK]`.
    scores: *mut f32,
    /// Sums of values, `[queries, width]`.
    out: *mut f32,
    /// The largest score so far and the sum of exponentials, a query each.
    top: *mut f32,
    total: *mut f32,
    /// `n` rounded up to whole panels.
    width: usize,
}

impl Task for Attend<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.queries.q.dim(2);
        let count = self.range.len();
        let width = n.next_multiple_of(S::TILE_COLS);
        let tall = count.next_multiple_of(S::TILE_ROWS);
        let sizes = [tall * n, BLOCK * n, BLOCK * width, S::TILE_ROWS * BLOCK, count * width, count, count];
        let mut local = local(sizes.iter().map(|&len| rounded(len)).sum());
        let mut scratch = local.all();
        let [q, k, v, scores, out, top, total] = sizes.map(|len| cut(&mut scratch, len).as_mut_ptr());
        let w = Work { q, k, v, scores, out, top, total, width };
        // SAFETY: the sizes above, and what `Attend` promises.
        unsafe {
            std::ptr::write_bytes(out, 0, count * width);
            std::slice::from_raw_parts_mut(top, count).fill(f32::NEG_INFINITY);
            std::slice::from_raw_parts_mut(total, count).fill(0.0);
            for first in (0..count).step_by(S::TILE_ROWS) {
                let rows = S::TILE_ROWS.min(count - first);
                let row = |i: usize| self.queries.at(&self.queries.q, self.range.start + first + i);
                pack_rows::<S>(rows, n, row, q.add(first * n));
            }
            let seen = self.queries.visible(self.range.end - 1);
            for start in (0..seen).step_by(BLOCK) {
                let block = start..seen.min(start + BLOCK);
                with_stored!(self.keys.dtype, T => self.pack::<S, T>(s, &w, block.clone(), n));
                for first in (0..count).step_by(S::TILE_ROWS) {
                    self.tile(s, &w, block.clone(), first..count.min(first + S::TILE_ROWS), n);
                }
            }
            for i in 0..count {
                let to = self.queries.at(&self.queries.out, self.range.start + i);
                let share = s.splat(1.0 / *total.add(i));
                for j in (0..n).step_by(S::LANES) {
                    let v = s.mul(s.load(out.add(i * width + j)), share);
                    s.store_some(to.add(j), v, S::LANES.min(n - j));
                }
            }
        }
    }
}

impl Attend<'_> {
    /// Packs a block of keys and values; what lies past its end becomes zero.
    ///
    /// # Safety
    /// As `Attend` promises; `w` has the sizes of a task's.
    #[inline(always)]
    unsafe fn pack<S: Simd, T: Stored>(&self, s: S, w: &Work, block: Range<usize>, n: usize) {
        let (cols, len) = (S::TILE_COLS, block.len());
        let mut at = [(std::ptr::null(), std::ptr::null()); BLOCK];
        for (t, at) in at.iter_mut().enumerate().take(len) {
            *at = (self.keys.key(block.start + t), self.keys.value(block.start + t));
        }
        // SAFETY: the caller's promise.
        unsafe {
            for first in (0..BLOCK).step_by(cols) {
                let some = cols.min(len.saturating_sub(first));
                let key = |i: usize| at[first + i].0;
                pack_transposed::<S, T>(s, some, n, key, w.k.add(first * n));
            }
            for (t, (_, value)) in at.iter().enumerate().take(len) {
                for first in (0..w.width).step_by(cols) {
                    let from = value.wrapping_add(first * T::SIZE);
                    widen_row::<S, T>(s, from, n - first, w.v.add(first * BLOCK + t * cols), cols);
                }
            }
        }
    }

    /// One row tile over one block of keys.
    ///
    /// # Safety
    /// As `Attend` promises; `w` has the sizes of a task's and holds the packed block.
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, s: S, w: &Work, block: Range<usize>, rows: Range<usize>, n: usize) {
        let sees = |i: usize| self.queries.visible(self.range.start + i).saturating_sub(block.start).min(BLOCK);
        let some = sees(rows.end - 1);
        if some == 0 {
            return;
        }
        let height = rows.len();
        let args = TileArgs {
            rows: height,
            k: n,
            x: w.q.wrapping_add(rows.start * n),
            w: w.k,
            ldw: S::TILE_COLS,
            c: w.scores,
            ldc: BLOCK,
            add: false,
        };
        // SAFETY: the caller's promise; panels past the last visible key are not needed but exist.
        unsafe {
            for first in (0..BLOCK).step_by(S::TILE_COLS) {
                if first < some {
                    tile_blocked(s, TileArgs { w: w.k.add(first * n), c: w.scores.add(first), ..args });
                }
            }
            for i in 0..height {
                self.softmax(s, w, i, rows.start + i, sees(rows.start + i));
            }
            for first in (0..w.width).step_by(S::TILE_COLS) {
                s.tile_rows(TileArgs {
                    k: block.len(),
                    x: w.scores,
                    w: w.v.add(first * BLOCK),
                    c: w.out.add(rows.start * w.width + first),
                    ldc: w.width,
                    add: true,
                    ..args
                });
            }
        }
    }

    /// Turns row `i` of the scores, of which the first `some` count, into weights.
    ///
    /// # Safety
    /// As [`Attend::tile`].
    #[inline(always)]
    unsafe fn softmax<S: Simd>(&self, s: S, w: &Work, i: usize, query: usize, some: usize) {
        let row = w.scores.wrapping_add(i * BLOCK);
        // SAFETY: the caller's promise.
        unsafe {
            let (top, total) = (&mut *w.top.add(query), &mut *w.total.add(query));
            let out = w.out.wrapping_add(query * w.width);
            let factor = weigh(s, row, some, self.scale, top, total);
            if factor != 1.0 {
                for j in (0..w.width).step_by(S::LANES) {
                    s.store(out.add(j), s.mul(s.load(out.add(j)), s.splat(factor)));
                }
            }
        }
    }
}

/// Turns [`BLOCK`] scores, of which the first `some` count, into weights relative to the largest so far;
/// returns the factor for what was summed before.
///
/// # Safety
/// `row` has [`BLOCK`] elements.
#[inline(always)]
pub(super) unsafe fn weigh<S: Simd>(
    s: S,
    row: *mut f32,
    some: usize,
    scale: f32,
    top: &mut f32,
    total: &mut f32,
) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        if some == 0 {
            std::ptr::write_bytes(row, 0, BLOCK);
            return 1.0;
        }
        let mut largest = s.splat(f32::NEG_INFINITY);
        let iota = s.load(IOTA.as_ptr());
        for j in (0..BLOCK).step_by(S::LANES) {
            let mut v = s.mul(s.load(row.add(j)), s.splat(scale));
            if j + S::LANES > some {
                let place = s.add(iota, s.splat(j as f32));
                v = s.less(place, s.splat(some as f32), v, s.splat(f32::NEG_INFINITY));
            }
            s.store(row.add(j), v);
            largest = s.max(largest, v);
        }
        let now = top.max(s.largest(largest));
        let mut sum = s.splat(0.0);
        for j in (0..BLOCK).step_by(S::LANES) {
            let v = math::exp(s, s.sub(s.load(row.add(j)), s.splat(now)));
            s.store(row.add(j), v);
            sum = s.add(sum, v);
        }
        let mut factor = [0f32; 16];
        s.store(factor.as_mut_ptr(), math::exp(s, s.splat(*top - now)));
        *total = *total * factor[0] + s.sum(sum);
        *top = now;
        factor[0]
    }
}
