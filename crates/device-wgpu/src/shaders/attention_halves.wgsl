// Unmasked attention within segments, over keys and values that are in f16: see kv_halves.wgsl. A tile in the tables:
// first row, rows, the segment's first row and its rows.
struct Params {
    tiles: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
    rows: u32, heads: u32,
    out_at: u32, out_row: u32, out_head: u32,
}
var<immediate> p: Params;

struct Tile { first: u32, rows: u32, start: u32, keys: u32 }

fn tile_of(i: u32) -> Tile {
    let at = p.tiles + 4u * i;
    return Tile(tables[at], tables[at + 1u], tables[at + 2u], tables[at + 3u]);
}

fn key_end(tile: Tile) -> u32 { return tile.keys; }

// Keys that a row of the tile sees: the first so many.
fn seen(tile: Tile, row: u32) -> u32 { return tile.keys; }

fn load_q(tile: Tile, head: u32, row: u32, d: u32) -> f32 {
    return q[p.q_at + (tile.first + row) * p.q_row + head * p.q_head + d];
}

const KEY: u32 = 0u;
const VALUE: u32 = 1u;

fn load_four(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> vec4<f16> {
    return kv[((what * p.heads + head) * p.rows + tile.start + key) * (PADDED / 4u) + d / 4u];
}
