fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 110u;
    let g = j >> 5u;
    let s = ($byte(b + 106u + (g >> 1u)) >> ((g & 1u) << 2u)) & 15u;
    let scale = half_f($half(b)) * f32(2u * s + 1u);
    let signs = $byte(b + 74u + (j >> 3u));
    let high = $byte(b + 66u + g) >> ((j >> 2u) & 7u);
    let q = b + 2u + (j >> 2u);
    return Eight(
        turned(scale * signed_bytes_f(grid[$GRID + ($byte(q) | ((high & 1u) << 8u))]), signs),
        turned(scale * signed_bytes_f(grid[$GRID + ($byte(q + 1u) | ((high & 2u) << 7u))]), signs >> 4u));
}
