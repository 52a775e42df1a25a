// Decode rows times an [out, in] weight. A workgroup computes ROWS outputs of BATCH rows: its threads share out the
// inner side in eights, so that a weight is read once, whole lines at a time. A row's sum has the same order whatever
// ROWS and BATCH are.
var<workgroup> parts: array<f32, PARTS>;

fn dot8(w: Eight, u: vec4<f32>, v: vec4<f32>, sum: f32) -> f32 {
    var s = fma(w.a.x, u.x, sum);
    s = fma(w.a.y, u.y, s);
    s = fma(w.a.z, u.z, s);
    s = fma(w.a.w, u.w, s);
    s = fma(w.b.x, v.x, s);
    s = fma(w.b.y, v.y, s);
    s = fma(w.b.z, v.z, s);
    return fma(w.b.w, v.w, s);
}

// Eight elements of x, of a row that has `left` more; zeros after its last.
fn x8(at: u32, left: u32) -> Eight {
    let x = Eight(x4(at), x4(at + 4u));
//#if TAIL
    return cut(x, left);
//#else
    return x;
//#end
}

//#each q PARTS
fn part_{q}(group: vec2<u32>, t: u32, subgroup: u32, lane: u32, subgroups: u32) {
//#if MANY
    // One of several weights that the same rows are multiplied by: its workgroups, outputs, place and row, and where the
    // outputs go.
    let part = p.list + {q}u * PART;
    let n = list[part + 2u];
    let place = list[part + 3u];
    let step = list[part + 4u];
    out_at = list[part + 5u];
    out_step = list[part + 6u];
    let first = (group.x - list[part]) * ROWS;
//#else
    let n = p.n;
    let place = p.a;
    let step = p.a_row;
    let first = group.x * ROWS;
//#end
//#if ROUTED_IDS
    // A row and one of its experts.
    let slot = p.first + group.y;
    expert = list[p.list + group.y];
//#end
//#if ROUTED_SLOTS
    let slot = list[p.list + group.y];
//#end
//#if ROUTED
    let rows = slot / p.top;
    let to = slot;
//#else
    let rows = group.y * BATCH;
    let to = rows;
//#end
//#each m BATCH
    let x_{m} = p.x + min(rows + {m}u, p.m - 1u) * p.x_row;
//#end
//#each r ROWS
    let o_{r} = min(first + {r}u, n - 1u);
    let a_{r} = place + expert * p.a_step + o_{r} * step;
//#if GATED
    let b_{r} = p.b + expert * p.b_step + o_{r} * p.b_row;
//#end
//#each m BATCH
    var s_{r}_{m} = 0.0;
//#if GATED
    var t_{r}_{m} = 0.0;
//#end
//#end
//#end
//#if SUBGROUPS
    // What the thread's own output adds is asked for before it is needed.
    let column = min(first + t / BATCH, n - 1u);
    let bias = bias_of(column);
    let rest = rest_of(min(to + t % BATCH, p.m - 1u), column);
//#end
//#if NORMED
//#each m BATCH
    var square_{m} = 0.0;
//#end
    for (var i = t * 8u; i < p.k; i += THREADS * 8u) {
//#each m BATCH
        {
            let u = x8(x_{m} + i, p.k - i);
            square_{m} = squares_8(u.a, u.b, square_{m});
        }
//#end
    }
//#if SUBGROUPS
//#each m BATCH
    put_squares(subgroup, lane, {m}u * subgroups, square_{m});
//#end
    workgroupBarrier();
//#each m BATCH
    let scale_{m} = 1.0 / sqrt(squares_of({m}u * subgroups, subgroups) / f32(p.k) + p.norm_eps);
//#end
//#else
//#each m BATCH
    let scale_{m} = 1.0 / sqrt(sum_all(t, square_{m}) / f32(p.k) + p.norm_eps);
//#end
//#end
//#end
    for (var i = t * 8u; i < p.k; i += THREADS * 8u) {
//#each r ROWS
        var w_{r} = w8_{q}(a_{r}, o_{r}, i);
//#if TAIL
        w_{r} = cut(w_{r}, p.k - i);
//#end
//#if GATED
        var v_{r} = b_w8(b_{r}, o_{r}, i);
//#if TAIL
        v_{r} = cut(v_{r}, p.k - i);
//#end
//#end
//#end
//#if NORMED
        let norm_a = norm_weight_f4(p.norm_weight, i) + vec4(f32(ONE_PLUS));
        // Rows are whole fours: those past the last are not written, and count as zeros below.
        let norm_b = norm_weight_f4(p.norm_weight, min(i + 4u, p.k - 4u)) + vec4(f32(ONE_PLUS));
//#end
//#each m BATCH
        {
            let part = x8(x_{m} + i, p.k - i);
            var u = part.a;
            var v = part.b;
//#if NORMED
            u = u * scale_{m} * norm_a;
            v = v * scale_{m} * norm_b;
            // What the norm leaves is for others too: those that write the first outputs write it.
            if group.x == 0u && rows + {m}u < p.m {
                let at = p.normed + (rows + {m}u) * p.normed_row + i / 4u;
                normed[at] = u;
                if i + 4u < p.k { normed[at + 1u] = v; }
            }
//#end
//#each r ROWS
            s_{r}_{m} = dot8(w_{r}, u, v, s_{r}_{m});
//#if GATED
            t_{r}_{m} = dot8(v_{r}, u, v, t_{r}_{m});
//#end
//#end
        }
//#end
    }

//#if SUBGROUPS
//#each r ROWS
//#each m BATCH
    {
        let s = subgroupAdd(s_{r}_{m});
        if lane == 0u { parts[subgroup * COUNT + {r}u * BATCH + {m}u] = s; }
//#if GATED
        let v = subgroupAdd(t_{r}_{m});
        if lane == 0u { parts[subgroup * COUNT + (ROWS + {r}u) * BATCH + {m}u] = v; }
//#end
    }
//#end
//#end
    workgroupBarrier();
    if t < ROWS * BATCH {
        var a = 0.0;
        var b = 0.0;
        for (var g = 0u; g < subgroups; g++) {
            a += parts[g * COUNT + t];
//#if GATED
            b += parts[g * COUNT + ROWS * BATCH + t];
//#end
        }
        let o = first + t / BATCH;
        let row = to + t % BATCH;
        if o < n && row < p.m { finish_with(row, o, a, b, bias, rest); }
    }
//#else
    // Each sum in sixteen parts, and these in order: the order that it has must not depend on BATCH.
//#each r ROWS
    workgroupBarrier();
//#each m BATCH
    parts[{m}u * THREADS + t] = s_{r}_{m};
//#if GATED
    parts[(BATCH + {m}u) * THREADS + t] = t_{r}_{m};
//#end
//#end
    workgroupBarrier();
    for (var j = t; j < COUNT * 16u; j += THREADS) {
        let begin = j / 16u * THREADS + j % 16u;
        var s = 0.0;
        for (var c = 0u; c < THREADS; c += 16u) { s += parts[begin + c]; }
        parts[COUNT * THREADS + j] = s;
    }
    workgroupBarrier();
    if t < BATCH {
        var a = 0.0;
        var b = 0.0;
        for (var c = 0u; c < 16u; c++) {
            a += parts[COUNT * THREADS + t * 16u + c];
//#if GATED
            b += parts[COUNT * THREADS + (BATCH + t) * 16u + c];
//#end
        }
        let o = first + {r}u;
        let row = to + t;
        if o < n && row < p.m { finish(row, o, a, b); }
    }
//#end
//#end
}
//#end

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
//#if SUBGROUPS
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
    @builtin(num_subgroups) subgroups: u32,
//#end
) {
//#if SUBGROUPS
//#else
    let subgroup = 0u;
    let lane = 0u;
    let subgroups = 0u;
//#end
//#if MANY
//#each q PARTS
    if group.x >= list[p.list + {q}u * PART] && group.x < list[p.list + {q}u * PART + 1u] {
        part_{q}(group.xy, t, subgroup, lane, subgroups);
    }
//#end
//#else
    part_0(group.xy, t, subgroup, lane, subgroups);
//#end
}
