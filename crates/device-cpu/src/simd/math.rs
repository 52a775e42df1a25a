//! Elementary functions on vectors.

use turbospark_device::Activation;

use super::Simd;

/// Below it `e^x` counts as zero.
const LEAST: f32 = -87.33;

/// `e^x`, within 2 units in the last place; zero below -87.3, NaN for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    let low = s.splat(LEAST);
    // NaN passes as the second operand.
    let y = power(s, s.min(s.splat(88.37), s.max(low, x)));
    s.less(x, low, s.splat(0.0), y)
}

/// `e^x` for `x` of [`LEAST`] to 88.37.
#[inline(always)]
fn power<S: Simd>(s: S, x: S::V) -> S::V {
    // Adding 1.5 * 2^23 rounds to a whole number.
    let magic = s.splat(12_582_912.0);
    let n = s.sub(s.fma(x, s.splat(std::f32::consts::LOG2_E), magic), magic);
    // ln 2 in two pieces; the first has few bits, so that n times it is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = s.fma(p, r, s.splat(coefficient));
    }
    let p = s.fma(p, s.mul(r, r), r);
    s.scale2(s.add(p, s.splat(1.0)), n)
}

/// `y / (1 + e^x)`.
#[inline(always)]
fn gated<S: Simd>(s: S, y: S::V, x: S::V) -> S::V {
    // What lies above would make a reciprocal denormal, which takes a hundred times as long; what lies below is lost
    // beside the one. NaN passes as the second operand.
    let x = s.max(s.splat(LEAST), s.min(s.splat(80.0), x));
    s.quotient(y, s.add(s.splat(1.0), power(s, x)))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    gated(s, s.splat(1.0), s.sub(s.splat(0.0), x))
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::V) -> S::V {
    gated(s, x, s.sub(s.splat(0.0), x))
}

/// `first * x^n + rest[0] * x^(n-1) + ..`.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::V, coefficients: [f32; N]) -> S::V {
    let mut p = s.splat(0.0);
    for c in coefficients {
        p = s.fma(p, x, s.splat(c));
    }
    p
}

/// Where the error function of an f32 rounds to 1.
const ERF_IS_ONE: f32 = 3.92;

/// The error function as a quotient of polynomials (the coefficients that Eigen uses), 1 where it rounds to 1.
#[inline(always)]
fn erf<S: Simd>(s: S, x: S::V) -> S::V {
    let (one, end) = (s.splat(1.0), s.splat(ERF_IS_ONE));
    let (minus_one, minus_end) = (s.splat(-1.0), s.splat(-ERF_IS_ONE));
    let inside = s.min(end, s.max(minus_end, x));
    let x2 = s.mul(inside, inside);
    let above =
        [-2.726_142e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2];
    let below = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_473_9e-2];
    let quotient = s.quotient(s.mul(inside, polynomial(s, x2, above)), polynomial(s, x2, below));
    s.less(minus_end, x, s.less(x, end, quotient, one), minus_one)
}

/// An op's activation.
#[inline(always)]
pub(crate) fn activate<S: Simd>(s: S, kind: Option<Activation>, x: S::V) -> S::V {
    match kind {
        None => x,
        Some(Activation::Silu) => silu(s, x),
        Some(Activation::GeluErf) => {
            let half = s.mul(x, s.splat(0.5));
            s.fma(half, erf(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))), half)
        }
        Some(Activation::GeluTanh) => {
            // 0.5 (1 + tanh u) = sigmoid(2 u)
            let x2 = s.mul(x, x);
            let twice = s.splat(-1.595_769_2); // -2 sqrt(2 / pi)
            let u = s.mul(s.mul(twice, x), s.fma(x2, s.splat(0.044_715), s.splat(1.0)));
            gated(s, x, u)
        }
    }
}
