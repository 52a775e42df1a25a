fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + (i >> 5u) * 34u;
    let d = half_f($half(b));
    let q = b + 2u + (i & 31u);
    let q8 = $pair(q);
    return Eight(d * signed_bytes_f(q8.x), d * signed_bytes_f(q8.y));
}
