//! Rows on their own: gathers, linear layers, norms, gates, experts.

use turbospark_tensor::mutant::{Mutant, active};

use super::memory::{load, load_i32, load_some, load_weight, store, store_i32};
use crate::op::{
    Activation, Experts, GatedMatmul, Gather, LayerNorm, Matmul, RmsNorm, Router, SigmoidGate, WeightLayout,
};
use crate::{DeviceError, LinearWeight};

type Done = Result<(), DeviceError>;

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// The error function by its series and, past 3, its continued fraction; relative error below 1e-15.
pub(super) fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 3.0 {
        // erf x = 2/sqrt(pi) exp(-x^2) sum_n 2^n x^(2n+1) / (1 * 3 * .. * (2n+1))
        let (mut term, mut sum, mut n) = (x, x, 1.0);
        while term.abs() > 1e-18 * sum.abs() {
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        return 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum;
    }
    let tail = (1..=60).rev().fold(a, |f, n| a + n as f64 / 2.0 / f);
    x.signum() * (1.0 - (-a * a).exp() / (tail * std::f64::consts::PI.sqrt()))
}

/// The activations of [`Activation`], in f64.
pub fn activate(kind: Option<Activation>, x: f64) -> f64 {
    match kind {
        None => x,
        Some(Activation::Silu) => silu(x),
        Some(Activation::GeluErf) => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Some(Activation::GeluTanh) => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

pub(super) fn gather(op: &Gather<'_>) -> Done {
    let (table, index) = (load_weight(&op.table, op.out.dim(1))?, load_i32(&op.index)?);
    let weights = load_some(&op.weights)?;
    let n = op.out.dim(1);
    let m = table.len().checked_div(n).unwrap_or(0);
    let taps = op.weights.map_or(1, |w| w.dim(1));
    let mut out = load(&op.out)?;
    for (r, row) in out.chunks_exact_mut(n).enumerate() {
        let ids = &index[r * taps..(r + 1) * taps];
        if ids[0] < 0 {
            continue;
        }
        if !op.accumulate {
            row.fill(0.0);
        }
        for (t, &id) in ids.iter().enumerate() {
            let id = id as usize;
            if id >= m {
                let message = format!("row {r} asks for row {id} of a table of {m}");
                return Err(DeviceError::Op { scope: String::new(), op: "Gather", message });
            }
            let w = weights.as_ref().map_or(1.0, |w| w[r * taps + t]);
            for (o, x) in row.iter_mut().zip(&table[id * n..(id + 1) * n]) {
                *o += w * x;
            }
        }
    }
    store(&op.out, &out)
}

/// `x W^T` in f64, `[rows, n]`.
fn product(
    x: &[f32],
    k: usize,
    weight: &LinearWeight<'_>,
    layout: WeightLayout,
) -> Result<(Vec<f64>, usize), DeviceError> {
    let w = load_weight(weight, k)?;
    let n = w.len().checked_div(k).unwrap_or(0);
    let at = |o: usize, i: usize| if layout == WeightLayout::OutIn { w[o * k + i] } else { w[i * n + o] };
    let rows = x.len().checked_div(k).unwrap_or(0);
    let mut out = Vec::with_capacity(rows * n);
    for row in x.chunks_exact(k) {
        out.extend((0..n).map(|o| row.iter().enumerate().map(|(i, &v)| v as f64 * at(o, i) as f64).sum::<f64>()));
    }
    Ok((out, n))
}

pub(super) fn matmul(op: &Matmul<'_>) -> Done {
    let (mut y, n) = product(&load(&op.x)?, op.x.dim(1), &op.weight, op.layout)?;
    let (bias, residual) = (load_some(&op.bias)?, load_some(&op.residual)?);
    for (i, v) in y.iter_mut().enumerate() {
        *v = activate(op.activation, *v + bias.as_ref().map_or(0.0, |b| b[i % n] as f64));
        *v += residual.as_ref().map_or(0.0, |r| r[i] as f64);
    }
    store(&op.out, &to_f32(&y))
}

fn to_f32(x: &[f64]) -> Vec<f32> {
    x.iter().map(|&v| v as f32).collect()
}

fn gated(
    x: &[f32],
    k: usize,
    gate: &LinearWeight<'_>,
    up: &LinearWeight<'_>,
    layout: WeightLayout,
) -> Result<Vec<f32>, DeviceError> {
    let (g, _) = product(x, k, gate, layout)?;
    let (u, _) = product(x, k, up, layout)?;
    Ok(g.iter().zip(&u).map(|(&g, &u)| (silu(g) * u) as f32).collect())
}

pub(super) fn gated_matmul(op: &GatedMatmul<'_>) -> Done {
    store(&op.out, &gated(&load(&op.x)?, op.x.dim(1), &op.gate, &op.up, op.layout)?)
}

pub(super) fn rms_norm(op: &RmsNorm<'_>) -> Done {
    let (mut x, w, gate) = (load(&op.x)?, load(&op.weight)?, load_some(&op.gate)?);
    let n = w.len();
    for (r, row) in x.chunks_exact_mut(n).enumerate() {
        let gate = gate.as_ref().map(|g| &g[r * n..(r + 1) * n]);
        let before = active(Mutant::DeltaGateBeforeNorm);
        if let (Some(g), true) = (gate, before) {
            row.iter_mut().zip(g).for_each(|(v, &g)| *v *= silu(g as f64) as f32);
        }
        let mean = row.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (mean + op.eps as f64).sqrt();
        for (i, v) in row.iter_mut().enumerate() {
            let weight = w[i] as f64 + if op.one_plus { 1.0 } else { 0.0 };
            let gate = if before { 1.0 } else { gate.map_or(1.0, |g| silu(g[i] as f64)) };
            *v = (*v as f64 * scale * weight * gate) as f32;
        }
    }
    store(&op.out, &x)
}

pub(super) fn layer_norm(op: &LayerNorm<'_>) -> Done {
    let (mut x, w, b) = (load(&op.x)?, load(&op.weight)?, load(&op.bias)?);
    let n = w.len();
    for row in x.chunks_exact_mut(n) {
        let mean = row.iter().map(|&v| v as f64).sum::<f64>() / n as f64;
        let var = row.iter().map(|&v| (v as f64 - mean).powi(2)).sum::<f64>() / n as f64;
        let scale = 1.0 / (var + op.eps as f64).sqrt();
        for (i, v) in row.iter_mut().enumerate() {
            *v = ((*v as f64 - mean) * scale * w[i] as f64 + b[i] as f64) as f32;
        }
    }
    store(&op.out, &x)
}

pub(super) fn sigmoid_gate(op: &SigmoidGate<'_>) -> Done {
    let (mut x, gate, residual) = (load(&op.x)?, load(&op.gate)?, load_some(&op.residual)?);
    let each = op.x.dim(2) / op.gate.dim(2).max(1);
    for (i, v) in x.iter_mut().enumerate() {
        let r = residual.as_ref().map_or(0.0, |r| r[i] as f64);
        *v = (r + *v as f64 * sigmoid(gate[i / each.max(1)] as f64)) as f32;
    }
    store(&op.out, &x)
}

pub(super) fn router(op: &Router<'_>) -> Done {
    let logits = load(&op.logits)?;
    let (experts, k) = (op.logits.dim(1), op.ids.dim(1));
    let (mut ids, mut weights) = (Vec::new(), Vec::new());
    for row in logits.chunks_exact(experts) {
        let top = row.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v)) as f64;
        let exp: Vec<f64> = row.iter().map(|&v| (v as f64 - top).exp()).collect();
        let total: f64 = exp.iter().sum();
        let mut order: Vec<usize> = (0..experts).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
        let chosen: f64 = order[..k].iter().map(|&e| exp[e]).sum();
        let divisor = if op.normalise { chosen } else { total };
        ids.extend(order[..k].iter().map(|&e| e as i32));
        weights.extend(order[..k].iter().map(|&e| (exp[e] / divisor) as f32));
    }
    store_i32(&op.ids, &ids)?;
    store(&op.weights, &weights)?;
    if let Some(source) = op.source {
        source.announce(&ids, k);
    }
    Ok(())
}

/// The experts that any row chose, ascending.
fn distinct(ids: &[i32]) -> Vec<usize> {
    let mut wanted: Vec<usize> = ids.iter().map(|&e| e as usize).collect();
    wanted.sort_unstable();
    wanted.dedup();
    wanted
}

pub(super) fn experts(op: &Experts<'_>) -> Done {
    let (x, ids, weights) = (load(&op.x)?, load_i32(&op.ids)?, load(&op.weights)?);
    let (hidden, k) = (op.x.dim(1), op.ids.dim(1));
    let mut out: Vec<f64> = vec![0.0; x.len()];
    op.source.with(&distinct(&ids), &mut |e, expert| {
        expert.check(hidden, op.width).map_err(|message| DeviceError::Op {
            scope: String::new(),
            op: "Experts",
            message: format!("expert {e}: {message}"),
        })?;
        for (slot, _) in ids.iter().enumerate().filter(|&(_, &id)| id as usize == e) {
            let row = slot / k * hidden..(slot / k + 1) * hidden;
            let inner = gated(&x[row.clone()], hidden, &expert.gate, &expert.up, expert.layout)?;
            let (y, _) = product(&inner, op.width, &expert.down, expert.layout)?;
            out[row].iter_mut().zip(&y).for_each(|(o, y)| *o += weights[slot] as f64 * y);
        }
        Ok(())
    })?;
    if let Some(r) = load_some(&op.residual)? {
        out.iter_mut().zip(&r).for_each(|(o, &r)| *o += r as f64);
    }
    store(&op.out, &to_f32(&out))
}
