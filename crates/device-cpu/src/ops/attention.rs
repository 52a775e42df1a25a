//! Attention on the tile kernels, with the softmax taken as the keys go by: no matrix of scores is kept.
//!
//! The keys and values of some heads are packed once, by all threads. A task then takes some queries of one KV
//! head and steps over the keys in blocks of [`KEYS`], which for cached keys begin at absolute multiples of
//! it. A query's sums depend on its own keys alone: a block that it doesn't see leaves it as it is.

use std::ops::Range;

use turbospark_device::op::Attention;
use turbospark_tensor::DType;

use super::heads::{Head, Keys, Queries};
use super::norm::sum_of;
use super::softmax::{scale, weigh};
use super::{Done, Engine, Shared};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{Stored, with_stored};
use crate::simd::unit::{Unit, UnitTask, pack_columns, pack_transposed, tile_long, words};
use crate::simd::{KEYS, Simd, TileArgs};

/// Queries of a task at most: their sums stay in the second cache, and a block of keys serves them all.
const QUERIES: usize = 256;

/// Queries that are asked for ahead of use, and elements of a cache line.
const AHEAD: usize = 16;
const LINE: usize = 16;

/// Packed keys and values at most, in words (16 MiB), unless one head has more.
const PACKED: usize = 4 << 20;

pub(super) fn attention(engine: &mut Engine, op: &Attention<'_>) -> Done {
    let mut a = engine.access();
    let (q, k, v) = (a.read("q", &op.q)?, a.read("k", &op.k)?, a.read("v", &op.v)?);
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let mut heads = Vec::new();
    for segment in op.cu_seqlens.windows(2) {
        let (first_row, visible) = (segment[0], segment[1] - segment[0]);
        heads.extend((0..q.dim(1)).map(|head| Head {
            queries: Queries { q, out, first_row, head, group: 1, visible, causal: false },
            keys: Keys {
                k: k.head(first_row, head).cast(),
                v: v.head(first_row, head).cast(),
                stride: (4 * k.stride(0), 4 * v.stride(0)),
                dtype: DType::F32,
                pages: None,
            },
            count: visible,
        }));
    }
    heads.retain(|h| h.count > 0);
    // SAFETY: rows and heads of checked, locked tensors; no two heads share an output.
    unsafe { attend(engine, &heads, op.scale) };
    Ok(())
}

/// Attention of all `heads`, each of which has a query.
///
/// # Safety
/// Rows, heads and places lie in their tensors, which the op holds, and no two of `heads` share an output.
pub(super) unsafe fn attend(engine: &mut Engine, heads: &[Head<'_>], scale: f32) {
    let Some(first) = heads.first() else { return };
    let sides = Sides::of(engine, first.queries.q.dim(2));
    let blocks = |h: &Head<'_>| h.seen().div_ceil(KEYS);
    let mut rest = heads;
    while !rest.is_empty() {
        // As many heads as fit, so that there is work for all threads; the first in any case.
        let mut from = vec![0];
        for head in rest {
            let end = from[from.len() - 1] + blocks(head);
            if end * sides.block > PACKED && from.len() > 1 {
                break;
            }
            from.push(end);
        }
        let (group, later) = rest.split_at(from.len() - 1);
        rest = later;
        let total = from[group.len()];
        let packed = Shared::new(engine.packed.get(total * sides.block));
        let (kernels, exact, pool) = (engine.kernels, engine.exact, &engine.pool);
        // All heads of some keys before the next keys: in memory they lie side by side.
        let mut order: Vec<_> = (0..group.len()).flat_map(|i| (from[i]..from[i + 1]).map(move |at| (i, at))).collect();
        order.sort_by_key(|&(i, at)| at - from[i]);
        engine.split(total, sides.block, |range| {
            kernels.multiply(exact, PackKeys { heads: group, from: &from, blocks: &order[range], packed });
        });
        let mut parts = Vec::new();
        for (i, head) in group.iter().enumerate() {
            let starts = (0..head.count).step_by(sides.queries);
            parts.extend(starts.map(|start| (i, start..head.count.min(start + sides.queries))));
        }
        // Long parts first, so that no thread ends with one; threads at work together share keys.
        parts.sort_by_key(|(i, range)| std::cmp::Reverse(blocks_seen(&group[*i], range)));
        pool.run(parts.len(), |part| {
            let (i, ref range) = parts[part];
            let keys = packed.at(from[i] * sides.block).cast_const();
            kernels.multiply(exact, Attend { queries: group[i].queries, keys, range: range.clone(), scale });
        });
    }
}

fn blocks_seen(head: &Head<'_>, range: &Range<usize>) -> usize {
    head.queries.visible(range.end - 1).div_ceil(KEYS)
}

/// What blocking depends on.
#[derive(Clone, Copy, Default)]
struct Sides {
    /// Queries of a part.
    queries: usize,
    /// Words of a block of packed keys and values.
    block: usize,
}

impl Sides {
    fn of(engine: &Engine, n: usize) -> Sides {
        struct Ask<'a>(usize, &'a mut Sides);
        impl UnitTask for Ask<'_> {
            #[inline(always)]
            fn run<U: Unit>(self, _: U) {
                *self.1 = Sides { queries: QUERIES / U::ROWS * U::ROWS, block: block_words::<U>(self.0) };
            }
        }
        let mut sides = Sides::default();
        engine.kernels.multiply(engine.exact, Ask(n, &mut sides));
        sides
    }
}

/// Words of a packed block: keys, values, and the sum of the keys' squares where the unit weighs.
#[inline(always)]
fn block_words<U: Unit>(n: usize) -> usize {
    key_words::<U>(n) + value_words::<U>(n) + if U::WEIGHS { U::S::LANES } else { 0 }
}

/// Words of a block of packed keys: `[words, COLS]` a panel of keys.
#[inline(always)]
pub(super) fn key_words<U: Unit>(n: usize) -> usize {
    KEYS * words::<U>(n)
}

/// Words of a block of packed values: `[row_words, COLS]` a panel of elements.
#[inline(always)]
pub(super) fn value_words<U: Unit>(n: usize) -> usize {
    n.next_multiple_of(U::COLS) * row_words::<U>()
}

/// Packs some blocks of keys and values; what lies past the last key becomes zero.
struct PackKeys<'a> {
    heads: &'a [Head<'a>],
    /// The first block of each head, and the end.
    from: &'a [usize],
    /// Heads and blocks.
    blocks: &'a [(usize, usize)],
    packed: Shared<f32>,
}

impl UnitTask for PackKeys<'_> {
    #[inline(always)]
    fn run<U: Unit>(self, u: U) {
        let n = self.heads[0].queries.q.dim(2);
        let mut local = local(self.heads[0].keys.wide(KEYS, n));
        let wide = local.all().as_mut_ptr();
        for &(i, block) in self.blocks {
            let head = &self.heads[i];
            let start = (block - self.from[i]) * KEYS;
            let range = start..head.seen().min(start + KEYS);
            let k = self.packed.at(block * block_words::<U>(n));
            // SAFETY: keys that `attend` vouches for, all of one type; the block is this part's alone.
            unsafe {
                let len = range.len();
                let at = head.keys.load(u.simd(), range, n, wide);
                with_stored!(head.keys.loaded(), T => pack::<U, T>(u, &at, len, n, k));
            }
        }
    }
}

/// Packs a block of keys and one of values, `len` of each.
///
/// # Safety
/// The first `len` of `at` are readable for `n` elements; `out` is writable for a block.
#[inline(always)]
unsafe fn pack<U: Unit, T: Stored>(u: U, at: &[(*const u8, *const u8); KEYS], len: usize, n: usize, out: *mut f32) {
    /// The elements of a panel of values that are not there.
    static NOTHING: [f32; 32] = [0.0; 32];
    // SAFETY: the caller's promise; no panel has more than 32 columns.
    unsafe {
        for first in (0..KEYS).step_by(U::COLS) {
            let some = U::COLS.min(len.saturating_sub(first));
            let key = |i: usize| at[first + i].0;
            pack_transposed::<U, T>(u, U::COLS, some, n, words::<U>(n), key, out.add(first * words::<U>(n)));
        }
        let (values, end) = (out.add(key_words::<U>(n)), if U::WEIGHS { len.next_multiple_of(U::COLS) } else { len });
        for first in (0..n).step_by(U::COLS) {
            let value = |i: usize| match U::key_at(i) {
                t if t < len => at[t].1.wrapping_add(first * T::SIZE),
                _ => NOTHING.as_ptr().cast(),
            };
            let to = values.add(first * row_words::<U>());
            pack_columns::<U, T>(u, U::COLS, n - first, end, row_words::<U>(), value, to);
        }
        if U::WEIGHS {
            *values.add(value_words::<U>(n)) = squares::<U, T>(u, &at[..len], n);
        }
    }
}

/// The sum of the squares of all elements of some keys.
///
/// # Safety
/// They are readable for `n` elements.
#[inline(always)]
unsafe fn squares<U: Unit, T: Stored>(u: U, at: &[(*const u8, *const u8)], n: usize) -> f32 {
    let (s, lanes) = (u.simd(), U::S::LANES);
    let mut sum = s.splat(0.0);
    for &(key, _) in at {
        for j in (0..n).step_by(lanes) {
            let from = key.wrapping_add(j * T::SIZE);
            // SAFETY: the caller's promise.
            let v = unsafe { if n - j >= lanes { T::load(s, from) } else { T::load_some(s, from, n - j) } };
            sum = s.fma(v, v, sum);
        }
    }
    s.sum(sum)
}

/// Some queries over all the keys that they see, which are packed.
pub(super) struct Attend {
    pub queries: Queries,
    pub keys: *const f32,
    pub range: Range<usize>,
    pub scale: f32,
}

/// A task's working memory.
pub(super) struct Work {
    /// Queries, packed in row tiles.
    pub q: *mut f32,
    /// A row tile's scores, `[ROWS, KEYS]`.
    pub scores: *mut f32,
    /// Its weights, rows of words.
    pub weights: *mut f32,
    /// Sums of values, `[queries, width]`.
    pub out: *mut f32,
    /// The largest score so far, one a query.
    pub top: *mut f32,
    /// The sum of exponentials, a vector a query.
    pub total: *mut f32,
    /// A row tile's sums over one block, as `total`; then what [`Unit::weigh_panel`] starts from, one a row.
    pub block: *mut f32,
    /// The sum of the squares of a row tile's queries, one a tile.
    pub squares: *mut f32,
    /// `n` rounded up to whole panels.
    pub width: usize,
}

impl UnitTask for Attend {
    #[inline(always)]
    fn run<U: Unit>(self, u: U) {
        let s = u.simd();
        let lanes = U::S::LANES;
        let n = self.queries.q.dim(2);
        let count = self.range.len();
        let width = n.next_multiple_of(U::COLS);
        let tall = count.next_multiple_of(U::ROWS);
        let q_tile = U::LEFT * words::<U>(n);
        let tiles = tall / U::ROWS;
        let flat = U::ROWS * n.next_multiple_of(lanes);
        let sizes = [
            tiles * q_tile,
            U::ROWS * KEYS,
            U::ROWS * row_words::<U>(),
            tall * width,
            tall,
            tall * lanes,
            U::ROWS * (lanes + 1),
            tiles,
            flat,
        ];
        let mut local = local(sizes.iter().map(|&len| rounded(len)).sum());
        let mut scratch = local.all();
        let [q, scores, weights, out, top, total, block, squares, scaled] =
            sizes.map(|len| cut(&mut scratch, len).as_mut_ptr());
        let w = Work { q, scores, weights, out, top, total, block, squares, width };
        let block_words = block_words::<U>(n);
        // SAFETY: the sizes above, and what `attend` promises.
        unsafe {
            std::ptr::write_bytes(out, 0, tall * width);
            std::ptr::write_bytes(total, 0, tall * lanes);
            std::slice::from_raw_parts_mut(top, tall).fill(f32::NEG_INFINITY);
            for tile in 0..tiles {
                let first = tile * U::ROWS;
                let rows = U::ROWS.min(count - first);
                let stride = n.next_multiple_of(lanes);
                for i in 0..rows {
                    let from = self.queries.at(&self.queries.q, self.range.start + first + i);
                    // Rows are pages apart, which no hardware prefetcher crosses.
                    if first + i + AHEAD < count {
                        let later = self.queries.at(&self.queries.q, self.range.start + first + i + AHEAD);
                        (0..n).step_by(LINE).for_each(|j| s.prefetch(later.wrapping_add(j).cast()));
                    }
                    scale(s, from, self.scale * U::EXP_SCALE, n, scaled.add(i * stride));
                }
                let row = |i: usize| scaled.add(i * stride).cast_const();
                *squares.add(tile) = sum_of(s, scaled, rows * stride, |v| s.mul(v, v));
                u.pack_left(rows, n, words::<U>(n), row, q.add(tile * q_tile));
            }
            u.begin();
            let seen = self.queries.visible(self.range.end - 1);
            for (block, start) in (0..seen).step_by(KEYS).enumerate() {
                let keys = self.keys.add(block * block_words);
                for tile in 0..tiles {
                    let first = tile * U::ROWS;
                    self.tile(u, &w, keys, start, first..count.min(first + U::ROWS), n);
                }
            }
            u.end();
            for i in 0..count {
                let to = self.queries.at(&self.queries.out, self.range.start + i);
                let share = s.splat(1.0 / s.sum(s.load(total.add(i * lanes))));
                for j in (0..n).step_by(lanes) {
                    let v = s.mul(s.load(out.add(i * width + j)), share);
                    s.store_some(to.add(j), v, lanes.min(n - j));
                }
            }
        }
    }
}

impl Attend {
    /// One row tile over the block of keys from `start` on.
    ///
    /// # Safety
    /// `w` has the sizes of a task's, and `keys` is a packed block.
    #[inline(always)]
    unsafe fn tile<U: Unit>(&self, u: U, w: &Work, keys: *const f32, start: usize, rows: Range<usize>, n: usize) {
        let s = u.simd();
        let sees = |i: usize| self.queries.visible(self.range.start + i).saturating_sub(start).min(KEYS);
        let some = sees(rows.end - 1);
        if some == 0 {
            return;
        }
        let words = words::<U>(n);
        let args = TileArgs {
            rows: rows.len(),
            k: words,
            x: w.q.wrapping_add(rows.start / U::ROWS * U::LEFT * words),
            w: keys,
            ldw: U::COLS,
            c: w.scores,
            ldc: KEYS,
            add: false,
        };
        let values = keys.wrapping_add(key_words::<U>(n));
        if U::WEIGHS && self.small(u, w, keys, rows.start, n) {
            // SAFETY: the caller's promise.
            return unsafe { self.weigh_tile(u, w, args, values, start, rows) };
        }
        // SAFETY: the caller's promise.
        unsafe {
            for first in (0..some).step_by(U::COLS) {
                tile_long(u, TileArgs { w: keys.add(first * words), c: w.scores.add(first), ..args });
            }
            for (i, query) in rows.clone().enumerate() {
                let scores = w.scores.add(i * KEYS);
                let weights = w.weights.add(i * row_words::<U>());
                let total = w.total.add(query * U::S::LANES);
                let (factor, sum) = weigh::<U, KEYS>(u, scores, weights, sees(query), &mut *w.top.add(query));
                s.store(total, s.fma(s.load(total), s.splat(factor), sum));
                if factor != 1.0 {
                    let out = w.out.add(query * w.width);
                    for j in (0..w.width).step_by(U::S::LANES) {
                        s.store(out.add(j), s.mul(s.load(out.add(j)), s.splat(factor)));
                    }
                }
            }
            // Whole panels, in which keys may be in an order of their own.
            let some = if U::WEIGHS { some.next_multiple_of(U::COLS) } else { some };
            for first in (0..w.width).step_by(U::COLS) {
                u.tile_rows(TileArgs {
                    k: some.div_ceil(U::PER_WORD).next_multiple_of(U::STEP),
                    x: w.weights,
                    w: values.add(first * row_words::<U>()),
                    c: w.out.add(rows.start * w.width + first),
                    ldc: w.width,
                    add: true,
                    ..args
                });
            }
        }
    }
}

/// Words of a row of weights.
#[inline(always)]
pub(super) const fn row_words<U: Unit>() -> usize {
    KEYS / U::PER_WORD
}
