// Prompt rows times a weight on matrix units: f16 times f16, summed in f32. Steps of both operands go through workgroup
// memory in rows of BK; a subgroup keeps MI x NI squares of products, two subgroups are below each other and ACROSS beside
// each other. The next step is read while the units are busy with the last, where rows are WHOLE steps without a condition
// on any load: those under one wait for each other.
//
// What comes in f16 was scaled row by row (see halves.wgsl), and `unscale` takes that back.
const THREADS: u32 = 64u * ACROSS;
const BM: u32 = 2u * MI * SIDE;
const BN: u32 = ACROSS * NI * SIDE;
// Elements of a row in workgroup memory, and a step of it: eight more than BK, so that rows are in different banks.
const ROW: u32 = BK + 8u;
//#if VECTORS
alias Cell = vec4<f16>;
const CELL: u32 = 4u;
//#else
alias Cell = f16;
const CELL: u32 = 1u;
//#end
var<workgroup> xs: array<Cell, BM * ROW / CELL>;
//#each o EACH
var<workgroup> ws_{o}: array<Cell, BN * ROW / CELL>;
//#end
var<workgroup> stage: array<f32, 2u * ACROSS * EACH * SIDE * SIDE>;

// Eight elements in f16.
struct Small8 { a: vec4<f16>, b: vec4<f16> }

fn put_x(at: u32, u: vec4<f16>) {
//#if VECTORS
    xs[at / 4u] = u;
//#else
//#each c 4
    xs[at + {c}u] = u[{c}];
//#end
//#end
}
// Bytes of a row of the weights.
fn step_0() -> u32 { return p.a_row; }
fn step_1() -> u32 { return p.b_row; }

//#each o EACH
fn put_w_{o}(at: u32, u: vec4<f16>, v: vec4<f16>) {
//#if VECTORS
    ws_{o}[at / 4u] = u;
    ws_{o}[at / 4u + 1u] = v;
//#else
//#each c 4
    ws_{o}[at + {c}u] = u[{c}];
    ws_{o}[at + {c}u + 4u] = v[{c}];
//#end
//#end
}

fn fetch_w_{o}(at: u32, e: u32, k: u32, first_o: u32) -> Small8 {
//#if IN_OUT
    // A task is eight outputs of an inner element.
    let i = k + e / (BN / 8u);
//#if WHOLE
//#else
    if i >= p.k { return Small8(); }
//#end
    let v = w8_{o}(at + i * step_{o}(), 0u, first_o + e % (BN / 8u) * 8u);
    return Small8(vec4<f16>(v.a), vec4<f16>(v.b));
//#else
    let out_of = min(first_o + e / (BK / 8u), p.n - 1u);
    let i = k + e % (BK / 8u) * 8u;
//#if WHOLE
//#else
    if i >= p.k { return Small8(); }
//#end
    var v = w8_{o}(at + out_of * step_{o}(), out_of, i);
//#if TAIL
    v = cut(v, p.k - i);
//#end
    return Small8(vec4<f16>(v.a), vec4<f16>(v.b));
//#end
}

fn store_w_{o}(e: u32, v: Small8) {
//#if IN_OUT
    let at = e % (BN / 8u) * 8u * ROW + e / (BN / 8u);
    let a = v.a;
    let b = v.b;
//#each c 4
//#if VECTORS
    ws_{o}[(at + {c}u * ROW) / 4u][at % 4u] = a[{c}];
    ws_{o}[(at + ({c}u + 4u) * ROW) / 4u][at % 4u] = b[{c}];
//#else
    ws_{o}[at + {c}u * ROW] = a[{c}];
    ws_{o}[at + ({c}u + 4u) * ROW] = b[{c}];
//#end
//#end
//#else
    put_w_{o}(e / (BK / 8u) * ROW + e % (BK / 8u) * 8u, v.a, v.b);
//#end
}
//#end

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) t: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let first_o = group.x * BN;
//#if ROUTED
    // A tile of the slots of one expert: the expert, where its slots stand in the list, how many. Where there are none, a
    // workgroup goes through an empty loop: all of it must meet at each barrier.
    expert = list[p.list + 3u * group.y];
    let slots = list[p.list + 3u * group.y + 1u];
    let rows = list[p.list + 3u * group.y + 2u];
    let first = 0u;
    let inner = select(p.k, 0u, rows == 0u);
//#else
    let first = group.y * BM;
    let rows = p.m;
    let inner = p.k;
//#end
    let at_0 = p.a + expert * p.a_step;
//#if GATED
    let at_1 = p.b + expert * p.b_step;
//#end
    // Where the thread's parts of x begin, in vectors of four.
//#each e EACH_X
    let row_{e} = min(first + (t + {e}u * THREADS) / (BK / 4u), max(rows, 1u) - 1u);
//#if ROUTED
    let x_{e} = list[slots + row_{e}] / p.top * p.x_row / 4u + t % (BK / 4u);
//#else
    let x_{e} = row_{e} * p.x_row / 4u + t % (BK / 4u);
//#end
    var u_{e} = vec4<f16>();
//#end
//#each e EACH_W
//#each o EACH
    var w_{o}_{e} = Small8();
//#end
//#end
    let m0 = subgroup / ACROSS * MI * SIDE;
    let n0 = subgroup % ACROSS * NI * SIDE;
//#each i MI
//#each j NI
//#each o EACH
    var c_{o}_{i}_{j} = coop_mat{SIDE}x{SIDE}<f32, C>();
//#end
//#end
//#end
    if inner > 0u {
//#each e EACH_X
        u_{e} = x[x_{e}];
//#end
//#each e EACH_W
//#each o EACH
        w_{o}_{e} = fetch_w_{o}(at_{o}, t + {e}u * THREADS, 0u, first_o);
//#end
//#end
    }
    for (var k = 0u; k < inner; k += BK) {
        workgroupBarrier();
//#each e EACH_X
        put_x((t + {e}u * THREADS) / (BK / 4u) * ROW + t % (BK / 4u) * 4u, u_{e});
//#end
//#each e EACH_W
//#each o EACH
        store_w_{o}(t + {e}u * THREADS, w_{o}_{e});
//#end
//#end
        workgroupBarrier();
        let next = k + BK;
        if next < inner {
//#each e EACH_X
            u_{e} = x[x_{e} + next / 4u];
//#end
//#each e EACH_W
//#each o EACH
            w_{o}_{e} = fetch_w_{o}(at_{o}, t + {e}u * THREADS, next, first_o);
//#end
//#end
        }
//#each s STEPS
        {
//#each i MI
            let x_m{i} = coopLoadT<coop_mat{SIDE}x{SIDE}<f16, A>>(&xs[((m0 + {i}u * SIDE) * ROW + {s}u * SIDE) / CELL], ROW / CELL);
//#end
//#each j NI
//#each o EACH
            {
                let w_n{o} = coopLoad<coop_mat{SIDE}x{SIDE}<f16, B>>(&ws_{o}[((n0 + {j}u * SIDE) * ROW + {s}u * SIDE) / CELL], ROW / CELL);
//#each i MI
                c_{o}_{i}_{j} = coopMultiplyAdd(x_m{i}, w_n{o}, c_{o}_{i}_{j});
//#end
            }
//#end
//#end
        }
//#end
    }
    // Squares go through workgroup memory, since which lane holds what is the driver's secret. What is added is asked for
    // before, and without a condition.
    let own = subgroup * EACH * SIDE * SIDE;
//#each i MI
//#each j NI
    {
        let o = first_o + n0 + {j}u * SIDE + lane % SIDE;
        let column = min(o, p.n - 1u);
        let bias = bias_of(column);
//#each e LEFT
        let at_{e} = first + m0 + {i}u * SIDE + (lane + {e}u * 32u) / SIDE;
        let real_{e} = min(at_{e}, max(rows, 1u) - 1u);
//#if ROUTED
        let to_{e} = list[slots + real_{e}];
//#else
        let to_{e} = real_{e};
//#end
        let scale_{e} = unscale[to_{e} / p.top];
        let rest_{e} = rest_of(to_{e}, column);
//#end
        workgroupBarrier();
//#each o EACH
        coopStoreT(c_{o}_{i}_{j}, &stage[own + {o}u * SIDE * SIDE], SIDE);
//#end
        workgroupBarrier();
//#each e LEFT
        if at_{e} < rows && o < p.n {
            let place = own + lane + {e}u * 32u;
//#if GATED
            let up = stage[place + SIDE * SIDE] * scale_{e};
//#else
            let up = 0.0;
//#end
            finish_with(to_{e}, o, stage[place] * scale_{e}, up, bias, rest_{e});
        }
//#end
    }
//#end
//#end
}
