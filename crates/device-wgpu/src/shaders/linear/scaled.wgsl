// Element number n of a tensor of scales at byte at.
fn $scale(at: u32, n: u32) -> f32 {
    if $SCALES == 0u { return bitcast<f32>($scales_word(at + 4u * n)); }
    if $SCALES == 1u { return half_f($scales_half(at + 2u * n)); }
    if $SCALES == 2u { return bitcast<f32>($scales_half(at + 2u * n) << 16u); }
    if $SCALES == 3u { return e8m0_f($scales_byte(at + n)); }
    return e4m3_f($scales_byte(at + n)).x;
}

fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let v = $values(at + (i >> 3u) * $BITS);
    let s = $scale(p.$scales + expert * p.$scales_step, (r / $SHARED) * p.$groups + i / $GROUP);
    return Eight(v.a * s, v.b * s);
}
