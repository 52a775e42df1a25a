//! The row kernel: a linear layer on rows that are being decoded.
//!
//! Each weight is read from memory once for all rows, and memory is what bounds it. A dot product always runs
//! in two vectors of partial sums, however many rows and outputs are computed beside it.

use turbospark_device::op::WeightLayout;

use super::finish::Linear;
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
    let (_, cols) = engine.kernels.tile();
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
        let mut local = local(2 * size + rounded(cols));
        let mut scratch = local.all();
        let sums = cut(&mut scratch, size).as_mut_ptr();
        let gates = cut(&mut scratch, size).as_mut_ptr();
        let bias = cut(&mut scratch, cols);
        for block in self.blocks.clone() {
            let col = block * cols;
            let some = cols.min(n - col);
            if let Some(b) = finish.bias {
                // SAFETY: the bias has `n` elements.
                unsafe { b.widen(s, col, &mut bias[..some]) };
            }
            // SAFETY: the weights are valid (`row`), the scratch is this thread's and large enough.
            unsafe {
                self.products(s, &weight, col, some, sums);
                if let Some(gate) = gate {
                    self.products(s, &gate, col, some, gates);
                }
                for r in 0..self.rows {
                    let at = |p: *mut f32| p.add(r * cols).cast_const();
                    finish.row(s, r, col, some, at(sums), gate.map(|_| at(gates)), bias);
                }
            }
        }
    }
}

impl Blocks<'_> {
    /// `out[row][j] = x[row] . w[col + j]` for `cols` columns; `out` has `TILE_COLS` columns.
    ///
    /// # Safety
    /// The weight covers these columns; `out` is writable.
    #[inline(always)]
    unsafe fn products<S: Simd>(&self, s: S, w: &Weight, col: usize, cols: usize, out: *mut f32) {
        with_stored!(w.dtype, T => {
            // SAFETY: the caller's promise.
            unsafe {
                match w.layout {
                    WeightLayout::OutIn => self.dots::<S, T>(s, w, col, cols, out),
                    WeightLayout::InOut => self.columns::<S, T>(s, w, col, cols, out),
                }
            }
        })
    }

    /// [`Blocks::products`] for rows of weights.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn dots<S: Simd, T: Stored>(&self, s: S, w: &Weight, col: usize, cols: usize, out: *mut f32) {
        let at = |j: usize| w.ptr.wrapping_add((col + j) * w.stride * T::SIZE);
        let mut j = 0;
        // SAFETY: the caller's promise.
        unsafe {
            if self.rows == 1 {
                while j + 4 <= cols {
                    self.dot_rows::<S, T, 4>(s, [at(j), at(j + 1), at(j + 2), at(j + 3)], out.add(j));
                    j += 4;
                }
            }
            while j + 2 <= cols {
                self.dot_rows::<S, T, 2>(s, [at(j), at(j + 1)], out.add(j));
                j += 2;
            }
            if j < cols {
                self.dot_rows::<S, T, 1>(s, [at(j)], out.add(j));
            }
        }
    }

    /// `O` weight rows times all rows, up to four at a time.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn dot_rows<S: Simd, T: Stored, const O: usize>(&self, s: S, w: [*const u8; O], out: *mut f32) {
        let k = self.linear.k;
        let x = |r: usize| self.x.row(r).cast_const();
        let to = |r: usize| out.wrapping_add(r * S::TILE_COLS);
        let mut r = 0;
        // SAFETY: the caller's promise.
        unsafe {
            while r + 4 <= self.rows {
                dot::<S, T, 4, O>(s, k, [x(r), x(r + 1), x(r + 2), x(r + 3)], w, to(r), S::TILE_COLS);
                r += 4;
            }
            match self.rows - r {
                3 => dot::<S, T, 3, O>(s, k, [x(r), x(r + 1), x(r + 2)], w, to(r), S::TILE_COLS),
                2 => dot::<S, T, 2, O>(s, k, [x(r), x(r + 1)], w, to(r), S::TILE_COLS),
                1 => dot::<S, T, 1, O>(s, k, [x(r)], w, to(r), S::TILE_COLS),
                _ => {}
            }
        }
    }

    /// [`Blocks::products`] for columns of weights.
    ///
    /// # Safety
    /// As [`Blocks::products`].
    #[inline(always)]
    unsafe fn columns<S: Simd, T: Stored>(&self, s: S, w: &Weight, col: usize, cols: usize, out: *mut f32) {
        let mut p = 0;
        loop {
            let step = K_BLOCK.min(self.linear.k - p);
            for j in (0..cols).step_by(S::LANES) {
                let some = S::LANES.min(cols - j);
                for r in 0..self.rows {
                    let x = self.x.row(r).wrapping_add(p).cast_const();
                    let mut acc = s.splat(0.0);
                    // SAFETY: the caller's promise; `some` columns are left.
                    unsafe {
                        for i in 0..step {
                            let from = w.ptr.wrapping_add(((p + i) * w.stride + col + j) * T::SIZE);
                            let v = if some == S::LANES { T::load(s, from) } else { T::load_some(s, from, some) };
                            acc = s.fma(s.splat(*x.add(i)), v, acc);
                        }
                        let to = out.add(r * S::TILE_COLS + j);
                        s.store(to, if p > 0 { s.add(s.load(to), acc) } else { acc });
                    }
                }
            }
            p += step;
            if p >= self.linear.k {
                return;
            }
        }
    }
}

/// `R` rows times `O` rows of weights; the result of row `r` and weight `o` goes to `out[r * ldo + o]`.
///
/// # Safety
/// All rows are readable for `k` elements; `out` is writable.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd, T: Stored, const R: usize, const O: usize>(
    s: S,
    k: usize,
    x: [*const f32; R],
    w: [*const u8; O],
    out: *mut f32,
    ldo: usize,
) {
    let lanes = S::LANES;
    let mut acc = [[[s.splat(0.0); 2]; O]; R];
    let mut p = 0;
    // SAFETY: the caller's promise; every load ends at or before `k`.
    unsafe {
        while p + 2 * lanes <= k {
            for u in 0..2 {
                let at = p + u * lanes;
                let mut wide = [s.splat(0.0); O];
                for (v, w) in wide.iter_mut().zip(w) {
                    *v = T::load(s, w.add(at * T::SIZE));
                }
                for (row, x) in acc.iter_mut().zip(x) {
                    let v = s.load(x.add(at));
                    for (a, w) in row.iter_mut().zip(wide) {
                        a[u] = s.fma(v, w, a[u]);
                    }
                }
            }
            p += 2 * lanes;
        }
        while p < k {
            let some = lanes.min(k - p);
            for (o, w) in w.into_iter().enumerate() {
                let from = w.add(p * T::SIZE);
                let wide = if some == lanes { T::load(s, from) } else { T::load_some(s, from, some) };
                for (row, x) in acc.iter_mut().zip(x) {
                    row[o][0] = s.fma(s.load_some(x.add(p), some), wide, row[o][0]);
                }
            }
            p += some;
        }
        for (r, row) in acc.iter().enumerate() {
            for (o, a) in row.iter().enumerate() {
                *out.add(r * ldo + o) = s.sum(s.add(a[0], a[1]));
            }
        }
    }
}
