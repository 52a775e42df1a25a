//! How matrix units share out a layer's work.

use std::sync::atomic::Ordering;

use crate::device::Gpu;

/// Tiles of a layer on matrix units, and what of a tile a subgroup multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Units {
    /// Side of the squares that the units multiply.
    pub side: u32,
    /// Squares of a subgroup below and beside each other. Two subgroups are below each other, `across` beside.
    pub m: u32,
    pub n: u32,
    pub across: u32,
    /// Inner elements of a step through workgroup memory.
    pub depth: u32,
    /// Whether the units read arrays of vectors: Metal's take scalars only.
    pub vectors: bool,
}

/// A choice among tiles: rows and outputs in units of 64, subgroups beside each other, inner elements of a step, and the
/// tiles below which a large GPU has idle parts.
pub(super) type Choice = ([u32; 2], u32, u32, u32);

// Measured on an H200 with squares of 16. Squares are read from workgroup memory once for each that they are multiplied
// with, so wide parts of few subgroups are fastest where there are many tiles. Where there are few, as many threads as
// possible, or long steps, keep loads in flight.
pub(super) const ALONE: [Choice; 4] =
    [([2, 2], 2, 32, 240), ([2, 2], 4, 64, 120), ([1, 2], 2, 64, 120), ([1, 1], 2, 64, 0)];
const GATED: [Choice; 3] = [([2, 2], 4, 32, 120), ([2, 1], 4, 32, 120), ([1, 1], 2, 32, 0)];

impl Units {
    /// The largest tiles for a layer of these rows and sides that leave enough of them to keep a large GPU busy. What is
    /// chosen changes no bit: sums are over the inner side in order.
    pub fn of(gpu: &Gpu, side: u32, [rows, k, n]: [u32; 3], gated: bool) -> Self {
        let choices: &[Choice] = if gated { &GATED } else { &ALONE };
        let room = gpu.limits.max_compute_workgroup_storage_size;
        let (down, beside) = (rows.div_ceil(64), n.div_ceil(64));
        let units = |&([m, n], across, depth, _): &Choice| {
            let depth = if k.is_multiple_of(depth) { depth } else { 32 };
            Units::tile(gpu, side, [m, n], across, depth)
        };
        let fits = |c: &&Choice| {
            let ([m, n], enough) = (c.0, c.3);
            down.div_ceil(m) * beside.div_ceil(n) >= enough && units(c).bytes(gated) <= room
        };
        let least = Units::tile(gpu, side, [1, 1], 2, 32);
        let only = gpu.linear.tiles.load(Ordering::Relaxed).checked_sub(1).and_then(|i| choices.get(i));
        only.or_else(|| choices.iter().find(fits)).map_or(least, units)
    }

    /// Tiles of 64 outputs and as many rows, for the slots of an expert.
    pub fn routed(gpu: &Gpu, side: u32, rows: u32) -> Self {
        Units::tile(gpu, side, [rows / 64, 1], 2, 32)
    }

    fn tile(gpu: &Gpu, side: u32, [m, n]: [u32; 2], across: u32, depth: u32) -> Self {
        let vectors = gpu.backend != wgpu::Backend::Metal;
        Units { side, m: m * 32 / side, n: n * 64 / (across * side), across, depth, vectors }
    }

    /// Rows and outputs of a tile.
    pub fn tile_sides(self) -> [u32; 2] {
        [2 * self.m * self.side, self.across * self.n * self.side]
    }

    pub fn threads(self) -> u32 {
        64 * self.across
    }

    /// Workgroup memory: rows of a step, eight elements apart from each other, and a square of each subgroup's on its way
    /// out.
    pub fn bytes(self, gated: bool) -> u32 {
        let ([rows, outputs], weights) = (self.tile_sides(), 1 + u32::from(gated));
        2 * (rows + weights * outputs) * (self.depth + 8) + 4 * 2 * self.across * weights * self.side * self.side
    }
}

/// Workgroup memory that the smallest tiles of a side need.
pub(crate) fn matrix_bytes(side: u32) -> u32 {
    Units { side, m: 32 / side, n: 32 / side, across: 2, depth: 32, vectors: true }.bytes(true)
}
