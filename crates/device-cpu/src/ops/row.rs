//! The row kernel: a linear layer on rows that are being decoded.
//!
//! Each weight is read from memory once for all rows, and memory is what bounds it. A dot product always runs
//! in two vectors of partial sums, however many rows and outputs are computed beside it.

use turbospark_device::op::WeightLayout;

use super::finish::{Linear, Place};
use super::{Engine, Rows};
use crate::scratch::{cut, local, rounded};
use crate::simd::stored::{Stored, Weight, with_stored};
use crate::simd::tile::K_BLOCK;
use crate::simd::{Simd, Task};

/// `Linear` on `rows` rows of `x`.
///
/// # Safety
/// As for [`matrix`](super::matrix::matrix).
pub(crate) unsafe fn row(engine: &Engine, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    if rows == 0 || linear.n == 0 {
        return;
    }
    let cols = engine.kernels.tile_cols();
    let blocks = linear.n.div_ceil(cols);
    engine.split(blocks, cols * linear.k * (1 + rows / 4), |blocks| {
        engine.kernels.run(Blocks { linear, x, rows, blocks });
    });
}

/// Some blocks of `TILE_COLS` outputs.
struct Blocks<'a> {
    linear: &'a Linear<'a>,
    x: Rows<'a>,
    rows: usize,
    blocks: std::ops::Range<usize>,
}

impl Task for Blocks<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Linear { n, weight, gate, finish, .. } = *self.linear;
        let cols = S::TILE_COLS;
        let size = rounded(self.rows * cols);
        let waiting = size * 2 * S::LANES;
        let mut local = local(2 * size + rounded(cols) + waiting);
        let mut scratch = local.all();
        let sums = cut(&mut scratch, size).as_mut_ptr();
        let gates = cut(&mut scratch, size).as_mut_ptr();
        let bias = cut(&mut scratch, cols);
        let acc = cut(&mut scratch, waiting).as_mut_ptr();
        for block in self.blocks.clone() {
            let col = block * cols;
            let some = cols.min(n - col);
            if let Some(b) = finish.bias {
                // SAFETY: the bias has `n` elements.
                unsafe { b.widen(s, col, &mut bias[..some]) };
            }
            let to = |out| Target { col, cols: some, acc, out };
            // SAFETY: the weights are valid (`row`), the scratch is this thread's and large enough.
            unsafe {
                self.products(s, &weight, to(sums));
                if let Some(gate) = gate {
                    self.products(s, &gate, to(gates));
                }
                for row in 0..self.rows {
                    let at = |p: *mut f32| p.add(row * cols).cast_const();
                    let place = Place { row, col, cols: some };
                    finish.row(s, place, at(sums), gate.map(|_| at(gates)), bias);
                }
            }
        }
    }
}

/// A block of outputs before they are finished.
#[derive(Clone, Copy)]
struct Target {
    /// The first output.
    col: usize,
    /// How many, at most `TILE_COLS`.
    cols: usize,
    /// `[rows, TILE_COLS]` pairs of vectors, for sums taken in pieces.
    acc: *mut f32,
    /// `[rows, TILE_COLS]` sums.
    out: *mut f32,
}

impl Blocks<'_> {
    /// `to.out[row][j] = x[row] . w[to.col + j]`.
    ///
    /// # Safety
    /// The weight covers these columns; the target is writable.
    #[inline(always)]
    unsafe fn products<S: Simd>(&self, s: S, w: &Weight, to: Target) {
        with_stored!(w.dtype, T => {
            // SAFETY: the caller's promise.
            unsafe {
                match w.layout {
                    WeightLayout::OutIn => self.dots::<S, T>(s, w, to),
                    WeightLayout::InOut => self.columns::<S, T>(s, w, to),
                }
            }
        })
    }

    /// [`Blocks::products`] for rows of weights.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn dots<S: Simd, T: Stored>(&self, s: S, w: &Weight, to: Target) {
        let k = self.linear.k;
        // Several rows don't fit the first cache, so they are taken a piece at a time, and the partial sums of
        // the block's outputs wait in memory. Which pieces they are changes no sum.
        let piece = if self.rows * k <= CACHED { k.max(1) } else { PIECE };
        let mut p = 0;
        loop {
            let steps = Steps { from: p, to: k.min(p + piece), k, ahead: 0 };
            let mut j = 0;
            while j < to.cols {
                // SAFETY: the caller's promise.
                j += unsafe {
                    match (to.cols - j, self.rows) {
                        (4.., 1) => self.dot_rows::<S, T, 4>(s, steps, w, to, j),
                        (2.., _) => self.dot_rows::<S, T, 2>(s, steps, w, to, j),
                        _ => self.dot_rows::<S, T, 1>(s, steps, w, to, j),
                    }
                };
            }
            p += piece;
            if p >= k {
                return;
            }
        }
    }

    /// `O` weight rows from the target's `j`th on times all rows, up to four at a time; returns `O`.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn dot_rows<S: Simd, T: Stored, const O: usize>(
        &self,
        s: S,
        steps: Steps,
        w: &Weight,
        target: Target,
        j: usize,
    ) -> usize {
        let mut rows = [w.ptr; O];
        for (o, row) in rows.iter_mut().enumerate() {
            *row = w.ptr.wrapping_add((target.col + j + o) * w.stride * T::SIZE);
        }
        let x = |r: usize| self.x.row(r).cast_const();
        let to = |r: usize| Sums {
            acc: target.acc.wrapping_add((r * S::TILE_COLS + j) * 2 * S::LANES),
            out: target.out.wrapping_add(r * S::TILE_COLS + j),
            stride: S::TILE_COLS,
        };
        let mut r = 0;
        // The next rows of weights are asked for once, as these are first read.
        let mut steps = Steps { ahead: O * w.stride * T::SIZE, ..steps };
        // SAFETY: the caller's promise.
        unsafe {
            while r + 4 <= self.rows {
                dot::<S, T, 4, O>(s, steps, [x(r), x(r + 1), x(r + 2), x(r + 3)], rows, to(r));
                steps.ahead = 0;
                r += 4;
            }
            match self.rows - r {
                3 => dot::<S, T, 3, O>(s, steps, [x(r), x(r + 1), x(r + 2)], rows, to(r)),
                2 => dot::<S, T, 2, O>(s, steps, [x(r), x(r + 1)], rows, to(r)),
                1 => dot::<S, T, 1, O>(s, steps, [x(r)], rows, to(r)),
                _ => {}
            }
        }
        O
    }

    /// [`Blocks::products`] for columns of weights: a sum runs in blocks of [`K_BLOCK`], one accumulator each.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn columns<S: Simd, T: Stored>(&self, s: S, w: &Weight, to: Target) {
        let mut p = 0;
        loop {
            let end = self.linear.k.min(p + K_BLOCK);
            let mut j = 0;
            while j < to.cols {
                let wide = j + 2 * S::LANES <= to.cols;
                let part = Target { col: to.col + j, cols: to.cols - j, out: to.out.wrapping_add(j), ..to };
                let mut r = 0;
                // SAFETY: the caller's promise.
                unsafe {
                    while r < self.rows {
                        r += match (wide, self.rows - r) {
                            (true, 4..) => self.column::<S, T, 4, 2>(s, w, p..end, r, part),
                            (true, _) => self.column::<S, T, 1, 2>(s, w, p..end, r, part),
                            _ => self.column::<S, T, 1, 1>(s, w, p..end, r, part),
                        };
                    }
                }
                j += if wide { 2 * S::LANES } else { S::LANES };
            }
            p = end;
            if p >= self.linear.k {
                return;
            }
        }
    }

    /// Adds steps `range` of `R` rows and `N` vectors of columns; an only one may be cut short. Returns `R`.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn column<S: Simd, T: Stored, const R: usize, const N: usize>(
        &self,
        s: S,
        w: &Weight,
        range: std::ops::Range<usize>,
        row: usize,
        target: Target,
    ) -> usize {
        let mut acc = [[s.splat(0.0); N]; R];
        let mut x = [self.x.row(row).cast_const(); R];
        for (i, x) in x.iter_mut().enumerate() {
            *x = self.x.row(row + i);
        }
        // SAFETY: the caller's promise; a vector cut short loads what is left.
        unsafe {
            for p in range.clone() {
                let mut wide = [s.splat(0.0); N];
                for (j, v) in wide.iter_mut().enumerate() {
                    let from = w.ptr.wrapping_add((p * w.stride + target.col + j * S::LANES) * T::SIZE);
                    let some = S::LANES.min(target.cols - j * S::LANES);
                    *v = if some == S::LANES { T::load(s, from) } else { T::load_some(s, from, some) };
                }
                for (row, x) in acc.iter_mut().zip(x) {
                    let x = s.splat(*x.add(p));
                    for (a, v) in row.iter_mut().zip(wide) {
                        *a = s.fma(x, v, *a);
                    }
                }
            }
            for (i, vectors) in acc.into_iter().enumerate() {
                for (j, v) in vectors.into_iter().enumerate() {
                    let to = target.out.add((row + i) * S::TILE_COLS + j * S::LANES);
                    s.store(to, if range.start > 0 { s.add(s.load(to), v) } else { v });
                }
            }
        }
        R
    }
}

/// Elements of all rows that the first cache holds beside weights and partial sums.
const CACHED: usize = 6 << 10;

/// Steps of a sum that are taken at a time where rows exceed [`CACHED`]; a whole number of pairs of vectors.
const PIECE: usize = 512;

/// Which steps of a sum of `k` to take.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    pub from: usize,
    /// `k`, or a multiple of [`PIECE`].
    pub to: usize,
    pub k: usize,
    /// Bytes from a weight to the one that is wanted next in its place, to be fetched meanwhile; 0 for none.
    pub ahead: usize,
}

impl Steps {
    /// All of them.
    pub(super) fn all(k: usize) -> Self {
        Steps { from: 0, to: k, k, ahead: 0 }
    }
}

/// Where the sums go: of row `r` and weight `o`, the `r * stride + o`th place.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// Partial sums between the pieces of a long sum: two vectors a place.
    pub acc: *mut f32,
    /// The sums.
    pub out: *mut f32,
    /// See above.
    pub stride: usize,
}

/// `R` rows times `O` rows of weights.
///
/// # Safety
/// All rows are readable for `k` elements; the places of `sums` are writable, those of partial sums where the
/// steps are not all.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd, T: Stored, const R: usize, const O: usize>(
    s: S,
    steps: Steps,
    x: [*const f32; R],
    w: [*const u8; O],
    sums: Sums,
) {
    let lanes = S::LANES;
    // Two arrays, and their step a function: indexed by a loop's variable they would live in memory.
    let mut even = [[s.splat(0.0); O]; R];
    let mut odd = even;
    let mut p = steps.from;
    // SAFETY: the caller's promise; every load ends at or before `k`.
    unsafe {
        let place = |r: usize, o: usize| sums.acc.wrapping_add((r * sums.stride + o) * 2 * lanes);
        if p > 0 {
            for r in 0..R {
                for o in 0..O {
                    even[r][o] = s.load(place(r, o));
                    odd[r][o] = s.load(place(r, o).add(lanes));
                }
            }
        }
        while p + 2 * lanes <= steps.to {
            if steps.ahead > 0 {
                for w in w {
                    for line in (0..2 * lanes * T::SIZE).step_by(64) {
                        s.prefetch(w.wrapping_add(p * T::SIZE + line + steps.ahead));
                    }
                }
            }
            step::<S, T, R, O>(s, p, &x, &w, &mut even);
            step::<S, T, R, O>(s, p + lanes, &x, &w, &mut odd);
            p += 2 * lanes;
        }
        if steps.to < steps.k {
            for r in 0..R {
                for o in 0..O {
                    s.store(place(r, o), even[r][o]);
                    s.store(place(r, o).add(lanes), odd[r][o]);
                }
            }
            return;
        }
        while p < steps.k {
            let some = lanes.min(steps.k - p);
            for o in 0..O {
                let from = w[o].add(p * T::SIZE);
                let wide = if some == lanes { T::load(s, from) } else { T::load_some(s, from, some) };
                for r in 0..R {
                    even[r][o] = s.fma(s.load_some(x[r].add(p), some), wide, even[r][o]);
                }
            }
            p += some;
        }
        for r in 0..R {
            for o in 0..O {
                *sums.out.add(r * sums.stride + o) = s.sum(s.add(even[r][o], odd[r][o]));
            }
        }
    }
}

/// One vector of each row times one of each row of weights.
///
/// # Safety
/// Both are readable at `at`.
#[inline(always)]
unsafe fn step<S: Simd, T: Stored, const R: usize, const O: usize>(
    s: S,
    at: usize,
    x: &[*const f32; R],
    w: &[*const u8; O],
    acc: &mut [[S::V; O]; R],
) {
    let mut wide = [s.splat(0.0); O];
    for o in 0..O {
        // SAFETY: the caller's promise.
        wide[o] = unsafe { T::load(s, w[o].add(at * T::SIZE)) };
    }
    for r in 0..R {
        // SAFETY: the caller's promise.
        let v = unsafe { s.load(x[r].add(at)) };
        for o in 0..O {
            acc[r][o] = s.fma(v, wide[o], acc[r][o]);
        }
    }
}
