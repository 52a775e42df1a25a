fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 136u;
    let g = j >> 5u;
    let low = ($byte(b + 4u + (g >> 1u)) >> ((g & 1u) << 2u)) & 15u;
    let high = ($half(b + 2u) >> (g << 1u)) & 3u;
    let scale = half_f($half(b)) * (f32(low | (high << 4u)) - 32.0);
    let q = b + 8u + (g << 4u) + (j & 15u);
    let q8 = $pair(q);
    let up = (j & 16u) >> 2u;
    return Eight(
        scale * curve_f(unpack4xU8((q8.x >> up) & 0x0f0f0f0fu)),
        scale * curve_f(unpack4xU8((q8.y >> up) & 0x0f0f0f0fu)));
}
