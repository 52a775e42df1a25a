// Attention of a tile of 64 queries on matrix units: four subgroups of 32, each with 16 of the queries.
//
// A matrix's elements lie with the threads as the driver likes, so that sums can't be scaled row by row when a larger
// score comes. Keys are therefore walked twice: once for the largest score of each row, once for the weights.
//
// What stands before this gives `tile_of`, `key_end`, `visible`, `load_q`, `load_k` and `load_v`.

alias A16 = coop_mat16x16<f16, A>;
alias B16 = coop_mat16x16<f16, B>;
alias C16 = coop_mat16x16<f32, C>;

const TILE: u32 = 64u;
// Pieces of sixteen elements of a head.
const PIECES: u32 = (N + 15u) / 16u;
const PADDED: u32 = 16u * PIECES;
// From a row of workgroup memory to the next: not a multiple of the banks.
const ROW: u32 = PADDED + 8u;
const SCORES: u32 = TILE + 4u;
const WEIGHTS: u32 = TILE + 8u;
const NOTHING: f32 = -3e38;
const LOG2_E: f32 = 1.4426950408889634;

// Queries, then keys, then values.
var<workgroup> rows: array<f16, TILE * ROW>;
var<workgroup> scores: array<f32, 64u * SCORES>;
var<workgroup> weights: array<f16, 64u * WEIGHTS>;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) own: u32,
) {
    let head = group.y;
    let tile = tile_of(group.x);
    let end = key_end(tile);
    let first = 16u * subgroup;
    // Two threads a row: sixteen rows of a subgroup.
    let row = first + own % 16u;
    let half = 32u * (own / 16u);
    for (var i = lane; i < TILE * PADDED; i += 128u) {
        let r = i / PADDED;
        let d = i % PADDED;
        var x = 0.0;
        if d < N && r < tile.rows { x = load_q(tile, head, r, d); }
        rows[r * ROW + d] = small(x);
    }
    workgroupBarrier();
    var q: array<A16, PIECES>;
    for (var i = 0u; i < PIECES; i++) { q[i] = coopLoadT<A16>(&rows[first * ROW + 16u * i], ROW); }
    var acc: array<C16, PIECES>;
    for (var i = 0u; i < PIECES; i++) { acc[i] = C16(); }
    var top = NOTHING;
    var total = 0.0;
    for (var walk = 0u; walk < 2u; walk++) {
        for (var k0 = 0u; k0 < end; k0 += TILE) {
            workgroupBarrier();
            for (var i = lane; i < TILE * PADDED / 4u; i += 128u) {
                let r = i / (PADDED / 4u);
                let d = i % (PADDED / 4u) * 4u;
                var x = vec4(0.0);
                if k0 + r < end {
                    if d + 4u <= N {
                        x = load_k4(tile, head, k0 + r, d);
                    } else {
                        for (var j = 0u; d + j < N; j++) { x[j] = load_k(tile, head, k0 + r, d + j); }
                    }
                }
                for (var j = 0u; j < 4u; j++) { rows[r * ROW + d + j] = small(x[j]); }
            }
            workgroupBarrier();
            for (var c = 0u; c < 4u; c++) {
                var s = C16();
                for (var i = 0u; i < PIECES; i++) {
                    let k = coopLoad<B16>(&rows[16u * c * ROW + 16u * i], ROW);
                    s = coopMultiplyAdd(q[i], k, s);
                }
                coopStoreT(s, &scores[first * SCORES + 16u * c], SCORES);
            }
            workgroupBarrier();
            if walk == 0u {
                for (var c = 0u; c < 32u; c++) {
                    let key = half + c;
                    if visible(tile, row, k0 + key) { top = max(top, scores[row * SCORES + key] * p.scale); }
                }
                continue;
            }
            for (var c = 0u; c < 32u; c++) {
                let key = half + c;
                var w = 0.0;
                if visible(tile, row, k0 + key) { w = exp2((scores[row * SCORES + key] * p.scale - top) * LOG2_E); }
                total += w;
                weights[row * WEIGHTS + key] = f16(w);
            }
            for (var i = lane; i < TILE * PADDED / 4u; i += 128u) {
                let r = i / (PADDED / 4u);
                let d = i % (PADDED / 4u) * 4u;
                var x = vec4(0.0);
                if k0 + r < end {
                    if d + 4u <= N {
                        x = load_v4(tile, head, k0 + r, d);
                    } else {
                        for (var j = 0u; d + j < N; j++) { x[j] = load_v(tile, head, k0 + r, d + j); }
                    }
                }
                for (var j = 0u; j < 4u; j++) { rows[r * ROW + d + j] = small(x[j]); }
            }
            workgroupBarrier();
            for (var c = 0u; c < 4u; c++) {
                let w = coopLoadT<A16>(&weights[first * WEIGHTS + 16u * c], WEIGHTS);
                for (var i = 0u; i < PIECES; i++) {
                    let v = coopLoadT<B16>(&rows[16u * c * ROW + 16u * i], ROW);
                    acc[i] = coopMultiplyAdd(w, v, acc[i]);
                }
            }
        }
        // Both threads of a row.
        if walk == 0u { top = max(top, subgroupShuffleXor(top, 16u)); }
    }
    total += subgroupShuffleXor(total, 16u);
    for (var i = 0u; i < PIECES; i++) {
        workgroupBarrier();
        coopStoreT(acc[i], &scores[first * SCORES], SCORES);
        workgroupBarrier();
        for (var c = 0u; c < 8u; c++) {
            let d = 8u * (own / 16u) + c;
            if row < tile.rows && 16u * i + d < N {
                out[p.out_at + (tile.first + row) * p.out_row + head * p.out_head + 16u * i + d] =
                    scores[row * SCORES + d] / total;
            }
        }
    }
}
