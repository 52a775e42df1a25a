//! Dot products of rows of activations and rows of weights, each in one vector of partial sums.

use crate::simd::Simd;
use crate::simd::stored::Stored;
use crate::simd::unit::{Unit, Vectors};

/// The steps of a sum.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// How many.
    pub k: usize,
    /// Bytes ahead of the weights that are fetched meanwhile; 0 for none.
    pub ahead: usize,
}

impl Steps {
    /// `k` of them on what is near.
    pub(super) fn all(k: usize) -> Self {
        Steps { k, ahead: 0 }
    }
}

/// Where the sums go: of row `r` and weight `o`, `r * row + o * weight` places on.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub out: *mut f32,
    pub row: usize,
    pub weight: usize,
}

/// `R` rows times `O` rows of weights, in f32.
///
/// # Safety
/// All rows are readable for `k` elements; the places of `sums` are writable.
#[inline(always)]
pub(super) unsafe fn dot<S: Simd, T: Stored, const R: usize, const O: usize>(
    s: S,
    steps: Steps,
    x: [*const f32; R],
    w: [*const u8; O],
    sums: Sums,
) {
    let mut acc = [[s.splat(0.0); O]; R];
    // SAFETY: the caller's promise.
    unsafe {
        accumulate::<_, T, R, O>(Vectors(s), steps, x, w, &mut acc);
        for (r, row) in acc.iter().enumerate() {
            for (o, &v) in row.iter().enumerate() {
                *sums.out.add(r * sums.row + o * sums.weight) = s.sum(v);
            }
        }
    }
}

/// Adds the products of `R` rows of words and `O` rows of weights, lane by lane.
///
/// # Safety
/// All rows are readable for `k` elements, those of words for as many as hold them.
#[inline(always)]
pub(super) unsafe fn accumulate<U: Unit, T: Stored, const R: usize, const O: usize>(
    u: U,
    steps: Steps,
    x: [*const f32; R],
    w: [*const u8; O],
    sums: &mut [[<U::S as Simd>::V; O]; R],
) {
    let (s, each) = (u.simd(), U::PER_WORD * U::S::LANES);
    // An array, and its step a function: indexed by a loop's variable it would live in memory.
    let mut acc = *sums;
    let mut p = 0;
    // SAFETY: the caller's promise; every load ends at or before `k`.
    unsafe {
        while p + 2 * each <= steps.k {
            if steps.ahead > 0 {
                for w in w {
                    for line in (0..2 * each * T::SIZE).step_by(64) {
                        s.prefetch(w.wrapping_add(p * T::SIZE + line + steps.ahead));
                    }
                }
            }
            step::<U, T, R, O>(u, p, &x, &w, &mut acc);
            step::<U, T, R, O>(u, p + each, &x, &w, &mut acc);
            p += 2 * each;
        }
        while p < steps.k {
            let some = each.min(steps.k - p);
            for o in 0..O {
                let wide = u.words::<T>(w[o].add(p * T::SIZE), some);
                for r in 0..R {
                    let v = s.load_some(x[r].add(p / U::PER_WORD), some.div_ceil(U::PER_WORD));
                    acc[r][o] = u.accumulate(v, wide, acc[r][o]);
                }
            }
            p += some;
        }
    }
    *sums = acc;
}

/// One vector of each row times one of each row of weights.
///
/// # Safety
/// Both are readable at element `at`.
#[inline(always)]
unsafe fn step<U: Unit, T: Stored, const R: usize, const O: usize>(
    u: U,
    at: usize,
    x: &[*const f32; R],
    w: &[*const u8; O],
    acc: &mut [[<U::S as Simd>::V; O]; R],
) {
    let (s, each) = (u.simd(), U::PER_WORD * U::S::LANES);
    let mut wide = [s.splat(0.0); O];
    for o in 0..O {
        // SAFETY: the caller's promise.
        wide[o] = unsafe { u.words::<T>(w[o].add(at * T::SIZE), each) };
    }
    for r in 0..R {
        // SAFETY: the caller's promise.
        let v = unsafe { s.load(x[r].add(at / U::PER_WORD)) };
        for o in 0..O {
            acc[r][o] = u.accumulate(v, wide[o], acc[r][o]);
        }
    }
}
