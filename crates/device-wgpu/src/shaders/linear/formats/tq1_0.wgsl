// Digit k to base 3 of each byte, less one. A byte is a fraction: times 3, what is above the point is its first digit.
fn $digit(x: u32, k: u32) -> vec4<f32> {
    var times = select(1u, 3u, (k & 1u) != 0u) * select(1u, 9u, (k & 2u) != 0u);
    if k == 4u { times = 81u; }
    let rest = (unpack4xU8(x) * times) & vec4<u32>(255u);
    return vec4<f32>((rest * 3u) >> vec4<u32>(8u)) - 1.0;
}

fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let j = i & 255u;
    let b = at + (i >> 8u) * 54u;
    let d = half_f($half(b + 52u));
    var q = b + 48u;
    var step = 0u;
    // The two digits that the halves of the eight are.
    var k = vec2<u32>((j - 240u) >> 2u, (j - 236u) >> 2u);
    if j < 160u {
        q = b + (j & 31u);
        step = 4u;
        k = vec2<u32>(j >> 5u);
    } else if j < 240u {
        q = b + 32u + (j & 15u);
        step = 4u;
        k = vec2<u32>((j - 160u) >> 4u);
    }
    return Eight(d * $digit($word(q), k.x), d * $digit($word(q + step), k.y));
}
