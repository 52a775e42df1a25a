//! The scale of one group of values that leaves the least squared error.
//!
//! Given integers `n`, the best `s` for `x ~ s n` and the best `s, b` for `x ~ s n + b` are least squares. Given
//! `s` and `b`, the best integers are the nearest. Each candidate below starts from the range of the group, and the
//! best one alternates between the two until nothing is gained.

/// The integer nearest to `x`, ties to even, within `low..=high` (below 2^22).
#[inline(always)]
pub(super) fn nearest(x: f32, low: f32, high: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves no bits for a fraction. Without SSE4.1, `round` is a call.
    const MAGIC: f32 = 12_582_912.0;
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    (x + MAGIC) - MAGIC
}

/// Sums over `x`, a multiple of eight of them, in eight partial sums each so that the compiler can use vectors.
#[inline(always)]
pub(super) fn sums<const K: usize>(x: &[f32], f: impl Fn(f32) -> [f32; K]) -> [f32; K] {
    let mut acc = [[0f32; 8]; K];
    for eight in x.chunks_exact(8) {
        for (lane, &v) in eight.iter().enumerate() {
            let terms = f(v);
            for (a, t) in acc.iter_mut().zip(terms) {
                a[lane] += t;
            }
        }
    }
    acc.map(|a| ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])))
}

/// Below this a group is zero: f16 has no scale for it, and its squares would leave f32.
const NOTHING: f32 = 1e-15;

/// Where the largest element of a group may lie, in codes from the end of the range.
const ENDS: [f32; 14] = [0.0, -0.2, -0.4, -0.6, -0.8, -1.0, -1.2, -1.4, -1.6, -1.8, 0.2, 0.4, 0.6, 0.8];

/// The scale `s`, of either sign, for `x ~ s n` with integers `n` in `-top..top`.
pub(super) fn scale(x: &[f32], top: f32) -> f32 {
    let most = super::largest(x);
    if most.abs() < NOTHING {
        return 0.0;
    }
    // What a choice of integers leaves of the sum of squares is that sum less `xn^2 / nn`.
    let fit = |inverse: f32| {
        let [xn, nn] = sums(x, |v| {
            let n = nearest(v * inverse, -top, top - 1.0);
            [v * n, n * n]
        });
        if nn > 0.0 { (xn * (xn / nn), xn / nn) } else { (0.0, 0.0) }
    };
    let mut best = (0.0, most / -top);
    // There is one code more below zero than above: both signs of the scale are tried.
    for sign in [-1.0, 1.0] {
        for end in ENDS {
            let found = fit(sign * (top + end) / most);
            if found.0 > best.0 {
                best = found;
            }
        }
    }
    for _ in 0..4 {
        let found = fit(1.0 / best.1);
        if found.0 <= best.0 * (1.0 + 1e-6) {
            break;
        }
        best = found;
    }
    best.1
}

/// The scale `s >= 0` and the min `m` (0 at least, unless `free`) for `x ~ s n - m` with integers `n` in `0..=top`.
pub(super) fn scale_and_min(x: &[f32], top: f32, free: bool) -> (f32, f32) {
    let least = if free { f32::INFINITY } else { 0.0 };
    let (low, high) = x.iter().fold((least, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    if high - low < NOTHING {
        return (0.0, -low);
    }
    let count = x.len() as f32;
    let fit = |inverse: f32, base: f32| {
        // In y = x - base, which is not far from zero compared with its range.
        let [n, nn, yn, y, yy] = sums(x, |v| {
            let y = v - base;
            let n = nearest(y * inverse, 0.0, top);
            [n, n * n, y * n, y, y * y]
        });
        let determinant = count * nn - n * n;
        let (mut s, mut b) = if determinant > 0.0 {
            ((count * yn - y * n) / determinant, (nn * y - n * yn) / determinant)
        } else {
            (yn / nn.max(1.0), 0.0)
        };
        if !free && b + base > 0.0 {
            // The format has no offset above zero.
            b = -base;
            s = (yn - b * n) / nn.max(1.0);
        }
        let error = yy - 2.0 * (s * yn + b * y) + s * s * nn + 2.0 * s * b * n + b * b * count;
        (error, s, -(b + base))
    };
    let mut best = (f32::INFINITY, (high - low) / top, -low);
    for step in 0..=11 {
        let end = 0.2 * step as f32 - 1.4;
        let found = fit((top + end) / (high - low), low);
        if found.0 < best.0 && found.1 > 0.0 {
            best = found;
        }
    }
    for _ in 0..4 {
        let found = fit(1.0 / best.1, -best.2);
        if !(found.0 < best.0 * (1.0 - 1e-5) && found.1 > 0.0) {
            break;
        }
        best = found;
    }
    (best.1, best.2)
}
