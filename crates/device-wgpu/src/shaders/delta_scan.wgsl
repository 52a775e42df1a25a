// The gated delta rule, row by row: a workgroup a span, value head and some columns of the state, SPLIT threads a column of
// K elements in registers, four of them a vector: vectors go round among the threads. Normed rows of q and k, values,
// decays and write strengths come through workgroup memory, ROWS at a time.
//
// A span in the tables: first row, rows, state slot, first snapshot; a snapshot: rows seen, slot.
struct Params {
    spans: u32, key_heads: u32, heads: u32, columns: u32,
    // Where normed keys begin, in vectors.
    keys: u32,
    v_at: u32, v_row: u32, v_head: u32,
    g_at: u32, g_row: u32, beta_at: u32, beta_row: u32,
    state_at: u32, out_at: u32, out_row: u32, out_head: u32,
}
var<immediate> p: Params;

// Columns of a workgroup.
const OWN: u32 = WG / SPLIT;

var<workgroup> qs: array<vec4<f32>, ROWS * FOURS>;
var<workgroup> ks: array<vec4<f32>, ROWS * FOURS>;
var<workgroup> vs: array<f32, ROWS * OWN>;
var<workgroup> decays: array<f32, ROWS>;
var<workgroup> writes: array<f32, ROWS>;

// The sum over a column, of which a thread has `x`.
fn in_column(x: vec4<f32>) -> f32 {
    var sum = (x.x + x.y) + (x.z + x.w);
//#if SHUFFLED
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
//#end
    return sum;
}

// Four elements of a column from `a` on, zeros past its last.
fn taken(at: u32, a: u32) -> vec4<f32> {
    var x = vec4(0.0);
//#each c 4
    if a + {c}u < K { x[{c}] = state[at + (a + {c}u) * p.columns]; }
//#end
    return x;
}

// Where vector `i` of the rows from `row` on lies, of which there are `left`: the last stands for those after it.
fn place(row: u32, left: u32, head: u32, i: u32) -> u32 {
    return ((row + min(i / FOURS, left - 1u)) * p.key_heads + head) * FOURS + i % FOURS;
}

// The same of value `i` of the workgroup's columns.
fn value_place(group: u32, row: u32, left: u32, head: u32, i: u32) -> u32 {
    let column = min(group * OWN + i % OWN, p.columns - 1u);
    return p.v_at + (row + min(i / OWN, left - 1u)) * p.v_row + head * p.v_head + column;
}

fn put(at: u32, a: u32, x: vec4<f32>) {
//#each c 4
    if a + {c}u < K { state[at + (a + {c}u) * p.columns] = x[{c}]; }
//#end
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let span = p.spans + 4u * group.z;
    let first = tables[span];
    let rows = tables[span + 1u];
    let slot = tables[span + 2u];
    var shot = tables[span + 3u];
    // Rows that the next snapshot is after: asked for when it moves on, since a load for every row would be waited for.
    var due = tables[shot];
    let h = group.y;
    var kh = h / (p.heads / p.key_heads);
    if TILED == 1u { kh = h % p.key_heads; }
    let j = (group.x * WG + lane) / SPLIT;
    let own = lane % SPLIT;
    let mine = j < p.columns;
    let size = K * p.columns;
    let home = p.state_at + (slot * p.heads + h) * size + j;
    // Variables and no array: one that is indexed by a number not known beforehand would not be in registers.
//#each i MINE
    var s_{i} = vec4(0.0);
//#end
    if mine {
//#each i MINE
        s_{i} = taken(home, 4u * ({i}u * SPLIT + own));
//#end
    }
    // What the next step takes: asked for a step ahead, and without a condition, under which loads wait for each other.
//#each e EACH
    var q_{e} = normed[place(first, rows, kh, lane + {e}u * WG)];
    var k_{e} = normed[p.keys + place(first, rows, kh, lane + {e}u * WG)];
//#end
//#each e EACH_V
    var v_{e} = v[value_place(group.x, first, rows, h, lane + {e}u * WG)];
//#end
    var gate = g[p.g_at + (first + min(lane, rows - 1u)) * p.g_row + h];
    var strength = beta[p.beta_at + (first + min(lane, rows - 1u)) * p.beta_row + h];
    for (var r0 = 0u; r0 < rows; r0 += ROWS) {
        let some = min(ROWS, rows - r0);
        workgroupBarrier();
//#each e EACH
        if lane + {e}u * WG < ROWS * FOURS {
            qs[lane + {e}u * WG] = q_{e};
            ks[lane + {e}u * WG] = k_{e};
        }
//#end
//#each e EACH_V
        if lane + {e}u * WG < ROWS * OWN { vs[lane + {e}u * WG] = v_{e}; }
//#end
        if lane < ROWS {
            decays[lane] = exp_f(gate);
            writes[lane] = strength;
        }
        workgroupBarrier();
        // After the last rows there are the last again.
        let ahead = min(r0 + ROWS, rows - 1u);
//#each e EACH_V
        v_{e} = v[value_place(group.x, first + ahead, rows - ahead, h, lane + {e}u * WG)];
//#end
        gate = g[p.g_at + (first + min(ahead + lane, rows - 1u)) * p.g_row + h];
        strength = beta[p.beta_at + (first + min(ahead + lane, rows - 1u)) * p.beta_row + h];
//#each e EACH
        q_{e} = normed[place(first + ahead, rows - ahead, kh, lane + {e}u * WG)];
        k_{e} = normed[p.keys + place(first + ahead, rows - ahead, kh, lane + {e}u * WG)];
//#end
        // Threads without a column take part in the barriers alone.
        for (var r = 0u; r < select(0u, some, mine); r++) {
            let row = first + r0 + r;
            let decay = decays[r];
            var seen = vec4(0.0);
//#each i MINE
            s_{i} *= decay;
            seen = fma(s_{i}, ks[r * FOURS + {i}u * SPLIT + own], seen);
//#end
            let d = (vs[r * OWN + lane / SPLIT] - in_column(seen)) * writes[r];
            var y = vec4(0.0);
//#each i MINE
            s_{i} = fma(ks[r * FOURS + {i}u * SPLIT + own], vec4(d), s_{i});
            y = fma(s_{i}, qs[r * FOURS + {i}u * SPLIT + own], y);
//#end
            let all = in_column(y);
            if own == 0u { out[p.out_at + row * p.out_row + h * p.out_head + j] = all; }
            while due == r0 + r + 1u {
                let to = p.state_at + (tables[shot + 1u] * p.heads + h) * size + j;
//#each i MINE
                put(to, 4u * ({i}u * SPLIT + own), s_{i});
//#end
                shot += 2u;
                due = tables[shot];
            }
        }
    }
    if mine {
//#each i MINE
        put(home, 4u * ({i}u * SPLIT + own), s_{i});
//#end
    }
}
