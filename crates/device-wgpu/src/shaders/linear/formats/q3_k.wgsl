fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 110u;
    let g = j >> 4u;
    let low = ($byte(b + 96u + (g & 7u)) >> ((g >> 3u) << 2u)) & 15u;
    let high = ($byte(b + 104u + (g & 3u)) >> ((g >> 2u) << 1u)) & 3u;
    let scale = half_f($half(b + 108u)) * (f32(low | (high << 4u)) - 32.0);
    let q = b + 32u + ((j >> 7u) << 5u) + (j & 31u);
    let q8 = $pair(q);
    let h = b + (j & 31u);
    let h8 = $pair(h);
    let up = (j >> 4u) & 6u;
    let n0 = ((q8.x >> up) & 0x03030303u) | (((h8.x >> (j >> 5u)) & 0x01010101u) << 2u);
    let n1 = ((q8.y >> up) & 0x03030303u) | (((h8.y >> (j >> 5u)) & 0x01010101u) << 2u);
    return Eight(scale * (bytes_f(n0) - 4.0), scale * (bytes_f(n1) - 4.0));
}
