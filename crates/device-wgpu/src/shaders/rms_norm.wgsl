// out = x / sqrt(mean(x^2) + eps) * (weight + ONE_PLUS) [* silu(gate)], a workgroup a row.
//
// WIDE rows are whole vectors, have no gate, and are held in registers; a thread has eight elements that follow each other. Weights are asked for with the row, before its sum
// is known, and nothing is loaded under a condition: those loads would wait for each other.
struct Params {
    n: u32, heads: u32, rows: u32, eps: f32,
    x_at: u32, x_row: u32, x_head: u32,
    gate_at: u32, gate_row: u32, gate_head: u32,
    out_at: u32, out_row: u32, out_head: u32,
    weight_at: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
//#if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) own: u32,
    @builtin(num_subgroups) subgroups: u32,
//#end
) {
    let r = group_index(group, groups);
    if r >= p.rows { return; }
    let row = r / p.heads;
    let head = r % p.heads;
//#if WIDE
    let source = (p.x_at + row * p.x_row + head * p.x_head) / 4u;
    let to = (p.out_at + row * p.out_row + head * p.out_head) / 4u;
    let fours = p.n / 4u;
//#each e EACH
    let i_{e} = 2u * (lane + {e}u * WG);
    let x_{e} = x[source + min(i_{e}, fours - 1u)];
    let y_{e} = x[source + min(i_{e} + 1u, fours - 1u)];
    let w_{e} = weight_f4(p.weight_at, 4u * min(i_{e}, fours - 1u)) + vec4(f32(ONE_PLUS));
    let v_{e} = weight_f4(p.weight_at, 4u * min(i_{e} + 1u, fours - 1u)) + vec4(f32(ONE_PLUS));
//#end
    var squares = 0.0;
//#each e EACH
    squares = squares_8(
        select(vec4(0.0), x_{e}, i_{e} < fours), select(vec4(0.0), y_{e}, i_{e} + 1u < fours), squares);
//#end
//#if SUBGROUPS
    put_squares(subgroup, own, 0u, squares);
    workgroupBarrier();
    let scale = 1.0 / sqrt(squares_of(0u, subgroups) / f32(p.n) + p.eps);
//#else
    let scale = 1.0 / sqrt(sum_all(lane, squares) / f32(p.n) + p.eps);
//#end
//#each e EACH
    if i_{e} < fours { out[to + i_{e}] = x_{e} * scale * w_{e}; }
    if i_{e} + 1u < fours { out[to + i_{e} + 1u] = y_{e} * scale * v_{e}; }
//#end
//#else
    let source = p.x_at + row * p.x_row + head * p.x_head;
    let to = p.out_at + row * p.out_row + head * p.out_head;
    var squares = 0.0;
    for (var i = lane; i < p.n; i += WG) {
        let v = x[source + i];
        squares = fma(v, v, squares);
    }
    let scale = 1.0 / sqrt(sum_all(lane, squares) / f32(p.n) + p.eps);
    for (var i = lane; i < p.n; i += WG) {
        var y = x[source + i] * scale * (weight_f(p.weight_at, i) + f32(ONE_PLUS));
        if GATED == 1u {
            y *= silu(gate[p.gate_at + row * p.gate_row + head * p.gate_head + i]);
        }
        out[to + i] = y;
    }
//#end
}
