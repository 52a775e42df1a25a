// Over sixteen neighbouring threads, through workgroup memory: in a fixed tree.
var<workgroup> halves: array<vec4<f32>, 256>;

fn row_max(lane: u32, x: vec4<f32>) -> vec4<f32> {
    var v = x;
    for (var by = 8u; by > 0u; by /= 2u) {
        halves[lane] = v;
        workgroupBarrier();
        v = max(v, halves[lane ^ by]);
        workgroupBarrier();
    }
    return v;
}

fn row_sum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    var v = x;
    for (var by = 8u; by > 0u; by /= 2u) {
        halves[lane] = v;
        workgroupBarrier();
        v += halves[lane ^ by];
        workgroupBarrier();
    }
    return v;
}
