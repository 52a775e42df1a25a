// out_t = silu(sum_j weight[c, j] x_{t - kernel + 1 + j}); a thread a row and channel. Before a span's first row are the
// last columns of its state.
struct Params {
    count: u32, channels: u32, kernel: u32, rows: u32,
    x_at: u32, x_row: u32, state_at: u32, weight_at: u32, out_at: u32, out_row: u32,
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
    let c = i % p.channels;
    let span = tables[p.rows + 2u * (i / p.channels)];
    let r = tables[p.rows + 2u * (i / p.channels) + 1u];
    let first = tables[span];
    let column = p.state_at + (tables[span + 2u] * p.channels + c) * p.kernel;
    var sum = 0.0;
    for (var j = 0u; j < p.kernel; j++) {
        // Row r - kernel + 1 + j of the span; column 1 + r + j of the state where that lies before it.
        let at = r + j + 1u;
        var v: f32;
        if at < p.kernel { v = state[column + at]; }
        else { v = x[p.x_at + (first + at - p.kernel) * p.x_row + c]; }
        sum = fma(weight_f(p.weight_at, c * p.kernel + j), v, sum);
    }
    out[p.out_at + (first + r) * p.out_row + c] = silu(sum);
}
