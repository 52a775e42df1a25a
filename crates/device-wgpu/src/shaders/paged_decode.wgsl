// One row of a sequence over SPLIT keys of its cache: a workgroup a row, kv head and split. The heads that share the kv
// head read its keys and values together.
//
// A row in the tables: its number, keys that it sees, the first of the sequence's pages, and its first split.
// Out come, for every head and split, the largest score, the sum of the weights, and the weighted values.
//
// There are few workgroups and nothing to hide a load behind but other loads: where keys lie is found once a block,
// and a thread asks for many elements before it needs the first.
struct Params {
    rows: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, v_at: u32, kv_heads: u32,
}
var<immediate> p: Params;

const BLOCK: u32 = 64u;
// Elements of a head that a thread multiplies; four threads share a key.
const QUARTER: u32 = (N + 3u) / 4u;
// Outputs a thread has; of one place in different heads where SAME is set.
const OUTPUTS: u32 = (GROUP * N + 255u) / 256u;
const SAME: u32 = select(0u, 1u, 256u % N == 0u);
// Values asked for at a time.
const AHEAD: u32 = 8u;

var<workgroup> queries: array<f32, GROUP * N>;
var<workgroup> places: array<u32, BLOCK>;
var<workgroup> quarters: array<f32, 4u * GROUP * BLOCK>;
var<workgroup> scores: array<f32, GROUP * BLOCK>;
var<workgroup> sixteenths: array<f32, GROUP * 16u>;
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
    let key = lane % BLOCK;
    let d_first = min(lane / BLOCK * QUARTER, N);
    let d_end = min(d_first + QUARTER, N);
    for (var k0 = k_first; k0 < end; k0 += BLOCK) {
        let some = min(BLOCK, end - k0);
        // Keys past the last stand for the first: they weigh nothing, and what lies there is finite.
        if lane < BLOCK { places[lane] = cached(first_page, k0 + select(0u, lane, lane < some), kv_head); }
        workgroupBarrier();
        var s: array<f32, GROUP>;
        for (var h = 0u; h < GROUP; h++) { s[h] = 0.0; }
        let place = places[key];
        var d = d_first;
        for (; d + 4u <= d_end; d += 4u) {
            let x = key_four(place + d);
            for (var h = 0u; h < GROUP; h++) {
                let at = h * N + d;
                s[h] = fma(queries[at], x.x, s[h]);
                s[h] = fma(queries[at + 1u], x.y, s[h]);
                s[h] = fma(queries[at + 2u], x.z, s[h]);
                s[h] = fma(queries[at + 3u], x.w, s[h]);
            }
        }
        for (; d < d_end; d++) {
            let x = key_element(place + d);
            for (var h = 0u; h < GROUP; h++) { s[h] = fma(queries[h * N + d], x, s[h]); }
        }
        for (var h = 0u; h < GROUP; h++) { quarters[(h * 4u + lane / BLOCK) * BLOCK + key] = s[h]; }
        workgroupBarrier();
        for (var i = lane; i < GROUP * BLOCK; i += 256u) {
            let begin = i / BLOCK * 4u * BLOCK + i % BLOCK;
            let sum = ((quarters[begin] + quarters[begin + BLOCK]) + quarters[begin + 2u * BLOCK])
                + quarters[begin + 3u * BLOCK];
            scores[i] = select(-3e38, sum * p.scale, i % BLOCK < some);
        }
        workgroupBarrier();
        for (var i = lane; i < GROUP * 16u; i += 256u) {
            let begin = 4u * i;
            sixteenths[i] = max(max(scores[begin], scores[begin + 1u]), max(scores[begin + 2u], scores[begin + 3u]));
        }
        workgroupBarrier();
        if lane < GROUP {
            let before = tops[lane];
            var top = before;
            for (var i = 0u; i < 16u; i++) { top = max(top, sixteenths[lane * 16u + i]); }
            tops[lane] = top;
            factors[lane] = exp_f(before - top);
        }
        workgroupBarrier();
        for (var i = lane; i < GROUP * 16u; i += 256u) {
            let begin = 4u * i;
            var sum = 0.0;
            for (var j = begin; j < begin + 4u; j++) {
                let w = exp_f(scores[j] - tops[i / 16u]);
                scores[j] = w;
                sum += w;
            }
            sixteenths[i] = sum;
        }
        workgroupBarrier();
        if lane < GROUP {
            var sum = 0.0;
            for (var i = 0u; i < 16u; i++) { sum += sixteenths[lane * 16u + i]; }
            totals[lane] = fma(totals[lane], factors[lane], sum);
        }
        for (var i = 0u; i < OUTPUTS; i++) { acc[i] *= factors[min((lane + 256u * i) / N, GROUP - 1u)]; }
        if lane < GROUP * N {
            for (var t = 0u; t < some; t += AHEAD) {
                var x: array<f32, AHEAD>;
                if SAME == 1u {
                    for (var j = 0u; j < AHEAD; j++) { x[j] = value_element(places[t + j] + lane % N); }
                }
                for (var i = 0u; i < OUTPUTS; i++) {
                    let o = lane + 256u * i;
                    if o >= GROUP * N { continue; }
                    if SAME == 0u {
                        for (var j = 0u; j < AHEAD; j++) { x[j] = value_element(places[t + j] + o % N); }
                    }
                    for (var j = 0u; j < AHEAD; j++) {
                        acc[i] = fma(scores[o / N * BLOCK + t + j], x[j], acc[i]);
                    }
                }
            }
        }
        workgroupBarrier();
    }
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
