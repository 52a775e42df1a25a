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

fn none() -> Eight { return Eight(vec4<f32>(0.0), vec4<f32>(0.0)); }

//#if IN_OUT
// Four inner elements of eight outputs, from the rows where they lie.
struct Block { r0: Eight, r1: Eight, r2: Eight, r3: Eight }

fn column(v: Block, c: u32) -> vec4<f32> {
    if c < 4u { return vec4<f32>(v.r0.a[c], v.r1.a[c], v.r2.a[c], v.r3.a[c]); }
    return vec4<f32>(v.r0.b[c - 4u], v.r1.b[c - 4u], v.r2.b[c - 4u], v.r3.b[c - 4u]);
}

fn a_or_none(at: u32, i: u32, o: u32) -> Eight {
    if i >= p.k { return none(); }
    return a_w8(at + i * p.a_row, 0u, o);
}
fn a_block(at: u32, i: u32, o: u32, wanted: bool) -> Block {
    if !wanted { return Block(none(), none(), none(), none()); }
    return Block(a_or_none(at, i, o), a_or_none(at, i + 1u, o), a_or_none(at, i + 2u, o), a_or_none(at, i + 3u, o));
}
//#if GATED
fn b_or_none(at: u32, i: u32, o: u32) -> Eight {
    if i >= p.k { return none(); }
    return b_w8(at + i * p.b_row, 0u, o);
}
fn b_block(at: u32, i: u32, o: u32, wanted: bool) -> Block {
    if !wanted { return Block(none(), none(), none(), none()); }
    return Block(b_or_none(at, i, o), b_or_none(at, i + 1u, o), b_or_none(at, i + 2u, o), b_or_none(at, i + 3u, o));
}
//#end
//#else
fn a_fetch(at: u32, o: u32, i: u32) -> Eight {
    if i >= p.k { return none(); }
//#if TAIL
    return cut(a_w8(at, o, i), p.k - i);
//#else
    return a_w8(at, o, i);
//#end
}
//#if GATED
fn b_fetch(at: u32, o: u32, i: u32) -> Eight {
    if i >= p.k { return none(); }
//#if TAIL
    return cut(b_w8(at, o, i), p.k - i);
//#else
    return b_w8(at, o, i);
//#end
}
//#end
//#end

// Eight elements of x; zeros after the last.
fn fetch_x(begin: u32, i: u32) -> Eight {
    if i >= p.k { return none(); }
    let v = Eight(x4(begin + i), x4(begin + i + 4u));
//#if TAIL
    return cut(v, p.k - i);
//#else
    return v;
//#end
}

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
    // What the thread brings of each step: eight elements of a row, and of an output (or four of eight outputs). It is
    // read a step ahead, while the step before is multiplied.
    let i = t % (BK / 8u) * 8u;
    let row = min(first + t / (BK / 8u), rows - 1u);
//#if ROUTED
    let begin = p.x + list[slots + row] / p.top * p.x_row;
//#else
    let begin = p.x + row * p.x_row;
//#end
    let brings_x = t < BM * BK / 8u;
    let put_x = t / (BK / 8u) * ROW + i / 4u;
    var u = none();
    if brings_x { u = fetch_x(begin, i); }
//#if IN_OUT
    let brings_w = t < BN * BK / 32u;
    let o = t % (BN / 8u) * 8u;
    let down_w = t / (BN / 8u) * 4u;
    let put_w = o * ROW + down_w / 4u;
    var w = a_block(a, down_w, first_o + o, brings_w);
//#if GATED
    var v = b_block(b, down_w, first_o + o, brings_w);
//#end
//#else
    let brings_w = t < BN * BK / 8u;
    let o = min(first_o + t / (BK / 8u), p.n - 1u);
    let put_w = put_x;
    var w = none();
    if brings_w { w = a_fetch(a + o * p.a_row, o, i); }
//#if GATED
    var v = none();
    if brings_w { v = b_fetch(b + o * p.b_row, o, i); }
//#end
//#end
    for (var k = 0u; k < p.k; k += BK) {
        workgroupBarrier();
        if brings_x {
            xs[put_x] = u.a;
            xs[put_x + 1u] = u.b;
        }
        if brings_w {
//#if IN_OUT
//#each c 8
            ws[put_w + {c}u * ROW] = column(w, {c}u);
//#if GATED
            vs[put_w + {c}u * ROW] = column(v, {c}u);
//#end
//#end
//#else
            ws[put_w] = w.a;
            ws[put_w + 1u] = w.b;
//#if GATED
            vs[put_w] = v.a;
            vs[put_w + 1u] = v.b;
//#end
//#end
        }
        workgroupBarrier();
        let next = k + BK;
        if next < p.k {
            if brings_x { u = fetch_x(begin, next + i); }
//#if IN_OUT
            w = a_block(a, next + down_w, first_o + o, brings_w);
//#if GATED
            v = b_block(b, next + down_w, first_o + o, brings_w);
//#end
//#else
            if brings_w { w = a_fetch(a + o * p.a_row, o, next + i); }
//#if GATED
            if brings_w { v = b_fetch(b + o * p.b_row, o, next + i); }
//#end
//#end
        }
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
