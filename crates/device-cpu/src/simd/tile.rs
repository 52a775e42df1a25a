//! The register tile: all matrix products end here.
//!
//! An element's sum runs over `p` upwards in one accumulator, whatever the tile's height, so that no bit of it
//! depends on where in a tile, or in how full a tile, it is computed.

use super::{Simd, TileArgs};

/// `c + x * w`, word by word.
pub(crate) trait Product<S: Simd>: Copy {
    /// Adds the products of two vectors of words to a vector of sums.
    fn accumulate(self, x: S::V, w: S::V, c: S::V) -> S::V;
}

impl<S: Simd> Product<S> for S {
    #[inline(always)]
    fn accumulate(self, x: S::V, w: S::V, c: S::V) -> S::V {
        self.fma(x, w, c)
    }
}

/// `R` rows by `N` vectors. `x[i][p]` lies at `x + i * RS + p * KS`.
///
/// # Safety
/// As [`Simd::tile_packed`], for these strides.
#[inline(always)]
pub(crate) unsafe fn tile<S: Simd, P: Product<S>, const R: usize, const N: usize, const RS: usize, const KS: usize>(
    s: S,
    product: P,
    a: TileArgs,
) {
    let mut acc = [[s.splat(0.0); N]; R];
    // SAFETY: the caller vouches for `k` steps over both operands and for the `R` rows of `c`.
    unsafe {
        let (mut x, mut w) = (a.x, a.w);
        for _ in 0..a.k {
            let mut wide = [s.splat(0.0); N];
            for (j, v) in wide.iter_mut().enumerate() {
                *v = s.load(w.add(j * S::LANES));
            }
            for (i, row) in acc.iter_mut().enumerate() {
                let one = s.splat(*x.add(i * RS));
                for (j, v) in row.iter_mut().enumerate() {
                    *v = product.accumulate(one, wide[j], *v);
                }
            }
            x = x.wrapping_add(KS);
            w = w.wrapping_add(a.ldw);
        }
        for (i, row) in acc.iter().enumerate() {
            for (j, &v) in row.iter().enumerate() {
                let c = a.c.add(i * a.ldc + j * S::LANES);
                s.store(c, if a.add { s.add(s.load(c), v) } else { v });
            }
        }
    }
}

/// Picks the lowest tile that is high enough among those listed.
macro_rules! tiles {
    ($s:expr, $product:expr, $args:expr, $n:literal, $rs:expr, $ks:expr, [$($r:literal)*]) => {
        match $args.rows {
            // SAFETY: handed on from this function's caller.
            $(..=$r => unsafe { crate::simd::tile::tile::<_, _, $r, $n, { $rs }, { $ks }>($s, $product, $args) },)*
            rows => unreachable!("a tile of {rows} rows"),
        }
    };
}
pub(crate) use tiles;

/// Elements of a sum that one accumulator takes: longer sums are added up block by block, which halves the
/// rounding error of a 2048-long sum and lets a block of both operands stay in the first cache.
pub(crate) const K_BLOCK: usize = 256;
