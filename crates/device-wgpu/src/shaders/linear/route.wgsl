// Puts the slots of prompt rows (a row and one of its experts) in the order of experts, and cuts each expert's into tiles
// of BM. One workgroup.
//
// At `list`: three words a tile, the expert, where its slots stand, how many; then the slots.
struct Params { slots: u32, experts: u32, tiles: u32, ids: u32, list: u32 }
var<immediate> p: Params;
const THREADS: u32 = 256u;
var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> starts: array<u32, EXPERTS>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) t: u32) {
    for (var e = t; e < p.experts; e += THREADS) { atomicStore(&counts[e], 0u); }
    for (var y = t; y < p.tiles; y += THREADS) { list[p.list + 3u * y + 2u] = 0u; }
    workgroupBarrier();
    for (var s = t; s < p.slots; s += THREADS) {
        let e = ids[p.ids + s];
        if e < p.experts { atomicAdd(&counts[e], 1u); }
    }
    workgroupBarrier();
    storageBarrier();
    if t == 0u {
        let base = p.list + 3u * p.tiles;
        var at = base;
        var y = p.list;
        for (var e = 0u; e < p.experts; e++) {
            let count = atomicLoad(&counts[e]);
            starts[e] = at;
            for (var c = 0u; c < count; c += BM) {
                list[y] = e;
                list[y + 1u] = at + c;
                list[y + 2u] = min(BM, count - c);
                y += 3u;
            }
            at += count;
            atomicStore(&counts[e], 0u);
        }
    }
    workgroupBarrier();
    for (var s = t; s < p.slots; s += THREADS) {
        let e = ids[p.ids + s];
        if e < p.experts { list[starts[e] + atomicAdd(&counts[e], 1u)] = s; }
    }
}
