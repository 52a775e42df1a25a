//! Linear layers, tables and experts.

use turbospark_device::op::{Activation, Experts, GatedMatmul, Gather, LinearWeight, Matmul, WeightLayout};
use turbospark_device::{DeviceError, Expert, View};

use crate::kernel::{Form, Source};
use crate::ops::{Done, WG, groups, strides};
use crate::plan::{At, Plan, Window, refused, word};

const PLAIN: Source = Source {
    name: "linear_plain",
    text: include_str!("../shaders/linear/plain.wgsl"),
    includes: &[include_str!("../shaders/activation.wgsl")],
};
const GATHER: Source = Source { name: "gather", text: include_str!("../shaders/linear/gather.wgsl"), includes: &[] };
const SCALE_ADD: Source =
    Source { name: "scale_add", text: include_str!("../shaders/linear/scale_add.wgsl"), includes: &[] };

/// Submits what is planned so far, so that the host may look at it.
pub(crate) type Flush<'f, 'd> = dyn FnMut(&mut Plan<'d>) -> Done + 'f;

fn plain<'a>(weight: &LinearWeight<'a>) -> Result<View<'a>, DeviceError> {
    match weight {
        LinearWeight::View(v) if v.dtype().is_float() => Ok(*v),
        other => Err(refused(format!("weights {other:?} are not taken on this device yet; use the device cpu"))),
    }
}

/// Rows of f32: where they are and how far apart.
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

/// A linear layer over some rows.
struct Linear<'v, 'a> {
    rows: usize,
    k: usize,
    n: usize,
    x: &'v Rows,
    weight: &'v View<'a>,
    up: Option<&'v View<'a>>,
    layout: WeightLayout,
    bias: Option<&'v View<'a>>,
    activation: Option<Activation>,
    residual: Option<Rows>,
    out: &'v Rows,
}

impl Linear<'_, '_> {
    fn plan(&self, plan: &mut Plan<'_>) -> Done {
        let weight = plan.stored(self.weight)?;
        let up = plan.stored(self.up.unwrap_or(self.weight))?;
        let bias = self.bias.map(|b| plan.stored(b)).transpose()?;
        let up_row = self.up.unwrap_or(self.weight);
        let (bias_at, bias_window) = bias.as_ref().map_or((0, &weight.window), |b| (b.at, &b.window));
        let residual = self.residual.as_ref().unwrap_or(self.x);
        let words = [
            word(self.rows)?,
            word(self.k)?,
            word(self.n)?,
            self.x.at.at,
            self.x.row,
            weight.at,
            up.at,
            strides(self.weight)?[0],
            strides(up_row)?[0],
            bias_at,
            residual.at.at,
            residual.row,
            self.out.at.at,
            self.out.row,
        ];
        let activation = match self.activation {
            None => 0,
            Some(Activation::GeluTanh) => 1,
            Some(Activation::GeluErf) => 2,
            Some(Activation::Silu) => 3,
        };
        plan.kernel(&PLAIN)
            .set("WG", WG)
            .set("IN_OUT", (self.layout == WeightLayout::InOut).into())
            .set("GATED", self.up.is_some().into())
            .set("BIAS", self.bias.is_some().into())
            .set("RESIDUAL", self.residual.is_some().into())
            .set("ACTIVATION", activation)
            .read("x", Form::F32, &self.x.at.window)
            .read("weight", Form::Stored(self.weight.dtype()), &weight.window)
            .read("up", Form::Stored(up_row.dtype()), &up.window)
            .read("bias", Form::Stored(self.bias.unwrap_or(self.weight).dtype()), bias_window)
            .read("residual", Form::F32, &residual.at.window)
            .write("out", Form::F32, &self.out.at.window)
            .over(&words, groups(self.rows * self.n))
    }
}

pub(crate) fn matmul(plan: &mut Plan<'_>, op: &Matmul<'_>) -> Done {
    let weight = plain(&op.weight)?;
    Linear {
        rows: op.x.dim(0),
        k: op.x.dim(1),
        n: op.out.dim(1),
        x: &Rows::of(plan, &op.x)?,
        weight: &weight,
        up: None,
        layout: op.layout,
        bias: op.bias.as_ref(),
        activation: op.activation,
        residual: op.residual.as_ref().map(|r| Rows::of(plan, r)).transpose()?,
        out: &Rows::of(plan, &op.out)?,
    }
    .plan(plan)
}

pub(crate) fn gated_matmul(plan: &mut Plan<'_>, op: &GatedMatmul<'_>) -> Done {
    let (gate, up) = (plain(&op.gate)?, plain(&op.up)?);
    Linear {
        rows: op.x.dim(0),
        k: op.x.dim(1),
        n: op.out.dim(1),
        x: &Rows::of(plan, &op.x)?,
        weight: &gate,
        up: Some(&up),
        layout: op.layout,
        bias: None,
        activation: None,
        residual: None,
        out: &Rows::of(plan, &op.out)?,
    }
    .plan(plan)
}

pub(crate) fn gather(plan: &mut Plan<'_>, op: &Gather<'_>) -> Done {
    let table = plain(&op.table)?;
    let (rows, n) = (op.out.dim(0), op.out.dim(1));
    let (at, index, out) = (plan.stored(&table)?, plan.view(&op.index)?, plan.view(&op.out)?);
    let weights = op.weights.as_ref().map(|w| plan.view(w)).transpose()?;
    let (weights_at, weights_window) = weights.as_ref().map_or((0, &out.window), |w| (w.at, &w.window));
    let taps = op.weights.map_or(1, |w| w.dim(1));
    let words = [
        word(rows * n)?,
        word(n)?,
        word(taps)?,
        word(table.dim(0))?,
        at.at,
        index.at,
        weights_at,
        out.at,
        strides(&op.out)?[0],
        strides(&table)?[0],
    ];
    plan.kernel(&GATHER)
        .set("WG", WG)
        .set("ACCUMULATE", op.accumulate.into())
        .set("WEIGHTED", op.weights.is_some().into())
        .read("table", Form::Stored(table.dtype()), &at.window)
        .read("index", Form::I32, &index.window)
        .read("weights", Form::F32, weights_window)
        .write("out", Form::F32, &out.window)
        .over(&words, groups(rows * n))
}

/// Experts whose choice the host looks at: one after the other, ascending.
pub(crate) fn experts<'d>(plan: &mut Plan<'d>, op: &Experts<'_>, flush: &mut Flush<'_, 'd>) -> Done {
    let (rows, hidden, k, count) = (op.x.dim(0), op.x.dim(1), op.ids.dim(1), op.source.experts());
    flush(plan)?;
    let mut ids = vec![0i32; rows * k];
    let memory = plan.gpu.memory(&op.ids)?;
    plan.gpu.get(memory, op.ids.offset_bytes() as u64, bytemuck::cast_slice_mut(&mut ids))?;
    let mut chosen: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (slot, &id) in ids.iter().enumerate() {
        let expert = usize::try_from(id).ok().filter(|&e| e < count);
        chosen[expert.ok_or_else(|| refused(format!("row {} chose expert {id} of {count}", slot / k)))?].push(slot);
    }
    crate::ops::start(plan, op.residual.as_ref(), &op.out)?;
    let wanted: Vec<usize> = (0..count).filter(|&e| !chosen[e].is_empty()).collect();
    op.source.with(&wanted, &mut |e, expert| {
        expert.check(hidden, op.width).map_err(|m| refused(format!("expert {e}: {m}")))?;
        one_expert(plan, op, &expert, &chosen[e])?;
        // The expert's slot may be given up after this.
        flush(plan)
    })
}

fn one_expert(plan: &mut Plan<'_>, op: &Experts<'_>, expert: &Expert<'_>, slots: &[usize]) -> Done {
    let (hidden, k, m) = (op.x.dim(1), op.ids.dim(1), slots.len());
    let rows: Vec<u32> = slots.iter().map(|slot| (slot / k) as u32).collect();
    let x = Rows::temp(plan.temp((4 * m * hidden) as u64)?, hidden)?;
    let inner = Rows::temp(plan.temp((4 * m * op.width) as u64)?, op.width)?;
    let y = Rows::temp(plan.temp((4 * m * hidden) as u64)?, hidden)?;
    let index = plan.table(rows.iter().copied());
    let from = plan.view(&op.x)?;
    let words =
        [word(m * hidden)?, word(hidden)?, 1, u32::MAX, 4 * from.at, index, 0, 0, word(hidden)?, strides(&op.x)?[0]];
    let tables = plan.tables();
    plan.kernel(&GATHER)
        .set("WG", WG)
        .set("ACCUMULATE", 0)
        .set("WEIGHTED", 0)
        .read("table", Form::Stored(turbospark_tensor::DType::F32), &from.window)
        .read("index", Form::I32, &tables)
        .read("weights", Form::F32, &tables)
        .write("out", Form::F32, &x.at.window)
        .over(&words, groups(m * hidden))?;
    let (gate, up, down) = (plain(&expert.gate)?, plain(&expert.up)?, plain(&expert.down)?);
    let linear = |k, n, x, weight, up, out| Linear {
        rows: m,
        k,
        n,
        x,
        weight,
        up,
        layout: expert.layout,
        bias: None,
        activation: None,
        residual: None,
        out,
    };
    linear(hidden, op.width, &x, &gate, Some(&up), &inner).plan(plan)?;
    linear(op.width, hidden, &inner, &down, None, &y).plan(plan)?;
    let pairs = plan.table(slots.iter().flat_map(|&slot| [(slot / k) as u32, slot as u32]));
    let (weights, out) = (plan.view(&op.weights)?, plan.view(&op.out)?);
    let words = [word(m * hidden)?, word(hidden)?, pairs, y.at.at, weights.at, out.at, strides(&op.out)?[0]];
    let tables = plan.tables();
    plan.kernel(&SCALE_ADD)
        .set("WG", WG)
        .read("tables", Form::U32, &tables)
        .read("y", Form::F32, &y.at.window)
        .read("weights", Form::F32, &weights.window)
        .write("out", Form::F32, &out.window)
        .over(&words, groups(m * hidden))?;
    plan.end_op();
    Ok(())
}
