// Heads of a decoded row made ready where they are attended with: its queries and its key are normed and turned, its key
// and value rounded as the cache stores them. It is what `heads.wgsl` does beforehand, to the bit.

// Heads of queries, and the head of keys.
const READIED: u32 = GROUP + 1u;
var<workgroup> ready: array<f32, READIED * N>;
var<workgroup> head_sums: array<f32, READIED * HEAD_WG>;
// The row's own key and value, as what is read from the cache.
var<workgroup> own_key: array<f32, N>;
var<workgroup> own_value: array<f32, N>;

fn head_weight(h: u32, i: u32) -> f32 {
    let q_weight = q_weight_f(p.q_weight, i);
    let k_weight = k_weight_f(p.k_weight, i);
    return select(k_weight, q_weight, h < GROUP) + f32(ONE_PLUS);
}

// Where head `h` lies: in `q`, or in `k` where it is the last.
fn head_place(row: u32, head: u32, kv_head: u32, h: u32) -> u32 {
    if h < GROUP { return p.q_at + row * p.q_row + (head + h) * p.q_head; }
    return p.key_at + row * p.key_row + kv_head * p.key_head;
}

// A thread has pairs that are turned, and elements after them: all that they take is asked for before it is needed, and
// without a condition. The key is that of all who have it, and is used by those alone who store it: it changes under the
// others' hands.
const TASKS: u32 = N - HALF;

fn make_ready(row: u32, head: u32, kv_head: u32, lane: u32) {
//#each e EACH_TASK
    let task_{e} = min(lane + {e}u * THREADS, READIED * TASKS - 1u);
    let h_{e} = task_{e} / TASKS;
    // A pair's first and second; the same element twice after the pairs.
    let i_{e} = select(task_{e} % TASKS + HALF, task_{e} % TASKS, task_{e} % TASKS < HALF);
    let j_{e} = task_{e} % TASKS + HALF;
    let place_{e} = head_place(row, head, kv_head, h_{e});
    let is_key_{e} = h_{e} == GROUP;
    let q_at_{e} = select(place_{e}, p.q_at, is_key_{e});
    let k_at_{e} = select(p.key_at, place_{e}, is_key_{e});
    let a_{e} = select(q[q_at_{e} + i_{e}], key[k_at_{e} + i_{e}], is_key_{e});
    let b_{e} = select(q[q_at_{e} + j_{e}], key[k_at_{e} + j_{e}], is_key_{e});
    let w_a_{e} = head_weight(h_{e}, i_{e});
    let w_b_{e} = head_weight(h_{e}, j_{e});
    let turn_{e} = min(i_{e}, max(HALF, 1u) - 1u);
    let c_{e} = cos_t[p.cos_at + row * HALF + turn_{e}];
    let s_{e} = sin_t[p.sin_at + row * HALF + turn_{e}];
//#end
//#each e EACH_TASK
    ready[h_{e} * N + i_{e}] = a_{e};
    ready[h_{e} * N + j_{e}] = b_{e};
//#end
    workgroupBarrier();
    for (var i = lane; i < READIED * HEAD_WG; i += THREADS) {
        var squares = 0.0;
        for (var j = i % HEAD_WG; j < N; j += HEAD_WG) {
            let x = ready[i / HEAD_WG * N + j];
            squares = fma(x, x, squares);
        }
        head_sums[i] = squares;
    }
    workgroupBarrier();
    for (var half = HEAD_WG / 2u; half > 0u; half /= 2u) {
        for (var i = lane; i < READIED * half; i += THREADS) {
            let at = i / half * HEAD_WG + i % half;
            head_sums[at] += head_sums[at + half];
        }
        workgroupBarrier();
    }
//#each e EACH_TASK
    {
        let scale = 1.0 / sqrt(head_sums[h_{e} * HEAD_WG] / f32(N) + select(p.q_eps, p.k_eps, is_key_{e}));
        let a = a_{e} * scale * w_a_{e};
        let b = b_{e} * scale * w_b_{e};
        let turns = i_{e} < HALF;
        ready[h_{e} * N + i_{e}] = select(a, a * c_{e} - b * s_{e}, turns);
        ready[h_{e} * N + j_{e}] = select(b, b * c_{e} + a * s_{e}, turns);
    }
//#end
    workgroupBarrier();
}

fn rounded(x: f32) -> f32 {
    if FORMAT == 1u { return half_to_f32(f32_to_half(x)); }
    if FORMAT == 2u { return bitcast<f32>(f32_to_bf16(x) << 16u); }
    return x;
}

fn two(a: f32, b: f32) -> u32 {
    if FORMAT == 2u { return f32_to_bf16(a) | (f32_to_bf16(b) << 16u); }
    return f32_to_half(a) | (f32_to_half(b) << 16u);
}

// The row's key and value: into the cache at `slot`, and to where they are read instead of from there. Keys that were
// normed and turned take the place of those that weren't.
fn keep_own(row: u32, kv_head: u32, lane: u32, slot: i32) {
    let begin = p.value_at + row * p.value_row + kv_head * p.value_head;
    let stored = slot >= 0 && u32(slot) < p.capacity;
    let first = (u32(max(slot, 0)) * p.kv_heads + kv_head) * N;
    for (var i = lane; i < N; i += THREADS) {
        let x = ready[GROUP * N + i];
        key[head_place(row, 0u, kv_head, GROUP) + i] = x;
        own_key[i] = rounded(x);
        own_value[i] = rounded(value[begin + i]);
        if FORMAT == 0u && stored {
            k_cache[p.k_at / 4u + first + i] = bitcast<u32>(x);
            v_cache[p.v_at / 4u + first + i] = bitcast<u32>(value[begin + i]);
        }
        // Heads are even, and begin with a word.
        if FORMAT != 0u && stored && i % 2u == 0u {
            k_cache[(p.k_at / 2u + first + i) / 2u] = two(x, ready[GROUP * N + i + 1u]);
            v_cache[(p.v_at / 2u + first + i) / 2u] = two(value[begin + i], value[begin + i + 1u]);
        }
    }
}

fn own_part(what: u32, i: u32) -> vec4<f32> {
    var x = vec4(0.0);
//#each c 4
    if 4u * i + {c}u < N { x[{c}] = select(own_value[4u * i + {c}u], own_key[4u * i + {c}u], what == 0u); }
//#end
    return x;
}
