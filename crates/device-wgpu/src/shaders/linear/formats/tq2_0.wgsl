fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 66u;
    let d = half_f($half(b + 64u));
    let q = b + ((j >> 7u) << 5u) + (j & 31u);
    let q8 = $pair(q);
    let up = (j >> 4u) & 6u;
    return Eight(
        d * (bytes_f((q8.x >> up) & 0x03030303u) - 1.0),
        d * (bytes_f((q8.y >> up) & 0x03030303u) - 1.0));
}
