// One row of a sequence over SPLIT keys of its cache: a workgroup a row, split and GROUP heads, which read the keys and
// values of their kv head together. TIMES as many heads share a kv head.
//
// A row in the tables: its number, keys that it sees, the first of the sequence's pages, and its first split.
// Out come, for every head and split, the largest score, the sum of the weights, and the weighted values.
//
// There are few workgroups and nothing to hide a load behind but other loads: a split is one step, a thread asks for all
// that it needs before it needs the first, and what would cost a barrier to share is computed by all.
struct Params {
    rows: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, v_at: u32, kv_heads: u32,
}
var<immediate> p: Params;

const THREADS: u32 = 256u;
// Vectors of four elements in a head; four threads share a key, STEPS vectors each.
const FOURS: u32 = (N + 3u) / 4u;
// Threads that share an output vector of all heads, and the keys of each.
const OWN: u32 = SPLIT / SHARES;

var<workgroup> queries: array<vec4<f32>, GROUP * FOURS>;
var<workgroup> places: array<u32, SPLIT>;
var<workgroup> quarters: array<f32, 4u * GROUP * SPLIT>;
var<workgroup> scores: array<f32, GROUP * SPLIT>;
var<workgroup> weights: array<f32, GROUP * SPLIT>;
var<workgroup> tops: array<f32, GROUP>;
var<workgroup> sums: array<vec4<f32>, SHARES * FOURS>;

// Elements `4 i` to `4 i + 3` of a head, zeros past its last.
fn query_part(at: u32, i: u32) -> vec4<f32> {
    var x = vec4(0.0);
//#each c 4
    if 4u * i + {c}u < N { x[{c}] = q[at + 4u * i + {c}u]; }
//#end
    return x;
}
fn key_part(place: u32, i: u32) -> vec4<f32> {
    if N % 4u == 0u || 4u * i + 4u <= N { return key_four(place + 4u * i); }
    var x = vec4(0.0);
    for (var j = 0u; j < N - 4u * i; j++) { x[j] = key_element(place + 4u * i + j); }
    return x;
}
fn value_part(place: u32, i: u32) -> vec4<f32> {
    if N % 4u == 0u || 4u * i + 4u <= N { return value_four(place + 4u * i); }
    var x = vec4(0.0);
    for (var j = 0u; j < N - 4u * i; j++) { x[j] = value_element(place + 4u * i + j); }
    return x;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = p.rows + 4u * group.z;
    let row = tables[at];
    let seen = tables[at + 1u];
    let first_page = tables[at + 2u];
    let k_first = group.x * SPLIT;
    if k_first >= seen { return; }
    let kv_head = group.y / TIMES;
    let head = group.y * GROUP;
    let some = min(seen - k_first, SPLIT);
    for (var i = lane; i < GROUP * FOURS; i += THREADS) {
        queries[i] = query_part(p.q_at + row * p.q_row + (head + i / FOURS) * p.q_head, i % FOURS);
    }
    // Keys past the last stand for the first: they weigh nothing, and what lies there is finite.
    if lane < SPLIT { places[lane] = cached(first_page, k_first + select(0u, lane, lane < some), kv_head); }
    workgroupBarrier();
    // Scores, in quarters.
    for (var key = lane / 4u; key < SPLIT; key += THREADS / 4u) {
        let place = places[key];
        let quarter = lane % 4u;
//#each i STEPS
        var x_{i} = vec4(0.0);
        if quarter + 4u * {i}u < FOURS { x_{i} = key_part(place, quarter + 4u * {i}u); }
//#end
//#each h GROUP
        {
            var s = 0.0;
//#each i STEPS
            s += dot(queries[{h}u * FOURS + min(quarter + 4u * {i}u, FOURS - 1u)], x_{i});
//#end
            quarters[({h}u * 4u + quarter) * SPLIT + key] = s;
        }
//#end
    }
    workgroupBarrier();
    for (var i = lane; i < GROUP * SPLIT; i += THREADS) {
        let begin = i / SPLIT * 4u * SPLIT + i % SPLIT;
        let sum = ((quarters[begin] + quarters[begin + SPLIT]) + quarters[begin + 2u * SPLIT])
            + quarters[begin + 3u * SPLIT];
        scores[i] = select(-3e38, sum * p.scale, i % SPLIT < some);
    }
    workgroupBarrier();
    for (var i = lane; i < GROUP * SPLIT; i += THREADS) {
        let begin = i / SPLIT * SPLIT;
        var top = scores[begin];
        for (var j = 1u; j < SPLIT; j++) { top = max(top, scores[begin + j]); }
        weights[i] = exp_f(scores[i] - top);
        if i == begin { tops[i / SPLIT] = top; }
    }
    workgroupBarrier();
    // Outputs: a vector of all heads over some of the keys, then all together.
    let share = lane / FOURS;
    let four = lane % FOURS;
//#each h GROUP
    var acc_{h} = vec4(0.0);
//#end
    if share < SHARES {
        for (var t = share * OWN; t < (share + 1u) * OWN; t++) {
            let x = value_part(places[t], four);
//#each h GROUP
            acc_{h} = fma(vec4(weights[{h}u * SPLIT + t]), x, acc_{h});
//#end
        }
    }
    let split = tables[at + 3u] + group.x;
    let record = split * p.kv_heads * TIMES * GROUP + head;
//#each h GROUP
    workgroupBarrier();
    if share < SHARES { sums[lane] = acc_{h}; }
    workgroupBarrier();
    if lane < FOURS {
        var sum = sums[lane];
        for (var i = 1u; i < SHARES; i++) { sum += sums[i * FOURS + lane]; }
        for (var j = 0u; j < min(4u, N - 4u * lane); j++) {
            parts[(record + {h}u) * (N + 2u) + 2u + 4u * lane + j] = sum[j];
        }
    }
//#end
    if lane < GROUP {
        var total = 0.0;
        for (var t = 0u; t < SPLIT; t++) { total += weights[lane * SPLIT + t]; }
        parts[(record + lane) * (N + 2u)] = tops[lane];
        parts[(record + lane) * (N + 2u) + 1u] = total;
    }
}
