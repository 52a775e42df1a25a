//! Norms: a workgroup a row.

use turbospark_device::View;
use turbospark_device::op::{LayerNorm, RmsNorm, Rope};

use super::{Done, same, strides};
use crate::kernel::{Form, Source};
use crate::linear::{row_lanes, row_threads};
use crate::plan::{Plan, refused, word};

const RMS_NORM: Source = Source {
    name: "rms_norm",
    text: include_str!("../shaders/rms_norm.wgsl"),
    includes: &[include_str!("../shaders/sum.wgsl"), include_str!("../shaders/row_squares.wgsl")],
};

/// Eights of a row that a thread of the wide kernel holds at most.
const HELD: u32 = 8;

const LAYER_NORM: Source = Source {
    name: "layer_norm",
    text: include_str!("../shaders/layer_norm.wgsl"),
    includes: &[include_str!("../shaders/sum.wgsl")],
};

const NORM_ROPE: Source = Source {
    name: "norm_rope",
    text: include_str!("../shaders/norm_rope.wgsl"),
    includes: &[include_str!("../shaders/sum.wgsl")],
};

/// Threads for rows of `n`: a head of 128 keeps few of them busy.
pub(super) fn threads(n: usize) -> u32 {
    (n as u32).next_power_of_two().clamp(32, 256)
}

pub(super) fn rms_norm(plan: &mut Plan<'_>, op: &RmsNorm<'_>) -> Done {
    let (x, out, weight) = (plan.view(&op.x)?, plan.view(&op.out)?, plan.stored(&op.weight)?);
    let n = op.x.shape().last();
    let (rows, heads) = match *op.x.dims() {
        [_] => (1, 1),
        [rows, _] => (rows, 1),
        ref dims => (dims[0], dims[1]),
    };
    let gate =
        op.gate.as_ref().map(|g| Ok::<_, turbospark_device::DeviceError>((plan.view(g)?, strides(g)?))).transpose()?;
    let (x_by, out_by) = (strides(&op.x)?, strides(&op.out)?);
    if is_wide_norm(plan, op) {
        let threads = row_threads(n);
        let lanes = row_lanes(plan, threads);
        let each = word(n.div_ceil(8))?.div_ceil(threads);
        let [(n, heads), (rows, eps)] = [(word(n)?, word(heads)?), (word(rows * heads)?, op.eps.to_bits())];
        let (from, to) = ([x.at, x_by[0], x_by[1]], [out.at, out_by[0], out_by[1]]);
        // No gate.
        let words = [&[n, heads, rows, eps], &from[..], &[0; 3], &to, &[weight.at]].concat();
        return plan
            .kernel(&RMS_NORM)
            .set("WG", threads)
            .set("SUBGROUPS", u32::from(lanes > 0))
            .set("SUMS", threads.checked_div(lanes).unwrap_or(1))
            .set("ONE_PLUS", op.one_plus.into())
            .set("GATED", 0)
            .set("WIDE", 1)
            .set("EACH", each)
            .read("x", Form::Vec4, &x.window)
            .read("weight", Form::Stored(op.weight.dtype()), &weight.window)
            .write("out", Form::Vec4, &out.window)
            .over(&words, rows.into());
    }
    let (gate_at, gate_by) = gate.as_ref().map_or((0, [0, 0]), |(g, by)| (g.at, *by));
    let words = [
        word(n)?,
        word(heads)?,
        word(rows * heads)?,
        op.eps.to_bits(),
        x.at,
        x_by[0],
        x_by[1],
        gate_at,
        gate_by[0],
        gate_by[1],
        out.at,
        out_by[0],
        out_by[1],
        weight.at,
    ];
    let mut run = plan
        .kernel(&RMS_NORM)
        .set("WG", threads(n))
        .set("ONE_PLUS", op.one_plus.into())
        .set("GATED", gate.is_some().into())
        .set("WIDE", 0)
        .set("SUBGROUPS", 0)
        .read("x", Form::F32, &x.window)
        .read("weight", Form::Stored(op.weight.dtype()), &weight.window)
        .write("out", Form::F32, &out.window);
    // A kernel without a gate still names it.
    let gate = gate.as_ref().map_or(&x.window, |(g, _)| &g.window);
    run = run.read("gate", Form::F32, gate);
    run.over(&words, (rows * heads) as u64)
}

/// Whether a norm is of whole rows that a workgroup holds: their squares are added up as layers of decode rows do it that
/// begin with their norm. Heads are normed in the order that the kernel for all of attention's heads has.
pub(crate) fn is_wide_norm(plan: &Plan<'_>, op: &RmsNorm<'_>) -> bool {
    let n = op.x.shape().last();
    let places = |v: &View<'_>| -> Option<bool> {
        let (at, by) = (plan.view(v).ok()?, strides(v).ok()?);
        Some(at.at.is_multiple_of(4) && by.iter().all(|by| by.is_multiple_of(4)))
    };
    op.x.dims().len() <= 2
        && op.gate.is_none()
        && n > 0
        && n.is_multiple_of(4)
        && (n as u32).div_ceil(8).div_ceil(row_threads(n)) <= HELD
        && places(&op.x) == Some(true)
        && places(&op.out) == Some(true)
}

pub(super) fn layer_norm(plan: &mut Plan<'_>, op: &LayerNorm<'_>) -> Done {
    let (x, out) = (plan.view(&op.x)?, plan.view(&op.out)?);
    let (weight, bias) = (plan.stored(&op.weight)?, plan.stored(&op.bias)?);
    let n = op.x.shape().last();
    let rows = if op.x.shape().rank() == 1 { 1 } else { op.x.dim(0) };
    if op.x.shape().rank() > 2 {
        return Err(refused(format!("layer norm of {}, expected rows", op.x.shape())));
    }
    let words = [
        word(n)?,
        word(rows)?,
        op.eps.to_bits(),
        x.at,
        strides(&op.x)?[0],
        out.at,
        strides(&op.out)?[0],
        weight.at,
        bias.at,
    ];
    plan.kernel(&LAYER_NORM)
        .set("WG", threads(n))
        .read("x", Form::F32, &x.window)
        .read("weight", Form::Stored(op.weight.dtype()), &weight.window)
        .read("bias", Form::Stored(op.bias.dtype()), &bias.window)
        .write("out", Form::F32, &out.window)
        .over(&words, rows as u64)
}

/// Whether the two are a norm of heads in place, and the turn of the same heads.
pub(super) fn is_norm_rope(norm: &RmsNorm<'_>, rope: &Rope<'_>) -> bool {
    norm.x.dims().len() == 3 && norm.gate.is_none() && same(&norm.x, &norm.out) && same(&norm.x, &rope.x)
}

/// A norm of heads in place and the turn of the same heads, in one: `None` where the two are not that.
pub(super) fn norm_rope(plan: &mut Plan<'_>, norm: &RmsNorm<'_>, rope: &Rope<'_>) -> Option<Done> {
    is_norm_rope(norm, rope).then(|| one(plan, norm, rope))
}

fn one(plan: &mut Plan<'_>, norm: &RmsNorm<'_>, rope: &Rope<'_>) -> Done {
    let (x, weight) = (plan.view(&norm.x)?, plan.stored(&norm.weight)?);
    let (cos, sin) = (plan.view(&rope.cos)?, plan.view(&rope.sin)?);
    let (heads, n) = (norm.x.dim(1), norm.x.dim(2));
    let rows = norm.x.dim(0) * heads;
    let [row, head] = strides(&norm.x)?;
    let (eps, half) = (norm.eps.to_bits(), word(rope.cos.dim(1))?);
    let words = [word(n)?, word(heads)?, word(rows)?, eps, x.at, row, head, weight.at, half, cos.at, sin.at];
    plan.kernel(&NORM_ROPE)
        .set("WG", threads(n))
        .set("ONE_PLUS", norm.one_plus.into())
        .write("x", Form::F32, &x.window)
        .read("weight", Form::Stored(norm.weight.dtype()), &weight.window)
        .read("cos_t", Form::F32, &cos.window)
        .read("sin_t", Form::F32, &sin.window)
        .over(&words, rows as u64)
}
