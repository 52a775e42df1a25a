// Scale and least value of group g, of 32 elements, of the Q4_K or Q5_K block at byte b.
fn $group(b: u32, g: u32) -> vec2<f32> {
    let dm = half2_f($word(b));
    let s = (g & 3u) << 3u;
    let x = $word(b + 4u) >> s;
    let y = $word(b + 8u) >> s;
    let z = $word(b + 12u) >> s;
    return dm * vec2<f32>(
        f32(select((z & 15u) | ((x >> 2u) & 48u), x & 63u, g < 4u)),
        f32(select(((z >> 4u) & 15u) | ((y >> 2u) & 48u), y & 63u, g < 4u)));
}

