// out[r] = residual + sum over the row's experts, ascending, of weight * y; a thread an element.
struct Params {
    count: u32, n: u32, top: u32, ids: u32, weights: u32, y: u32,
    residual: u32, residual_row: u32, out: u32, out_row: u32,
}
var<immediate> p: Params;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * 256u + lane;
    if i >= p.count { return; }
    let row = i / p.n;
    let o = i % p.n;
    var sum = 0.0;
    // The least of those that are left is next; of equal ones the first.
    var last = -1;
    var again = 0u;
    for (var done = 0u; done < p.top; done++) {
        var next = 0x7fffffff;
        var at = 0u;
        for (var t = 0u; t < p.top; t++) {
            let id = ids[p.ids + row * p.top + t];
            if (id > last || (id == last && t >= again)) && id < next {
                next = id;
                at = t;
            }
        }
        last = next;
        again = at + 1u;
        sum = fma(weights[p.weights + row * p.top + at], y[p.y + (row * p.top + at) * p.n + o], sum);
    }
    if RESIDUAL == 1u { sum += residual[p.residual + row * p.residual_row + o]; }
    out[p.out + row * p.out_row + o] = sum;
}
