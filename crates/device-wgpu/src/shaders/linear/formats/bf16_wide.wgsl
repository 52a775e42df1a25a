fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let v = $words[(at >> 4u) + (i >> 3u)];
    let low = v << vec4<u32>(16u);
    let high = v & vec4<u32>(0xffff0000u);
    return Eight(
        bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y)),
        bitcast<vec4<f32>>(vec4<u32>(low.z, high.z, low.w, high.w)));
}
