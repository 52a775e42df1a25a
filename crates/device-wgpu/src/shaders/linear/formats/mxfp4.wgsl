fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + (i >> 5u) * 17u;
    // 2^(e - 128), a subnormal for the two smallest. Code 8 is a zero without a sign.
    let e = $byte(b);
    let d = bitcast<f32>(select((e - 1u) << 23u, 1u << (21u + (e & 1u)), e < 2u));
    let q = b + 1u + (i & 15u);
    let q8 = $pair(q);
    let up = (i & 16u) >> 2u;
    let n0 = ((q8.x >> up) & 0x0f0f0f0fu);
    let n1 = ((q8.y >> up) & 0x0f0f0f0fu);
    return Eight(d * mxfp4_f(unpack4xU8(n0)), d * mxfp4_f(unpack4xU8(n1)));
}
