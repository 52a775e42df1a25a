// Unmasked attention within segments. A tile in the tables: first row, rows, the segment's first row and its rows.
// Keys and values are views of their own, or in f16 as kv_halves.wgsl leaves them where HALVES is set.
struct Params {
    tiles: u32, scale: f32,
    q_at: u32, q_row: u32, q_head: u32,
//#if HALVES
    rows: u32, heads: u32,
//#else
    k_at: u32, k_row: u32, k_head: u32,
    v_at: u32, v_row: u32, v_head: u32,
//#end
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

//#if HALVES
fn load_four(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> vec4<f16> {
    return kv[((what * p.heads + head) * p.rows + tile.start + key) * (PADDED / 4u) + d / 4u];
}
//#else
fn place(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> u32 {
    let row = tile.start + key;
    return select(p.v_at + row * p.v_row + head * p.v_head, p.k_at + row * p.k_row + head * p.k_head, what == KEY) + d;
}

//#if WIDE
// Keys and values start at whole vectors.
fn load(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    return load_four(what, tile, head, key, d & ~3u)[d & 3u];
}

fn load_four(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    let at = place(what, tile, head, key, d) >> 2u;
    if what == KEY { return k[at]; }
    return v[at];
}
//#else
fn load(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> f32 {
    let at = place(what, tile, head, key, d);
    if what == KEY { return k[at]; }
    return v[at];
}

fn load_four(what: u32, tile: Tile, head: u32, key: u32, d: u32) -> vec4<f32> {
    let at = place(what, tile, head, key, d);
    if what == KEY { return vec4(k[at], k[at + 1u], k[at + 2u], k[at + 3u]); }
    return vec4(v[at], v[at + 1u], v[at + 2u], v[at + 3u]);
}
//#end
//#end
