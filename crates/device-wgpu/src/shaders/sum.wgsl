// Sums over a workgroup of WG lanes, a power of two: in a fixed tree, the same on every adapter.
var<workgroup> sums: array<f32, WG>;

fn sum_all(lane: u32, x: f32) -> f32 {
    sums[lane] = x;
    workgroupBarrier();
    for (var half = WG / 2u; half > 0u; half /= 2u) {
        if lane < half { sums[lane] += sums[lane + half]; }
        workgroupBarrier();
    }
    let all = sums[0];
    workgroupBarrier();
    return all;
}
