fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 50u;
    let k = j >> 3u;
    let w = $half(b + 34u + ((k >> 2u) << 1u));
    let index = $byte(b + 2u + k) | (((w >> ((k & 3u) * 3u)) & 7u) << 8u);
    let scale = half_f($half(b)) * f32(2u * ((w >> 12u) & 7u) + 1u);
    let by = select(0.125, -0.125, (w >> 15u) != 0u);
    return Eight(
        scale * (signed_bytes_f(grid[$GRID + 2u * index]) + by),
        scale * (signed_bytes_f(grid[$GRID + 2u * index + 1u]) + by));
}
