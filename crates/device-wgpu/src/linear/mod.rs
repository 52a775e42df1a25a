//! Linear layers, tables and experts.
//!
//! Rows of prompts take tiles ([`tile`](kernel::Shape::Tile)), decode rows a kernel that reads a weight once for several
//! of them. Which one, and with which sizes, depends on the op's sides, its formats and the adapter, never on the rows
//! beside a row where that would order a sum anew. A weight longer than a binding is taken in parts of its outputs.

mod experts;
mod format;
mod gather;
mod halves;
mod kernel;
mod layer;
mod matrix;
mod normed;
mod several;
mod shared;
#[cfg(test)]
mod tests;
mod trial;
mod weight;

use turbospark_device::op::{GatedMatmul, LinearWeight, Matmul, WeightLayout};
use turbospark_device::{DeviceError, Op, Recorded, View};

use crate::ops::{Done, strides};
use crate::plan::{At, Plan, Window, word};
use layer::Layer;
use normed::Normed;
use weight::{Weight, parts};

pub(crate) use experts::experts;
pub(crate) use gather::gather;
pub(crate) use halves::Kept;
pub(crate) use layer::{row_lanes, row_threads};
pub(crate) use matrix::matrix_bytes;
pub(crate) use several::several;
pub(crate) use shared::{COUNTERS, Shared};
pub(crate) use trial::matrices_work;

/// Submits what is planned so far, so that the host may look at it.
pub(crate) type Flush<'f, 'd> = dyn FnMut(&mut Plan<'d>) -> Done + 'f;

/// Rows of f32: where they are and how far apart.
#[derive(Clone, Debug)]
struct Rows {
    at: At,
    row: u32,
}

impl Rows {
    fn of(plan: &Plan<'_>, view: &View<'_>) -> Result<Self, DeviceError> {
        Ok(Rows { at: plan.view(view)?, row: strides(view)?[0] })
    }

    fn temp(window: Window, width: usize) -> Result<Self, DeviceError> {
        Ok(Rows { at: At { window, at: 0 }, row: word(width)? })
    }
}

pub(crate) fn matmul(plan: &mut Plan<'_>, op: &Matmul<'_>) -> Done {
    matmul_after(plan, None, op)
}

/// A layer that begins with the norm of its rows, where there is one.
fn matmul_after(plan: &mut Plan<'_>, norm: Option<&Normed>, op: &Matmul<'_>) -> Done {
    let (rows, k, n) = (op.x.dim(0), op.x.dim(1), op.out.dim(1));
    for part in parts(plan, &[&op.weight], op.layout, n, k) {
        let outputs = |v: &View<'_>| Rows::of(plan, &v.narrow(1, part.clone()));
        let layer = Layer {
            rows,
            k,
            n: part.len(),
            x: Rows::of(plan, &op.x)?,
            a: Weight::of(plan, &outputs_of(&op.weight, op.layout, part.clone()), op.layout, k)?,
            b: None,
            layout: op.layout,
            bias: op.bias.map(|b| b.rows(part.clone())),
            activation: op.activation,
            residual: op.residual.as_ref().map(outputs).transpose()?,
            out: outputs(&op.out)?,
            norm: norm.cloned(),
        };
        layer.plan(plan, op.prompt_rows)?;
    }
    Ok(())
}

pub(crate) fn gated_matmul(plan: &mut Plan<'_>, op: &GatedMatmul<'_>) -> Done {
    gated_after(plan, None, op)
}

fn gated_after(plan: &mut Plan<'_>, norm: Option<&Normed>, op: &GatedMatmul<'_>) -> Done {
    let (rows, k, n) = (op.x.dim(0), op.x.dim(1), op.out.dim(1));
    for part in parts(plan, &[&op.gate, &op.up], op.layout, n, k) {
        let layer = Layer {
            rows,
            k,
            n: part.len(),
            x: Rows::of(plan, &op.x)?,
            a: Weight::of(plan, &outputs_of(&op.gate, op.layout, part.clone()), op.layout, k)?,
            b: Some(Weight::of(plan, &outputs_of(&op.up, op.layout, part.clone()), op.layout, k)?),
            layout: op.layout,
            bias: None,
            activation: None,
            residual: None,
            out: Rows::of(plan, &op.out.narrow(1, part.clone()))?,
            norm: norm.cloned(),
        };
        layer.plan(plan, op.prompt_rows)?;
    }
    Ok(())
}

/// Plans the norm of decode rows and the layers after it that read it as one: how many ops; `None` where they are others.
pub(crate) fn normed(plan: &mut Plan<'_>, ops: &[Recorded<'_>]) -> Option<(usize, Done)> {
    let [first, rest @ ..] = ops else { return None };
    let Op::RmsNorm(norm) = &first.op else { return None };
    if plan.gpu.limits.max_storage_buffers_per_shader_stage < 6 + normed::BUFFERS {
        return None;
    }
    if let Some((layers, done)) = several(plan, Some(norm), rest) {
        return Some((1 + layers, done));
    }
    let done = match &rest.first()?.op {
        Op::Matmul(op) if is_decode(op.layout, op.prompt_rows, &op.x, &op.out) => {
            let mut outs = vec![&op.out];
            outs.extend(&op.residual);
            let norm = Normed::of(plan, norm, &op.x, &outs)?;
            matmul_after(plan, Some(&norm), op)
        }
        Op::GatedMatmul(op) if is_decode(op.layout, op.prompt_rows, &op.x, &op.out) => {
            let norm = Normed::of(plan, norm, &op.x, &[&op.out])?;
            gated_after(plan, Some(&norm), op)
        }
        _ => return None,
    };
    Some((2, done))
}

/// Whether the kernel for decode rows takes all of a layer.
fn is_decode(layout: WeightLayout, prompt_rows: usize, x: &View<'_>, out: &View<'_>) -> bool {
    prompt_rows == 0 && layout == WeightLayout::OutIn && x.dim(0) > 0 && out.dim(1) > 0
}

/// Some outputs of a weight.
fn outputs_of<'a>(weight: &LinearWeight<'a>, layout: WeightLayout, part: std::ops::Range<usize>) -> LinearWeight<'a> {
    match (weight, layout) {
        (LinearWeight::View(v), WeightLayout::InOut) => v.narrow(1, part).into(),
        _ => weight.rows(part),
    }
}
