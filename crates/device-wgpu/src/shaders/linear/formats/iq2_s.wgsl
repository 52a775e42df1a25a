fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 82u;
    let k = j >> 3u;
    let s = ($byte(b + 74u + (k >> 2u)) >> ((k & 2u) << 1u)) & 15u;
    let scale = half_f($half(b)) * (0.5 + f32(s)) * 0.25;
    let index = $byte(b + 2u + k) | ((($byte(b + 66u + (k >> 2u)) >> ((k & 3u) << 1u)) & 3u) << 8u);
    let signs = $byte(b + 34u + k);
    return Eight(
        turned(scale * signed_bytes_f(grid[$GRID + 2u * index]), signs),
        turned(scale * signed_bytes_f(grid[$GRID + 2u * index + 1u]), signs >> 4u));
}
