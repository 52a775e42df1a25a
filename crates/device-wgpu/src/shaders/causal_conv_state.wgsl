// The last `kernel` columns of what a span has seen after some of its rows, to a slot; a thread a channel. Where the slot
// is the span's own, a column is read before it is written: columns move towards the front.
struct Params { count: u32, channels: u32, kernel: u32, copies: u32, x_at: u32, x_row: u32, state_at: u32 }
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
    let copy = p.copies + 3u * (i / p.channels);
    let span = tables[copy];
    let seen = tables[copy + 1u];
    let first = tables[span];
    let source = p.state_at + (tables[span + 2u] * p.channels + c) * p.kernel;
    let to = p.state_at + (tables[copy + 2u] * p.channels + c) * p.kernel;
    for (var j = 0u; j < p.kernel; j++) {
        let at = seen + j;
        var v: f32;
        if at < p.kernel { v = state[source + at]; }
        else { v = x[p.x_at + (first + at - p.kernel) * p.x_row + c]; }
        state[to + j] = v;
    }
}
