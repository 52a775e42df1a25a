//! Which queries see which keys, and where both lie.

use std::ops::Range;

use turbospark_tensor::DType;

use crate::memory::Tensor;
use crate::simd::Simd;
use crate::simd::blocks::dequantise;

/// Keys and values of one KV head.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    /// Key 0, or place 0 of the cache.
    pub k: *const u8,
    /// Value 0, or place 0 of the cache.
    pub v: *const u8,
    /// Bytes from one place to the next, of keys and of values.
    pub stride: (usize, usize),
    /// Of both: a float type or `Q8_0`.
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

    /// The type that [`Keys::load`] gives: their own, or f32 for blocks.
    #[inline(always)]
    pub(super) fn loaded(&self) -> DType {
        if self.dtype.is_block() { DType::F32 } else { self.dtype }
    }

    /// f32 that [`Keys::load`] needs for `count` keys and values of `n` elements.
    pub(super) fn wide(&self, count: usize, n: usize) -> usize {
        if self.dtype.is_block() { 2 * count * n } else { 0 }
    }

    /// Where keys and values `range` lie, at most `N`: in place, or for blocks in `wide`, where they are dequantised.
    ///
    /// # Safety
    /// They are readable for `n` elements; `wide` is writable for [`Keys::wide`].
    #[inline(always)]
    pub(super) unsafe fn load<S: Simd, const N: usize>(
        &self,
        s: S,
        range: Range<usize>,
        n: usize,
        wide: *mut f32,
    ) -> [(*const u8, *const u8); N] {
        let mut at = [(std::ptr::null(), std::ptr::null()); N];
        for (i, (at, t)) in at.iter_mut().zip(range).enumerate() {
            let place = self.place(t);
            *at = (self.k.wrapping_add(place * self.stride.0), self.v.wrapping_add(place * self.stride.1));
            if self.dtype.is_block() {
                let (k, v) = (wide.wrapping_add(2 * i * n), wide.wrapping_add((2 * i + 1) * n));
                // SAFETY: the caller's promise; heads are whole blocks of the one type that caches take (checked by
                // the op).
                unsafe {
                    dequantise(s, DType::Q8_0, at.0, 0, std::slice::from_raw_parts_mut(k, n));
                    dequantise(s, DType::Q8_0, at.1, 0, std::slice::from_raw_parts_mut(v, n));
                }
                *at = (k.cast_const().cast(), v.cast_const().cast());
            }
        }
        at
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
    pub(super) fn visible(&self, query: usize) -> usize {
        self.visible + if self.causal { query / self.group } else { 0 }
    }

    #[inline(always)]
    pub(super) fn at(&self, t: &Tensor, query: usize) -> *mut f32 {
        t.head(self.first_row + query / self.group, self.head + query % self.group)
    }
}

/// The queries that share one KV head of one sequence.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub queries: Queries,
    pub keys: Keys<'a>,
    /// Number of queries.
    pub count: usize,
}

impl Head<'_> {
    /// Keys that any of them sees.
    pub(super) fn seen(&self) -> usize {
        self.queries.visible(self.count - 1)
    }
}
