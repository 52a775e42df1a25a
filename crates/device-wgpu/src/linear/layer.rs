//! A linear layer's dispatches.

use turbospark_device::View;
use turbospark_device::op::{Activation, WeightLayout};

use super::Rows;
use super::halves::{Halves, Kept};
use super::kernel::{Routed, Shape, Variant};
use super::matrix::Units;
use super::normed::Normed;
use super::weight::{A, B, Weight};
use crate::kernel::Form;
use crate::ops::Done;
use crate::plan::{Plan, Window, word};

/// `out = residual + activation(x A^T + bias)`, or `silu(x A^T) * (x B^T)`.
#[derive(Debug)]
pub(super) struct Layer<'a> {
    pub rows: usize,
    pub k: usize,
    pub n: usize,
    pub x: Rows,
    pub a: Weight,
    pub b: Option<Weight>,
    pub layout: WeightLayout,
    pub bias: Option<View<'a>>,
    pub activation: Option<Activation>,
    pub residual: Option<Rows>,
    pub out: Rows,
    /// What decode rows begin with: `x` is its result, which is not read but written.
    pub norm: Option<Normed>,
}

/// The slots (a row and one of its experts each) that a layer of experts computes.
#[derive(Clone, Debug)]
pub(super) struct Slots {
    pub list: Window,
    /// Where the list begins, in words.
    pub at: u32,
    /// Entries of it: slots of decode rows, tiles of prompt rows.
    pub entries: u32,
    /// The first slot, where the list tells experts.
    pub first: u32,
    /// Experts of a row of `x`; 1 where each slot has a row of its own.
    pub top: u32,
    pub routed: Routed,
}

impl Layer<'_> {
    /// Rows before `prompt_rows` in tiles, the others by the row kernels.
    pub fn plan(&self, plan: &mut Plan<'_>, prompt_rows: usize) -> Done {
        Kept::begin(plan, &self.x, [self.rows, prompt_rows, self.k]);
        self.tiles(plan, prompt_rows)?;
        self.later(plan, prompt_rows)?;
        Kept::end(plan);
        Ok(())
    }

    /// Decode rows.
    fn later(&self, plan: &mut Plan<'_>, prompt_rows: usize) -> Done {
        let later = self.rows - prompt_rows;
        if later == 0 || self.n == 0 {
            return Ok(());
        }
        let most = if self.b.is_some() { 8 } else { 16 };
        let batch = (later as u32).next_power_of_two().min(most);
        let shape = match self.layout {
            WeightLayout::OutIn => row_shape(plan, [self.k, self.n], self.b.is_some(), batch, 1),
            WeightLayout::InOut => Shape::Columns { batch: batch.min(4) },
        };
        let (across, batch) = grid_of(shape);
        let grid = [(self.n as u32).div_ceil(across), (later as u32).div_ceil(batch), 1];
        self.run(plan, shape, prompt_rows, later, None, grid)
    }

    /// Rows of a prompt.
    fn tiles(&self, plan: &mut Plan<'_>, rows: usize) -> Done {
        if rows == 0 || self.n == 0 {
            return Ok(());
        }
        let shape = match plan.gpu.matrix_side {
            Some(side) => {
                let sides = [rows, self.k, self.n].map(|n| n as u32);
                Shape::Matrix(Units::of(plan.gpu, side, sides, self.b.is_some()))
            }
            None => self.tile_shape(plan, rows),
        };
        let (across, down) = grid_of(shape);
        let grid = [(self.n as u32).div_ceil(across), (rows as u32).div_ceil(down), 1];
        self.run(plan, shape, 0, rows, None, grid)
    }

    /// The slots of decode rows, or tiles of so many rows of those of prompt rows.
    pub fn routed(&self, plan: &mut Plan<'_>, slots: &Slots, tile: Option<u32>) -> Done {
        if slots.entries == 0 || self.n == 0 {
            return Ok(());
        }
        let shape = match (tile, self.layout, plan.gpu.matrix_side) {
            (Some(rows), _, Some(side)) => Shape::Matrix(Units::routed(plan.gpu, side, rows)),
            (Some(rows), _, None) => Shape::Tile { m: rows / 16, n: 4 },
            (None, WeightLayout::OutIn, _) => row_shape(plan, [self.k, self.n], self.b.is_some(), 1, slots.entries),
            (None, WeightLayout::InOut, _) => Shape::Columns { batch: 1 },
        };
        let (across, _) = grid_of(shape);
        self.run(plan, shape, 0, self.rows, Some(slots), [(self.n as u32).div_ceil(across), slots.entries, 1])
    }

    fn tile_shape(&self, plan: &Plan<'_>, rows: usize) -> Shape {
        let (rows, n) = (rows as u32, self.n as u32);
        let storage = 128 * 5 * 16 * if self.b.is_some() { 3 } else { 2 };
        let room = plan.gpu.limits.max_compute_workgroup_storage_size >= storage;
        if room && self.b.is_none() && rows >= 128 && rows.div_ceil(128) * n.div_ceil(128) >= 96 {
            return Shape::Tile { m: 8, n: 8 };
        }
        Shape::Tile { m: tile_rows(rows), n: 4 }
    }

    fn run(
        &self,
        plan: &mut Plan<'_>,
        shape: Shape,
        first: usize,
        rows: usize,
        slots: Option<&Slots>,
        grid: [u32; 3],
    ) -> Done {
        let depth = if let Shape::Matrix(units) = shape { Some(units.depth as usize) } else { None };
        let matrix = depth.is_some();
        let halves = match slots {
            _ if !matrix => None,
            None => Some(Kept::halves(plan, &self.x, self.k, rows)?),
            // Rows are slots, and x has a row for `top` of them.
            Some(slots) => Some(Halves::new(plan, &self.x, self.k, rows / slots.top as usize)?),
        };
        let rows_of = self.norm.as_ref().map_or(&self.x, |norm| &norm.x);
        let (step, x) = halves.as_ref().map_or((rows_of.row, rows_of.at.at), |h| (h.row, 0));
        let out = self.out.at.at;
        let activation = match self.activation {
            None => 0,
            Some(Activation::GeluTanh) => 1,
            Some(Activation::GeluErf) => 2,
            Some(Activation::Silu) => 3,
        };
        // Vectors of x: the kernels for [in, out] weights read single elements.
        let wide_x = !matches!(shape, Shape::Columns { .. }) && x.is_multiple_of(4) && step.is_multiple_of(4);
        let variant = Variant {
            shape,
            a: (self.a.format, self.a.align),
            b: self.b.as_ref().map(|b| (b.format, b.align)),
            more: [None; 3],
            in_out: self.layout == WeightLayout::InOut,
            tail: !self.k.is_multiple_of(8),
            whole: depth.is_some_and(|depth| self.k.is_multiple_of(depth)),
            wide_x,
            routed: slots.map_or(Routed::No, |s| s.routed),
            bias: self.bias.is_some(),
            residual: self.residual.is_some(),
            activation,
            norm: self.norm.as_ref().map(|norm| norm.kind),
        };
        let bias = self.bias.as_ref().map(|b| plan.stored(b).map(|at| (at, b.dtype()))).transpose()?;
        let from = word(first)?;
        let of = |r: &Rows| r.at.at + from * r.row;
        let (residual, residual_row) = self.residual.as_ref().map_or((0, 0), |r| (of(r), r.row));
        let b = self.b.as_ref().unwrap_or(&self.a);
        let norm = self.norm.as_ref().map_or(Ok([0; 4]), Normed::words)?;
        let words = [
            word(rows)?,
            word(self.k)?,
            word(self.n)?,
            x + from * step,
            step,
            out + from * self.out.row,
            self.out.row,
            bias.as_ref().map_or(0, |(at, _)| at.at),
            residual,
            residual_row,
            self.a.at,
            self.a.row,
            self.a.scales,
            self.a.biases,
            self.a.groups,
            b.at,
            b.row,
            b.scales,
            b.biases,
            b.groups,
            0,
            slots.map_or(0, |s| s.first),
            slots.map_or(0, |s| s.at),
            slots.map_or(1, |s| s.top),
            self.a.step,
            self.a.scales_step,
            b.step,
            b.scales_step,
            norm[0],
            norm[1],
            norm[2],
            norm[3],
        ];
        let tables = plan.gpu.linear.grids(plan.gpu)?;
        let mut run = plan.kernel(variant.source());
        run = match &halves {
            Some(h) => run.read("x", Form::Half4, &h.rows).read("unscale", Form::F32, &h.unscale),
            None => run.read("x", if wide_x { Form::Vec4 } else { Form::F32 }, &rows_of.at.window),
        };
        if let Some(norm) = &self.norm {
            run = norm.bind(run);
        }
        if matrix {
            run = run.with_matrices();
        }
        run = self.a.bind(run, A);
        if let Some(b) = &self.b {
            run = b.bind(run, B);
        }
        if self.a.format.has_grid() || b.format.has_grid() {
            run = run.read("grid", Form::U32, &tables);
        }
        if let Some((at, dtype)) = &bias {
            run = run.read("bias", Form::Stored(*dtype), &at.window);
        }
        if let Some(residual) = &self.residual {
            run = run.read("residual", Form::F32, &residual.at.window);
        }
        if let Some(slots) = slots {
            run = run.read("list", Form::U32, &slots.list);
        }
        run.write("out", Form::F32, &self.out.at.window).grid(&words, grid)
    }
}

/// The kernel of decode rows for these sides.
///
/// Threads depend on the inner side alone, since they order sums; outputs of a workgroup on how many workgroups that
/// leaves.
pub(super) fn row_shape(plan: &Plan<'_>, [k, n]: [usize; 2], gated: bool, batch: u32, times: u32) -> Shape {
    let threads = row_threads(k);
    let most = match batch * if gated { 2 } else { 1 } {
        0..=4 => 4,
        _ => 2,
    };
    // As many workgroups as keep a large GPU's memory busy.
    let enough = 512 / times.min(512);
    let outputs = [4, 2, 1].into_iter().find(|&o| o <= most && n as u32 / o >= enough).unwrap_or(1);
    Shape::Rows { outputs, batch, threads, subgroup: row_lanes(plan, threads) }
}

/// Threads that share out a row of `k` elements.
pub(crate) fn row_threads(k: usize) -> u32 {
    match k {
        0..=2048 => 64,
        2049..=8192 => 128,
        _ => 256,
    }
}

/// Lanes of a subgroup where so many threads add up through subgroups; else zero.
pub(crate) fn row_lanes(plan: &Plan<'_>, threads: u32) -> u32 {
    let (fewest, widest) = plan.gpu.subgroups;
    if fewest == widest && fewest > 1 && threads >= fewest { fewest } else { 0 }
}

/// Rows of a tile of experts' slots, for so many slots an expert.
pub(super) fn routed_rows(plan: &Plan<'_>, slots: u32) -> u32 {
    if plan.gpu.matrix_side.is_some() { 64 } else { 16 * tile_rows(slots) }
}

/// Sixteenths of the rows of a tile for so many rows.
fn tile_rows(rows: u32) -> u32 {
    match rows {
        0..=16 => 1,
        17..=32 => 2,
        _ => 4,
    }
}

/// Outputs and rows of a workgroup.
fn grid_of(shape: Shape) -> (u32, u32) {
    match shape {
        Shape::Rows { outputs, batch, .. } => (outputs, batch),
        Shape::Columns { batch } => (64, batch),
        Shape::Tile { m, n } => (16 * n, 16 * m),
        Shape::Matrix(units) => {
            let [rows, outputs] = units.tile_sides();
            (outputs, rows)
        }
        Shape::Gather { .. } => unreachable!("no layer"),
    }
}
