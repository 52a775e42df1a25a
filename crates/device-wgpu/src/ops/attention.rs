//! Unmasked attention within segments.

use turbospark_device::op::Attention;

use super::{Done, strides};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, Run, word};

const FLASH: &str = include_str!("../shaders/flash.wgsl");
const SHARED: &str = include_str!("../shaders/row_shared.wgsl");
const SHUFFLED: &str = include_str!("../shaders/row_shuffled.wgsl");
const SEGMENTS: &str = include_str!("../shaders/attention.wgsl");

const ATTENTION: Source = Source { name: "attention", text: FLASH, includes: &[SHARED, SEGMENTS] };
const ATTENTION_SHUFFLED: Source = Source { name: "attention_shuffled", text: FLASH, includes: &[SHUFFLED, SEGMENTS] };
pub(super) const PROMPT: Source = Source { name: "paged_prompt", text: FLASH, includes: &[SHARED, PAGED, CACHE] };
pub(super) const PROMPT_SHUFFLED: Source =
    Source { name: "paged_prompt_shuffled", text: FLASH, includes: &[SHUFFLED, PAGED, CACHE] };
const PAGED: &str = include_str!("../shaders/paged_prompt.wgsl");
const CACHE: &str = include_str!("../shaders/cache.wgsl");

const MATRIX: &str = include_str!("../shaders/flash_matrix.wgsl");
const ATTENTION_MATRIX: Source = Source { name: "attention_matrix", text: MATRIX, includes: &[SEGMENTS] };
pub(super) const PROMPT_MATRIX: Source =
    Source { name: "paged_prompt_matrix", text: MATRIX, includes: &[PAGED, CACHE] };

/// Queries of a tile.
pub(super) const TILE: usize = 64;

/// Columns of outputs a thread has, of sixteen threads, and keys whose values are in workgroup memory at a time: as many
/// as four kilobytes hold.
fn columns(n: usize) -> (u32, u32) {
    let columns = n.div_ceil(16).max(1) as u32;
    let depth = [16, 8, 4, 2].into_iter().find(|depth| depth * columns * 64 <= 4096);
    (columns, depth.unwrap_or(1))
}

/// A kernel of this adapter that attends in tiles, from the variants `shared`, `shuffled` and `matrix`.
///
/// Rows are sixteen threads: a subgroup that holds a whole number of them shuffles. Matrix units are used where inputs
/// may be rounded and their tiles have room.
pub(super) fn tiled<'p, 'd>(plan: &'p mut Plan<'d>, variants: [&'static Source; 3], n: usize) -> Run<'p, 'd> {
    let [shared, shuffled, matrix] = variants;
    let (gpu, f16) = (plan.gpu, plan.gpu.small_tiles());
    let padded = n.next_multiple_of(16);
    // Rows of f16, scores, weights of f16: as `flash_matrix.wgsl` has them.
    let room = 64 * (2 * (padded + 8) + 4 * 68 + 2 * 72);
    if f16 && gpu.matrix_attention && n <= 128 && room <= gpu.limits.max_compute_workgroup_storage_size as usize {
        return plan.kernel(matrix).with_f16(true).with_matrices(true).set("N", n as u32);
    }
    let (columns, depth) = columns(n);
    let source = if gpu.subgroups.0 >= 16 { shuffled } else { shared };
    plan.kernel(source).with_f16(f16).set("N", n as u32).set("COLUMNS", columns).set("DEPTH", depth)
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
    let tables = plan.tables();
    tiled(plan, [&ATTENTION, &ATTENTION_SHUFFLED, &ATTENTION_MATRIX], n)
        .read("tables", Form::U32, &tables)
        .read("q", Form::F32, &q.window)
        .read("k", Form::F32, &k.window)
        .read("v", Form::F32, &v.window)
        .write("out", Form::F32, &out.window)
        .grid(&words, [count, word(heads)?, 1])
}
