// What reading a weight gives: eight elements that follow each other.
struct Eight { a: vec4<f32>, b: vec4<f32> }

// Binary16 in halves of words, widened exactly. Hardware may flush the small ones, so it is tried beforehand.
fn half2_f(h: u32) -> vec2<f32> {
    if HARD_HALF == 1u { return unpack2x16float(h); }
    let both = vec2<u32>(h & 0xffffu, h >> 16u);
    let body = both & vec2<u32>(0x7fffu);
    let small = bitcast<vec2<u32>>(vec2<f32>(body) * 5.9604644775390625e-8);
    let normal = (body << vec2<u32>(13u)) + vec2<u32>(0x38000000u);
    let large = normal + vec2<u32>(0x38000000u);
    var wide = select(normal, small, body < vec2<u32>(0x400u));
    wide = select(wide, large, body >= vec2<u32>(0x7c00u));
    return bitcast<vec2<f32>>(wide | ((both & vec2<u32>(0x8000u)) << vec2<u32>(16u)));
}

fn half_f(h: u32) -> f32 { return half2_f(h & 0xffffu).x; }

// Bytes of a word as numbers.
fn bytes_f(x: u32) -> vec4<f32> { return vec4<f32>(unpack4xU8(x)); }
fn signed_bytes_f(x: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(x)); }

// Four bits, one to each byte of a word.
fn bit_a_byte(x: u32) -> u32 { return ((x & 15u) * 0x00204081u) & 0x01010101u; }

// What an E8M0 byte stands for: a power of two.
fn e8m0_f(e: u32) -> f32 {
    var bits = e << 23u;
    if e == 0u { bits = 0x00400000u; }
    if e == 255u { bits = 0x7fc00000u; }
    return bitcast<f32>(bits);
}

// Four E4M3 floats in the bytes of a word.
fn e4m3_f(x: u32) -> vec4<f32> {
    let byte = unpack4xU8(x);
    let size = byte & vec4<u32>(127u);
    let small = bitcast<vec4<u32>>(vec4<f32>(size) * 0.001953125);
    let normal = (size << vec4<u32>(20u)) + vec4<u32>(0x3c000000u);
    var wide = select(normal, small, size < vec4<u32>(8u));
    wide = select(wide, vec4<u32>(0x7fc00000u), size == vec4<u32>(127u));
    return bitcast<vec4<f32>>(wide | ((byte & vec4<u32>(128u)) << vec4<u32>(24u)));
}

// Twice the E2M1 floats in the low four bits of each lane: whole numbers.
fn e2m1_twice(n: vec4<u32>) -> vec4<f32> {
    let size = (vec4<u32>(0xc8643210u) >> ((n & vec4<u32>(7u)) << vec4<u32>(2u))) & vec4<u32>(15u);
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(vec4<f32>(size)) | ((n & vec4<u32>(8u)) << vec4<u32>(28u)));
}

// The same as GGUF has them: code 8 is a zero without a sign.
fn mxfp4_f(n: vec4<u32>) -> vec4<f32> {
    let size = bitcast<vec4<i32>>((vec4<u32>(0xc8643210u) >> ((n & vec4<u32>(7u)) << vec4<u32>(2u))) & vec4<u32>(15u));
    return vec4<f32>(select(size, -size, n >= vec4<u32>(8u)));
}

// The curve of the IQ4 formats, sixteen signed bytes.
fn curve_f(n: vec4<u32>) -> vec4<f32> {
    let odd = (n & vec4<u32>(4u)) != vec4<u32>(0u);
    let low = select(vec4<u32>(0xbfad9881u), vec4<u32>(0xf6eaddcfu), odd);
    let high = select(vec4<u32>(0x26190d01u), vec4<u32>(0x71594535u), odd);
    let four = select(low, high, (n & vec4<u32>(8u)) != vec4<u32>(0u));
    let up = vec4<u32>(24u) - ((n & vec4<u32>(3u)) << vec4<u32>(3u));
    return vec4<f32>(bitcast<vec4<i32>>(four << up) >> vec4<u32>(24u));
}

// The sign of element c turned where bit c of signs is set. On the bits, so that a zero is turned too.
fn turned(v: vec4<f32>, signs: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) ^ ((vec4<u32>(signs) >> vec4<u32>(0u, 1u, 2u, 3u)) << vec4<u32>(31u)));
}

// Seven signs, and the eighth that makes the number of minuses even.
fn even_signs(code: u32) -> u32 {
    let seven = code & 127u;
    return seven | ((countOneBits(seven) & 1u) << 7u);
}
