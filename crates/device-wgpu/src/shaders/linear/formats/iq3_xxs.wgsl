fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 98u;
    let w = $word(b + 66u + ((j >> 5u) << 2u));
    let scale = half_f($half(b)) * (0.5 + f32(w >> 28u)) * 0.5;
    let signs = even_signs(w >> (7u * ((j >> 3u) & 3u)));
    let q = b + 2u + (j >> 2u);
    return Eight(
        turned(scale * signed_bytes_f(grid[$GRID + $byte(q)]), signs),
        turned(scale * signed_bytes_f(grid[$GRID + $byte(q + 1u)]), signs >> 4u));
}
