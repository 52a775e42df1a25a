fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 66u;
    let d = half_f($half(b + 64u));
    let q = b + ((j >> 7u) << 5u) + (j & 31u);
    let up = (j >> 4u) & 6u;
    return Eight(
        d * (bytes_f(($word(q) >> up) & 0x03030303u) - 1.0),
        d * (bytes_f(($word(q + 4u) >> up) & 0x03030303u) - 1.0));
}
