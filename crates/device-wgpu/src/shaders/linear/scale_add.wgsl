// out += scale * y for the rows that chose an expert; a thread an element. Tables: row and place of the weight, in turn.
struct Params { count: u32, n: u32, pairs: u32, y_at: u32, weights_at: u32, out_at: u32, out_row: u32 }
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
    let to = tables[p.pairs + 2u * row];
    let scale = weights[p.weights_at + tables[p.pairs + 2u * row + 1u]];
    let at = p.out_at + to * p.out_row + j;
    out[at] = fma(scale, y[p.y_at + i], out[at]);
}
