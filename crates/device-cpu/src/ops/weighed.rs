//! Attention on units that weigh a panel of keys at a time: while the tiles multiply one panel, the vectors weigh the one
//! before, a few rows at a time.
//!
//! A query's weights are relative to a power of two's exponent that its first block decides, and a later one moves only
//! where a score would pass the limit: a tile first tries what it has, and where some row's is too low it does the block
//! again, moving that row's alone. So a query's bits depend on its own keys.

use std::ops::Range;

use super::attention::{Attend, Work, key_words, row_words, value_words};
use crate::simd::unit::{Beside, Nothing, ONE, PARTS, Unit, WeighPanel, long_beside};
use crate::simd::{KEYS, Simd, TileArgs};

/// Bound of a score, squared, up to which it is weighed in whole numbers.
const SMALL: f32 = (1u64 << 40) as f32;

/// Rows of the largest tile.
const MOST: usize = 32;

/// One row tile and one block of keys.
struct Tile<'a> {
    rows: Range<usize>,
    /// Panels that any row sees.
    panels: usize,
    /// Keys of the block that each row sees.
    seen: &'a [usize],
    /// How to multiply queries by the first panel.
    scores: TileArgs,
}

impl Attend {
    /// Whether no score of a row tile can be too large for whole numbers, nor be infinite or NaN.
    #[inline(always)]
    pub(super) fn small<U: Unit>(&self, _: U, w: &Work, keys: *const f32, first: usize, n: usize) -> bool {
        let at = key_words::<U>(n) + value_words::<U>(n);
        // SAFETY: a packed block ends with its squares, and each tile has its own.
        let product = unsafe { *keys.add(at) * *w.squares.add(first / U::ROWS) };
        product <= SMALL
    }

    /// [`Attend::tile`] in panels; how to multiply queries by keys, and where values are.
    ///
    /// # Safety
    /// As there; the tile's numbers are small.
    #[inline(always)]
    pub(super) unsafe fn weigh_tile<U: Unit>(
        &self,
        u: U,
        w: &Work,
        scores: TileArgs,
        values: *const f32,
        start: usize,
        rows: Range<usize>,
    ) {
        let (s, lanes) = (u.simd(), U::S::LANES);
        let mut seen = [0; MOST];
        for (seen, i) in seen.iter_mut().zip(rows.clone()) {
            *seen = self.queries.visible(self.range.start + i).saturating_sub(start).min(KEYS);
        }
        let height = rows.len();
        let panels = seen[height - 1].div_ceil(U::COLS);
        let tile = Tile { rows: rows.clone(), panels, seen: &seen[..height], scores };
        // SAFETY: the caller's promise.
        unsafe {
            if !tile.tries(u, w) {
                tile.follows(u, w);
            }
            for (i, query) in rows.clone().enumerate() {
                let total = w.total.add(query * lanes);
                s.store(total, s.add(s.load(total), s.load(w.block.add(i * lanes))));
            }
            for first in (0..w.width).step_by(U::COLS) {
                u.tile_rows(TileArgs {
                    k: panels * U::COLS / U::PER_WORD,
                    x: w.weights,
                    w: values.add(first * row_words::<U>()),
                    c: w.out.add(rows.start * w.width + first),
                    ldc: w.width,
                    add: true,
                    ..scores
                });
            }
        }
    }
}

impl Tile<'_> {
    /// Weighs relative to what was so before; false where that is too low for some row, or not known yet.
    ///
    /// # Safety
    /// As [`Attend::weigh_tile`].
    #[inline(always)]
    unsafe fn tries<U: Unit>(&self, u: U, w: &Work) -> bool {
        // SAFETY: the caller's promise.
        unsafe {
            let unknown = |(i, query): (usize, usize)| self.seen[i] > 0 && *w.top.add(query) == f32::NEG_INFINITY;
            if self.rows.clone().enumerate().any(unknown) {
                return false;
            }
            self.begin(u, w);
            let mut above = false;
            // Two panels' scores lie one after the other, row by row: few lines, and next to each other.
            let place = |p: usize| (w.scores.wrapping_add(p % 2 * U::ROWS * U::COLS), U::COLS);
            let held = u.hold(&self.scores);
            self.multiply(u, held, 0, place(0), &mut Nothing);
            for p in 0..self.panels {
                let mut weighing = self.weighing(u, w, p, place(p));
                if p + 1 < self.panels {
                    self.multiply(u, held, p + 1, place(p + 1), &mut weighing);
                }
                weighing.rest();
                above |= weighing.above;
            }
            !above
        }
    }

    /// Takes all scores first, and follows the largest of each row where it must.
    ///
    /// # Safety
    /// As [`Attend::weigh_tile`].
    #[inline(always)]
    unsafe fn follows<U: Unit>(&self, u: U, w: &Work) {
        let (s, lanes) = (u.simd(), U::S::LANES);
        // SAFETY: the caller's promise.
        unsafe {
            for p in 0..self.panels {
                self.multiply(u, false, p, (w.scores.add(p * U::COLS), KEYS), &mut Nothing);
            }
            for (i, query) in self.rows.clone().enumerate() {
                if self.seen[i] == 0 {
                    continue;
                }
                let (top, largest) = (w.top.add(query), largest(s, w.scores.add(i * KEYS), self.seen[i]));
                // The very numbers that a panel's words are made of, so that this row moves in any company.
                let word = largest.mul_add(PARTS, start(*top)).round_ties_even();
                if word > limit::<U>() as f32 {
                    let mut factor = [0f32; 16];
                    s.store(factor.as_mut_ptr(), u.exp(s.splat(*top - largest)));
                    *top = largest;
                    let (out, total) = (w.out.add(query * w.width), w.total.add(query * lanes));
                    let factor = s.splat(factor[0]);
                    s.store(total, s.mul(s.load(total), factor));
                    for j in (0..w.width).step_by(lanes) {
                        s.store(out.add(j), s.mul(s.load(out.add(j)), factor));
                    }
                }
            }
            self.begin(u, w);
            for p in 0..self.panels {
                self.weighing(u, w, p, (w.scores.add(p * U::COLS), KEYS)).rest();
            }
        }
    }

    /// # Safety
    /// As [`Attend::weigh_tile`].
    #[inline(always)]
    unsafe fn begin<U: Unit>(&self, u: U, w: &Work) {
        let starts = w.block.wrapping_add(U::ROWS * U::S::LANES);
        // SAFETY: the caller's promise.
        unsafe {
            for (i, query) in self.rows.clone().enumerate() {
                u.simd().store(w.block.add(i * U::S::LANES), u.simd().splat(0.0));
                *starts.add(i) = start(*w.top.add(query));
            }
        }
    }

    /// Scores of a panel, to a place and from row to row; `work` beside them.
    ///
    /// # Safety
    /// As [`Attend::weigh_tile`]; the place has room for a panel of scores.
    #[inline(always)]
    unsafe fn multiply<U: Unit>(
        &self,
        u: U,
        held: bool,
        panel: usize,
        (c, ldc): (*mut f32, usize),
        work: &mut impl Beside,
    ) {
        let w = self.scores.w.wrapping_add(panel * U::COLS * self.scores.k);
        let args = TileArgs { w, c, ldc, ..self.scores };
        // SAFETY: the caller's promise.
        unsafe { if held { u.tile_held(args, work) } else { long_beside(u, args, work) } }
    }

    /// How to weigh a panel whose scores are in a place.
    ///
    /// # Safety
    /// As [`Tile::multiply`], until it is done.
    #[inline(always)]
    unsafe fn weighing<'a, U: Unit>(
        &'a self,
        u: U,
        w: &Work,
        panel: usize,
        (scores, lds): (*mut f32, usize),
    ) -> Weighing<'a, U> {
        let first = panel * U::COLS;
        let panel = WeighPanel {
            scores,
            lds,
            rows: self.rows.len(),
            starts: w.block.wrapping_add(U::ROWS * U::S::LANES),
            seen: (self.seen[0] < first + U::COLS).then_some(self.seen),
            first,
            limit: limit::<U>(),
            sums: w.block,
            weights: w.weights.wrapping_add(first / U::PER_WORD),
            ldw: row_words::<U>(),
        };
        // In as many pieces as a product asks for.
        let pieces = if U::BESIDE { 2 * self.scores.k / U::STEP } else { 1 };
        Weighing { u, panel, next: 0, some: self.rows.len().div_ceil(pieces), above: false }
    }
}

/// A panel that is being weighed.
struct Weighing<'a, U> {
    u: U,
    panel: WeighPanel<'a>,
    /// The next row.
    next: usize,
    /// Rows at a time.
    some: usize,
    /// Whether any weight so far passed the limit.
    above: bool,
}

impl<U: Unit> Beside for Weighing<'_, U> {
    #[inline(always)]
    fn is_done(&self) -> bool {
        self.next == self.panel.rows
    }

    #[inline(always)]
    fn some(&mut self) {
        let rows = self.some.min(self.panel.rows - self.next);
        // SAFETY: rows of the panel, which `Tile::weighing`'s caller vouches for.
        self.above |= unsafe { self.u.weigh_panel(self.panel.rows(self.next, rows)) };
        self.next += rows;
    }
}

/// What a word is made from where weights are relative to `2^top`.
#[inline(always)]
fn start(top: f32) -> f32 {
    ONE - PARTS * top
}

/// The largest word of a weight.
#[inline(always)]
fn limit<U: Unit>() -> u16 {
    (ONE + PARTS * U::SLACK) as u16
}

/// The largest of the first `some` scores of a row of [`KEYS`].
///
/// # Safety
/// They are readable.
#[inline(always)]
unsafe fn largest<S: Simd>(s: S, scores: *const f32, some: usize) -> f32 {
    let mut largest = s.splat(f32::NEG_INFINITY);
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j + S::LANES <= some {
            largest = s.max(largest, s.load(scores.add(j)));
            j += S::LANES;
        }
        let mut top = s.largest(largest);
        while j < some {
            top = top.max(*scores.add(j));
            j += 1;
        }
        top
    }
}
