// Rows of keys or values into their slots, rounded to the cache's type; a thread a word, or a block of Q8_0.
//
// Rows may begin within a word, which another row's thread then fills too: bits are cleared and set apart, and never
// written as a word.
struct Params {
    rows: u32, heads: u32, units: u32, capacity: u32, slots_at: u32,
    x_at: u32, x_row: u32, x_head: u32, cache_at: u32,
}
var<immediate> p: Params;

fn element(row: u32, e: u32) -> f32 {
    return x[p.x_at + row * p.x_row + (e / N) * p.x_head + e % N];
}

fn put_byte(at: u32, byte: u32) {
    let shift = (at & 3u) * 8u;
    atomicAnd(&cache[at >> 2u], ~(0xffu << shift));
    atomicOr(&cache[at >> 2u], byte << shift);
}

fn put_half(at: u32, half: u32) {
    if (at & 1u) == 1u {
        put_byte(at, half & 0xffu);
        put_byte(at + 1u, half >> 8u);
        return;
    }
    let shift = (at & 2u) * 8u;
    atomicAnd(&cache[at >> 2u], ~(0xffffu << shift));
    atomicOr(&cache[at >> 2u], half << shift);
}

// The elements 32 unit .. of a row as a block: a scale of the largest over 127, and signed bytes.
fn put_q8_0(row: u32, unit: u32, at: u32) {
    // As integers, sizes are in order, and infinities and NaNs above all numbers.
    var largest = 0u;
    for (var i = 0u; i < 32u; i++) { largest = max(largest, bitcast<u32>(element(row, 32u * unit + i)) & 0x7fffffffu); }
    let d = bitcast<f32>(min(largest, 0x7f7fffffu)) / 127.0;
    var scale = f32_to_half(d);
    if largest >= 0x7f800000u || scale >= 0x7c00u { scale = 0x7e00u; }
    put_half(at, scale);
    var inverse = 0.0;
    if d > 0.0 { inverse = 1.0 / d; }
    for (var i = 0u; i < 32u; i++) {
        let scaled = element(row, 32u * unit + i) * inverse;
        // Half away from zero: the largest number below a half, so that what lies just below one stays below.
        let code = i32(scaled + select(0.49999997, -0.49999997, scaled < 0.0));
        put_byte(at + 2u + i, bitcast<u32>(clamp(code, -128, 127)) & 0xffu);
    }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let i = group_index(group, groups) * WG + lane;
    if i >= p.rows * p.units { return; }
    let row = i / p.units;
    let unit = i % p.units;
    let slot = slots[p.slots_at + row];
    if slot < 0 || u32(slot) >= p.capacity { return; }
    let count = p.heads * N;
    if FORMAT == 0u {
        atomicStore(&cache[p.cache_at / 4u + u32(slot) * count + unit], bitcast<u32>(element(row, unit)));
    } else if FORMAT == 3u {
        put_q8_0(row, unit, p.cache_at + (u32(slot) * p.units + unit) * 34u);
    } else {
        for (var e = 2u * unit; e < min(2u * unit + 2u, count); e++) {
            let value = element(row, e);
            var half = f32_to_half(value);
            if FORMAT == 2u { half = f32_to_bf16(value); }
            put_half(p.cache_at + 2u * (u32(slot) * count + e), half);
        }
    }
}
