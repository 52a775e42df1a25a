//! Unmasked attention within segments.

use turbospark_device::op::Attention;

use super::{Done, strides};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, word};

const ATTENTION: Source = Source {
    name: "attention",
    text: include_str!("../shaders/flash.wgsl"),
    includes: &[include_str!("../shaders/attention.wgsl")],
};

/// Queries of a tile.
pub(super) const TILE: usize = 64;

/// Columns of outputs a thread has, of sixteen threads, and keys whose values are in workgroup memory at a time.
pub(super) fn columns(n: usize) -> (u32, u32) {
    let columns = n.div_ceil(16) as u32;
    (columns, if columns > 8 { 8 } else { 16 })
}

pub(super) fn attention(plan: &mut Plan<'_>, op: &Attention<'_>) -> Done {
    let (heads, n) = (op.q.dim(1), op.q.dim(2));
    let (q, k, v, out) = (plan.view(&op.q)?, plan.view(&op.k)?, plan.view(&op.v)?, plan.view(&op.out)?);
    let mut tiles = Vec::new();
    for s in op.cu_seqlens.windows(2) {
        for first in (s[0]..s[1]).step_by(TILE) {
            tiles.extend([first, TILE.min(s[1] - first), s[0], s[1] - s[0]].map(|n| n as u32));
        }
    }
    let count = tiles.len() as u32 / 4;
    let mut words = vec![plan.table(tiles), op.scale.to_bits()];
    for (at, view) in [(&q, &op.q), (&k, &op.k), (&v, &op.v), (&out, &op.out)] {
        words.push(at.at);
        words.extend(strides(view)?);
    }
    let (columns, depth) = columns(n);
    let tables = plan.tables();
    plan.kernel(&ATTENTION)
        .set("N", word(n)?)
        .set("COLUMNS", columns)
        .set("DEPTH", depth)
        .read("tables", Form::U32, &tables)
        .read("q", Form::F32, &q.window)
        .read("k", Form::F32, &k.window)
        .read("v", Form::F32, &v.window)
        .write("out", Form::F32, &out.window)
        .grid(&words, [count, word(heads)?, 1])
}
