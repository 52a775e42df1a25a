// out = residual + activation(x W^T + bias), or silu(x G^T) * (x U^T): a thread an output, in f32.
struct Params {
    rows: u32, k: u32, n: u32,
    x_at: u32, x_row: u32,
    weight_at: u32, up_at: u32, weight_row: u32, up_row: u32,
    bias_at: u32,
    residual_at: u32, residual_row: u32,
    out_at: u32, out_row: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.rows * p.n { return; }
    let row = i / p.n;
    let o = i % p.n;
    let step = select(1u, p.weight_row, IN_OUT == 1u);
    var at = select(o * p.weight_row, o, IN_OUT == 1u);
    var sum = 0.0;
    for (var j = 0u; j < p.k; j++) {
        sum = fma(x[p.x_at + row * p.x_row + j], weight_f(p.weight_at, at), sum);
        at += step;
    }
    if GATED == 1u {
        let up_step = select(1u, p.up_row, IN_OUT == 1u);
        var up_at = select(o * p.up_row, o, IN_OUT == 1u);
        var up_sum = 0.0;
        for (var j = 0u; j < p.k; j++) {
            up_sum = fma(x[p.x_at + row * p.x_row + j], up_f(p.up_at, up_at), up_sum);
            up_at += up_step;
        }
        sum = silu(sum) * up_sum;
    }
    if BIAS == 1u { sum += bias_f(p.bias_at, o); }
    sum = activate(sum);
    if RESIDUAL == 1u { sum += residual[p.residual_at + row * p.residual_row + o]; }
    out[p.out_at + row * p.out_row + o] = sum;
}
