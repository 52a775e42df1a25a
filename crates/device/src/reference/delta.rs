//! Gated DeltaNet, token by token.

use turbospark_tensor::mutant::{Mutant, active};

use super::dense::{sigmoid, silu};
use super::memory::{load, store};
use crate::op::{CausalConv, DeltaGates, DeltaScan, Span};
use crate::{DeviceError, View};

type Done = Result<(), DeviceError>;

/// Writes `state` to the slots of snapshots taken after `seen` rows.
fn snapshot(span: &Span, seen: usize, slots: &View<'_>, state: &[f32]) -> Done {
    for shot in span.snapshots.iter().filter(|s| s.after == seen) {
        store(&slots.rows(shot.slot..shot.slot + 1), state)?;
    }
    Ok(())
}

pub(super) fn causal_conv(op: &CausalConv<'_>) -> Done {
    let (x, w, mut out) = (load(&op.x)?, load(&op.weight)?, load(&op.out)?);
    let (channels, kernel) = (op.x.dim(1), op.weight.dim(1));
    for s in op.spans {
        let slot = op.state.rows(s.state..s.state + 1);
        let mut state = load(&slot)?; // [channels, kernel]
        if active(Mutant::ConvStateNotCarried) {
            state.fill(0.0);
        }
        for i in 0..s.rows {
            let row = (s.first_row + i) * channels;
            for c in 0..channels {
                let column = &mut state[c * kernel..(c + 1) * kernel];
                column.rotate_left(1);
                column[kernel - 1] = x[row + c];
                let tap = |j: usize| if active(Mutant::ConvTapsReversed) { kernel - 1 - j } else { j };
                let y: f64 = (0..kernel).map(|j| w[c * kernel + tap(j)] as f64 * column[j] as f64).sum();
                out[row + c] = silu(y) as f32;
            }
            snapshot(s, i + 1, &op.state, &state)?;
        }
        store(&slot, &state)?;
    }
    store(&op.out, &out)
}

pub(super) fn delta_gates(op: &DeltaGates<'_>) -> Done {
    let (mut a, mut b, a_log, dt) = (load(&op.a)?, load(&op.b)?, load(&op.a_log)?, load(&op.dt_bias)?);
    let heads = op.a.dim(1);
    for (i, v) in a.iter_mut().enumerate() {
        let bias = if active(Mutant::DeltaNoDtBias) { 0.0 } else { dt[i % heads] as f64 };
        let x = *v as f64 + bias;
        // ln(1 + e^x) without overflow
        let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
        let stored = a_log[i % heads] as f64;
        *v = (if op.is_rate { stored } else { -stored.exp() } * softplus) as f32;
    }
    b.iter_mut().for_each(|v| *v = sigmoid(*v as f64) as f32);
    store(&op.g, &a)?;
    store(&op.beta, &b)
}

pub(super) fn delta_scan(op: &DeltaScan<'_>) -> Done {
    let (q, k, v) = (load(&op.q)?, load(&op.k)?, load(&op.v)?);
    let (g, beta, mut out) = (load(&op.g)?, load(&op.beta)?, load(&op.out)?);
    let (key_heads, kn) = (op.q.dim(1), op.q.dim(2));
    let (heads, vn) = (op.v.dim(1), op.v.dim(2));
    let l2 = |x: &[f32]| -> Vec<f64> {
        let norm = (x.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|&v| v as f64 / norm).collect()
    };
    for s in op.spans {
        let slot = op.state.rows(s.state..s.state + 1);
        let mut state: Vec<f64> = load(&slot)?.into_iter().map(f64::from).collect(); // [heads, K, V]
        if active(Mutant::DeltaStateNotCarried) {
            state.fill(0.0);
        }
        let rounded = |state: &[f64]| state.iter().map(|&x| x as f32).collect::<Vec<f32>>();
        for i in 0..s.rows {
            let row = s.first_row + i;
            for h in 0..heads {
                let shared = heads / key_heads;
                let kh = if op.tiled != active(Mutant::DeltaHeadsTiled) { h % key_heads } else { h / shared };
                let key = (row * key_heads + kh) * kn..(row * key_heads + kh + 1) * kn;
                let (qh, kh) = (l2(&q[key.clone()]), l2(&k[key]));
                let value = (row * heads + h) * vn..(row * heads + h + 1) * vn;
                let st = &mut state[h * kn * vn..(h + 1) * kn * vn];
                let decay = (g[row * heads + h] as f64).exp();
                st.iter_mut().for_each(|x| *x *= decay);
                for (j, &vj) in v[value.clone()].iter().enumerate() {
                    let seen: f64 = (0..kn).map(|a| st[a * vn + j] * kh[a]).sum();
                    let d = (vj as f64 - seen) * beta[row * heads + h] as f64;
                    (0..kn).for_each(|a| st[a * vn + j] += kh[a] * d);
                    let o: f64 = (0..kn).map(|a| st[a * vn + j] * qh[a]).sum();
                    out[value.start + j] = (o / (kn as f64).sqrt()) as f32;
                }
            }
            if s.snapshots.iter().any(|shot| shot.after == i + 1) {
                snapshot(s, i + 1, &op.state, &rounded(&state))?;
            }
        }
        store(&slot, &rounded(&state))?;
    }
    store(&op.out, &out)
}
