// out = (x - mean) / sqrt(var + eps) * weight + bias, a workgroup a row; two passes, so that a large mean costs nothing.
struct Params {
    n: u32, rows: u32, eps: f32,
    x_at: u32, x_row: u32,
    out_at: u32, out_row: u32,
    weight_at: u32, bias_at: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if row >= p.rows { return; }
    let source = p.x_at + row * p.x_row;
    let to = p.out_at + row * p.out_row;
    var sum = 0.0;
    for (var i = lane; i < p.n; i += WG) { sum += x[source + i]; }
    let mean = sum_all(lane, sum) / f32(p.n);
    var squares = 0.0;
    for (var i = lane; i < p.n; i += WG) {
        let v = x[source + i] - mean;
        squares = fma(v, v, squares);
    }
    let scale = 1.0 / sqrt(sum_all(lane, squares) / f32(p.n) + p.eps);
    for (var i = lane; i < p.n; i += WG) {
        out[to + i] = fma((x[source + i] - mean) * scale, weight_f(p.weight_at, i), bias_f(p.bias_at, i));
    }
}
