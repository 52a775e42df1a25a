// Attention of a tile of 64 queries, 64 keys at a time, with the softmax carried along: a workgroup of 16 x 16 threads a
// tile and head. Each thread has 4 x 4 scores and 4 rows of COLUMNS outputs in registers; nothing as large as queries
// times keys is ever stored.
//
// What stands before this gives `tile_of`, `key_end`, `seen`, `load_q` and `load`, and `row_max` and `row_sum` over the
// sixteen threads of a row. Tiles are in `Small`, sums in f32.
// Rows are added up in ascending keys from multiples of 64; what a row does not see adds nothing, so that no bit of it
// depends on the rows of its tile.

const TILE: u32 = 64u;
// Elements of a head, filled up to whole sixteens.
const PADDED: u32 = 16u * COLUMNS;

var<workgroup> left: array<vec4<Small>, 16u * 16u>;
var<workgroup> right: array<vec4<Small>, 16u * 16u>;
// Key by key, four rows a vector.
var<workgroup> weights: array<vec4<Small>, 64u * 16u>;
var<workgroup> values: array<Small, DEPTH * PADDED>;

const NOTHING: f32 = -3e38;

fn exp_4(x: vec4<f32>) -> vec4<f32> {
    return vec4(exp_f(x.x), exp_f(x.y), exp_f(x.z), exp_f(x.w));
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let head = group.y;
    let tile = tile_of(group.x);
    let tx = lane % 16u;
    let ty = lane / 16u;
    var acc: array<vec4<f32>, COLUMNS>;
    for (var c = 0u; c < COLUMNS; c++) { acc[c] = vec4(0.0); }
    var top = vec4(NOTHING);
    var total = vec4(0.0);
    let end = key_end(tile);
    for (var k0 = 0u; k0 < end; k0 += TILE) {
        // Scores.
        var s = array<vec4<f32>, 4>(vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
        for (var d0 = 0u; d0 < PADDED; d0 += 16u) {
            workgroupBarrier();
            for (var i = lane; i < 1024u; i += 256u) {
                // Sixteen neighbours of a row at a time.
                let r = i / 16u;
                let d = d0 + i % 16u;
                var a = 0.0;
                var b = 0.0;
                if d < N && r < tile.rows { a = load_q(tile, head, r, d); }
                if d < N && k0 + r < end { b = load(KEY, tile, head, k0 + r, d); }
                left[(i % 16u) * 16u + r / 4u][r % 4u] = small(a);
                right[(i % 16u) * 16u + r / 4u][r % 4u] = small(b);
            }
            workgroupBarrier();
            for (var d = 0u; d < 16u; d++) {
                let a = vec4<f32>(left[d * 16u + ty]);
                let b = vec4<f32>(right[d * 16u + tx]);
                s[0] = fma(a, vec4(b.x), s[0]);
                s[1] = fma(a, vec4(b.y), s[1]);
                s[2] = fma(a, vec4(b.z), s[2]);
                s[3] = fma(a, vec4(b.w), s[3]);
            }
        }
        for (var c = 0u; c < 4u; c++) {
            s[c] *= p.scale;
            for (var r = 0u; r < 4u; r++) {
                if k0 + 4u * tx + c >= seen(tile, 4u * ty + r) { s[c][r] = NOTHING; }
            }
        }
        // Softmax.
        let before = top;
        top = max(before, row_max(lane, max(max(s[0], s[1]), max(s[2], s[3]))));
        for (var c = 0u; c < 4u; c++) {
            s[c] = exp_4(s[c] - top);
            weights[(4u * tx + c) * 16u + ty] = vec4<Small>(s[c]);
        }
        let factor = exp_4(before - top);
        total = fma(total, factor, row_sum(lane, (s[0] + s[1]) + (s[2] + s[3])));
        for (var c = 0u; c < COLUMNS; c++) { acc[c] *= factor; }
        // Values, DEPTH keys at a time.
        for (var v0 = 0u; v0 < TILE; v0 += DEPTH) {
            workgroupBarrier();
            for (var i = lane; i < DEPTH * PADDED; i += 256u) {
                let key = k0 + v0 + i / PADDED;
                let d = i % PADDED;
                var v = 0.0;
                if d < N && key < end { v = load(VALUE, tile, head, key, d); }
                values[i] = small(v);
            }
            workgroupBarrier();
            for (var key = 0u; key < DEPTH; key++) {
                let w = vec4<f32>(weights[(v0 + key) * 16u + ty]);
                for (var c = 0u; c < COLUMNS; c++) {
                    acc[c] = fma(w, vec4(f32(values[key * PADDED + c * 16u + tx])), acc[c]);
                }
            }
        }
    }
    for (var r = 0u; r < 4u; r++) {
        let row = 4u * ty + r;
        if row >= tile.rows { continue; }
        for (var c = 0u; c < COLUMNS; c++) {
            let d = c * 16u + tx;
            if d < N { out[p.out_at + (tile.first + row) * p.out_row + head * p.out_head + d] = acc[c][r] / total[r]; }
        }
    }
}
