fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 210u;
    let g = (j >> 5u) & 3u;
    let scale = half_f($half(b + 208u)) * f32(i32($byte(b + 192u + (j >> 4u)) << 24u) >> 24u);
    let l = b + ((j >> 7u) << 6u) + ((g & 1u) << 5u) + (j & 31u);
    let l8 = $pair(l);
    let h = b + 128u + ((j >> 7u) << 5u) + (j & 31u);
    let h8 = $pair(h);
    let up = (g >> 1u) << 2u;
    let n0 = ((l8.x >> up) & 0x0f0f0f0fu) | (((h8.x >> (g << 1u)) & 0x03030303u) << 4u);
    let n1 = ((l8.y >> up) & 0x0f0f0f0fu) | (((h8.y >> (g << 1u)) & 0x03030303u) << 4u);
    return Eight(scale * (bytes_f(n0) - 32.0), scale * (bytes_f(n1) - 32.0));
}
