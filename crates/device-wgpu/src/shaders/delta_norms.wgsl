// q and k of a delta rule, normed: each key head times 1 / sqrt(sum x^2 + 1e-6), those of q over sqrt(K) too, with zeros
// up to whole vectors. A workgroup does a row and head; out come all heads of q, and then those of k.
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
    let q_norm = 1.0 / sqrt((sum_all(lane, qq) + 1e-6) * f32(p.k));
    let k_norm = 1.0 / sqrt(sum_all(lane, kk) + 1e-6);
    let all = p.rows * p.heads * 4u * FOURS;
    for (var j = lane; j < 4u * FOURS; j += WG) {
        var x = 0.0;
        var y = 0.0;
        if j < p.k {
            x = q[q_from + j] * q_norm;
            y = k[k_from + j] * k_norm;
        }
        normed[i * 4u * FOURS + j] = x;
        normed[all + i * 4u * FOURS + j] = y;
    }
}
