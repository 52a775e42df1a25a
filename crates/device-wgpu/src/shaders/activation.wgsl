// ACTIVATION: 0 none, 1 tanh GELU, 2 erf GELU, 3 SiLU.

// As a quotient of polynomials, 1 where it rounds to 1.
fn erf_f(x: f32) -> f32 {
    let c = clamp(x, -3.92, 3.92);
    let s = c * c;
    var above = fma(-2.726142e-10, s, 2.7706814e-8);
    above = fma(above, s, -2.101024e-6);
    above = fma(above, s, -5.6925064e-5);
    above = fma(above, s, -7.3499063e-4);
    above = fma(above, s, -2.9546e-3);
    above = fma(above, s, -1.6096033e-2);
    var below = fma(-1.4566072e-5, s, -2.1337406e-4);
    below = fma(below, s, -1.682827e-3);
    below = fma(below, s, -7.3733292e-3);
    below = fma(below, s, -1.4264739e-2);
    return select(sign(x), c * above / below, abs(x) < 3.92);
}

fn activate(x: f32) -> f32 {
    if ACTIVATION == 1u {
        // 0.5 (1 + tanh u) = sigmoid(2 u)
        return x / (1.0 + exp_f(-1.5957691216 * x * fma(x * x, 0.044715, 1.0)));
    }
    if ACTIVATION == 2u {
        let half = 0.5 * x;
        return fma(half, erf_f(x * 0.70710678118), half);
    }
    if ACTIVATION == 3u { return silu(x); }
    return x;
}
