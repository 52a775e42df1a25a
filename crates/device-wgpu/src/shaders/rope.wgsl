// The first 2 * half elements of every head, half-split, in place; a thread a pair.
struct Params {
    pairs: u32, half: u32, heads: u32,
    x_at: u32, x_row: u32, x_head: u32,
    cos_at: u32, sin_at: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.pairs { return; }
    let j = i % p.half;
    let head = i / p.half;
    let row = head / p.heads;
    let at = p.x_at + row * p.x_row + (head % p.heads) * p.x_head + j;
    let c = cos_t[p.cos_at + row * p.half + j];
    let s = sin_t[p.sin_at + row * p.half + j];
    let a = x[at];
    let b = x[at + p.half];
    x[at] = a * c - b * s;
    x[at + p.half] = b * c + a * s;
}
