fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 84u;
    let dm = half2_f($word(b + 80u));
    let s = $byte(b + (j >> 4u));
    let scale = dm.x * f32(s & 15u);
    let least = dm.y * f32(s >> 4u);
    let q = b + 16u + ((j >> 7u) << 5u) + (j & 31u);
    let q8 = $pair(q);
    let up = (j >> 4u) & 6u;
    return Eight(
        scale * bytes_f((q8.x >> up) & 0x03030303u) - least,
        scale * bytes_f((q8.y >> up) & 0x03030303u) - least);
}
