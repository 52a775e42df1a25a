// Heads of attention made ready: queries and keys are normed and turned in place, keys and values go to their slots. It
// is what `rms_norm`, `rope` and `store_kv` do one after the other, to the bit. A workgroup does a head of a row: those of
// queries come before those of keys, and these before those of values.
struct Params {
    groups: u32, heads: u32, kv_heads: u32, q_eps: f32, k_eps: f32,
    q_at: u32, q_row: u32, q_head: u32, k_at: u32, k_row: u32, k_head: u32, v_at: u32, v_row: u32, v_head: u32,
    q_weight: u32, k_weight: u32, half: u32, cos_at: u32, sin_at: u32,
    slots_at: u32, capacity: u32, k_cache: u32, v_cache: u32,
}
var<immediate> p: Params;

// The head as it is stored.
var<workgroup> ready: array<f32, N>;

const QUERY: u32 = 0u;
const KEY: u32 = 1u;
const VALUE: u32 = 2u;

fn element(what: u32, at: u32) -> f32 {
    if what == QUERY { return q[at]; }
    if what == KEY { return k[at]; }
    return v[at];
}

fn put(what: u32, at: u32, i: u32, x: f32) {
    ready[i] = x;
    if what == QUERY { q[at + i] = x; } else { k[at + i] = x; }
}

fn weight(what: u32, i: u32) -> f32 {
    if what == QUERY { return q_weight_f(p.q_weight, i) + f32(ONE_PLUS); }
    return k_weight_f(p.k_weight, i) + f32(ONE_PLUS);
}

fn store(what: u32, at: u32, word: u32) {
    if what == KEY { k_cache[p.k_cache / 4u + at] = word; } else { v_cache[p.v_cache / 4u + at] = word; }
}

@compute @workgroup_size(WG)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let r = group_index(group, groups);
    if r >= p.groups { return; }
    let row = r / (p.heads + 2u * p.kv_heads);
    let h = r % (p.heads + 2u * p.kv_heads);
    let what = select(select(VALUE, KEY, h < p.heads + p.kv_heads), QUERY, h < p.heads);
    let head = select(h - p.heads - (what - 1u) * p.kv_heads, h, what == QUERY);
    var at = p.v_at + row * p.v_row + head * p.v_head;
    var eps = 0.0;
    if what == QUERY {
        at = p.q_at + row * p.q_row + head * p.q_head;
        eps = p.q_eps;
    } else if what == KEY {
        at = p.k_at + row * p.k_row + head * p.k_head;
        eps = p.k_eps;
    }
    var squares = 0.0;
    for (var i = lane; i < N; i += WG) {
        let x = element(what, at + i);
        squares = fma(x, x, squares);
    }
    let scale = 1.0 / sqrt(sum_all(lane, squares) / f32(N) + eps);
    if what == VALUE {
        for (var i = lane; i < N; i += WG) { ready[i] = v[at + i]; }
    } else {
        for (var i = lane; i < p.half; i += WG) {
            let c = cos_t[p.cos_at + row * p.half + i];
            let s = sin_t[p.sin_at + row * p.half + i];
            let a = element(what, at + i) * scale * weight(what, i);
            let b = element(what, at + p.half + i) * scale * weight(what, p.half + i);
            put(what, at, i, a * c - b * s);
            put(what, at, p.half + i, b * c + a * s);
        }
        for (var i = 2u * p.half + lane; i < N; i += WG) {
            put(what, at, i, element(what, at + i) * scale * weight(what, i));
        }
    }
    workgroupBarrier();
    if what == QUERY { return; }
    let slot = slots[p.slots_at + row];
    if slot < 0 || u32(slot) >= p.capacity { return; }
    let first = (u32(slot) * p.kv_heads + head) * N;
    if FORMAT == 0u {
        for (var i = lane; i < N; i += WG) { store(what, first + i, bitcast<u32>(ready[i])); }
        return;
    }
    // Heads are even, and begin with a word.
    for (var i = lane; i < N / 2u; i += WG) {
        let a = ready[2u * i];
        let b = ready[2u * i + 1u];
        var word = f32_to_half(a) | (f32_to_half(b) << 16u);
        if FORMAT == 2u { word = f32_to_bf16(a) | (f32_to_bf16(b) << 16u); }
        store(what, first / 2u + i, word);
    }
}
