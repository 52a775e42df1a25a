fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 74u;
    let k = j >> 3u;
    let code = $half(b + 2u + 2u * k);
    let s = ($byte(b + 66u + (k >> 2u)) >> ((k & 2u) << 1u)) & 15u;
    let scale = half_f($half(b)) * (0.5 + f32(s)) * 0.25;
    let index = code & 511u;
    let signs = even_signs(code >> 9u);
    return Eight(
        turned(scale * signed_bytes_f(grid[$GRID + 2u * index]), signs),
        turned(scale * signed_bytes_f(grid[$GRID + 2u * index + 1u]), signs >> 4u));
}
