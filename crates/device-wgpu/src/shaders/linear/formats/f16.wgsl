fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + i * 2u;
    return Eight(
        vec4<f32>(half2_f($word(b)), half2_f($word(b + 4u))),
        vec4<f32>(half2_f($word(b + 8u)), half2_f($word(b + 12u))));
}
