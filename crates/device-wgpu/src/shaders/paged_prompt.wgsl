// Causal attention of prompt rows over the cache. A tile in the tables: first row, rows, index of the first row in its
// sequence, and the first of the sequence's pages.
struct Params {
    tiles: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, v_at: u32, kv_heads: u32, shared_by: u32,
    out_at: u32, out_row: u32, out_head: u32,
}
var<immediate> p: Params;

struct Tile { first: u32, rows: u32, start: u32, pages: u32 }

fn tile_of(i: u32) -> Tile {
    let at = p.tiles + 4u * i;
    return Tile(tables[at], tables[at + 1u], tables[at + 2u], tables[at + 3u]);
}

fn key_end(tile: Tile) -> u32 { return tile.start + tile.rows; }

// Keys that a row of the tile sees: the first so many.
fn seen(tile: Tile, row: u32) -> u32 { return tile.start + row + 1u; }

fn load_q(tile: Tile, head: u32, row: u32, d: u32) -> f32 {
    return q[p.q_at + (tile.first + row) * p.q_row + head * p.q_head + d];
}

const KEY: u32 = 0u;
const VALUE: u32 = 1u;

//#if HALVES
//#else
fn load(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    let at = cached(tile.pages, key, head / p.shared_by) + d;
    if what == KEY { return key_element(at); }
    return value_element(at);
}
//#end

//#if HALVES
// Fours of f16 that begin at whole fours; zeros past a head's elements.
fn load_four(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> vec4<f16> {
    let at = cached(tile.pages, key, head / p.shared_by) + min(d, N - 4u);
    let four = select(v_cache[(p.v_at + 2u * at) >> 3u], k_cache[(p.k_at + 2u * at) >> 3u], what == KEY);
    return select(four, vec4<f16>(), d >= N);
}
//#else
fn load_four(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    let at = cached(tile.pages, key, head / p.shared_by) + d;
    if what == KEY { return key_four(at); }
    return value_four(at);
}
//#end
