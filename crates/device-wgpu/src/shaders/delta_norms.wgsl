// 1 / sqrt(sum x^2 + 1e-6) of every key head of q and k, those of q over sqrt(K) too; a workgroup a row and head.
struct Params { rows: u32, heads: u32, k: u32, q_at: u32, q_row: u32, q_head: u32, k_at: u32, k_row: u32, k_head: u32 }
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups);
    if i >= p.rows * p.heads { return; }
    let q_from = p.q_at + (i / p.heads) * p.q_row + (i % p.heads) * p.q_head;
    let k_from = p.k_at + (i / p.heads) * p.k_row + (i % p.heads) * p.k_head;
    var qq = 0.0;
    var kk = 0.0;
    for (var j = lane; j < p.k; j += WG) {
        qq = fma(q[q_from + j], q[q_from + j], qq);
        kk = fma(k[k_from + j], k[k_from + j], kk);
    }
    qq = sum_all(lane, qq);
    kk = sum_all(lane, kk);
    if lane == 0u {
        norms[2u * i] = 1.0 / sqrt((qq + 1e-6) * f32(p.k));
        norms[2u * i + 1u] = 1.0 / sqrt(kk + 1e-6);
    }
}
