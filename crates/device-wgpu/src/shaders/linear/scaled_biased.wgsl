fn $scale(at: u32, n: u32) -> f32 {
    if $SCALES == 0u { return bitcast<f32>($scales_word(at + 4u * n)); }
    if $SCALES == 1u { return half_f($scales_half(at + 2u * n)); }
    return bitcast<f32>($scales_half(at + 2u * n) << 16u);
}
fn $bias(at: u32, n: u32) -> f32 {
    if $SCALES == 0u { return bitcast<f32>($biases_word(at + 4u * n)); }
    if $SCALES == 1u { return half_f($biases_half(at + 2u * n)); }
    return bitcast<f32>($biases_half(at + 2u * n) << 16u);
}

// A product with an f32 scale is rounded before the bias is added, but a compiler may fuse the two. What it can't see
// through is an operation on the bits, with a zero that it doesn't know.
fn $rounded(v: vec4<f32>) -> vec4<f32> {
    if $SCALES != 0u { return v; }
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ vec4<u32>(p.zero));
}

fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let v = $values(at + (i >> 3u) * $BITS);
    let n = (r / $SHARED) * p.$groups + i / $GROUP;
    let s = $scale(p.$scales + expert * p.$scales_step, n);
    let m = $bias(p.$biases + expert * p.$scales_step, n);
    return Eight($rounded(v.a * s) + m, $rounded(v.b * s) + m);
}
