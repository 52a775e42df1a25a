fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 56u;
    let k = j >> 3u;
    let w0 = $word(b + 48u);
    let w1 = $word(b + 52u);
    // The block's scale has four bits on top of each half word.
    let d = ((w0 >> 12u) & 15u) | ((w0 >> 24u) & 0xf0u) | ((w1 >> 4u) & 0xf00u) | ((w1 >> 16u) & 0xf000u);
    let high = $byte(b + 32u + (k >> 1u)) >> ((k & 1u) << 2u);
    let index = $byte(b + k) | ((high & 7u) << 8u);
    let w = select(w0, w1, k >= 16u) >> (((k >> 3u) & 1u) << 4u);
    let scale = half_f(d) * f32(2u * ((w >> (((k >> 1u) & 3u) * 3u)) & 7u) + 1u);
    let by = select(0.125, -0.125, (high & 8u) != 0u);
    return Eight(
        scale * (signed_bytes_f(grid[$GRID + 2u * index]) + by),
        scale * (signed_bytes_f(grid[$GRID + 2u * index + 1u]) + by));
}
