// Bytes `from..to` become zero, a thread a word.
struct Params { first: u32, words: u32, start: u32, end: u32 }
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.words { return; }
    let w = p.first + i;
    if 4u * w >= p.start && 4u * w + 4u <= p.end {
        out[w] = 0u;
        return;
    }
    var kept = 0u;
    for (var k = 0u; k < 4u; k++) {
        if 4u * w + k < p.start || 4u * w + k >= p.end { kept |= 0xffu << (8u * k); }
    }
    out[w] &= kept;
}
