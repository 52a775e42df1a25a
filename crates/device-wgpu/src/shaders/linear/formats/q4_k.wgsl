fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 144u;
    let g = j >> 5u;
    let scale = $group(b, g);
    let up = (g & 1u) << 2u;
    let q = b + 16u + ((g >> 1u) << 5u) + (j & 31u);
    let q8 = $pair(q);
    return Eight(
        scale.x * bytes_f((q8.x >> up) & 0x0f0f0f0fu) - scale.y,
        scale.x * bytes_f((q8.y >> up) & 0x0f0f0f0fu) - scale.y);
}
