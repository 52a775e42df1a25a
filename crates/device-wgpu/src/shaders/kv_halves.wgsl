// Keys, or values, in f16 as matrix units take them: head by head, row by row, PADDED elements each, zeros past a head's
// last. A thread does four.
struct Params { rows: u32, heads: u32, x_at: u32, x_row: u32, x_head: u32, to: u32 }
var<immediate> p: Params;

const FOURS: u32 = PADDED / 4u;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.rows * p.heads * FOURS { return; }
    let d = i % FOURS * 4u;
    let row = i / FOURS % p.rows;
    let head = i / FOURS / p.rows;
    let at = p.x_at + row * p.x_row + head * p.x_head + d;
    var v = vec4(0.0);
//#each c 4
    if d + {c}u < N { v[{c}] = x[at + {c}u]; }
//#end
    // What f16 can't hold becomes the largest that it can.
    halves[p.to + i] = vec4<f16>(clamp(v, vec4(-65504.0), vec4(65504.0)));
}
