// One row of a sequence over SPLIT keys of its cache: a workgroup a row, kv head and split. The heads that share the kv
// head read its keys and values together.
//
// A row in the tables: its number, keys that it sees, the first of the sequence's pages, and its first split.
// Out come, for every head and split, the largest score, the sum of the weights, and the weighted values.
struct Params {
    rows: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, v_at: u32, kv_heads: u32,
}
var<immediate> p: Params;

const BLOCK: u32 = 64u;
const CHUNK: u32 = 32u;
// Heads a thread has scores of; the other threads of a key have the rest.
const MINE: u32 = (GROUP + 3u) / 4u;
// Outputs a thread has; of one place in different heads where SAME is set.
const OUTPUTS: u32 = (GROUP * N + 255u) / 256u;
const SAME: u32 = select(0u, 1u, 256u % N == 0u);

var<workgroup> queries: array<f32, GROUP * N>;
var<workgroup> keys: array<f32, 64u * 33u>;
var<workgroup> scores: array<f32, GROUP * 64u>;
var<workgroup> tops: array<f32, GROUP>;
var<workgroup> totals: array<f32, GROUP>;
var<workgroup> factors: array<f32, GROUP>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = p.rows + 4u * group.z;
    let row = tables[at];
    let seen = tables[at + 1u];
    let first_page = tables[at + 2u];
    let k_first = group.x * SPLIT;
    if k_first >= seen { return; }
    let kv_head = group.y;
    let end = min(seen, k_first + SPLIT);
    for (var i = lane; i < GROUP * N; i += 256u) {
        queries[i] = q[p.q_at + row * p.q_row + (kv_head * GROUP + i / N) * p.q_head + i % N];
    }
    if lane < GROUP {
        tops[lane] = -3e38;
        totals[lane] = 0.0;
    }
    var acc: array<f32, OUTPUTS>;
    for (var i = 0u; i < OUTPUTS; i++) { acc[i] = 0.0; }
    let key = lane % 64u;
    let quarter = lane / 64u;
    for (var k0 = k_first; k0 < end; k0 += BLOCK) {
        let some = min(BLOCK, end - k0);
        var s: array<f32, MINE>;
        for (var i = 0u; i < MINE; i++) { s[i] = 0.0; }
        for (var d0 = 0u; d0 < N; d0 += CHUNK) {
            let wide = min(CHUNK, N - d0);
            workgroupBarrier();
            for (var i = lane; i < BLOCK * CHUNK; i += 256u) {
                let r = i / CHUNK;
                let d = i % CHUNK;
                var x = 0.0;
                if r < some && d < wide { x = key_element(cached(first_page, k0 + r, kv_head) + d0 + d); }
                keys[r * 33u + d] = x;
            }
            workgroupBarrier();
            for (var i = 0u; i < MINE; i++) {
                let h = quarter + 4u * i;
                if h >= GROUP { continue; }
                var sum = s[i];
                for (var d = 0u; d < wide; d++) { sum = fma(queries[h * N + d0 + d], keys[key * 33u + d], sum); }
                s[i] = sum;
            }
        }
        for (var i = 0u; i < MINE; i++) {
            let h = quarter + 4u * i;
            if h < GROUP { scores[h * 64u + key] = select(-3e38, s[i] * p.scale, key < some); }
        }
        workgroupBarrier();
        if lane < GROUP {
            let before = tops[lane];
            var top = before;
            for (var i = 0u; i < some; i++) { top = max(top, scores[lane * 64u + i]); }
            tops[lane] = top;
            factors[lane] = exp_f(before - top);
        }
        workgroupBarrier();
        for (var i = lane; i < GROUP * 64u; i += 256u) { scores[i] = exp_f(scores[i] - tops[i / 64u]); }
        workgroupBarrier();
        if lane < GROUP {
            var sum = 0.0;
            for (var i = 0u; i < some; i++) { sum += scores[lane * 64u + i]; }
            totals[lane] = fma(totals[lane], factors[lane], sum);
        }
        for (var i = 0u; i < OUTPUTS; i++) { acc[i] *= factors[min((lane + 256u * i) / N, GROUP - 1u)]; }
        for (var t = 0u; t < some; t++) {
            let value = cached(first_page, k0 + t, kv_head);
            var x = 0.0;
            if SAME == 1u && lane < GROUP * N { x = value_element(value + lane % N); }
            for (var i = 0u; i < OUTPUTS; i++) {
                let o = lane + 256u * i;
                if o >= GROUP * N { continue; }
                if SAME == 0u { x = value_element(value + o % N); }
                acc[i] = fma(scores[(o / N) * 64u + t], x, acc[i]);
            }
        }
    }
    workgroupBarrier();
    let split = tables[at + 3u] + group.x;
    let record = (split * p.kv_heads + kv_head) * GROUP;
    for (var i = 0u; i < OUTPUTS; i++) {
        let o = lane + 256u * i;
        if o < GROUP * N { parts[(record + o / N) * (N + 2u) + 2u + o % N] = acc[i]; }
    }
    if lane < GROUP {
        parts[(record + lane) * (N + 2u)] = tops[lane];
        parts[(record + lane) * (N + 2u) + 1u] = totals[lane];
    }
}
