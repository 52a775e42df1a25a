//! Unmasked attention within segments.

use turbospark_device::op::Attention;

use super::{Done, WG, groups, strides};
use crate::device::Gpu;
use crate::kernel::{Form, Source};
use crate::plan::{Plan, Run, Window, word};

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
const ATTENTION_HALVES: Source = Source { name: "attention_matrix_halves", text: MATRIX, includes: &[SEGMENTS] };
const KV_HALVES: Source = Source { name: "kv_halves", text: include_str!("../shaders/kv_halves.wgsl"), includes: &[] };
pub(super) const PROMPT_MATRIX: Source =
    Source { name: "paged_prompt_matrix", text: MATRIX, includes: &[PAGED, CACHE] };

/// Rows of a tile of the kernels for threads.
const TILE: usize = 64;

/// Workgroups that keep a large GPU busy, two at a time on each of its parts.
const ENOUGH: usize = 256;

/// How the queries of an op are shared out among workgroups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    /// Rows of a tile.
    pub rows: usize,
    /// Heads that a workgroup computes together.
    pub heads: usize,
    pub(super) units: Option<Units>,
}

/// What the kernel for matrix units is compiled with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Units {
    side: u32,
    vectors: bool,
    /// Elements of a head, filled up to whole squares.
    pub padded: u32,
    /// Queries of a workgroup, and subgroups that share sixteen of them.
    slots: u32,
    split: u32,
    /// Sixteens of queries that a subgroup has.
    bands: u32,
    spread: bool,
}

/// Keys of a step on matrix units.
const KEYS: u32 = 32;

/// Queries of a workgroup, and sixteens of them that a subgroup has, where rows of scores are spread among threads; else
/// sixteen alone.
const CHOICES: [[u32; 2]; 3] = [[128, 2], [64, 1], [32, 1]];

/// The widest heads whose keys and values have places of their own; with wider ones fewer workgroups would find room.
const BOTH: u32 = 96;

impl Tiles {
    /// Tiles for spans of these lengths: heads of `n` elements, of which `shared` following each other read the same keys.
    ///
    /// Matrix units are used where inputs may be rounded and their tiles have room. What is chosen among tiles on them
    /// changes no bit of a row.
    pub fn of(gpu: &Gpu, n: usize, heads: usize, shared: usize, lengths: &[usize]) -> Self {
        let threads = Tiles { rows: TILE, heads: 1, units: None };
        let (Some(side), Some(vectors)) = (gpu.matrix_side, gpu.matrix_attention) else { return threads };
        // Heads that a subgroup's registers hold; small ones are shared too where it is a matter of checking.
        let whole = if gpu.emulated { 16 } else { 128 };
        let split: u32 = if n > whole { 2 } else { 1 };
        let padded = (n as u32).next_multiple_of(16 * split);
        let together = [4, 2, 1].into_iter().find(|h| shared.is_multiple_of(*h)).unwrap_or(1);
        // Measured with heads of 72: 57 -> 82 TFLOP/s. With those of 64 and 128 it is slower.
        let spread = !n.is_multiple_of(16) && padded <= BOTH;
        let limits = &gpu.limits;
        let fits = |&&[slots, bands]: &&[u32; 2]| {
            // Keys or values, scores, weights and factors, as `flash_matrix.wgsl` has them.
            let places = if padded <= BOTH { 2 } else { 1 };
            let bytes = places * 2 * KEYS * (padded + 8) + slots * (4 * (KEYS + 8) + 2 * (KEYS + 8) + 4) + 16;
            let threads = 2 * split * slots / bands;
            (bands == 1 || spread)
                && bytes <= limits.max_compute_workgroup_storage_size
                && threads <= limits.max_compute_invocations_per_workgroup.min(256)
        };
        let tiles = |&[slots, bands]: &[u32; 2]| {
            let rows = slots as usize / together;
            let count: usize = lengths.iter().map(|l| l.div_ceil(rows)).sum();
            let units = Units { side, vectors, padded, slots, split, bands, spread };
            (count * heads / together, Tiles { rows, heads: together, units: Some(units) })
        };
        if padded > 256 {
            return threads;
        }
        // The largest that leave enough of them, or else the smallest.
        let all: Vec<_> = CHOICES.iter().filter(fits).map(tiles).collect();
        let chosen = all.iter().find(|t| t.0 >= ENOUGH).or(all.last());
        chosen.map_or(threads, |t| t.1)
    }

    /// Whether matrix units are used that read arrays of vectors.
    pub fn has_vectors(&self) -> bool {
        self.units.is_some_and(|u| u.vectors)
    }

    /// The kernel, from the variants `shared`, `shuffled` and `matrix`.
    ///
    /// Without matrix units rows are sixteen threads: a subgroup that holds a whole number of them shuffles.
    /// `halves` where keys and values come in f16.
    pub fn kernel<'p, 'd>(
        &self,
        plan: &'p mut Plan<'d>,
        variants: [&'static Source; 3],
        n: usize,
        halves: bool,
    ) -> Run<'p, 'd> {
        let [shared, shuffled, matrix] = variants;
        let (gpu, f16) = (plan.gpu, plan.gpu.small_tiles());
        let Some(units) = self.units else {
            let (columns, depth) = columns(n);
            let source = if gpu.subgroups.0 >= 16 { shuffled } else { shared };
            return plan
                .kernel(source)
                .with_f16(f16)
                .set("N", n as u32)
                .set("COLUMNS", columns)
                .set("DEPTH", depth)
                .set("HALVES", 0);
        };
        let Units { side, vectors, padded, slots, split, bands, spread } = units;
        plan.kernel(matrix)
            .with_matrices()
            .set("N", n as u32)
            .set("PADDED", padded)
            .set("SLOTS", slots)
            .set("SHARE", self.heads as u32)
            .set("SPLIT", split)
            .set("TWO", split - 1)
            .set("SIDE", side)
            .set("VECTORS", vectors.into())
            .set("HALVES", halves.into())
            .set("BOTH", (padded <= BOTH).into())
            .set("KEYS", KEYS)
            .set("BANDS", bands)
            .set("SPREAD", spread.into())
            .set("BLOCKS", 16 * bands / side)
            .set("PIECES", padded / side)
            .set("OUTS", padded / side / split)
            .set("STEPS", KEYS / side)
            .set("KEY_SQUARES", KEYS / side / split)
            .set("FOURS", KEYS / (8 * split))
            .set("EACH", (KEYS * padded / 4).div_ceil(2 * split * slots / bands))
    }
}

/// Columns of outputs a thread has, of sixteen threads, and keys whose values are in workgroup memory at a time: as many
/// as four kilobytes hold.
fn columns(n: usize) -> (u32, u32) {
    let columns = n.div_ceil(16).max(1) as u32;
    let depth = [16, 8, 4, 2].into_iter().find(|depth| depth * columns * 64 <= 4096);
    (columns, depth.unwrap_or(1))
}

pub(super) fn attention(plan: &mut Plan<'_>, op: &Attention<'_>) -> Done {
    let (heads, n) = (op.q.dim(1), op.q.dim(2));
    let (q, k, v, out) = (plan.view(&op.q)?, plan.view(&op.k)?, plan.view(&op.v)?, plan.view(&op.out)?);
    let lengths: Vec<usize> = op.cu_seqlens.windows(2).map(|s| s[1] - s[0]).collect();
    let tiles = Tiles::of(plan.gpu, n, heads, 1, &lengths);
    let mut list = Vec::new();
    for s in op.cu_seqlens.windows(2) {
        for first in (s[0]..s[1]).step_by(tiles.rows) {
            list.extend([first, tiles.rows.min(s[1] - first), s[0], s[1] - s[0]].map(|n| n as u32));
        }
    }
    let count = list.len() as u32 / 4;
    let list = plan.table(list);
    if let Some(units) = tiles.units.filter(|_| tiles.has_vectors()) {
        let part = heads * op.q.dim(0) * units.padded as usize / 4;
        // Where there is no room for them, each tile of queries narrows keys and values by itself.
        if let Ok(kv) = plan.temp(16 * part as u64) {
            narrow(plan, op, units.padded, &kv)?;
            return over_halves(plan, op, &tiles, &kv, [list, count]);
        }
    }
    let mut words = vec![list, op.scale.to_bits()];
    for (at, view) in [(&q, &op.q), (&k, &op.k), (&v, &op.v), (&out, &op.out)] {
        words.push(at.at);
        words.extend(strides(view)?);
    }
    // Keys and values: places, rows and heads.
    let wide = tiles.units.is_some() && words[5..11].iter().all(|w| w.is_multiple_of(4));
    let form = if wide { Form::Vec4 } else { Form::F32 };
    let tables = plan.tables();
    tiles
        .kernel(plan, [&ATTENTION, &ATTENTION_SHUFFLED, &ATTENTION_MATRIX], n, false)
        .set("WIDE", wide.into())
        .read("tables", Form::U32, &tables)
        .read("q", Form::F32, &q.window)
        .read("k", form, &k.window)
        .read("v", form, &v.window)
        .write("out", Form::F32, &out.window)
        .grid(&words, [count, word(heads)?, 1])
}

/// Keys and values in f16, heads filled up to whole squares.
fn narrow(plan: &mut Plan<'_>, op: &Attention<'_>, padded: u32, kv: &Window) -> Done {
    let (rows, heads, n) = (op.k.dim(0), op.k.dim(1), op.k.dim(2));
    let part = heads * rows * padded as usize / 4;
    for (i, view) in [&op.k, &op.v].into_iter().enumerate() {
        let (at, [row, head]) = (plan.view(view)?, strides(view)?);
        let words = [word(rows)?, word(heads)?, at.at, row, head, word(i * part)?];
        plan.kernel(&KV_HALVES)
            .with_f16(true)
            .set("WG", WG)
            .set("N", word(n)?)
            .set("PADDED", padded)
            .read("x", Form::F32, &at.window)
            .write("halves", Form::Half4, kv)
            .over(&words, groups(part))?;
    }
    Ok(())
}

/// Attention over keys and values that were [narrowed](narrow); where the list of tiles begins, and how many there are.
fn over_halves(plan: &mut Plan<'_>, op: &Attention<'_>, tiles: &Tiles, kv: &Window, [list, count]: [u32; 2]) -> Done {
    let (q, out) = (plan.view(&op.q)?, plan.view(&op.out)?);
    let (rows, heads, n) = (op.q.dim(0), op.q.dim(1), op.q.dim(2));
    let mut words = vec![list, op.scale.to_bits(), q.at];
    words.extend(strides(&op.q)?);
    words.extend([word(rows)?, word(heads)?, out.at]);
    words.extend(strides(&op.out)?);
    let tables = plan.tables();
    tiles
        .kernel(plan, [&ATTENTION, &ATTENTION_SHUFFLED, &ATTENTION_HALVES], n, true)
        .read("tables", Form::U32, &tables)
        .read("q", Form::F32, &q.window)
        .read("kv", Form::Half4, kv)
        .write("out", Form::F32, &out.window)
        .grid(&words, [count, word(heads)?, 1])
}
