//! Attention over the paged cache: prompts on the tile kernels, rows being decoded one by one.
//!
//! A decoded row's keys are cut at absolute multiples of [`SPLIT`]; each piece is summed on its own, and the
//! pieces are put together in ascending order. Where the cuts lie depends on nothing but the row's index.

use turbospark_device::op::PagedAttention;

use super::attention::attend;
use super::dot::{Steps, Sums, dot};
use super::heads::{Head, Keys, Queries};
use super::softmax::{scale, weigh};
use super::{Done, Engine, Shared};
use crate::memory::{Tensor, refused};
use crate::scratch::{local, rounded};
use crate::simd::stored::{Stored, with_stored};
use crate::simd::unit::Vectors;
use crate::simd::{BLOCK, Simd, Task, math};

/// Keys of one piece; a multiple of [`BLOCK`].
const SPLIT: usize = 256;

/// One decoded row's piece of the keys of one KV head.
struct Piece {
    row: usize,
    table: usize,
    visible: usize,
    kv_head: usize,
    start: usize,
}

pub(super) fn paged_attention(engine: &mut Engine, op: &PagedAttention<'_>) -> Done {
    let mut a = engine.access();
    let q = a.read("q", &op.q)?;
    let k = a.weight("k_cache", &op.k_cache)?;
    let v = a.weight("v_cache", &op.v_cache)?;
    let pages = a.read("pages", &op.pages)?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    // SAFETY: a dense i32 tensor, locked, apart from `out`.
    let tables = unsafe { pages.i32s() };
    let table = |t: usize| &tables[t * pages.dim(1)..(t + 1) * pages.dim(1)];
    let full_pages = k.dim(0) / op.page_len.max(1);
    for span in op.spans {
        let used = &table(span.table)[..(span.start + span.rows).div_ceil(op.page_len)];
        if let Some(page) = used.iter().find(|&&p| usize::try_from(p).map_or(true, |p| p >= full_pages)) {
            return Err(refused(format!("table {} names page {page} of {full_pages}", span.table)));
        }
    }
    super::apart(op.spans)?;
    let (kv_heads, n) = (k.dim(1), q.dim(2));
    let group = q.dim(1) / kv_heads;
    let (one, place) = (k.bytes(n), k.bytes(kv_heads * n));
    let keys = |head: usize, t: usize| Keys {
        k: k.first().wrapping_add(head * one),
        v: v.first().wrapping_add(head * one),
        stride: (place, place),
        dtype: k.dtype,
        pages: Some((table(t), op.page_len)),
    };

    let mut heads = Vec::new();
    for span in op.spans.iter().filter(|s| !s.decode && s.rows > 0) {
        let (first_row, visible, count) = (span.first_row, span.start + 1, span.rows * group);
        heads.extend((0..kv_heads).map(|head| Head {
            queries: Queries { q, out, first_row, head: head * group, group, visible, causal: true },
            keys: keys(head, span.table),
            count,
        }));
    }
    // SAFETY: spans, pages and heads were checked, the tensors are locked, and no two spans share a row.
    unsafe { attend(engine, &heads, op.scale) };

    let kernels = engine.kernels;
    let mut pieces = Vec::new();
    let mut rows = Vec::new();
    for span in op.spans.iter().filter(|s| s.decode) {
        for i in 0..span.rows {
            let (row, visible) = (span.first_row + i, span.start + i + 1);
            rows.push((row, pieces.len(), visible.div_ceil(SPLIT)));
            for kv_head in 0..kv_heads {
                let starts = (0..visible).step_by(SPLIT);
                pieces.extend(starts.map(|start| Piece { row, table: span.table, visible, kv_head, start }));
            }
        }
    }
    // Of each piece and query head: the largest score, the sum of exponentials, the sum of values.
    let record = rounded(n + 2);
    let partial = Shared::new(engine.partial.get(pieces.len() * group * record));
    let work: usize = rows.iter().map(|&(_, _, splits)| splits * SPLIT * kv_heads * group * n).sum();
    engine.split(pieces.len(), work / pieces.len().max(1), |range| {
        for i in range {
            let piece = &pieces[i];
            let keys = keys(piece.kv_head, piece.table);
            kernels.run(Decode { q, keys, group, scale: op.scale, piece, out: partial.at(i * group * record), record });
        }
    });
    engine.split(rows.len(), work / rows.len().max(1) / SPLIT, |range| {
        for &(row, first, splits) in &rows[range] {
            for head in 0..kv_heads * group {
                let first = first + head / group * splits;
                let parts = partial.at((first * group + head % group) * record);
                kernels.run(Combine { parts, step: group * record, splits, n, out: out.head(row, head) });
            }
        }
    });
    Ok(())
}

/// Sums one piece.
struct Decode<'a> {
    q: Tensor,
    keys: Keys<'a>,
    group: usize,
    scale: f32,
    piece: &'a Piece,
    out: *mut f32,
    record: usize,
}

impl Task for Decode<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: places, rows and heads were checked; `out` is this piece's alone.
        with_stored!(self.keys.loaded(), T => unsafe { self.sums::<S, T>(s) })
    }
}

impl Decode<'_> {
    /// # Safety
    /// The keys that the piece sees are readable, its row and heads lie in `q`, and `out` has a record a head. `T` is
    /// the type of [`Keys::loaded`].
    #[inline(always)]
    unsafe fn sums<S: Simd, T: Stored>(&self, s: S) {
        let (n, group) = (self.q.dim(2), self.group);
        let end = self.piece.visible.min(self.piece.start + SPLIT);
        let record = |h: usize| self.out.wrapping_add(h * self.record);
        let mut local = local(group * BLOCK + self.keys.wide(BLOCK, n));
        let (scores, wide) = local.all().split_at_mut(group * BLOCK);
        let (scores, wide) = (scores.as_mut_ptr(), wide.as_mut_ptr());
        // SAFETY: the caller's promise.
        unsafe {
            for h in 0..group {
                std::ptr::write_bytes(record(h), 0, self.record);
                *record(h) = f32::NEG_INFINITY;
            }
            for start in (self.piece.start..end).step_by(BLOCK) {
                let some = BLOCK.min(end - start);
                let at: [_; BLOCK] = self.keys.load(s, start..start + some, n, wide);
                let mut h = 0;
                while h < group {
                    h += match group - h {
                        4.. => self.scores::<S, T, 4, 2>(s, h, &at[..some], scores),
                        2.. => self.scores::<S, T, 2, 4>(s, h, &at[..some], scores),
                        _ => self.scores::<S, T, 1, 4>(s, h, &at[..some], scores),
                    };
                }
                for h in 0..group {
                    let (top, total) = (&mut *record(h), &mut *record(h).add(1));
                    let row = scores.add(h * BLOCK);
                    scale(s, row, self.scale, BLOCK, row);
                    let (factor, sum) = weigh::<_, BLOCK>(Vectors(s), row, row, some, top);
                    *total = *total * factor + s.sum(sum);
                    let value = record(h).add(2);
                    for j in (0..n).step_by(S::LANES) {
                        let left = S::LANES.min(n - j);
                        let old = s.load_some(value.add(j), left);
                        s.store_some(value.add(j), s.mul(old, s.splat(factor)), left);
                    }
                }
                let mut j = 0;
                while j < n {
                    let width = n - j;
                    let wide = width >= 4 * S::LANES;
                    let mut h = 0;
                    while h < group {
                        h += match (wide, group - h) {
                            (true, 4..) => self.values::<S, T, 4, 4>(s, h, j, &at[..some], scores),
                            (true, 2..) => self.values::<S, T, 2, 4>(s, h, j, &at[..some], scores),
                            (true, _) => self.values::<S, T, 1, 4>(s, h, j, &at[..some], scores),
                            _ => self.values::<S, T, 1, 1>(s, h, j, &at[..some], scores),
                        };
                    }
                    j += if wide { 4 * S::LANES } else { S::LANES };
                }
            }
        }
    }

    /// The scores of heads `h..h + H`, `O` keys at a time; returns `H`.
    ///
    /// # Safety
    /// As [`Decode::sums`]; `scores` has [`BLOCK`] elements a head.
    #[inline(always)]
    unsafe fn scores<S: Simd, T: Stored, const H: usize, const O: usize>(
        &self,
        s: S,
        h: usize,
        at: &[(*const u8, *const u8)],
        scores: *mut f32,
    ) -> usize {
        let steps = Steps::all(self.q.dim(2));
        let mut q = [std::ptr::null(); H];
        for (i, q) in q.iter_mut().enumerate() {
            *q = self.q.head(self.piece.row, self.piece.kv_head * self.group + h + i).cast_const();
        }
        let sums = |t: usize| {
            let out = scores.wrapping_add(h * BLOCK + t);
            Sums { out, row: BLOCK, weight: 1 }
        };
        let mut t = 0;
        // SAFETY: the caller's promise; all steps are taken, so no partial sums are kept.
        unsafe {
            while t + O <= at.len() {
                let mut keys = [std::ptr::null(); O];
                for (o, key) in keys.iter_mut().enumerate() {
                    *key = at[t + o].0;
                }
                dot::<S, T, H, O>(s, steps, q, keys, sums(t));
                t += O;
            }
            while t < at.len() {
                dot::<S, T, H, 1>(s, steps, q, [at[t].0], sums(t));
                t += 1;
            }
        }
        H
    }

    /// Adds the weighted values of a block to heads `h..h + H`, elements `j` on, `N` vectors of them (where
    /// `N` is 1, perhaps cut short); returns `H`.
    ///
    /// # Safety
    /// As [`Decode::scores`].
    #[inline(always)]
    unsafe fn values<S: Simd, T: Stored, const H: usize, const N: usize>(
        &self,
        s: S,
        h: usize,
        j: usize,
        at: &[(*const u8, *const u8)],
        weights: *const f32,
    ) -> usize {
        let left = |v: usize| S::LANES.min(self.q.dim(2) - j - v * S::LANES);
        let mut acc = [[s.splat(0.0); N]; H];
        // SAFETY: the caller's promise.
        unsafe {
            for (t, (_, value)) in at.iter().enumerate() {
                let mut wide = [s.splat(0.0); N];
                for (v, x) in wide.iter_mut().enumerate() {
                    let from = value.add((j + v * S::LANES) * T::SIZE);
                    *x = if left(v) == S::LANES { T::load(s, from) } else { T::load_some(s, from, left(v)) };
                }
                for (i, row) in acc.iter_mut().enumerate() {
                    let weight = s.splat(*weights.add((h + i) * BLOCK + t));
                    for (a, x) in row.iter_mut().zip(wide) {
                        *a = s.fma(weight, x, *a);
                    }
                }
            }
            for (i, row) in acc.into_iter().enumerate() {
                for (v, a) in row.into_iter().enumerate() {
                    let out = self.out.add((h + i) * self.record + 2 + j + v * S::LANES);
                    s.store_some(out, s.add(s.load_some(out, left(v)), a), left(v));
                }
            }
        }
        H
    }
}

/// Puts the pieces of one row and head together.
struct Combine {
    parts: *mut f32,
    step: usize,
    splits: usize,
    n: usize,
    out: *mut f32,
}

/// `e^x` in every lane. A function and not a closure: see `scratch::Local`.
#[inline(always)]
fn factor<S: Simd>(s: S, x: f32) -> S::V {
    math::exp(s, s.splat(x))
}

impl Task for Combine {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let part = |i: usize| self.parts.wrapping_add(i * self.step).cast_const();
        // SAFETY: the records that `Decode` wrote, each `n + 2` elements; the output row is this part's alone.
        unsafe {
            let top = (0..self.splits).fold(f32::NEG_INFINITY, |top, i| top.max(*part(i)));
            let mut total = s.splat(0.0);
            for i in 0..self.splits {
                total = s.fma(s.splat(*part(i).add(1)), factor(s, *part(i) - top), total);
            }
            for j in (0..self.n).step_by(S::LANES) {
                let left = S::LANES.min(self.n - j);
                let mut sum = s.splat(0.0);
                for i in 0..self.splits {
                    sum = s.fma(s.load_some(part(i).add(2 + j), left), factor(s, *part(i) - top), sum);
                }
                s.store_some(self.out.add(j), s.div(sum, total), left);
            }
        }
    }
}
