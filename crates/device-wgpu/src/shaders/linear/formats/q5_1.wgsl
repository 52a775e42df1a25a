fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + (i >> 5u) * 24u;
    let dm = half2_f($word(b));
    let q = b + 8u + (i & 15u);
    let q8 = $pair(q);
    let up = (i & 16u) >> 2u;
    let five = $word(b + 4u) >> (i & 31u);
    let n0 = ((q8.x >> up) & 0x0f0f0f0fu) | (bit_a_byte(five) << 4u);
    let n1 = ((q8.y >> up) & 0x0f0f0f0fu) | (bit_a_byte(five >> 4u) << 4u);
    return Eight(dm.x * bytes_f(n0) + dm.y, dm.x * bytes_f(n1) + dm.y);
}
