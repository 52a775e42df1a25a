// Rows of x in f16, for matrix units: times a power of two that brings a row's largest element to between 2^10 and 2^11,
// so that nothing overflows and little is lost, and with zeros after k. A workgroup does a row. The power's inverse is
// kept beside: a sum is multiplied by it.
struct Params { m: u32, k: u32, x: u32, x_row: u32, padded: u32 }
var<immediate> p: Params;
var<workgroup> most: array<f32, 128>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
) {
    let row = group_index(group, groups);
    if row >= p.m { return; }
    let at = p.x + row * p.x_row;
    var largest = 0.0;
    for (var i = t; i < p.k; i += 128u) { largest = max(largest, abs(x[at + i])); }
    most[t] = largest;
    workgroupBarrier();
    for (var step = 64u; step > 0u; step >>= 1u) {
        if t < step { most[t] = max(most[t], most[t + step]); }
        workgroupBarrier();
    }
    // A row of zeros, of subnormals, or with a number that is none stays as it is.
    let exponent = clamp(bitcast<u32>(most[0]) >> 23u, 17u, 237u);
    let scale = bitcast<f32>((264u - exponent) << 23u);
    if t == 0u { unscale[row] = bitcast<f32>((exponent - 10u) << 23u); }
    for (var i = 4u * t; i < p.padded; i += 512u) {
        var v = vec4<f32>(0.0);
        for (var c = 0u; c < 4u; c++) {
            if i + c < p.k { v[c] = x[at + i + c] * scale; }
        }
        halves[(row * p.padded + i) / 4u] = vec4<f16>(v);
    }
}
