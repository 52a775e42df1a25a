//! The matrix kernel: a linear layer on the rows of a prompt.
//!
//! The activations are packed once for the tile kernel, by all threads. Then each thread takes a few panels of
//! weights, widens and transposes as much of them as its second cache holds, and runs all row tiles over that;
//! long sums wait in memory for the next piece. An output's sum runs over `k` in blocks of [`Unit::K_BLOCK`],
//! whatever the number of rows or threads.

use std::ops::Range;

use turbospark_device::op::WeightLayout;

use super::finish::{Finish, Linear, Place};
use super::{Engine, Rows, Shared};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{F32, Stored, Weight, with_stored};
use crate::simd::unit::{Beside, Unit, UnitTask, pack_columns, pack_transposed, words};
use crate::simd::{Simd, TileArgs};

/// Packed activations at most, in words (8 MiB): they stay in the last cache while panels pass by.
const PACKED: usize = 2 << 20;

/// Rows from which on threads share rows rather than columns.
const MANY: usize = 2048;

/// What blocking depends on.
#[derive(Clone, Copy, Default)]
struct Sides {
    rows: usize,
    cols: usize,
    /// Words of a packed row tile.
    left: usize,
    /// Words of a sum.
    words: usize,
    /// [`Unit::WIDTH`] and [`Unit::PANELS`].
    width: usize,
    most: usize,
}

impl Sides {
    fn of(engine: &Engine, k: usize) -> Sides {
        struct Ask<'a>(usize, &'a mut Sides);
        impl UnitTask for Ask<'_> {
            #[inline(always)]
            fn run<U: Unit>(self, _: U) {
                let words = words::<U>(self.0);
                *self.1 = Sides {
                    rows: U::ROWS,
                    cols: U::COLS,
                    left: U::LEFT * words,
                    words,
                    width: U::WIDTH,
                    most: U::PANELS,
                };
            }
        }
        let mut sides = Sides::default();
        engine.kernels.multiply(engine.exact, Ask(k, &mut sides));
        sides
    }
}

/// `Linear` on `rows` rows of `x`.
///
/// # Safety
/// The rows, weights and outputs of `linear` are valid for its sizes, locked by the op, and `out` overlaps
/// none but `residual`.
pub(crate) unsafe fn matrix(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let (k, n) = (linear.k, linear.n);
    if rows == 0 || n == 0 {
        return;
    }
    let linear = &Linear { finish: linear.finish.streaming(rows, n), ..*linear };
    let tile = Sides::of(engine, k);
    let most = (PACKED / tile.words.max(1)).max(16 * tile.rows);
    let blocks = rows.div_ceil(most);
    let block = rows.div_ceil(blocks).next_multiple_of(tile.rows);
    let source = (blocks == 1 && engine.keeps).then(|| x.place(rows, k)).flatten();
    let kept = source.is_some() && engine.kept == source;
    engine.kept = source;
    let threads = engine.pool.threads();
    let panels = n.div_ceil(tile.cols);
    let weights = 1 + linear.gate.is_some() as usize;
    // As many panels as the second cache holds whole, and as leave work for all threads: of many rows each thread may take
    // a share, so that few have to pass by often.
    let fits = (tile.most / (tile.words * tile.cols * weights).max(1)).max(tile.width / 2);
    let many = rows >= MANY;
    let width = if many { panels.div_ceil(2) } else { panels / (4 * threads) };
    let width = width.clamp(1, fits.min(if many { 2 } else { 1 } * tile.width));
    let tasks = panels.div_ceil(width);
    for first in (0..rows).step_by(block) {
        let m = block.min(rows - first);
        let tiles = m.div_ceil(tile.rows);
        let packed = Shared::new(engine.packed.get(tiles * tile.left));
        let (kernels, exact, pool) = (engine.kernels, engine.exact, &engine.pool);
        let packs = if kept { 0 } else { tiles.min(4 * threads) };
        pool.run(packs, |part| {
            let range = super::share(tiles, packs, part);
            kernels.multiply(exact, PackRows { x, first, m, k, tiles: range, packed });
        });
        // Few panels and many rows: the rows are shared out too, and each share widens the panels again.
        let wanted = if many { 4 * threads } else { 2 * threads };
        let splits = wanted.div_ceil(tasks).min(tiles.div_ceil(if many { 16 } else { 4 }));
        pool.run(tasks * splits, |part| {
            let (task, split) = (part % tasks, part / tasks);
            let panels = task * width..panels.min((task + 1) * width);
            let tiles = super::share(tiles, splits, split);
            kernels.multiply(exact, Panels { linear, first, m, panels, tiles, packed });
        });
    }
}

/// Packs row tiles.
struct PackRows<'a> {
    x: Rows<'a>,
    first: usize,
    m: usize,
    k: usize,
    tiles: Range<usize>,
    packed: Shared<f32>,
}

impl UnitTask for PackRows<'_> {
    #[inline(always)]
    fn run<U: Unit>(self, u: U) {
        let words = words::<U>(self.k);
        for tile in self.tiles {
            let first = tile * U::ROWS;
            let out = self.packed.at(tile * U::LEFT * words);
            let rows = U::ROWS.min(self.m - first);
            let row = |i: usize| self.x.row(self.first + first + i).cast_const();
            // SAFETY: the tile's rows are valid (`matrix`), and its packed form is this part's alone.
            unsafe { u.pack_left(rows, self.k, words, row, out) };
        }
    }
}

/// Widens columns `col..col + COLS` and words `range` of the product's right side as `[words, COLS]`, zeros past
/// `n` and `k`.
///
/// # Safety
/// The weight is readable for `[n, k]` in its layout; `out` is writable for that.
#[inline(always)]
unsafe fn pack_panel<U: Unit>(u: U, w: &Weight, col: usize, n: usize, k: usize, range: Range<usize>, out: *mut f32) {
    let cols = U::COLS.min(n - col);
    let (words, from) = (range.len(), range.start * U::PER_WORD);
    let k = k.saturating_sub(from);
    if w.is_quantised() {
        // SAFETY: the caller's promise.
        return unsafe { pack_blocks(u, w, col..col + cols, from..from + k, words, out) };
    }
    with_stored!(w.dtype, T => {
        // SAFETY: the caller's promise; each load stays within `cols` columns and `k` steps.
        unsafe {
            match w.layout {
                WeightLayout::OutIn => {
                    let row = |i: usize| w.ptr.wrapping_add(((col + i) * w.stride + from) * T::SIZE);
                    pack_transposed::<U, T>(u, U::COLS, cols, k, words, row, out);
                }
                WeightLayout::InOut => {
                    let row = |p: usize| w.ptr.wrapping_add(((from + p) * w.stride + col) * T::SIZE);
                    pack_columns::<U, T>(u, U::COLS, cols, k, words, row, out);
                }
            }
        }
    })
}

/// [`pack_panel`] for quantised weights: a few steps of all columns at a time, dequantised in the first cache.
///
/// # Safety
/// As [`pack_panel`]; `steps` begins at a multiple of [`DEQUANTISED`] and ends at the end of a row, or at such a multiple.
#[inline(always)]
unsafe fn pack_blocks<U: Unit>(
    u: U,
    w: &Weight,
    columns: Range<usize>,
    steps: Range<usize>,
    words: usize,
    out: *mut f32,
) {
    let mut flat = [0f32; 32 * LONGEST];
    let piece = if w.comes_whole() { LONGEST } else { DEQUANTISED };
    for p in (0..words).step_by(piece / U::PER_WORD) {
        let first = steps.start + p * U::PER_WORD;
        let count = piece.min(steps.end.saturating_sub(first));
        let some = (piece / U::PER_WORD).min(words - p);
        // SAFETY: the caller's promise; no panel has more than 32 columns.
        unsafe {
            for (i, col) in columns.clone().enumerate() {
                let to = &mut flat[i * piece..][..count];
                w.dequantise(u.simd(), col, first, to);
            }
            let row = |i: usize| flat.as_ptr().wrapping_add(i * piece).cast();
            pack_transposed::<U, F32>(u, U::COLS, columns.len(), count, some, row, out.add(p * U::COLS));
        }
    }
}

/// Steps of a sum that are dequantised at a time; divides every `K_BLOCK`.
const DEQUANTISED: usize = 128;

/// The same of blocks that are only dequantised as a whole.
const LONGEST: usize = 256;

/// Some panels times some row tiles.
struct Panels<'a> {
    linear: &'a Linear<'a>,
    first: usize,
    m: usize,
    panels: Range<usize>,
    tiles: Range<usize>,
    packed: Shared<f32>,
}

impl UnitTask for Panels<'_> {
    #[inline(always)]
    fn run<U: Unit>(self, u: U) {
        let s = u.simd();
        let Linear { k, n, weight, gate, finish } = *self.linear;
        let (rows, cols) = (U::ROWS, U::COLS);
        let words = words::<U>(k);
        let width = self.panels.len();
        let sources = [Some(weight), gate];
        let weights = 1 + gate.is_some() as usize;
        // The words of a sum that are widened at a time.
        let piece = (U::PANELS / (width * weights * cols) / U::K_BLOCK).max(1) * U::K_BLOCK;
        let piece = piece.min(words);
        // Where the unit multiplies beside the vectors, a tile is finished while the next is multiplied.
        let waiting = if piece < words { self.tiles.len() } else { 1 + U::BESIDE as usize };
        let (panel, tile_sums) = (piece * cols, width * weights * rows * cols);
        let sizes = [width * weights * panel, waiting * tile_sums, width * cols];
        let mut local = local(sizes.iter().map(|&len| rounded(len)).sum());
        let mut scratch = local.all();
        let wide = cut(&mut scratch, sizes[0]).as_mut_ptr();
        let sums = cut(&mut scratch, sizes[1]).as_mut_ptr();
        let bias = cut(&mut scratch, sizes[2]);
        if let Some(b) = finish.bias {
            for (i, p) in self.panels.clone().enumerate() {
                let some = cols.min(n - p * cols);
                // SAFETY: the bias has `n` elements.
                unsafe { b.widen(s, p * cols, &mut bias[i * cols..][..some]) };
            }
        }
        let pieces = if U::BESIDE { 2 * width * weights * words / U::STEP } else { 1 };
        let mut finishing = Finishing {
            s,
            finish,
            n,
            cols,
            panels: self.panels.clone(),
            bias,
            gated: gate.is_some(),
            sums,
            rows,
            first: 0,
            height: 0,
            next: (0, 0),
            some: (rows * width).div_ceil(pieces),
        };
        u.begin();
        for from in (0..words).step_by(piece) {
            let range = from..words.min(from + piece);
            for (i, p) in self.panels.clone().enumerate() {
                for (j, w) in sources.iter().flatten().enumerate() {
                    let out = wide.wrapping_add((i * weights + j) * panel);
                    // SAFETY: the weight is valid (`matrix`), the panel is this thread's.
                    unsafe { pack_panel(u, w, p * cols, n, k, range.clone(), out) };
                }
            }
            for tile in self.tiles.clone() {
                let height = rows.min(self.m - tile * rows);
                let x = self.packed.at(tile * U::LEFT * words);
                let sums = sums.wrapping_add((tile - self.tiles.start) % waiting * tile_sums);
                // A block of `k` at a time over all panels: the row tile's block stays in the first cache.
                for p in range.clone().step_by(U::K_BLOCK) {
                    for i in 0..width * weights {
                        let args = TileArgs {
                            rows: height,
                            k: U::K_BLOCK.min(range.end - p),
                            x: x.wrapping_add(p * U::LEFT),
                            w: wide.wrapping_add(i * panel + (p - from) * cols),
                            ldw: cols,
                            c: sums.wrapping_add(i * rows * cols),
                            ldc: cols,
                            add: p > 0,
                        };
                        // SAFETY: all three lie in the scratch and the packed rows, within the sizes above.
                        unsafe { u.tile_beside(args, &mut finishing) };
                    }
                }
                if range.end < words {
                    continue;
                }
                finishing.rest();
                (finishing.sums, finishing.first) = (sums, self.first + tile * rows);
                (finishing.height, finishing.next) = (height, (0, 0));
                if !U::BESIDE {
                    finishing.rest();
                }
            }
        }
        finishing.rest();
        u.end();
        if finish.stream {
            s.streamed();
        }
    }
}

/// A row tile's sums on their way to the outputs, row by row: a row's panels lie side by side there.
struct Finishing<'a, S> {
    s: S,
    finish: Finish<'a>,
    n: usize,
    /// Columns of a panel.
    cols: usize,
    panels: Range<usize>,
    bias: &'a [f32],
    /// Whether each panel's sums are followed by the gate's.
    gated: bool,
    /// `[panels, weights, rows, cols]`.
    sums: *const f32,
    rows: usize,
    /// The tile's first row, and how many there are.
    first: usize,
    height: usize,
    /// The next row and its next panel.
    next: (usize, usize),
    /// How many panels of rows at a time.
    some: usize,
}

impl<S: Simd> Beside for Finishing<'_, S> {
    #[inline(always)]
    fn is_done(&self) -> bool {
        self.next.0 == self.height
    }

    #[inline(always)]
    fn some(&mut self) {
        for _ in 0..self.some {
            let (r, i) = self.next;
            if r == self.height {
                return;
            }
            let col = (self.panels.start + i) * self.cols;
            let weights = 1 + self.gated as usize;
            let sums = |j: usize| self.sums.wrapping_add(((i * weights + j) * self.rows + r) * self.cols);
            let place = Place { row: self.first + r, col, cols: self.cols.min(self.n - col) };
            let bias = &self.bias[i * self.cols..];
            // SAFETY: rows and columns of the layer, whose sums are there; these outputs are this part's alone.
            unsafe { self.finish.row(self.s, place, sums(0), self.gated.then(|| sums(1)), bias) };
            self.next = if i + 1 < self.panels.len() { (r, i + 1) } else { (r + 1, 0) };
        }
    }
}
