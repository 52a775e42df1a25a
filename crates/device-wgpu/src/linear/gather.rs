//! Rows of a table.

use turbospark_device::op::{Gather, LinearWeight, WeightLayout};

use super::kernel::{Routed, Shape, Variant};
use super::weight::{A, Weight, parts};
use crate::kernel::Form;
use crate::ops::{Done, strides};
use crate::plan::{Plan, word};

pub(crate) fn gather(plan: &mut Plan<'_>, op: &Gather<'_>) -> Done {
    let (rows, n) = (op.out.dim(0), op.out.dim(1));
    let m = match &op.table {
        LinearWeight::View(v) => v.dim(0),
        LinearWeight::Scaled(w) => w.codes.dim(0),
    };
    let (index, out) = (plan.view(&op.index)?, plan.view(&op.out)?);
    let weights = op.weights.as_ref().map(|w| plan.view(w)).transpose()?;
    let taps = op.weights.map_or(1, |w| w.dim(1));
    // Of a table in parts, the first writes all. Without weights a row lies in one of them, with weights they add up.
    for part in parts(plan, &[&op.table], WeightLayout::OutIn, m, n) {
        let weighted = op.weights.is_some();
        let add = op.accumulate || (weighted && part.start > 0);
        let table = Weight::of(plan, &op.table.rows(part.clone()), WeightLayout::OutIn, n)?;
        let variant = Variant {
            shape: Shape::Gather { weighted, add, all: part.start == 0 },
            a: (table.format, table.align),
            b: None,
            more: [None; 3],
            in_out: false,
            tail: false,
            whole: false,
            wide_x: false,
            routed: Routed::No,
            bias: false,
            residual: false,
            activation: 0,
            norm: None,
        };
        let count = rows * n.div_ceil(8);
        let words = [
            word(count)?,
            word(n)?,
            word(taps)?,
            word(part.start)?,
            word(part.len())?,
            index.at,
            weights.as_ref().map_or(0, |w| w.at),
            out.at,
            strides(&op.out)?[0],
            table.at,
            table.row,
            table.scales,
            table.biases,
            table.groups,
            0,
            0,
        ];
        let grids = plan.gpu.linear.grids(plan.gpu)?;
        let mut run = table.bind(plan.kernel(variant.source()), A).read("index", Form::I32, &index.window);
        if table.format.has_grid() {
            run = run.read("grid", Form::U32, &grids);
        }
        if let Some(weights) = &weights {
            run = run.read("weights", Form::F32, &weights.window);
        }
        run.write("out", Form::F32, &out.window).over(&words, (count as u64).div_ceil(64))?;
    }
    Ok(())
}
