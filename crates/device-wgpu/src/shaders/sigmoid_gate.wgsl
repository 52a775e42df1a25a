// out = residual + x * sigmoid(gate), a thread an element.
struct Params {
    count: u32, n: u32, heads: u32,
    x_at: u32, x_row: u32, x_head: u32,
    gate_at: u32, gate_row: u32, gate_head: u32,
    residual_at: u32, residual_row: u32, residual_head: u32,
    out_at: u32, out_row: u32, out_head: u32,
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
    let j = i % p.n;
    let head = i / p.n;
    let row = head / p.heads;
    let h = head % p.heads;
    let g = gate[p.gate_at + row * p.gate_row + h * p.gate_head + select(j, 0u, ONE == 1u)];
    var y = x[p.x_at + row * p.x_row + h * p.x_head + j] * sigmoid(g);
    if RESIDUAL == 1u { y += residual[p.residual_at + row * p.residual_row + h * p.residual_head + j]; }
    out[p.out_at + row * p.out_row + h * p.out_head + j] = y;
}
