fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let v = $words[(at >> 4u) + (i >> 3u)];
    return Eight(vec4<f32>(half2_f(v.x), half2_f(v.y)), vec4<f32>(half2_f(v.z), half2_f(v.w)));
}
