// Unmasked attention within segments. A tile in the tables: first row, rows, the segment's first row and its rows.
struct Params {
    tiles: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    k_at: u32, k_row: u32, k_head: u32,
    v_at: u32, v_row: u32, v_head: u32,
    out_at: u32, out_row: u32, out_head: u32,
}
var<immediate> p: Params;

struct Tile { first: u32, rows: u32, start: u32, keys: u32 }

fn tile_of(i: u32) -> Tile {
    let at = p.tiles + 4u * i;
    return Tile(tables[at], tables[at + 1u], tables[at + 2u], tables[at + 3u]);
}

fn key_end(tile: Tile) -> u32 { return tile.keys; }

fn visible(tile: Tile, row: u32, key: u32) -> bool { return key < tile.keys; }

fn load_q(tile: Tile, head: u32, row: u32, d: u32) -> f32 {
    return q[p.q_at + (tile.first + row) * p.q_row + head * p.q_head + d];
}

fn load_k(tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    return k[p.k_at + (tile.start + key) * p.k_row + head * p.k_head + d];
}

fn load_v(tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    return v[p.v_at + (tile.start + key) * p.v_row + head * p.v_head + d];
}

fn load_k4(tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    let at = p.k_at + (tile.start + key) * p.k_row + head * p.k_head + d;
    return vec4(k[at], k[at + 1u], k[at + 2u], k[at + 3u]);
}

fn load_v4(tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    let at = p.v_at + (tile.start + key) * p.v_row + head * p.v_head + d;
    return vec4(v[at], v[at + 1u], v[at + 2u], v[at + 3u]);
}
