// The gated delta rule, row by row: a workgroup a span, value head and WG columns of the state, a thread a column of K
// elements in registers. Rows of q and k come through workgroup memory, ROWS at a time.
//
// A span in the tables: first row, rows, state slot, first snapshot; a snapshot: rows seen, slot.
struct Params {
    spans: u32, key_heads: u32, heads: u32, columns: u32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, k_row: u32, k_head: u32,
    v_at: u32, v_row: u32, v_head: u32,
    g_at: u32, g_row: u32, beta_at: u32, beta_row: u32,
    state_at: u32, out_at: u32, out_row: u32, out_head: u32,
}
var<immediate> p: Params;

var<workgroup> qs: array<f32, ROWS * K>;
var<workgroup> ks: array<f32, ROWS * K>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let span = p.spans + 4u * group.z;
    let first = tables[span];
    let rows = tables[span + 1u];
    let slot = tables[span + 2u];
    var shot = tables[span + 3u];
    let h = group.y;
    var kh = h / (p.heads / p.key_heads);
    if TILED == 1u { kh = h % p.key_heads; }
    let j = group.x * WG + lane;
    let mine = j < p.columns;
    let size = K * p.columns;
    let home = p.state_at + (slot * p.heads + h) * size + j;
    var s: array<f32, K>;
    if mine {
        for (var a = 0u; a < K; a++) { s[a] = state[home + a * p.columns]; }
    }
    for (var r0 = 0u; r0 < rows; r0 += ROWS) {
        let some = min(ROWS, rows - r0);
        workgroupBarrier();
        for (var i = lane; i < some * K; i += WG) {
            let row = first + r0 + i / K;
            let a = i % K;
            let n = 2u * (row * p.key_heads + kh);
            qs[i] = q[p.q_at + row * p.q_row + kh * p.q_head + a] * norms[n];
            ks[i] = k[p.k_at + row * p.k_row + kh * p.k_head + a] * norms[n + 1u];
        }
        workgroupBarrier();
        if !mine { continue; }
        for (var r = 0u; r < some; r++) {
            let row = first + r0 + r;
            let decay = exp_f(g[p.g_at + row * p.g_row + h]);
            let write = beta[p.beta_at + row * p.beta_row + h];
            var seen = 0.0;
            for (var a = 0u; a < K; a++) {
                s[a] *= decay;
                seen = fma(s[a], ks[r * K + a], seen);
            }
            let d = (v[p.v_at + row * p.v_row + h * p.v_head + j] - seen) * write;
            var y = 0.0;
            for (var a = 0u; a < K; a++) {
                s[a] = fma(ks[r * K + a], d, s[a]);
                y = fma(s[a], qs[r * K + a], y);
            }
            out[p.out_at + row * p.out_row + h * p.out_head + j] = y;
            while tables[shot] == r0 + r + 1u {
                let to = p.state_at + (tables[shot + 1u] * p.heads + h) * size + j;
                for (var a = 0u; a < K; a++) { state[to + a * p.columns] = s[a]; }
                shot += 2u;
            }
        }
    }
    if mine {
        for (var a = 0u; a < K; a++) { state[home + a * p.columns] = s[a]; }
    }
}
