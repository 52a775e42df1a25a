// Prompt rows times a weight, in tiles of BM rows and BN outputs. Steps of the inner side of both operands go through
// workgroup memory; a thread keeps the products of every sixteenth row and output of the tile. A sum has the same order
// in tiles of any size.
const THREADS: u32 = 256u;
const BK: u32 = 16u;
// Vectors of a row of a step, and one more: threads that read neighbouring rows then use different banks.
const ROW: u32 = BK / 4u + 1u;
var<workgroup> xs: array<vec4<f32>, BM * ROW>;
var<workgroup> ws: array<vec4<f32>, BN * ROW>;
//#if GATED
var<workgroup> vs: array<vec4<f32>, BN * ROW>;
//#end

fn dot4(x: vec4<f32>, w: vec4<f32>, sum: f32) -> f32 {
    return fma(x.w, w.w, fma(x.z, w.z, fma(x.y, w.y, fma(x.x, w.x, sum))));
}

//#if IN_OUT
// Four inner elements of eight outputs, from the rows where they lie.
struct Block { r0: Eight, r1: Eight, r2: Eight, r3: Eight }

fn column(v: Block, c: u32) -> vec4<f32> {
    if c < 4u { return vec4<f32>(v.r0.a[c], v.r1.a[c], v.r2.a[c], v.r3.a[c]); }
    return vec4<f32>(v.r0.b[c - 4u], v.r1.b[c - 4u], v.r2.b[c - 4u], v.r3.b[c - 4u]);
}

fn a_row_or_none(at: u32, i: u32, o: u32) -> Eight {
    if i >= p.k { return Eight(vec4<f32>(0.0), vec4<f32>(0.0)); }
    return a_w8(at + i * p.a_row, 0u, o);
}

//#if GATED
fn b_row_or_none(at: u32, i: u32, o: u32) -> Eight {
    if i >= p.k { return Eight(vec4<f32>(0.0), vec4<f32>(0.0)); }
    return b_w8(at + i * p.b_row, 0u, o);
}
//#end
//#end

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) t: u32) {
    let first_o = group.x * BN;
//#if ROUTED
    // A tile of the slots of one expert: the expert, where its slots stand in the list, how many.
    expert = list[p.list + 3u * group.y];
    let slots = list[p.list + 3u * group.y + 1u];
    let rows = list[p.list + 3u * group.y + 2u];
    let first = 0u;
    if rows == 0u { return; }
//#else
    let first = group.y * BM;
    let rows = p.m;
//#end
    let a = p.a + expert * p.a_step;
//#if GATED
    let b = p.b + expert * p.b_step;
//#end
    let across = t % 16u;
    let down = t / 16u;
//#each i TM
//#each j TN
    var s_{i}_{j} = 0.0;
//#if GATED
    var t_{i}_{j} = 0.0;
//#end
//#end
//#end
    for (var k = 0u; k < p.k; k += BK) {
        workgroupBarrier();
        for (var e = t; e < BM * BK / 8u; e += THREADS) {
            let r = e / (BK / 8u);
            let row = min(first + r, rows - 1u);
//#if ROUTED
            let begin = p.x + list[slots + row] / p.top * p.x_row;
//#else
            let begin = p.x + row * p.x_row;
//#end
            let i = k + e % (BK / 8u) * 8u;
            var v = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
            if i < p.k {
                v = Eight(x4(begin + i), x4(begin + i + 4u));
//#if TAIL
                v = cut(v, p.k - i);
//#end
            }
            let to = r * ROW + (i - k) / 4u;
            xs[to] = v.a;
            xs[to + 1u] = v.b;
        }
//#if IN_OUT
        for (var e = t; e < BN * BK / 32u; e += THREADS) {
            let i = k + e / (BN / 8u) * 4u;
            let o = e % (BN / 8u) * 8u;
            let to = o * ROW + (i - k) / 4u;
            let v = Block(
                a_row_or_none(a, i, first_o + o), a_row_or_none(a, i + 1u, first_o + o),
                a_row_or_none(a, i + 2u, first_o + o), a_row_or_none(a, i + 3u, first_o + o));
//#each c 8
            ws[to + {c}u * ROW] = column(v, {c}u);
//#end
//#if GATED
            let u = Block(
                b_row_or_none(b, i, first_o + o), b_row_or_none(b, i + 1u, first_o + o),
                b_row_or_none(b, i + 2u, first_o + o), b_row_or_none(b, i + 3u, first_o + o));
//#each c 8
            vs[to + {c}u * ROW] = column(u, {c}u);
//#end
//#end
        }
//#else
        for (var e = t; e < BN * BK / 8u; e += THREADS) {
            let n = e / (BK / 8u);
            let o = min(first_o + n, p.n - 1u);
            let i = k + e % (BK / 8u) * 8u;
            var v = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
            if i < p.k {
                v = a_w8(a + o * p.a_row, o, i);
//#if TAIL
                v = cut(v, p.k - i);
//#end
            }
            let to = n * ROW + (i - k) / 4u;
            ws[to] = v.a;
            ws[to + 1u] = v.b;
//#if GATED
            var u = Eight(vec4<f32>(0.0), vec4<f32>(0.0));
            if i < p.k {
                u = b_w8(b + o * p.b_row, o, i);
//#if TAIL
                u = cut(u, p.k - i);
//#end
            }
            vs[to] = u.a;
            vs[to + 1u] = u.b;
//#end
        }
//#end
        workgroupBarrier();
        for (var i = 0u; i < BK / 4u; i++) {
//#each i TM
            let x_{i} = xs[(down + {i}u * 16u) * ROW + i];
//#end
//#each j TN
            let w_{j} = ws[(across + {j}u * 16u) * ROW + i];
//#each i TM
            s_{i}_{j} = dot4(x_{i}, w_{j}, s_{i}_{j});
//#end
//#if GATED
            let v_{j} = vs[(across + {j}u * 16u) * ROW + i];
//#each i TM
            t_{i}_{j} = dot4(x_{i}, v_{j}, t_{i}_{j});
//#end
//#end
//#end
        }
    }
//#each i TM
    {
        let row = first + down + {i}u * 16u;
        if row < rows {
//#if ROUTED
            let to = list[slots + row];
//#else
            let to = row;
//#end
//#each j TN
            {
                let o = first_o + across + {j}u * 16u;
//#if GATED
                if o < p.n { finish(to, o, s_{i}_{j}, t_{i}_{j}); }
//#else
                if o < p.n { finish(to, o, s_{i}_{j}, 0.0); }
//#end
            }
//#end
        }
    }
//#end
}
