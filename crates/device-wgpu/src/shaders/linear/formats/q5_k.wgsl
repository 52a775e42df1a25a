fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 176u;
    let g = j >> 5u;
    let scale = $group(b, g);
    let up = (g & 1u) << 2u;
    let q = b + 48u + ((g >> 1u) << 5u) + (j & 31u);
    let q8 = $pair(q);
    let h = b + 16u + (j & 31u);
    let h8 = $pair(h);
    let n0 = ((q8.x >> up) & 0x0f0f0f0fu) | (((h8.x >> g) & 0x01010101u) << 4u);
    let n1 = ((q8.y >> up) & 0x0f0f0f0fu) | (((h8.y >> g) & 0x01010101u) << 4u);
    return Eight(scale.x * bytes_f(n0) - scale.y, scale.x * bytes_f(n1) - scale.y);
}
