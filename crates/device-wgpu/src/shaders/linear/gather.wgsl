// out[r] (+)= sum over taps t of weights[r, t] * table[index[r, t]]; a thread eight elements. Of a table that is bound in
// parts, the rows from `first` on are here; the first part writes all, the others what they have. No row of the table is
// zeros.
struct Params {
    count: u32, n: u32, taps: u32, first: u32, m: u32,
    index: u32, weights: u32, out: u32, out_row: u32,
    a: u32, a_row: u32, a_scales: u32, a_biases: u32, a_groups: u32, zero: u32, a_scales_step: u32,
}
var<immediate> p: Params;
var<private> expert: u32 = 0u;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let e = group_index(group, groups) * 64u + lane;
    if e >= p.count { return; }
    let eights = (p.n + 7u) / 8u;
    let row = e / eights;
    let i = e % eights * 8u;
    if index[p.index + row * p.taps] < 0 { return; }
    var a = vec4<f32>(0.0);
    var b = vec4<f32>(0.0);
    var found = false;
    for (var t = 0u; t < p.taps; t++) {
        let id = u32(index[p.index + row * p.taps + t]) - p.first;
        if id >= p.m { continue; }
        let v = a_w8(p.a + id * p.a_row, id, i);
        found = true;
//#if WEIGHTED
        let w = weights[p.weights + row * p.taps + t];
        a += v.a * w;
        b += v.b * w;
//#else
        a = v.a;
        b = v.b;
//#end
    }
    let at = p.out + row * p.out_row + i;
    for (var c = 0u; c < min(p.n - i, 8u); c++) {
        let v = select(b[c & 3u], a[c & 3u], c < 4u);
//#if ADD
        if found { out[at + c] += v; }
//#else
//#if ALL
        out[at + c] = v;
//#else
        if found { out[at + c] = v; }
//#end
//#end
    }
}
