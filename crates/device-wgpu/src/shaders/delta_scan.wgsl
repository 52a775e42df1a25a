// The gated delta rule, row by row: a workgroup a span, value head and WG columns of the state, a thread a column of K
// elements in registers, four of them a vector. Rows of q and k, decays and write strengths come through workgroup memory,
// ROWS at a time; a thread's own value of the next row is on its way while it works on a row.
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

const FOURS: u32 = (K + 3u) / 4u;

var<workgroup> qs: array<vec4<f32>, ROWS * FOURS>;
var<workgroup> ks: array<vec4<f32>, ROWS * FOURS>;
var<workgroup> decays: array<f32, ROWS>;
var<workgroup> writes: array<f32, ROWS>;

fn in_all(x: vec4<f32>) -> f32 { return (x.x + x.y) + (x.z + x.w); }

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
    var s: array<vec4<f32>, FOURS>;
    for (var i = 0u; i < FOURS; i++) {
        s[i] = vec4(0.0);
        if mine {
            for (var a = 4u * i; a < min(4u * i + 4u, K); a++) { s[i][a % 4u] = state[home + a * p.columns]; }
        }
    }
    for (var r0 = 0u; r0 < rows; r0 += ROWS) {
        let some = min(ROWS, rows - r0);
        workgroupBarrier();
        for (var i = lane; i < some * 4u * FOURS; i += WG) {
            let row = first + r0 + i / (4u * FOURS);
            let a = i % (4u * FOURS);
            let n = 2u * (row * p.key_heads + kh);
            var x = 0.0;
            var y = 0.0;
            if a < K {
                x = q[p.q_at + row * p.q_row + kh * p.q_head + a] * norms[n];
                y = k[p.k_at + row * p.k_row + kh * p.k_head + a] * norms[n + 1u];
            }
            qs[i / 4u][i % 4u] = x;
            ks[i / 4u][i % 4u] = y;
        }
        if lane < some {
            let row = first + r0 + lane;
            decays[lane] = exp_f(g[p.g_at + row * p.g_row + h]);
            writes[lane] = beta[p.beta_at + row * p.beta_row + h];
        }
        var next = 0.0;
        let values = p.v_at + (first + r0) * p.v_row + h * p.v_head + j;
        if mine { next = v[values]; }
        workgroupBarrier();
        // Threads without a column take part in the barriers alone.
        for (var r = 0u; r < select(0u, some, mine); r++) {
            let row = first + r0 + r;
            let decay = decays[r];
            let value = next;
            if r + 1u < some { next = v[values + (r + 1u) * p.v_row]; }
            var seen = vec4(0.0);
            for (var i = 0u; i < FOURS; i++) {
                s[i] *= decay;
                seen = fma(s[i], ks[r * FOURS + i], seen);
            }
            let d = (value - in_all(seen)) * writes[r];
            var y = vec4(0.0);
            for (var i = 0u; i < FOURS; i++) {
                s[i] = fma(ks[r * FOURS + i], vec4(d), s[i]);
                y = fma(s[i], qs[r * FOURS + i], y);
            }
            out[p.out_at + row * p.out_row + h * p.out_head + j] = in_all(y);
            while tables[shot] == r0 + r + 1u {
                let to = p.state_at + (tables[shot + 1u] * p.heads + h) * size + j;
                for (var a = 0u; a < K; a++) { state[to + a * p.columns] = s[a / 4u][a % 4u]; }
                shot += 2u;
            }
        }
    }
    if mine {
        for (var a = 0u; a < K; a++) { state[home + a * p.columns] = s[a / 4u][a % 4u]; }
    }
}
