// Attention on matrix units: SLOTS queries a workgroup, KEYS keys at a time, with the softmax carried along. BANDS sixteens of
// queries belong to a subgroup, or to two that share out keys and outputs where heads are wide. A query is a row of a
// tile and one of the SHARE heads that read the same keys.
//
// A square's elements lie with the threads as the driver likes, so that sums can't be scaled row by row where they are.
// Weights are therefore told from a base that stays where it is while scores grow by less than 2^8: only a larger one
// takes all sums through workgroup memory, which happens a few times a tile. Rows that did not grow are multiplied by
// 1: no bit of a row depends on the others.
//
// Keys and values are in f16 where HALVES is set. They go through the same place in turn, or each through its own where
// BOTH is set; what is needed next is on its way into registers meanwhile.
//
// What stands before this gives `tile_of`, `key_end`, `seen`, `load_q`, `load_four`, which takes every element of a padded
// head where HALVES is set, and `load` where it isn't.

const THREADS: u32 = 2u * SPLIT * SLOTS / BANDS;
// Rows of a tile: a slot is a row of one of the heads.
const TILE: u32 = SLOTS / SHARE;
// Elements of a row in workgroup memory: some more than there are, so that rows are in different banks.
const ROW: u32 = PADDED + 8u;
//#if SPREAD
const SCORES: u32 = KEYS + 8u;
// Fours of a row go round among its threads, or follow each other: which is faster depends on the heads.
fn column(j: u32, own: u32) -> u32 { return (j * LANES + own) * 4u; }
//#else
const SCORES: u32 = KEYS + 4u;
fn column(j: u32, own: u32) -> u32 { return own * (KEYS / LANES) + j * 4u; }
//#end
const WEIGHTS: u32 = KEYS + 8u;
// Threads that share a row of scores: fours of them go round among these.
const LANES: u32 = 2u * SPLIT;
const NOTHING: f32 = -3e38;
const LOG2_E: f32 = 1.4426950408889634;
// The largest weight is 2^HIGH where the base was set, and 2^TOP before it is set anew; f16 ends at 2^16.
const HIGH: f32 = 7.0;
const TOP: f32 = 15.0;

//#if VECTORS
alias Halves = vec4<f16>;
alias Floats = vec4<f32>;
const CELL: u32 = 4u;
//#else
alias Halves = f16;
alias Floats = f32;
const CELL: u32 = 1u;
//#end
// Keys and values in turn, or keys.
var<workgroup> rows: array<Halves, KEYS * ROW / CELL>;
//#if BOTH
var<workgroup> value_rows: array<Halves, KEYS * ROW / CELL>;
//#end
// Scores; and sums when they are scaled or written out.
var<workgroup> scores: array<Floats, SLOTS * SCORES / CELL>;
// Queries, and then weights.
var<workgroup> weights: array<Halves, SLOTS * WEIGHTS / CELL>;
// What a row's sums are multiplied by; at the end what they are divided by.
var<workgroup> factors: array<f32, SLOTS>;
// Whether a base was set anew at these keys. Four words, so that the other arrays, whose sizes are multiples of sixteen
// bytes too, begin at such multiples however a driver lines them up: matrix units read from there, and silently from a
// place before it where an array begins elsewhere.
var<workgroup> grown: array<atomic<u32>, 4>;

fn score_4(at: u32) -> vec4<f32> {
//#if VECTORS
    return scores[at / 4u];
//#else
    return vec4(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]);
//#end
}

fn put_score_4(at: u32, x: vec4<f32>) {
//#if VECTORS
    scores[at / 4u] = x;
//#else
//#each c 4
    scores[at + {c}u] = x[{c}];
//#end
//#end
}

fn put_weight_4(at: u32, x: vec4<f16>) {
//#if VECTORS
    weights[at / 4u] = x;
//#else
//#each c 4
    weights[at + {c}u] = x[{c}];
//#end
//#end
}

// What f16 can't hold becomes the largest that it can.
fn halves_of(x: vec4<f32>) -> vec4<f16> { return vec4<f16>(clamp(x, vec4(-65504.0), vec4(65504.0))); }

fn put_row_4(at: u32, h: vec4<f16>) {
//#if VECTORS
    rows[at / 4u] = h;
//#else
//#each c 4
    rows[at + {c}u] = h[{c}];
//#end
//#end
}

fn put_value_4(at: u32, h: vec4<f16>) {
//#if BOTH
//#if VECTORS
    value_rows[at / 4u] = h;
//#else
//#each c 4
    value_rows[at + {c}u] = h[{c}];
//#end
//#end
//#else
    put_row_4(at, h);
//#end
}

//#if HALVES
alias Raw = vec4<f16>;
fn narrow(x: Raw) -> vec4<f16> { return x; }
//#else
alias Raw = vec4<f32>;
fn narrow(x: Raw) -> vec4<f16> { return halves_of(x); }
//#end

// Fours of a tile of keys are numbered row by row: the row of number `i`, its first element, and where that is put.
fn row_of(i: u32) -> u32 { return i / (PADDED / 4u); }
fn element_of(i: u32) -> u32 { return i % (PADDED / 4u) * 4u; }
fn put_keys(i: u32, x: Raw) {
    if i < KEYS * PADDED / 4u { put_row_4(row_of(i) * ROW + element_of(i), narrow(x)); }
}
fn put_values(i: u32, x: Raw) {
    if i < KEYS * PADDED / 4u { put_value_4(row_of(i) * ROW + element_of(i), narrow(x)); }
}

// Number `i` of the tile that begins at key `k0`, zeros past a head's elements. The last key stands for those after it,
// which weigh nothing: a load under a condition would wait for the one before.
fn fetch(what: u32, tile: Tile, head: u32, k0: u32, end: u32, i: u32) -> Raw {
    let key = min(k0 + row_of(i), end - 1u);
    let d = element_of(i);
//#if HALVES
    return load_four(what, tile, head, key, d);
//#else
    if N % 4u == 0u {
        let x = load_four(what, tile, head, key, min(d, N - 4u));
        return select(x, vec4(0.0), d >= N);
    }
    var x = vec4(0.0);
    for (var j = 0u; d + j < N; j++) { x[j] = load(what, tile, head, key, d + j); }
    return x;
//#end
}

// Four elements of a query, so that scores come out as powers of two.
fn fetch_q(tile: Tile, first_head: u32, slot: u32, d: u32) -> vec4<f16> {
    var x = vec4(0.0);
    if slot % TILE < tile.rows {
        for (var j = 0u; j < 4u; j++) {
            if d + j < N { x[j] = load_q(tile, first_head + slot / TILE, slot % TILE, d + j); }
        }
    }
    return halves_of(x * (p.scale * LOG2_E));
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let head = group.y * SHARE;
    let tile = tile_of(group.x);
    let end = key_end(tile);
    // The subgroup's queries, and its part of keys and outputs.
    let first = 16u * BANDS * (subgroup / SPLIT);
    let part = subgroup % SPLIT;
    // The thread's rows in the softmax, one of each sixteen, and which fours of them.
    let row = first + (part * 32u + lane) / LANES;
    let own = (part * 32u + lane) % LANES;
    if t == 0u { atomicStore(&grown[0], 0u); }
//#each b BLOCKS
//#each i PIECES
    var q_{b}_{i} = coop_mat{SIDE}x{SIDE}<f16, A>();
//#end
//#each i OUTS
    var sum_{b}_{i} = coop_mat{SIDE}x{SIDE}<f32, C>();
//#end
//#end
    // Queries come through the place of the weights, as many elements of all of them as a square is wide.
//#each i PIECES
    workgroupBarrier();
    for (var e = t; e < SLOTS * SIDE / 4u; e += THREADS) {
        let slot = e / (SIDE / 4u);
        let d = e % (SIDE / 4u) * 4u;
        put_weight_4(slot * WEIGHTS + d, fetch_q(tile, head, slot, {i}u * SIDE + d));
    }
    workgroupBarrier();
//#each b BLOCKS
    q_{b}_{i} = coopLoadT<coop_mat{SIDE}x{SIDE}<f16, A>>(&weights[(first + {b}u * SIDE) * WEIGHTS / CELL], WEIGHTS / CELL);
//#end
//#end
//#each e EACH
    var next_{e} = fetch(KEY, tile, head, 0u, end, t + {e}u * THREADS);
//#if BOTH
    var value_{e} = fetch(VALUE, tile, head, 0u, end, t + {e}u * THREADS);
//#end
//#end
//#each b BANDS
    var base_{b} = NOTHING;
    var total_{b} = 0.0;
//#end
    for (var k0 = 0u; k0 < end; k0 += KEYS) {
        workgroupBarrier();
//#each e EACH
        put_keys(t + {e}u * THREADS, next_{e});
//#if BOTH
        put_values(t + {e}u * THREADS, value_{e});
//#end
//#end
        workgroupBarrier();
//#if BOTH
        if k0 + KEYS < end {
//#each e EACH
            next_{e} = fetch(KEY, tile, head, k0 + KEYS, end, t + {e}u * THREADS);
            value_{e} = fetch(VALUE, tile, head, k0 + KEYS, end, t + {e}u * THREADS);
//#end
        }
//#else
//#each e EACH
        next_{e} = fetch(VALUE, tile, head, k0, end, t + {e}u * THREADS);
//#end
//#end
        // Scores of the subgroup's part of the keys.
//#each c KEY_SQUARES
        {
            let key = (part * KEY_SQUARES + {c}u) * SIDE;
//#each b BLOCKS
            var s_{b} = coop_mat{SIDE}x{SIDE}<f32, C>();
//#end
//#each i PIECES
            {
                let k = coopLoad<coop_mat{SIDE}x{SIDE}<f16, B>>(&rows[(key * ROW + {i}u * SIDE) / CELL], ROW / CELL);
//#each b BLOCKS
                s_{b} = coopMultiplyAdd(q_{b}_{i}, k, s_{b});
//#end
            }
//#end
//#each b BLOCKS
            coopStoreT(s_{b}, &scores[((first + {b}u * SIDE) * SCORES + key) / CELL], SCORES / CELL);
//#end
        }
//#end
        workgroupBarrier();
        // Weights.
        var grew = false;
//#each b BANDS
        {
            let r = row + 16u * {b}u;
//#each j FOURS
            var s_{j} = score_4(r * SCORES + column({j}u, own));
//#end
            let limit = seen(tile, r % TILE);
//#if SPREAD
            if k0 + KEYS > limit {
//#each j FOURS
                let at_{j} = vec4<u32>(k0 + column({j}u, own)) + vec4(0u, 1u, 2u, 3u);
                s_{j} = select(vec4(NOTHING), s_{j}, at_{j} < vec4(limit));
//#end
            }
//#else
//#each j FOURS
            let at_{j} = vec4<u32>(k0 + column({j}u, own)) + vec4(0u, 1u, 2u, 3u);
            s_{j} = select(vec4(NOTHING), s_{j}, at_{j} < vec4(limit));
//#end
//#end
            var most = s_0;
//#each j FOURS
            most = max(most, s_{j});
//#end
            var top = max(max(most.x, most.y), max(most.z, most.w));
            top = max(top, subgroupShuffleXor(top, 1u));
//#if TWO
            top = max(top, subgroupShuffleXor(top, 2u));
//#end
            var factor = 1.0;
            if top > base_{b} + TOP {
                factor = exp2(base_{b} - (top - HIGH));
                base_{b} = top - HIGH;
                total_{b} *= factor;
                // There is nothing to scale yet at the first keys, of which every row sees some.
                if k0 > 0u { grew = true; }
            }
            if own == 0u { factors[r] = factor; }
//#each j FOURS
            {
                let w = vec4<f16>(exp2(s_{j} - base_{b}));
                put_weight_4(r * WEIGHTS + column({j}u, own), w);
                // The sum of what is multiplied: weights that are rounded add up to 1.
                total_{b} += dot(vec4<f32>(w), vec4(1.0));
            }
//#end
        }
//#end
        if grew { atomicStore(&grown[0], 1u); }
        // All have read the keys, and tell each other whether a base was set anew.
//#if BOTH
//#else
//#each e EACH
        put_values(t + {e}u * THREADS, next_{e});
//#end
//#end
        let any_grown = workgroupUniformLoad(&grown[0]);
        if t == 0u { atomicStore(&grown[0], 0u); }
//#if BOTH
//#else
        if k0 + KEYS < end {
//#each e EACH
            next_{e} = fetch(KEY, tile, head, k0 + KEYS, end, t + {e}u * THREADS);
//#end
        }
//#end
        if any_grown != 0u {
//#each i OUTS
//#each b BLOCKS
            coopStoreT(sum_{b}_{i}, &scores[((first + {b}u * SIDE) * SCORES + part * SIDE) / CELL], SCORES / CELL);
//#end
            workgroupBarrier();
            for (var e = lane; e < 4u * BANDS * SIDE; e += 32u) {
                let r = first + e / (SIDE / 4u);
                let at = r * SCORES + part * SIDE + e % (SIDE / 4u) * 4u;
                put_score_4(at, score_4(at) * factors[r]);
            }
            workgroupBarrier();
//#each b BLOCKS
            sum_{b}_{i} = coopLoadT<coop_mat{SIDE}x{SIDE}<f32, C>>(&scores[((first + {b}u * SIDE) * SCORES + part * SIDE) / CELL], SCORES / CELL);
//#end
            workgroupBarrier();
//#end
        }
        // Sums of the subgroup's part of the outputs.
//#each c STEPS
        {
//#each b BLOCKS
            let w_{b} = coopLoadT<coop_mat{SIDE}x{SIDE}<f16, A>>(&weights[((first + {b}u * SIDE) * WEIGHTS + {c}u * SIDE) / CELL], WEIGHTS / CELL);
//#end
//#each i OUTS
            {
//#if BOTH
                let v = coopLoadT<coop_mat{SIDE}x{SIDE}<f16, B>>(&value_rows[({c}u * SIDE * ROW + (part * OUTS + {i}u) * SIDE) / CELL], ROW / CELL);
//#else
                let v = coopLoadT<coop_mat{SIDE}x{SIDE}<f16, B>>(&rows[({c}u * SIDE * ROW + (part * OUTS + {i}u) * SIDE) / CELL], ROW / CELL);
//#end
//#each b BLOCKS
                sum_{b}_{i} = coopMultiplyAdd(w_{b}, v, sum_{b}_{i});
//#end
            }
//#end
        }
//#end
    }
    workgroupBarrier();
//#each b BANDS
    total_{b} += subgroupShuffleXor(total_{b}, 1u);
//#if TWO
    total_{b} += subgroupShuffleXor(total_{b}, 2u);
//#end
    if own == 0u { factors[row + 16u * {b}u] = total_{b}; }
//#end
//#each i OUTS
    workgroupBarrier();
//#each b BLOCKS
    coopStoreT(sum_{b}_{i}, &scores[((first + {b}u * SIDE) * SCORES + part * SIDE) / CELL], SCORES / CELL);
//#end
    workgroupBarrier();
    for (var e = lane; e < 4u * BANDS * SIDE; e += 32u) {
        let slot = first + e / (SIDE / 4u);
        let c = e % (SIDE / 4u) * 4u;
        let x = score_4(slot * SCORES + part * SIDE + c) / factors[slot];
        let d = (part * OUTS + {i}u) * SIDE + c;
        let to = p.out_at + (tile.first + slot % TILE) * p.out_row + (head + slot / TILE) * p.out_head + d;
        for (var j = 0u; j < 4u; j++) {
            if slot % TILE < tile.rows && d + j < N { out[to + j] = x[j]; }
        }
    }
//#end
}
