fn $w8(at: u32, r: u32, i: u32) -> Eight {
    let b = at + (i >> 5u) * 17u;
    // 2^(e - 128), which is a subnormal for the two smallest: what a code stands for is a quarter then, and the scale four
    // times as large, so that no normal product comes out as zero. Code 8 is a zero without a sign.
    let e = $byte(b);
    let small = e < 2u;
    let d = bitcast<f32>(select(e - 1u, e + 1u, small) << 23u);
    let part = select(1.0, 0.25, small);
    let q = b + 1u + (i & 15u);
    let q8 = $pair(q);
    let up = (i & 16u) >> 2u;
    let n0 = ((q8.x >> up) & 0x0f0f0f0fu);
    let n1 = ((q8.y >> up) & 0x0f0f0f0fu);
    return Eight(d * (part * mxfp4_f(unpack4xU8(n0))), d * (part * mxfp4_f(unpack4xU8(n1))));
}
