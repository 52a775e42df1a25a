// out[r] (+)= sum over taps t of weights[r, t] * table[index[r, t]]; a thread an element.
struct Params {
    count: u32, n: u32, taps: u32, m: u32,
    table_at: u32, index_at: u32, weights_at: u32, out_at: u32, out_row: u32, table_row: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.count { return; }
    let row = i / p.n;
    let j = i % p.n;
    if index[p.index_at + row * p.taps] < 0 { return; }
    let at = p.out_at + row * p.out_row + j;
    var sum = 0.0;
    if ACCUMULATE == 1u { sum = out[at]; }
    for (var t = 0u; t < p.taps; t++) {
        let id = u32(index[p.index_at + row * p.taps + t]);
        if id >= p.m { continue; }
        var v = table_f(p.table_at, id * p.table_row + j);
        if WEIGHTED == 1u { v *= weights[p.weights_at + row * p.taps + t]; }
        sum += v;
    }
    out[at] = sum;
}
