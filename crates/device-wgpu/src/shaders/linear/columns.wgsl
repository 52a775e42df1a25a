// Decode rows times an [in, out] weight. A workgroup computes eight outputs a thread column, its thread rows share out
// the inner side. A row's sum has the same order whatever BATCH is.
const ACROSS: u32 = 8u;
const DOWN: u32 = THREADS / ACROSS;
var<workgroup> parts: array<vec4<f32>, PARTS>;

fn axpy(x: f32, w: Eight, sum: Eight) -> Eight {
    return Eight(fma(vec4<f32>(x), w.a, sum.a), fma(vec4<f32>(x), w.b, sum.b));
}

fn put(at: u32, v: Eight) {
    parts[2u * at] = v.a;
    parts[2u * at + 1u] = v.b;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let column = t % ACROSS;
    let first = (group.x * ACROSS + column) * 8u;
//#if ROUTED_IDS
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
    let a = p.a + expert * p.a_step;
//#if GATED
    let b = p.b + expert * p.b_step;
//#end
    let none = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
//#each m BATCH
    let x_{m} = p.x + min(rows + {m}u, p.m - 1u) * p.x_row;
    var s_{m} = none;
//#if GATED
    var t_{m} = none;
//#end
//#end
    for (var i = t / ACROSS; i < p.k; i += DOWN) {
        let w = a_w8(a + i * p.a_row, 0u, first);
//#if GATED
        let v = b_w8(b + i * p.b_row, 0u, first);
//#end
//#each m BATCH
        {
            let u = x[x_{m} + i];
            s_{m} = axpy(u, w, s_{m});
//#if GATED
            t_{m} = axpy(u, v, t_{m});
//#end
        }
//#end
    }
//#each m BATCH
    put({m}u * THREADS + t, s_{m});
//#if GATED
    put((BATCH + {m}u) * THREADS + t, t_{m});
//#end
//#end
    workgroupBarrier();
    // An output a thread, and the parts of its sum in order.
    for (var j = t; j < BATCH * ACROSS * 8u; j += THREADS) {
        let row = to + j / (ACROSS * 8u);
        let o = group.x * ACROSS * 8u + j % (ACROSS * 8u);
        let begin = (j / (ACROSS * 8u) * THREADS + j % (ACROSS * 8u) / 8u) * 2u + (j / 4u) % 2u;
        var a = 0.0;
        var b = 0.0;
        for (var d = 0u; d < DOWN; d++) {
            a += parts[begin + d * ACROSS * 2u][j % 4u];
//#if GATED
            b += parts[begin + (BATCH * THREADS + d * ACROSS) * 2u][j % 4u];
//#end
        }
        if o < p.n && row < p.m { finish(row, o, a, b); }
    }
}
