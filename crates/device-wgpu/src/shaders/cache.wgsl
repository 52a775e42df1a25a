// Elements of a cache of keys or values, of SIZE bytes where they are floats, and where a sequence's rows lie in it.
// ALIGNED where fours of floats begin at whole words.

//#if HALVES
//#else
fn q8_0(scale: u32, byte: u32) -> f32 {
    return half_to_f32(scale) * f32(extractBits(bitcast<i32>(byte), 0u, 8u));
}

// Element `i` of the keys.
fn key_element(i: u32) -> f32 {
    if QUANTISED == 1u {
        let block = p.k_at + (i / 32u) * 34u;
        return q8_0(k_cache_half(block), k_cache_byte(block + 2u + i % 32u));
    }
    return k_cache_f(p.k_at, i);
}

// Element `i` of the values.
fn value_element(i: u32) -> f32 {
    if QUANTISED == 1u {
        let block = p.v_at + (i / 32u) * 34u;
        return q8_0(v_cache_half(block), v_cache_byte(block + 2u + i % 32u));
    }
    return v_cache_f(p.v_at, i);
}

// Elements `i` to `i + 3` of the keys; no four share two blocks.
fn key_four(i: u32) -> vec4<f32> {
    if QUANTISED == 1u {
        return vec4(key_element(i), key_element(i + 1u), key_element(i + 2u), key_element(i + 3u));
    }
    if ALIGNED == 1u { return k_cache_a4((p.k_at + SIZE * i) >> 2u); }
    return k_cache_f4(p.k_at, i);
}

// The same of the values.
fn value_four(i: u32) -> vec4<f32> {
    if QUANTISED == 1u {
        return vec4(value_element(i), value_element(i + 1u), value_element(i + 2u), value_element(i + 3u));
    }
    if ALIGNED == 1u { return v_cache_a4((p.v_at + SIZE * i) >> 2u); }
    return v_cache_f4(p.v_at, i);
}
//#end

// The first element of a head of index `t` of the sequence whose pages begin at `pages`.
fn cached(first_page: u32, t: u32, kv_head: u32) -> u32 {
    let slot = u32(pages[first_page + t / PAGE]) * PAGE + t % PAGE;
    return (slot * p.kv_heads + kv_head) * N;
}
