fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let v = (at >> 4u) + (i >> 2u);
    return Eight(bitcast<vec4<f32>>($words[v]), bitcast<vec4<f32>>($words[v + 1u]));
}
