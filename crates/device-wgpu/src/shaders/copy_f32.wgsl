// f32 (or any four-byte type) from one strided view to another, a thread an element.
struct Params {
    count: u32,
    from_at: u32, to_at: u32,
    d1: u32, d2: u32, d3: u32,
    f0: u32, f1: u32, f2: u32, f3: u32,
    t0: u32, t1: u32, t2: u32, t3: u32,
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
    let i3 = i % p.d3;
    let a = i / p.d3;
    let i2 = a % p.d2;
    let b = a / p.d2;
    let i1 = b % p.d1;
    let i0 = b / p.d1;
    to[p.to_at + i0 * p.t0 + i1 * p.t1 + i2 * p.t2 + i3 * p.t3] =
        source[p.from_at + i0 * p.f0 + i1 * p.f1 + i2 * p.f2 + i3 * p.f3];
}
