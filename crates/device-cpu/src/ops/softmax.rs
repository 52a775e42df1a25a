//! The softmax of attention, a block of keys at a time.

use std::mem::MaybeUninit;

use crate::simd::unit::Unit;
use crate::simd::{KEYS, Simd};

/// Lane numbers, to mask the end of a block.
const IOTA: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

/// `to = factor * from`, `n` elements in whole vectors.
///
/// # Safety
/// `from` is readable for `n` elements, `to` writable for whole vectors. They may be the same.
#[inline(always)]
pub(super) unsafe fn scale<S: Simd>(s: S, from: *const f32, factor: f32, n: usize, to: *mut f32) {
    for j in (0..n).step_by(S::LANES) {
        // SAFETY: the caller's promise.
        unsafe { s.store(to.add(j), s.mul(s.load_some(from.add(j), S::LANES.min(n - j)), s.splat(factor))) };
    }
}

/// Turns `N` scores, of which the first `some` count, into words of weights relative to `e^top`, which follows the
/// largest score so far, not closer than by [`Unit::SLACK`];
/// returns the factor for what was summed before, and the sum of the weights, spread over a vector.
///
/// The scores are multiplied by `EXP_SCALE` already.
///
/// # Safety
/// `scores` has `N` elements, 64 to [`KEYS`], and `weights` as many words as they take; in f32 they may be the same.
#[inline(always)]
pub(super) unsafe fn weigh<U: Unit, const N: usize>(
    u: U,
    scores: *const f32,
    weights: *mut f32,
    some: usize,
    top: &mut f32,
) -> (f32, <U::S as Simd>::V) {
    let (s, lanes) = (u.simd(), U::S::LANES);
    let mut sum = s.splat(0.0);
    // SAFETY: the caller's promise.
    unsafe {
        if some == 0 {
            std::ptr::write_bytes(weights, 0, N / U::PER_WORD);
            return (1.0, sum);
        }
        // As many as the shortest vectors take; written before they are read.
        let mut v = [MaybeUninit::<<U::S as Simd>::V>::uninit(); KEYS / 4];
        let mut largest = s.splat(f32::NEG_INFINITY);
        let iota = s.load(IOTA.as_ptr());
        #[expect(clippy::needless_range_loop, reason = "j is also the place in memory")]
        for j in 0..N / lanes {
            let mut x = s.load(scores.add(j * lanes));
            // Asked of the whole block first, so that it costs nothing where all of it counts.
            if some < N && (j + 1) * lanes > some {
                let place = s.add(iota, s.splat((j * lanes) as f32));
                x = s.less(place, s.splat(some as f32), x, s.splat(f32::NEG_INFINITY));
            }
            v[j].write(x);
            largest = s.max(largest, x);
        }
        let before = *top;
        if s.any_above(largest, before + U::SLACK) {
            *top = s.largest(largest);
        }
        let now = *top;
        for x in &mut v[..N / lanes] {
            let weight = u.exp(s.sub(x.assume_init(), s.splat(now)));
            x.write(weight);
            sum = s.add(sum, weight);
        }
        for j in 0..N / U::PER_WORD / lanes {
            let at = |i: usize| v[i].assume_init();
            let word = if U::PER_WORD == 1 { at(j) } else { u.join(at(2 * j), at(2 * j + 1)) };
            s.store(weights.add(j * lanes), word);
        }
        let mut factor = [1f32; 16];
        if before != now {
            s.store(factor.as_mut_ptr(), u.exp(s.splat(before - now)));
        }
        (factor[0], sum)
    }
}
