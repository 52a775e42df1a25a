fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + (i >> 5u) * 18u;
    let d = half_f($half(b));
    let q = b + 2u + (i & 15u);
    let q8 = $pair(q);
    let up = (i & 16u) >> 2u;
    let n0 = ((q8.x >> up) & 0x0f0f0f0fu);
    let n1 = ((q8.y >> up) & 0x0f0f0f0fu);
    return Eight(d * (bytes_f(n0) - 8.0), d * (bytes_f(n1) - 8.0));
}
