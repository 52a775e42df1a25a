//! Ops on rows alone.

use turbospark_device::op::{DeltaGates, Rope, Router, SigmoidGate};

use super::{Done, WG, groups, strides};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, word};

const ROPE: Source = Source { name: "rope", text: include_str!("../shaders/rope.wgsl"), includes: &[] };
const SIGMOID_GATE: Source =
    Source { name: "sigmoid_gate", text: include_str!("../shaders/sigmoid_gate.wgsl"), includes: &[] };
const DELTA_GATES: Source =
    Source { name: "delta_gates", text: include_str!("../shaders/delta_gates.wgsl"), includes: &[] };
const ROUTER: Source = Source {
    name: "router",
    text: include_str!("../shaders/router.wgsl"),
    includes: &[include_str!("../shaders/sum.wgsl")],
};

pub(super) fn rope(plan: &mut Plan<'_>, op: &Rope<'_>) -> Done {
    let (x, cos, sin) = (plan.view(&op.x)?, plan.view(&op.cos)?, plan.view(&op.sin)?);
    let (rows, heads, half) = (op.x.dim(0), op.x.dim(1), op.cos.dim(1));
    let [row, head] = strides(&op.x)?;
    let pairs = rows * heads * half;
    let words = [word(pairs)?, word(half)?, word(heads)?, x.at, row, head, cos.at, sin.at];
    plan.kernel(&ROPE)
        .set("WG", WG)
        .write("x", Form::F32, &x.window)
        .read("cos_t", Form::F32, &cos.window)
        .read("sin_t", Form::F32, &sin.window)
        .over(&words, groups(pairs))
}

pub(super) fn sigmoid_gate(plan: &mut Plan<'_>, op: &SigmoidGate<'_>) -> Done {
    let (x, gate, out) = (plan.view(&op.x)?, plan.view(&op.gate)?, plan.view(&op.out)?);
    let residual = op.residual.as_ref().unwrap_or(&op.x);
    let r = plan.view(residual)?;
    let count = op.x.shape().elements();
    let mut words = vec![word(count)?, word(op.x.dim(2))?, word(op.x.dim(1))?];
    for (at, view) in [(&x, &op.x), (&gate, &op.gate), (&r, residual), (&out, &op.out)] {
        words.push(at.at);
        words.extend(strides(view)?);
    }
    plan.kernel(&SIGMOID_GATE)
        .set("WG", WG)
        .set("ONE", (op.gate.dim(2) == 1).into())
        .set("RESIDUAL", op.residual.is_some().into())
        .read("x", Form::F32, &x.window)
        .read("gate", Form::F32, &gate.window)
        .read("residual", Form::F32, &r.window)
        .write("out", Form::F32, &out.window)
        .over(&words, groups(count))
}

pub(super) fn delta_gates(plan: &mut Plan<'_>, op: &DeltaGates<'_>) -> Done {
    let (a, b, g, beta) = (plan.view(&op.a)?, plan.view(&op.b)?, plan.view(&op.g)?, plan.view(&op.beta)?);
    let (log, bias) = (plan.stored(&op.a_log)?, plan.stored(&op.dt_bias)?);
    let count = op.a.shape().elements();
    let mut words = vec![word(count)?, word(op.a.dim(1))?];
    for (at, view) in [(&a, &op.a), (&b, &op.b), (&g, &op.g), (&beta, &op.beta)] {
        words.extend([at.at, strides(view)?[0]]);
    }
    words.extend([log.at, bias.at]);
    plan.kernel(&DELTA_GATES)
        .set("WG", WG)
        .set("IS_RATE", op.is_rate.into())
        .read("a", Form::F32, &a.window)
        .read("b", Form::F32, &b.window)
        .read("a_log", Form::Stored(op.a_log.dtype()), &log.window)
        .read("dt_bias", Form::Stored(op.dt_bias.dtype()), &bias.window)
        .write("g", Form::F32, &g.window)
        .write("beta", Form::F32, &beta.window)
        .over(&words, groups(count))
}

pub(super) fn router(plan: &mut Plan<'_>, op: &Router<'_>) -> Done {
    let (logits, ids, weights) = (plan.view(&op.logits)?, plan.view(&op.ids)?, plan.view(&op.weights)?);
    let (rows, experts, k) = (op.logits.dim(0), op.logits.dim(1), op.ids.dim(1));
    let words = [word(rows)?, word(experts)?, word(k)?, logits.at, ids.at, weights.at];
    plan.kernel(&ROUTER)
        .set("WG", 128)
        .set("NORMALISE", op.normalise.into())
        .read("logits", Form::F32, &logits.window)
        .write("ids", Form::I32, &ids.window)
        .write("weights", Form::F32, &weights.window)
        .over(&words, rows as u64)
}
