// Before every kernel.

// A workgroup's number, where more of them are asked for than one side of a grid may have.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}

// IEEE binary16, exactly, subnormals too: unpack2x16float may flush them, and is used where a trial found that it doesn't.
fn half_to_f32(h: u32) -> f32 {
    if HARD_HALF == 1u { return unpack2x16float(h).x; }
    let sign = (h & 0x8000u) << 16u;
    let body = h & 0x7fffu;
    if body >= 0x7c00u { return bitcast<f32>(sign | 0x7f800000u | ((body & 0x3ffu) << 13u)); }
    if body >= 0x400u { return bitcast<f32>(sign | ((body << 13u) + 0x38000000u)); }
    let small = f32(body) * 5.9604644775390625e-8;
    return select(small, -small, sign != 0u);
}

// To nearest, ties to even; too large becomes infinity, a NaN stays one.
fn f32_to_half(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let body = bits & 0x7fffffffu;
    if body > 0x7f800000u { return sign | 0x7e00u; }
    if body >= 0x47800000u { return sign | 0x7c00u; }
    if body >= 0x38800000u {
        let rounded = body + 0xfffu + ((body >> 13u) & 1u);
        return sign | ((rounded - 0x38000000u) >> 13u);
    }
    if body < 0x33000000u { return sign; }
    let exponent = body >> 23u;
    let mantissa = (body & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    let up = rest > middle || (rest == middle && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}

fn f32_to_bf16(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return (bits >> 16u) | 0x40u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// e^x within 2 units in the last place, whatever the driver's own allows itself; zero below -87.3.
fn exp_f(x: f32) -> f32 {
    let c = clamp(x, -87.33, 88.37);
    let n = round(c * 1.4426950408889634);
    // ln 2 in two pieces; the first has few bits, so that n times it is exact.
    let r = fma(n, 2.12194440e-4, fma(n, -0.693359375, c));
    var p = fma(1.9875691e-4, r, 1.3981999e-3);
    p = fma(p, r, 8.3334519e-3);
    p = fma(p, r, 4.1665796e-2);
    p = fma(p, r, 1.6666665e-1);
    p = fma(p, r, 5.0e-1);
    let y = fma(p, r * r, r) + 1.0;
    let scaled = bitcast<f32>(bitcast<i32>(y) + (i32(n) << 23u));
    return select(scaled, 0.0, x < -87.33);
}

fn sigmoid(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_f(-x));
}

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp_f(-x));
}
