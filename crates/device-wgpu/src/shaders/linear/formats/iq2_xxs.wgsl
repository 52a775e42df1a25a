fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 66u;
    let g = b + 2u + ((j >> 5u) << 3u);
    let k = (j >> 3u) & 3u;
    let w = $word(g + 4u);
    let scale = half_f($half(b)) * (0.5 + f32(w >> 28u)) * 0.25;
    let index = $byte(g + k);
    let signs = even_signs(w >> (7u * k));
    return Eight(
        turned(scale * signed_bytes_f(grid[$GRID + 2u * index]), signs),
        turned(scale * signed_bytes_f(grid[$GRID + 2u * index + 1u]), signs >> 4u));
}
