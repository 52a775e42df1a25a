//! What multiplies matrices: the vectors themselves, or a unit that the CPU has for it.
//!
//! A unit's tile kernel takes operands packed in words of 32 bits. On the vectors a word is an f32. Where the
//! CPU multiplies in bf16, a word is two neighbours of a sum, the earlier one in the lower half, rounded to
//! nearest, ties to even; sums stay f32. Transposing and copying move words and never look inside, so one
//! source of packing and blocking serves every unit.

use super::stored::{F32, Stored};
use super::tile::K_BLOCK;
use super::{KEYS, Simd, TileArgs, math};

/// A way to multiply matrices.
///
/// As with [`Simd`], a value exists only where the CPU has the instructions. What has a default is what suits a unit
/// that multiplies on the vectors.
pub(crate) trait Unit: Copy + Send + Sync + 'static {
    /// The vectors that feed it.
    type S: Simd;
    /// Elements of a sum in one word.
    const PER_WORD: usize;
    /// Rows of its largest tile.
    const ROWS: usize = <Self::S as Simd>::TILE_ROWS;
    /// Columns of every tile; whole vectors, divides [`KEYS`].
    const COLS: usize = <Self::S as Simd>::TILE_COLS;
    /// Words of a packed row tile a word of the sum; at least `ROWS`.
    const LEFT: usize = <Self::S as Simd>::LEFT;
    /// Packed sums have a multiple of this many words, zeros at the end; divides `KEYS / PER_WORD`.
    const STEP: usize = 1;
    /// Words of a sum that one call of a tile kernel takes, a multiple of `STEP`.
    const K_BLOCK: usize;
    /// Words of the right side that the second cache holds beside the rest.
    const PANELS: usize = 128 << 10;
    /// Panels of the right side that a row tile is multiplied with in a row, at most.
    const WIDTH: usize = 4;
    /// What [`Unit::exp`] wants its argument multiplied by.
    const EXP_SCALE: f32 = 1.0;
    /// How far a score, multiplied by it, may lie above what weights are relative to: where weights have few bits
    /// there is no need to follow the largest score closely.
    const SLACK: f32 = 0.0;
    /// Whether [`Unit::weigh_panel`] is there.
    const WEIGHS: bool = false;
    /// Whether it multiplies while the vectors do something else.
    const BESIDE: bool = false;

    /// The vectors.
    fn simd(self) -> Self::S;
    /// Makes the unit ready on this thread.
    fn begin(self) {}
    /// Gives it back.
    fn end(self) {}

    /// A vector of words from the first `n` elements at `p`, or as many as it holds; zeros for the rest.
    ///
    /// # Safety
    /// They are readable.
    unsafe fn words<T: Stored>(self, p: *const u8, n: usize) -> <Self::S as Simd>::V;
    /// Words of which the earlier half is from `even` and the later from `odd`. Only where a word is two.
    fn pair(self, even: <Self::S as Simd>::V, odd: <Self::S as Simd>::V) -> <Self::S as Simd>::V;
    /// Words of the elements of `first`, then of `second`, in the order of [`Unit::key_at`]. Only where a word is two.
    fn join(self, first: <Self::S as Simd>::V, second: <Self::S as Simd>::V) -> <Self::S as Simd>::V;
    /// `e^(x / EXP_SCALE)` to the precision of the unit's elements.
    #[inline(always)]
    fn exp(self, x: <Self::S as Simd>::V) -> <Self::S as Simd>::V {
        math::exp(self.simd(), x)
    }

    /// Turns a panel of scores into words of weights, and says whether any passed the limit. Keys come in the order of
    /// [`Unit::key_at`].
    ///
    /// # Safety
    /// What `a` names is readable and writable for its rows.
    unsafe fn weigh_panel(self, _: WeighPanel<'_>) -> bool {
        unreachable!("only where WEIGHS says so")
    }
    /// The key of a block that element `i` of a row of weights belongs to.
    #[inline(always)]
    fn key_at(i: usize) -> usize {
        i
    }

    /// `c` and the products of words.
    fn accumulate(
        self,
        x: <Self::S as Simd>::V,
        w: <Self::S as Simd>::V,
        c: <Self::S as Simd>::V,
    ) -> <Self::S as Simd>::V;

    /// Packs `rows` rows of `k` elements as the left side of [`Unit::tile_packed`], `words` long.
    ///
    /// # Safety
    /// The rows are readable; `out` is writable for `words * LEFT` words.
    #[inline(always)]
    unsafe fn pack_left(self, rows: usize, k: usize, words: usize, row: impl Fn(usize) -> *const f32, out: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack_transposed::<_, F32>(self, Self::LEFT, rows, k, words, |i| row(i).cast(), out) }
    }

    /// The tile kernel with `x` packed by [`Unit::pack_left`].
    ///
    /// # Safety
    /// The three matrices of `a` are readable, `c` is writable and overlaps neither. `x` and `c` have room for
    /// `ROWS` rows; those of `c` past `rows` become anything.
    unsafe fn tile_packed(self, a: TileArgs);
    /// [`Unit::tile_packed`], and some of `work` between its steps where that costs nothing: what is left is the
    /// caller's to do.
    ///
    /// # Safety
    /// As [`Unit::tile_packed`]; the work touches none of the matrices.
    #[inline(always)]
    unsafe fn tile_beside(self, a: TileArgs, _work: &mut impl Beside) {
        // SAFETY: the caller's promise.
        unsafe { self.tile_packed(a) }
    }
    /// Keeps the left side of a product for [`Unit::tile_held`], which may be met by many right ones, where it fits.
    ///
    /// # Safety
    /// As [`Unit::tile_packed`], for `x`.
    #[inline(always)]
    unsafe fn hold(self, _: &TileArgs) -> bool {
        false
    }
    /// [`Unit::tile_beside`] with the left side that is held since [`Unit::hold`] gave true; no other product came between.
    ///
    /// # Safety
    /// As [`Unit::tile_beside`].
    unsafe fn tile_held(self, _: TileArgs, _: &mut impl Beside) {
        unreachable!("only where something is held")
    }
    /// The tile kernel with `x` in rows of words that are `KEYS / PER_WORD` apart.
    ///
    /// # Safety
    /// As [`Unit::tile_packed`].
    unsafe fn tile_rows(self, a: TileArgs);
}

/// Work for the vectors while a unit multiplies. Methods are `#[inline(always)]`.
pub(crate) trait Beside {
    /// Whether none is left.
    fn is_done(&self) -> bool;
    /// Does a little of it.
    fn some(&mut self);
    /// Does the rest.
    #[inline(always)]
    fn rest(&mut self) {
        while !self.is_done() {
            self.some();
        }
    }
}

/// None.
pub(crate) struct Nothing;

impl Beside for Nothing {
    #[inline(always)]
    fn is_done(&self) -> bool {
        true
    }

    #[inline(always)]
    fn some(&mut self) {}
}

/// Parts of a power of two that [`Unit::weigh_panel`] rounds scores to.
pub(crate) const PARTS: f32 = 128.0;

/// The word of weight 1 there, as a number.
pub(crate) const ONE: f32 = 127.0 * PARTS;

/// Scores of up to a tile's rows and one panel's keys; [`PARTS`] times a score lies within 2^30, else its weight is zero.
#[derive(Clone, Copy)]
pub(crate) struct WeighPanel<'a> {
    /// `[rows, COLS]`, `lds` from row to row: logarithms to base 2.
    pub scores: *const f32,
    /// See `scores`.
    pub lds: usize,
    /// How many.
    pub rows: usize,
    /// What is added to [`PARTS`] times the score, one a row: [`ONE`] less as many times what weights are relative to.
    pub starts: *const f32,
    /// How many keys of the block a row sees, where not all see the whole panel.
    pub seen: Option<&'a [usize]>,
    /// The panel's first key in the block.
    pub first: usize,
    /// The largest word that is right.
    pub limit: u16,
    /// A vector a row that the weights are added to.
    pub sums: *mut f32,
    /// Words of weights, `ldw` from row to row.
    pub weights: *mut f32,
    /// See `weights`.
    pub ldw: usize,
}

impl WeighPanel<'_> {
    /// `rows` of its rows from `first` on.
    #[inline(always)]
    pub(crate) fn rows(&self, first: usize, rows: usize) -> Self {
        WeighPanel {
            scores: self.scores.wrapping_add(first * self.lds),
            rows,
            starts: self.starts.wrapping_add(first),
            seen: self.seen.map(|seen| &seen[first..]),
            sums: self.sums.wrapping_add(first * SUMS),
            weights: self.weights.wrapping_add(first * self.ldw),
            ..*self
        }
    }
}

/// Elements of a vector of sums there.
const SUMS: usize = 16;

/// A loop that is compiled once a unit.
pub(crate) trait UnitTask {
    /// Runs it. Implementations are `#[inline(always)]`.
    fn run<U: Unit>(self, u: U);
}

/// Words of a packed sum of `k` elements; at least one step.
#[inline(always)]
pub(crate) const fn words<U: Unit>(k: usize) -> usize {
    let words = k.div_ceil(U::PER_WORD).next_multiple_of(U::STEP);
    if words > 0 { words } else { U::STEP }
}

/// The vectors as a unit: f32 throughout.
#[derive(Clone, Copy)]
pub(crate) struct Vectors<S>(pub S);

impl<S: Simd> Unit for Vectors<S> {
    type S = S;
    const PER_WORD: usize = 1;
    const K_BLOCK: usize = K_BLOCK;

    #[inline(always)]
    fn simd(self) -> S {
        self.0
    }

    #[inline(always)]
    unsafe fn words<T: Stored>(self, p: *const u8, n: usize) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { if n >= S::LANES { T::load(self.0, p) } else { T::load_some(self.0, p, n) } }
    }

    #[inline(always)]
    fn pair(self, even: S::V, _: S::V) -> S::V {
        even
    }

    #[inline(always)]
    fn join(self, first: S::V, _: S::V) -> S::V {
        first
    }

    #[inline(always)]
    fn accumulate(self, x: S::V, w: S::V, c: S::V) -> S::V {
        self.0.fma(x, w, c)
    }

    #[inline(always)]
    unsafe fn tile_packed(self, a: TileArgs) {
        // SAFETY: the caller's promise.
        unsafe { self.0.tile_packed(a) }
    }

    #[inline(always)]
    unsafe fn tile_rows(self, a: TileArgs) {
        // SAFETY: the caller's promise.
        unsafe { self.0.tile_rows::<KEYS>(a) }
    }
}

/// Bytes ahead in each row that are asked for while it is packed.
const AHEAD: usize = 512;

/// Packs `rows` rows of `k` elements as columns of `[words, width]`; columns past `rows`, up to a whole vector,
/// and words past `k` become zero.
///
/// # Safety
/// Each row is readable for `k` elements; `width` is a whole number of vectors, and `out` is writable for
/// `words * width`.
#[inline(always)]
pub(crate) unsafe fn pack_transposed<U: Unit, T: Stored>(
    u: U,
    width: usize,
    rows: usize,
    k: usize,
    words: usize,
    row: impl Fn(usize) -> *const u8,
    out: *mut f32,
) {
    let (s, lanes) = (u.simd(), U::S::LANES);
    let mut block = [s.splat(0.0); 16];
    let block = &mut block[..U::S::LANES];
    for g in (0..width).step_by(lanes) {
        for p in (0..words).step_by(lanes) {
            let from = p * U::PER_WORD;
            let some = k.saturating_sub(from);
            for (l, v) in block.iter_mut().enumerate() {
                *v = s.splat(0.0);
                if g + l < rows && some > 0 {
                    let at = row(g + l).wrapping_add(from * T::SIZE);
                    // Rows are pages apart, which no hardware prefetcher crosses.
                    s.prefetch(at.wrapping_add(AHEAD));
                    // SAFETY: `some` elements are left in the row.
                    *v = unsafe { u.words::<T>(at, some) };
                }
            }
            // SAFETY: a full block fits; the last words go through a block of their own.
            unsafe {
                let to = out.add(p * width + g);
                if p + lanes <= words {
                    s.store_transposed(block, to, width);
                } else {
                    let mut last = [0f32; 16 * 16];
                    s.store_transposed(block, last.as_mut_ptr(), lanes);
                    for i in 0..words - p {
                        s.store(to.add(i * width), s.load(last.as_ptr().add(i * lanes)));
                    }
                }
            }
        }
    }
}

/// Packs `cols` columns of `rows` rows of a right side as `[words, width]`, zeros elsewhere.
///
/// # Safety
/// Each row is readable for `cols` elements; `width` is a whole number of vectors, and `out` is writable for
/// `words * width` with `words * PER_WORD >= rows`.
#[inline(always)]
pub(crate) unsafe fn pack_columns<U: Unit, T: Stored>(
    u: U,
    width: usize,
    cols: usize,
    rows: usize,
    words: usize,
    row: impl Fn(usize) -> *const u8,
    out: *mut f32,
) {
    let s = u.simd();
    for p in 0..words {
        for j in (0..width).step_by(U::S::LANES) {
            // SAFETY: the caller's promise; `cols - j` elements are left in each row.
            unsafe {
                let even = column::<U, T>(s, p * U::PER_WORD, j, cols, rows, &row);
                let v = match U::PER_WORD {
                    1 => even,
                    _ => u.pair(even, column::<U, T>(s, p * U::PER_WORD + 1, j, cols, rows, &row)),
                };
                s.store(out.add(p * width + j), v);
            }
        }
    }
}

/// Elements `j..` of row `r` of a right side, zeros past its `cols` columns and `rows` rows.
///
/// # Safety
/// As [`pack_columns`].
#[inline(always)]
unsafe fn column<U: Unit, T: Stored>(
    s: U::S,
    r: usize,
    j: usize,
    cols: usize,
    rows: usize,
    row: &impl Fn(usize) -> *const u8,
) -> <U::S as Simd>::V {
    if r >= rows || j >= cols {
        return s.splat(0.0);
    }
    let from = row(r).wrapping_add(j * T::SIZE);
    let some = cols - j;
    // SAFETY: the caller's promise.
    unsafe { if some >= U::S::LANES { T::load(s, from) } else { T::load_some(s, from, some) } }
}

/// [`Unit::tile_beside`] over a sum of any length, in calls of `K_BLOCK`.
///
/// # Safety
/// As [`Unit::tile_beside`].
#[inline(always)]
pub(crate) unsafe fn long_beside<U: Unit>(u: U, a: TileArgs, work: &mut impl Beside) {
    let mut done = 0;
    loop {
        let k = U::K_BLOCK.min(a.k - done);
        let x = a.x.wrapping_add(done * U::LEFT);
        let w = a.w.wrapping_add(done * a.ldw);
        // SAFETY: a part of the caller's matrices.
        unsafe { u.tile_beside(TileArgs { k, x, w, add: a.add || done > 0, ..a }, work) };
        done += k;
        if done >= a.k {
            return;
        }
    }
}

/// [`long_beside`] nothing.
///
/// # Safety
/// As [`Unit::tile_packed`].
#[inline(always)]
pub(crate) unsafe fn tile_long<U: Unit>(u: U, a: TileArgs) {
    // SAFETY: the caller's promise.
    unsafe { long_beside(u, a, &mut Nothing) }
}
