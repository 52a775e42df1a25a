fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + i * 4u;
    return Eight(
        bitcast<vec4<f32>>(vec4<u32>($word(b), $word(b + 4u), $word(b + 8u), $word(b + 12u))),
        bitcast<vec4<f32>>(vec4<u32>($word(b + 16u), $word(b + 20u), $word(b + 24u), $word(b + 28u))));
}
