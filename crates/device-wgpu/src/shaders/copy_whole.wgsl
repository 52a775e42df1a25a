// Vectors of four words that follow each other, from one place to another. A thread asks for four of them before it
// writes the first.
struct Params { count: u32, from_at: u32, to_at: u32 }
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * 4u * WG + lane;
//#each j 4
    var x_{j} = vec4<u32>();
    if i + {j}u * WG < p.count { x_{j} = source[p.from_at + i + {j}u * WG]; }
//#end
//#each j 4
    if i + {j}u * WG < p.count { to[p.to_at + i + {j}u * WG] = x_{j}; }
//#end
}
