fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 176u;
    let g = j >> 5u;
    let dm = half2_f($word(b));
    let s = (g & 3u) << 3u;
    let x = $word(b + 4u) >> s;
    let y = $word(b + 8u) >> s;
    let z = $word(b + 12u) >> s;
    let scale = dm.x * f32(select((z & 15u) | ((x >> 2u) & 48u), x & 63u, g < 4u));
    let least = dm.y * f32(select(((z >> 4u) & 15u) | ((y >> 2u) & 48u), y & 63u, g < 4u));
    let up = (g & 1u) << 2u;
    let q = b + 48u + ((g >> 1u) << 5u) + (j & 31u);
    let q8 = $pair(q);
    let h = b + 16u + (j & 31u);
    let h8 = $pair(h);
    let n0 = ((q8.x >> up) & 0x0f0f0f0fu) | (((h8.x >> g) & 0x01010101u) << 4u);
    let n1 = ((q8.y >> up) & 0x0f0f0f0fu) | (((h8.y >> g) & 0x01010101u) << 4u);
    return Eight(scale * bytes_f(n0) - least, scale * bytes_f(n1) - least);
}
