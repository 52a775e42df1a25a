// The K largest of E logits, ties to the lower index, and their share of the softmax; a workgroup a row.
struct Params { rows: u32, experts: u32, k: u32, logits_at: u32, ids_at: u32, weights_at: u32 }
var<immediate> p: Params;

var<workgroup> best: array<f32, WG>;
var<workgroup> which: array<u32, WG>;

// Orders as numbers do, and -0 before 0: what total order of the host does.
fn before(a: f32, i: u32, b: f32, j: u32) -> bool {
    let x = bitcast<i32>(a);
    let y = bitcast<i32>(b);
    let ka = x ^ ((x >> 31u) & 0x7fffffff);
    let kb = y ^ ((y >> 31u) & 0x7fffffff);
    return ka > kb || (ka == kb && i < j);
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = group_index(group, groups);
    if row >= p.rows { return; }
    let source = p.logits_at + row * p.experts;
    let none = 0xffffffffu;
    var last = none;
    var last_value = 0.0;
    var top = 0.0;
    var chosen = 0.0;
    for (var n = 0u; n < p.k; n++) {
        var value = 0.0;
        var index = none;
        for (var e = lane; e < p.experts; e += WG) {
            let v = logits[source + e];
            let left = last == none || before(last_value, last, v, e);
            if left && (index == none || before(v, e, value, index)) {
                value = v;
                index = e;
            }
        }
        best[lane] = value;
        which[lane] = index;
        workgroupBarrier();
        for (var half = WG / 2u; half > 0u; half /= 2u) {
            if lane < half {
                let j = which[lane + half];
                if j != none && (which[lane] == none || before(best[lane + half], j, best[lane], which[lane])) {
                    best[lane] = best[lane + half];
                    which[lane] = j;
                }
            }
            workgroupBarrier();
        }
        last = which[0];
        last_value = best[0];
        workgroupBarrier();
        if n == 0u { top = last_value; }
        let e = exp_f(last_value - top);
        chosen += e;
        if lane == 0u {
            ids[p.ids_at + row * p.k + n] = i32(last);
            weights[p.weights_at + row * p.k + n] = e;
        }
    }
    if NORMALISE == 0u {
        var sum = 0.0;
        for (var e = lane; e < p.experts; e += WG) { sum += exp_f(logits[source + e] - top); }
        chosen = sum_all(lane, sum);
    }
    if lane == 0u {
        for (var n = 0u; n < p.k; n++) { weights[p.weights_at + row * p.k + n] /= chosen; }
    }
}
