// Elements of TO_SIZE bytes from one strided view to another, converting between float types.
//
// A thread a word of the target: it keeps what of the word belongs to nobody, so that rows that end within a word do
// not meet in it.
struct Params {
    first: u32, words: u32,
    from_at: u32, to_at: u32, to_end: u32,
    d1: u32, d2: u32, d3: u32,
    f0: u32, f1: u32, f2: u32, f3: u32,
    t0: u32, t1: u32, t2: u32,
}
var<immediate> p: Params;

// The bits of the element that lies `e` elements after the start of the target view, and 1; or zeros where none does.
fn element(e: u32) -> vec2<u32> {
    let i0 = e / p.t0;
    let r0 = e % p.t0;
    let i1 = r0 / p.t1;
    let r1 = r0 % p.t1;
    let i2 = r1 / p.t2;
    let i3 = r1 % p.t2;
    if i1 >= p.d1 || i2 >= p.d2 || i3 >= p.d3 { return vec2(0u, 0u); }
    let i = i0 * p.f0 + i1 * p.f1 + i2 * p.f2 + i3 * p.f3;
    if CONVERT == 0u {
        if TO_SIZE == 1u { return vec2(source_byte(p.from_at + i), 1u); }
        if TO_SIZE == 2u { return vec2(source_half(p.from_at + 2u * i), 1u); }
        return vec2(source_word(p.from_at + 4u * i), 1u);
    }
    let v = source_f(p.from_at, i);
    if CONVERT == 1u { return vec2(bitcast<u32>(v), 1u); }
    if CONVERT == 2u { return vec2(f32_to_half(v), 1u); }
    return vec2(f32_to_bf16(v), 1u);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.words { return; }
    let w = p.first + i;
    var word = to[w];
    // Elements may begin at any byte: each byte of the word is a byte of some element, or nobody's.
    for (var k = 0u; k < 4u; k++) {
        let at = 4u * w + k;
        if at < p.to_at || at >= p.to_end { continue; }
        let found = element((at - p.to_at) / TO_SIZE);
        if found.y == 0u { continue; }
        let byte = (found.x >> (((at - p.to_at) % TO_SIZE) * 8u)) & 0xffu;
        word = (word & ~(0xffu << (8u * k))) | (byte << (8u * k));
    }
    to[w] = word;
}
