// The norm of a head, then its turn, in place: what `rms_norm` and `rope` do one after the other. A workgroup
// a head.
struct Params {
    n: u32, heads: u32, rows: u32, eps: f32,
    x_at: u32, x_row: u32, x_head: u32,
    weight_at: u32, half: u32, cos_at: u32, sin_at: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let r = group_index(group, groups);
    if r >= p.rows { return; }
    let row = r / p.heads;
    let at = p.x_at + row * p.x_row + (r % p.heads) * p.x_head;
    var squares = 0.0;
    for (var i = lane; i < p.n; i += WG) {
        let v = x[at + i];
        squares = fma(v, v, squares);
    }
    let scale = 1.0 / sqrt(sum_all(lane, squares) / f32(p.n) + p.eps);
    for (var i = lane; i < p.half; i += WG) {
        let c = cos_t[p.cos_at + row * p.half + i];
        let s = sin_t[p.sin_at + row * p.half + i];
        let a = x[at + i] * scale * (weight_f(p.weight_at, i) + f32(ONE_PLUS));
        let b = x[at + p.half + i] * scale * (weight_f(p.weight_at, p.half + i) + f32(ONE_PLUS));
        x[at + i] = a * c - b * s;
        x[at + p.half + i] = b * c + a * s;
    }
    for (var i = 2u * p.half + lane; i < p.n; i += WG) {
        x[at + i] = x[at + i] * scale * (weight_f(p.weight_at, i) + f32(ONE_PLUS));
    }
}
