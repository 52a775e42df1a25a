// Bytes of the buffer $words. Rows and blocks start at multiples of ALIGN bytes.
fn $word(at: u32) -> u32 {
    let i = at >> 2u;
    if (ALIGN & 3u) == 0u { return $words[i]; }
    let s = (at & 3u) << 3u;
    // A word shifted by 32 is not shifted at all, so by one and the rest.
    return ($words[i] >> s) | (($words[i + 1u] << 1u) << (31u - s));
}
// Two words that follow each other.
fn $pair(at: u32) -> vec2<u32> {
    let i = at >> 2u;
    if (ALIGN & 3u) == 0u { return vec2<u32>($words[i], $words[i + 1u]); }
    let s = (at & 3u) << 3u;
    let middle = $words[i + 1u];
    return vec2<u32>(
        ($words[i] >> s) | ((middle << 1u) << (31u - s)),
        (middle >> s) | (($words[i + 2u] << 1u) << (31u - s)));
}
fn $half(at: u32) -> u32 {
    if (ALIGN & 1u) == 0u { return ($words[at >> 2u] >> ((at & 2u) << 3u)) & 0xffffu; }
    return $word(at) & 0xffffu;
}
fn $byte(at: u32) -> u32 { return ($words[at >> 2u] >> ((at & 3u) << 3u)) & 255u; }
