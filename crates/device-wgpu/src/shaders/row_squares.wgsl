// Sums of squares of rows that WG threads share out in eights, a subgroup after the other: in this order wherever a row's
// norm is computed, alone or before a layer.
fn squares_8(u: vec4<f32>, v: vec4<f32>, sum: f32) -> f32 {
    var s = fma(u.x, u.x, sum);
    s = fma(u.y, u.y, s);
    s = fma(u.z, u.z, s);
    s = fma(u.w, u.w, s);
    s = fma(v.x, v.x, s);
    s = fma(v.y, v.y, s);
    s = fma(v.z, v.z, s);
    return fma(v.w, v.w, s);
}

//#if SUBGROUPS
var<workgroup> row_sums: array<f32, SUMS>;

fn put_squares(subgroup: u32, lane: u32, at: u32, x: f32) {
    let sum = subgroupAdd(x);
    if lane == 0u { row_sums[at + subgroup] = sum; }
}

fn squares_of(at: u32, subgroups: u32) -> f32 {
    var sum = 0.0;
    for (var g = 0u; g < subgroups; g++) { sum += row_sums[at + g]; }
    return sum;
}
//#end
