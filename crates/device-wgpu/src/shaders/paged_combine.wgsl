// Puts the splits of a row and head together.
struct Params { rows: u32, heads: u32, out_at: u32, out_row: u32, out_head: u32 }
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = p.rows + 4u * group.y;
    let row = tables[at];
    let splits = (tables[at + 1u] + SPLIT - 1u) / SPLIT;
    let head = group.x;
    for (var d = lane; d < N; d += WG) {
        out[p.out_at + row * p.out_row + head * p.out_head + d] =
            combined(tables[at + 3u], splits, p.heads, head, d);
    }
}
