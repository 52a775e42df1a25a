// One row of a sequence over SPLIT keys of its cache: a workgroup a row, split and GROUP heads, which read the keys and
// values of their kv head together. TIMES as many heads share a kv head.
//
// A row in the tables: its number, keys that it sees, the first of the sequence's pages, and its first split.
// Out come, for every head and split, the largest score, the sum of the weights, and the weighted values.
//
// Where COMBINED is set, the workgroup that ends last puts the splits of its heads together, in the order that
// `paged_combine.wgsl` has; where READY is set, all begin with what `ready.wgsl` does.
//
// There are few workgroups and nothing to hide a load behind but other loads: a split is one step, a thread asks for all
// that it needs before it needs the first, and what would cost a barrier to share is computed by all.
struct Params {
    rows: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, v_at: u32, kv_heads: u32,
    out_at: u32, out_row: u32, out_head: u32,
    key_at: u32, key_row: u32, key_head: u32,
    value_at: u32, value_row: u32, value_head: u32,
    q_weight: u32, k_weight: u32, q_eps: f32, k_eps: f32,
    cos_at: u32, sin_at: u32, slots_at: u32, capacity: u32,
}
var<immediate> p: Params;
//#if COMBINED
var<workgroup> ends_last: u32;
//#end

const THREADS: u32 = 256u;
// Vectors of four elements in a head; four threads share a key, STEPS vectors each.
const FOURS: u32 = (N + 3u) / 4u;

var<workgroup> queries: array<vec4<f32>, GROUP * FOURS>;
var<workgroup> places: array<u32, SPLIT>;
var<workgroup> quarters: array<f32, 4u * GROUP * SPLIT>;
var<workgroup> scores: array<vec4<f32>, GROUP * SPLIT / 4u>;
var<workgroup> weights: array<vec4<f32>, GROUP * SPLIT / 4u>;
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

fn weight_of(h: u32, key: u32) -> f32 { return weights[(h * SPLIT + key) / 4u][key % 4u]; }

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
    // Keys past the last stand for the first: they weigh nothing, and what lies there is finite.
    if lane < SPLIT { places[lane] = cached(first_page, k_first + select(0u, lane, lane < some), kv_head); }
    workgroupBarrier();
    // A quarter of a key, and a vector of some values: asked for before anything is waited for.
    let key = lane / 4u;
    let quarter = lane % 4u;
//#each i STEPS
    var x_{i} = key_part(places[key], min(quarter + 4u * {i}u, FOURS - 1u));
//#end
    let share = min(lane / FOURS, SHARES - 1u);
    let four = lane % FOURS;
//#if AHEAD
//#each t OWN
    var y_{t} = value_part(places[share * OWN + {t}u], four);
//#end
//#end
//#if READY
    let last = k_first + SPLIT >= seen;
    // A row that is stored elsewhere, or not at all, sees what lies in its place.
    let slot = slots[p.slots_at + row];
    let place_of_own = cached(first_page, seen - 1u, kv_head);
    let has_own = last && slot >= 0 && u32(slot) < p.capacity
        && (u32(slot) * p.kv_heads + kv_head) * N == place_of_own;
    make_ready(row, head, kv_head, lane);
    if last { keep_own(row, kv_head, lane, slot); }
    for (var i = lane; i < GROUP * FOURS; i += THREADS) {
        var x = vec4(0.0);
//#each c 4
        if i % FOURS * 4u + {c}u < N { x[{c}] = ready[i / FOURS * N + i % FOURS * 4u + {c}u]; }
//#end
        queries[i] = x;
    }
//#else
    for (var i = lane; i < GROUP * FOURS; i += THREADS) {
        queries[i] = query_part(p.q_at + row * p.q_row + (head + i / FOURS) * p.q_head, i % FOURS);
    }
//#end
    workgroupBarrier();
//#if READY
    if has_own && key == some - 1u {
//#each i STEPS
        x_{i} = own_part(0u, min(quarter + 4u * {i}u, FOURS - 1u));
//#end
    }
//#end
    // Scores, in quarters.
//#each h GROUP
    {
        var s = 0.0;
//#each i STEPS
        s += select(0.0, dot(queries[{h}u * FOURS + min(quarter + 4u * {i}u, FOURS - 1u)], x_{i}), quarter + 4u * {i}u < FOURS);
//#end
        quarters[({h}u * 4u + quarter) * SPLIT + key] = s;
    }
//#end
    workgroupBarrier();
    for (var i = lane; i < GROUP * SPLIT; i += THREADS) {
        let begin = i / SPLIT * 4u * SPLIT + i % SPLIT;
        let sum = ((quarters[begin] + quarters[begin + SPLIT]) + quarters[begin + 2u * SPLIT])
            + quarters[begin + 3u * SPLIT];
        scores[i / 4u][i % 4u] = select(-3e38, sum * p.scale, i % SPLIT < some);
    }
    workgroupBarrier();
    for (var i = lane; i < GROUP * SPLIT; i += THREADS) {
        let begin = i / SPLIT * SPLIT / 4u;
        var most = scores[begin];
        for (var j = 1u; j < SPLIT / 4u; j++) { most = max(most, scores[begin + j]); }
        let top = max(max(most.x, most.y), max(most.z, most.w));
        weights[i / 4u][i % 4u] = exp_f(scores[i / 4u][i % 4u] - top);
        if i % SPLIT == 0u { tops[i / SPLIT] = top; }
    }
    workgroupBarrier();
    let split = tables[at + 3u] + group.x;
    let record = split * p.kv_heads * TIMES * GROUP + head;
    // A head's total is a thread's, each of another subgroup.
    if lane % 32u == 0u && lane / 32u < GROUP {
        let h = lane / 32u;
        var total = 0.0;
        for (var j = 0u; j < SPLIT / 4u; j++) { total += dot(weights[h * SPLIT / 4u + j], vec4(1.0)); }
        parts[(record + h) * (N + 2u)] = tops[h];
        parts[(record + h) * (N + 2u) + 1u] = total;
    }
    // Outputs: a vector of all heads over some of the keys, then all together.
//#each h GROUP
    var acc_{h} = vec4(0.0);
//#end
//#if AHEAD
//#each t OWN
//#if READY
    if has_own && share * OWN + {t}u == some - 1u { y_{t} = own_part(1u, four); }
//#end
//#each h GROUP
    acc_{h} = fma(vec4(weight_of({h}u, share * OWN + {t}u)), y_{t}, acc_{h});
//#end
//#end
//#else
    for (var t = share * OWN; t < (share + 1u) * OWN; t++) {
        var y = value_part(places[t], four);
//#if READY
        if has_own && t == some - 1u { y = own_part(1u, four); }
//#end
//#each h GROUP
        acc_{h} = fma(vec4(weight_of({h}u, t)), y, acc_{h});
//#end
    }
//#end
//#each h GROUP
    workgroupBarrier();
    if lane / FOURS < SHARES { sums[lane] = acc_{h}; }
    workgroupBarrier();
    if lane < FOURS {
        var sum = sums[lane];
        for (var i = 1u; i < SHARES; i++) { sum += sums[i * FOURS + lane]; }
        for (var j = 0u; j < min(4u, N - 4u * lane); j++) {
            parts[(record + {h}u) * (N + 2u) + 2u + 4u * lane + j] = sum[j];
        }
    }
//#end
//#if COMBINED
    storageBarrier();
    if lane == 0u {
        let counter = group.z * p.kv_heads * TIMES + group.y;
        let splits = (seen + SPLIT - 1u) / SPLIT;
        ends_last = u32(atomicAdd(&counters[counter], 1u) + 1u == splits);
        if ends_last == 1u { atomicStore(&counters[counter], 0u); }
    }
    if workgroupUniformLoad(&ends_last) == 0u { return; }
    storageBarrier();
    let splits = (seen + SPLIT - 1u) / SPLIT;
    for (var i = lane; i < GROUP * N; i += THREADS) {
        let h = head + i / N;
        out[p.out_at + row * p.out_row + h * p.out_head + i % N] =
            combined(tables[at + 3u], splits, p.kv_heads * TIMES * GROUP, h, i % N);
//#if READY
        // Nobody reads them any more as they were.
        q[p.q_at + row * p.q_row + h * p.q_head + i % N] = ready[i];
//#end
    }
//#end
}
