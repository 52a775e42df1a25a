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

fn visible(tile: Tile, row: u32, key: u32) -> bool { return key <= tile.start + row; }

fn load_q(tile: Tile, head: u32, row: u32, d: u32) -> f32 {
    return q[p.q_at + (tile.first + row) * p.q_row + head * p.q_head + d];
}

fn load_k(tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    return key_element(cached(tile.pages, key, head / p.shared_by) + d);
}

fn load_v(tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    return value_element(cached(tile.pages, key, head / p.shared_by) + d);
}

fn load_k4(tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    return key_four(cached(tile.pages, key, head / p.shared_by) + d);
}

fn load_v4(tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    return value_four(cached(tile.pages, key, head / p.shared_by) + d);
}
