// Puts the splits of a row and head together, in ascending order.
struct Params { rows: u32, heads: u32, out_at: u32, out_row: u32, out_head: u32 }
var<immediate> p: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = p.rows + 4u * group.y;
    let row = tables[at];
    let splits = (tables[at + 1u] + SPLIT - 1u) / SPLIT;
    let first = tables[at + 3u];
    let head = group.x;
    let size = N + 2u;
    var top = -3e38;
    for (var i = 0u; i < splits; i++) { top = max(top, parts[((first + i) * p.heads + head) * size]); }
    var total = 0.0;
    for (var i = 0u; i < splits; i++) {
        let record = ((first + i) * p.heads + head) * size;
        total = fma(parts[record + 1u], exp_f(parts[record] - top), total);
    }
    for (var d = lane; d < N; d += WG) {
        var sum = 0.0;
        for (var i = 0u; i < splits; i++) {
            let record = ((first + i) * p.heads + head) * size;
            sum = fma(parts[record + 2u + d], exp_f(parts[record] - top), sum);
        }
        out[p.out_at + row * p.out_row + head * p.out_head + d] = sum / total;
    }
}
