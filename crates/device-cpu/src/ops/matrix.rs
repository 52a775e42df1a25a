//! The matrix kernel: a linear layer on the rows of a prompt.
//!
//! The activations are packed once for the tile kernel, by all threads. Then each thread takes a few panels of
//! weights, widens and transposes them into its second cache, and runs all row tiles over them. An output's
//! sum runs over `k` in blocks of [`K_BLOCK`], whatever the number of rows or threads.

use turbospark_device::op::WeightLayout;

use super::finish::{Linear, Place};
use super::{Engine, Rows, Shared};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{Stored, Weight, with_stored};
use crate::simd::tile::K_BLOCK;
use crate::simd::{Simd, Task, TileArgs};

/// Packed activations at most, in elements (8 MiB): they stay in the last cache while panels pass by.
const PACKED: usize = 2 << 20;

/// Widened weights of one task, in elements (half a megabyte): they stay in the second cache.
const PANELS: usize = 128 << 10;

/// `Linear` on `rows` rows of `x`.
///
/// # Safety
/// The rows, weights and outputs of `linear` are valid for its sizes, locked by the op, and `out` overlaps
/// none but `residual`.
pub(crate) unsafe fn matrix(engine: &mut Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let (tile_rows, tile_cols) = engine.kernels.tile();
    let (k, n) = (linear.k, linear.n);
    if rows == 0 || n == 0 {
        return;
    }
    let most = (PACKED / k.max(1)).max(16 * tile_rows);
    let blocks = rows.div_ceil(most);
    let block = rows.div_ceil(blocks).next_multiple_of(tile_rows);
    let threads = engine.pool.threads();
    let weights = 1 + linear.gate.is_some() as usize;
    let panels = n.div_ceil(tile_cols);
    let fits = PANELS / (k * tile_cols * weights).max(1);
    let width = fits.min(panels / (4 * threads)).clamp(1, 4);
    let tasks = panels.div_ceil(width);
    for first in (0..rows).step_by(block) {
        let m = block.min(rows - first);
        let tiles = m.div_ceil(tile_rows);
        let packed = Shared::new(engine.packed.get(tiles * tile_rows * k));
        let (kernels, pool) = (engine.kernels, &engine.pool);
        let packs = tiles.min(4 * threads);
        pool.run(packs, |part| {
            let range = super::share(tiles, packs, part);
            kernels.run(PackRows { x, first, m, k, tiles: range, packed });
        });
        // Few panels and many rows: the rows are shared out too, and each share widens the panels again.
        let splits = (2 * threads).div_ceil(tasks).min(tiles.div_ceil(4));
        pool.run(tasks * splits, |part| {
            let (task, split) = (part % tasks, part / tasks);
            let panels = task * width..panels.min((task + 1) * width);
            let tiles = super::share(tiles, splits, split);
            kernels.run(Panels { linear, first, m, panels, tiles, packed });
        });
    }
}

/// Packs row tiles as `[k, TILE_ROWS]`.
struct PackRows<'a> {
    x: Rows<'a>,
    first: usize,
    m: usize,
    k: usize,
    tiles: std::ops::Range<usize>,
    packed: Shared<f32>,
}

impl Task for PackRows<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for tile in self.tiles {
            let first = tile * S::TILE_ROWS;
            let out = self.packed.at(first * self.k);
            let rows = S::TILE_ROWS.min(self.m - first);
            // SAFETY: the tile's rows are valid (`matrix`), and its packed form is this part's alone.
            unsafe { pack_rows::<S>(rows, self.k, |i| self.x.row(self.first + first + i), out) };
        }
    }
}

/// Packs `rows` rows of `k` as `[k, TILE_ROWS]`.
///
/// # Safety
/// The rows are readable and `out` is writable for `k * TILE_ROWS` elements, which nobody else touches.
#[inline(always)]
pub(crate) unsafe fn pack_rows<S: Simd>(rows: usize, k: usize, row: impl Fn(usize) -> *mut f32, out: *mut f32) {
    for i in 0..rows {
        let from = row(i).cast_const();
        // A row at a time: the strided side is written, into a tile that the second cache holds.
        for p in 0..k {
            // SAFETY: the caller's promise.
            unsafe { *out.add(p * S::TILE_ROWS + i) = *from.add(p) };
        }
    }
}

/// Widens columns `col..col + TILE_COLS` of the product's right side as `[k, TILE_COLS]`, zeros past `n`.
///
/// # Safety
/// The weight is readable for `[n, k]` in its layout; `out` is writable for `k * TILE_COLS` elements.
#[inline(always)]
pub(crate) unsafe fn pack_panel<S: Simd>(s: S, w: &Weight, col: usize, n: usize, k: usize, out: *mut f32) {
    let cols = S::TILE_COLS.min(n - col);
    with_stored!(w.dtype, T => {
        // SAFETY: the caller's promise; each load stays within `cols` columns and `k` steps.
        unsafe {
            match w.layout {
                WeightLayout::OutIn => {
                    let row = |i: usize| w.ptr.wrapping_add((col + i) * w.stride * T::SIZE);
                    pack_transposed::<S, T>(s, cols, k, row, out);
                }
                WeightLayout::InOut => {
                    for p in 0..k {
                        let from = w.ptr.wrapping_add((p * w.stride + col) * T::SIZE);
                        widen_row::<S, T>(s, from, cols, out.add(p * S::TILE_COLS), S::TILE_COLS);
                    }
                }
            }
        }
    })
}

/// Widens `cols` elements and appends zeros up to `width`, a whole number of vectors.
///
/// # Safety
/// `cols` elements are readable and `width` writable.
#[inline(always)]
pub(crate) unsafe fn widen_row<S: Simd, T: Stored>(s: S, from: *const u8, cols: usize, out: *mut f32, width: usize) {
    for j in (0..width).step_by(S::LANES) {
        let some = S::LANES.min(cols.saturating_sub(j));
        let p = from.wrapping_add(j * T::SIZE);
        // SAFETY: `some` elements are left.
        unsafe {
            let v = if some == S::LANES { T::load(s, p) } else { T::load_some(s, p, some) };
            s.store(out.add(j), v);
        }
    }
}

/// Widens rows of `k` as columns of `[k, TILE_COLS]`; columns past `cols` become zero.
///
/// # Safety
/// Each of the `cols` rows is readable for `k` elements; `out` is writable for `k * TILE_COLS`.
#[inline(always)]
pub(crate) unsafe fn pack_transposed<S: Simd, T: Stored>(
    s: S,
    cols: usize,
    k: usize,
    row: impl Fn(usize) -> *const u8,
    out: *mut f32,
) {
    let mut block = [s.splat(0.0); 16];
    let block = &mut block[..S::LANES];
    for g in (0..S::TILE_COLS).step_by(S::LANES) {
        for p in (0..k).step_by(S::LANES) {
            let some = S::LANES.min(k - p);
            for (l, v) in block.iter_mut().enumerate() {
                *v = s.splat(0.0);
                if g + l < cols {
                    let from = row(g + l).wrapping_add(p * T::SIZE);
                    // SAFETY: `some` elements are left in the row.
                    *v = unsafe { if some == S::LANES { T::load(s, from) } else { T::load_some(s, from, some) } };
                }
            }
            // SAFETY: a full block fits; the last steps of `k` go through a block of their own.
            unsafe {
                let to = out.add(p * S::TILE_COLS + g);
                if some == S::LANES {
                    s.store_transposed(block, to, S::TILE_COLS);
                } else {
                    let mut last = [0f32; 16 * 16];
                    s.store_transposed(block, last.as_mut_ptr(), S::LANES);
                    for i in 0..some {
                        s.store(to.add(i * S::TILE_COLS), s.load(last.as_ptr().add(i * S::LANES)));
                    }
                }
            }
        }
    }
}

/// Some panels times some row tiles.
struct Panels<'a> {
    linear: &'a Linear<'a>,
    first: usize,
    m: usize,
    panels: std::ops::Range<usize>,
    tiles: std::ops::Range<usize>,
    packed: Shared<f32>,
}

impl Task for Panels<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Linear { k, n, weight, gate, finish } = *self.linear;
        let (rows, cols) = (S::TILE_ROWS, S::TILE_COLS);
        let width = self.panels.len();
        let sources = [Some(weight), gate];
        let weights = 1 + gate.is_some() as usize;
        let panel = k * cols;
        let sizes = [width * weights * panel, width * weights * rows * cols, width * cols];
        let mut local = local(sizes.iter().map(|&len| rounded(len)).sum());
        let mut scratch = local.all();
        let wide = cut(&mut scratch, sizes[0]).as_mut_ptr();
        let sums = cut(&mut scratch, sizes[1]).as_mut_ptr();
        let bias = cut(&mut scratch, sizes[2]);
        for (i, p) in self.panels.clone().enumerate() {
            let col = p * cols;
            for (j, w) in sources.iter().flatten().enumerate() {
                // SAFETY: the weight is valid (`matrix`), the panel is this thread's.
                unsafe { pack_panel(s, w, col, n, k, wide.add((i * weights + j) * panel)) };
            }
            if let Some(b) = finish.bias {
                // SAFETY: the bias has `n` elements.
                unsafe { b.widen(s, col, &mut bias[i * cols..][..cols.min(n - col)]) };
            }
        }
        for tile in self.tiles {
            let height = rows.min(self.m - tile * rows);
            let x = self.packed.at(tile * rows * k);
            let mut p = 0;
            // A block of `k` at a time over all panels: the row tile's block stays in the first cache.
            loop {
                let step = K_BLOCK.min(k - p);
                for i in 0..width * weights {
                    let args = TileArgs {
                        rows: height,
                        k: step,
                        x: x.wrapping_add(p * rows),
                        w: wide.wrapping_add(i * panel + p * cols),
                        ldw: cols,
                        c: sums.wrapping_add(i * rows * cols),
                        ldc: cols,
                        add: p > 0,
                    };
                    // SAFETY: all three lie in the scratch and the packed rows, within the sizes above.
                    unsafe { s.tile_packed(args) };
                }
                p += step;
                if p >= k {
                    break;
                }
            }
            for (i, panel) in self.panels.clone().enumerate() {
                let (col, row) = (panel * cols, self.first + tile * rows);
                for r in 0..height {
                    let at = |j: usize| sums.wrapping_add(((i * weights + j) * rows + r) * cols).cast_const();
                    let gate = gate.map(|_| at(1));
                    let bias = &bias[i * cols..];
                    let place = Place { row: row + r, col, cols: cols.min(n - col) };
                    // SAFETY: rows and columns of the layer; these outputs are this part's alone.
                    unsafe { finish.row(s, place, at(0), gate, bias) };
                }
            }
        }
    }
}
