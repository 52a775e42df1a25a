// Over sixteen neighbouring threads of one subgroup: in the tree of `row_shared.wgsl`.
fn row_max(lane: u32, x: vec4<f32>) -> vec4<f32> {
    var v = max(x, subgroupShuffleXor(x, 8u));
    v = max(v, subgroupShuffleXor(v, 4u));
    v = max(v, subgroupShuffleXor(v, 2u));
    return max(v, subgroupShuffleXor(v, 1u));
}

fn row_sum(lane: u32, x: vec4<f32>) -> vec4<f32> {
    var v = x + subgroupShuffleXor(x, 8u);
    v += subgroupShuffleXor(v, 4u);
    v += subgroupShuffleXor(v, 2u);
    return v + subgroupShuffleXor(v, 1u);
}
