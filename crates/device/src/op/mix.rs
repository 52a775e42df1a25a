//! What mixes rows: rotary positions and attention.

use turbospark_tensor::DType;

use super::check::{Checked, apart, f32s, i32s, rank, require, sides};
use crate::View;

/// The rows of one sequence in a ragged batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Index in its sequence of the first row: that many tokens came before.
    pub start: usize,
    /// Row kernels (decode and drafts) instead of matrix kernels.
    pub decode: bool,
    /// Row of the page table that lists the sequence's pages.
    pub table: usize,
    /// Slot that holds the sequence's convolution tails and DeltaNet states.
    pub state: usize,
    /// Where copies of those are to be left, in ascending order.
    pub snapshots: Vec<Snapshot>,
}

/// A copy of a sequence's state after a given number of a span's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Rows of the span that the copy has seen; 1 to `rows`.
    pub after: usize,
    /// Slot that the copy is written to.
    pub slot: usize,
}

pub(super) fn spans_fit(spans: &[Span], rows: usize) -> Checked {
    for s in spans {
        require(s.first_row.checked_add(s.rows).is_some_and(|end| end <= rows), || {
            format!("a sequence's rows {}+{} leave a batch of {rows}", s.first_row, s.rows)
        })?;
    }
    Ok(())
}

pub(super) fn states_fit(spans: &[Span], slots: usize) -> Checked {
    for s in spans {
        require(s.state < slots, || format!("state slot {} of {slots}", s.state))?;
        for shot in &s.snapshots {
            require((1..=s.rows).contains(&shot.after) && shot.slot < slots && shot.slot != s.state, || {
                format!("snapshot after row {} of {} into slot {} of {slots}", shot.after, s.rows, shot.slot)
            })?;
        }
    }
    Ok(())
}

/// Rotates the first `2 * half` elements of every head, half-split: with `a = x[j]`, `b = x[j + half]`,
/// `x[j] = a cos - b sin` and `x[j + half] = b cos + a sin`. In place.
#[derive(Clone, Copy, Debug)]
pub struct Rope<'a> {
    /// f32 `[rows, heads, n]`.
    pub x: View<'a>,
    /// f32 `[rows, half]`, dense.
    pub cos: View<'a>,
    /// f32 `[rows, half]`, dense.
    pub sin: View<'a>,
}

impl Rope<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("x", &self.x, 3)?;
        rank("cos", &self.cos, 2)?;
        let (rows, half) = (self.x.dim(0), self.cos.dim(1));
        f32s("x", &self.x, self.x.dims())?;
        f32s("cos", &self.cos, &[rows, half])?;
        f32s("sin", &self.sin, &[rows, half])?;
        super::check::dense("cos", &self.cos)?;
        super::check::dense("sin", &self.sin)?;
        require(2 * half <= self.x.dim(2), || format!("{half} angles for heads of {}", self.x.dim(2)))
    }
}

/// Unmasked attention within segments: `out = softmax(scale q k^T) v`, softmax in f32.
///
/// Rows `cu_seqlens[i]..cu_seqlens[i + 1]` see each other and nothing else: one segment an image or video frame.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// f32 `[rows, heads, n]`.
    pub q: View<'a>,
    /// f32 `[rows, heads, n]`.
    pub k: View<'a>,
    /// f32 `[rows, heads, n]`.
    pub v: View<'a>,
    /// Ascending, from 0 to `rows`.
    pub cu_seqlens: &'a [usize],
    /// Usually `n^-0.5`.
    pub scale: f32,
    /// f32 `[rows, heads, n]`.
    pub out: View<'a>,
}

impl Attention<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("q", &self.q, 3)?;
        let want = self.q.dims();
        for (name, v) in [("q", &self.q), ("k", &self.k), ("v", &self.v), ("out", &self.out)] {
            f32s(name, v, want)?;
        }
        for (name, v) in [("q", &self.q), ("k", &self.k), ("v", &self.v)] {
            apart(name, v, "out", &self.out)?;
        }
        let c = self.cu_seqlens;
        require(c.first() == Some(&0) && c.last() == Some(&want[0]) && c.windows(2).all(|w| w[0] <= w[1]), || {
            format!("cu_seqlens {c:?} for {} rows", want[0])
        })
    }
}

/// Writes each row's keys and values into the cache: row `r` goes to `slots[r]`.
///
/// A `Q8_0` cache has blocks along the heads; [`quantise_q8_0`](turbospark_tensor::quant::quantise_q8_0) rounds.
#[derive(Clone, Copy, Debug)]
pub struct StoreKv<'a> {
    /// f32 `[rows, kv_heads, n]`.
    pub k: View<'a>,
    /// f32 `[rows, kv_heads, n]`.
    pub v: View<'a>,
    /// i32 `[rows]`: page times page length plus place in the page.
    pub slots: View<'a>,
    /// `[capacity, kv_heads, n]`, any float type, or `Q8_0` where `n` is a multiple of 32.
    pub k_cache: View<'a>,
    /// As `k_cache`.
    pub v_cache: View<'a>,
}

fn caches(k: &View<'_>, v: &View<'_>, heads: usize, n: usize) -> Checked {
    rank("k_cache", k, 3)?;
    for (name, c) in [("k_cache", k), ("v_cache", v)] {
        let (dtype, block) = (c.dtype(), c.dtype().block().elements);
        require(dtype.is_float() || dtype == DType::Q8_0, || {
            format!("{name} is {dtype}, expected a float type or Q8_0")
        })?;
        require(n.is_multiple_of(block), || format!("{name} is {dtype}: heads of {n} are no whole blocks of {block}"))?;
        sides(name, c, &[k.dim(0), heads, n])?;
        super::check::dense(name, c)?;
    }
    require(k.dtype() == v.dtype(), || format!("k_cache is {}, v_cache {}", k.dtype(), v.dtype()))
}

impl StoreKv<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("k", &self.k, 3)?;
        f32s("k", &self.k, self.k.dims())?;
        f32s("v", &self.v, self.k.dims())?;
        i32s("slots", &self.slots, &[self.k.dim(0)])?;
        caches(&self.k_cache, &self.v_cache, self.k.dim(1), self.k.dim(2))
    }
}

/// Causal attention over the paged cache: row `i` of a span sees its sequence's indices `0..=start + i`.
///
/// KV head `g` serves the consecutive query heads `g * r .. (g + 1) * r`. Index `t` of a sequence lies at
/// `pages[table, t / page_len] * page_len + t % page_len`.
#[derive(Clone, Copy, Debug)]
pub struct PagedAttention<'a> {
    /// f32 `[rows, heads, n]`.
    pub q: View<'a>,
    /// `[capacity, kv_heads, n]`.
    pub k_cache: View<'a>,
    /// `[capacity, kv_heads, n]`.
    pub v_cache: View<'a>,
    /// i32 `[tables, pages]`.
    pub pages: View<'a>,
    /// Tokens a page.
    pub page_len: usize,
    /// Which rows belong to which sequence.
    pub spans: &'a [Span],
    /// Usually `n^-0.5`.
    pub scale: f32,
    /// f32 `[rows, heads, n]`.
    pub out: View<'a>,
}

impl PagedAttention<'_> {
    pub(super) fn check(&self) -> Checked {
        rank("q", &self.q, 3)?;
        rank("k_cache", &self.k_cache, 3)?;
        rank("pages", &self.pages, 2)?;
        let (rows, heads, n) = (self.q.dim(0), self.q.dim(1), self.q.dim(2));
        f32s("q", &self.q, &[rows, heads, n])?;
        f32s("out", &self.out, &[rows, heads, n])?;
        let kv_heads = self.k_cache.dim(1);
        caches(&self.k_cache, &self.v_cache, kv_heads, n)?;
        require(kv_heads > 0 && heads % kv_heads == 0, || format!("{heads} query heads, {kv_heads} kv heads"))?;
        i32s("pages", &self.pages, self.pages.dims())?;
        spans_fit(self.spans, rows)?;
        for s in self.spans {
            require(
                self.page_len > 0
                    && s.table < self.pages.dim(0)
                    && s.start + s.rows <= self.pages.dim(1) * self.page_len,
                || {
                    format!(
                        "{} tokens of table {} in {} tables of {} pages of {}",
                        s.start + s.rows,
                        s.table,
                        self.pages.dim(0),
                        self.pages.dim(1),
                        self.page_len
                    )
                },
            )?;
        }
        Ok(())
    }
}
