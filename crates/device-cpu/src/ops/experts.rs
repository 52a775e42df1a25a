//! Mixture of experts: rows are grouped by expert, and each expert's weights are visited once.

use std::cmp::Ordering;
use std::ops::Range;

use turbospark_device::op::{Experts, Router};
use turbospark_device::{DeviceError, Expert};

use super::blocks::{self, Kind};
use super::finish::{Finish, Job, Linear};
use super::{Done, Engine, Rows, Shared};
use crate::memory::refused;
use crate::scratch::Scratch;
use crate::simd::{Simd, Task};

pub(super) fn router(engine: &mut Engine, op: &Router<'_>) -> Done {
    let mut a = engine.access();
    let logits = a.read("logits", &op.logits)?;
    let ids = a.write("ids", &op.ids)?;
    let weights = a.write("weights", &op.weights)?;
    a.finish()?;
    let (rows, experts, k) = (logits.dim(0), logits.dim(1), ids.dim(1));
    let ids = Shared(ids.byte(0).cast::<i32>());
    engine.split(rows, experts * (k + 8), |range| {
        for r in range {
            // SAFETY: a row of logits, which nothing writes; row `r` of ids and weights is this part's alone.
            let (row, ids, weights) = unsafe {
                (
                    std::slice::from_raw_parts(logits.row(r).cast_const(), experts),
                    std::slice::from_raw_parts_mut(ids.at(r * k), k),
                    std::slice::from_raw_parts_mut(weights.row(r), k),
                )
            };
            choose(row, op.normalise, ids, weights);
        }
    });
    if let Some(source) = op.source {
        // SAFETY: rows times k ids, all written above.
        let ids = unsafe { std::slice::from_raw_parts(ids.at(0).cast_const(), rows * k) };
        source.announce(ids, k);
    }
    Ok(())
}

/// The largest logits in descending order, ties to the lower index, and their share of the softmax.
fn choose(row: &[f32], normalise: bool, ids: &mut [i32], weights: &mut [f32]) {
    let before = |a: usize, b: usize| row[b].total_cmp(&row[a]).then(a.cmp(&b));
    let mut last = None;
    for id in ids.iter_mut() {
        let rest = (0..row.len()).filter(|&e| last.is_none_or(|l| before(l, e) == Ordering::Less));
        let next = rest.min_by(|&a, &b| before(a, b)).expect("no more are chosen than there are");
        (last, *id) = (Some(next), next as i32);
    }
    let top = row.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v)) as f64;
    let exp = |e: usize| (row[e] as f64 - top).exp();
    let divisor: f64 =
        if normalise { ids.iter().map(|&e| exp(e as usize)).sum() } else { (0..row.len()).map(exp).sum() };
    for (w, &e) in weights.iter_mut().zip(ids.iter()) {
        *w = (exp(e as usize) / divisor) as f32;
    }
}

/// The rows of one kind that chose one expert, and their weights.
#[derive(Default)]
struct Chosen {
    rows: Vec<u32>,
    weights: Vec<f32>,
}

impl Chosen {
    fn add(&mut self, row: u32, weight: f32) {
        if self.rows.last() == Some(&row) {
            // An expert named twice by a row counts twice.
            *self.weights.last_mut().expect("one a row") += weight;
        } else {
            self.rows.push(row);
            self.weights.push(weight);
        }
    }
}

pub(super) fn experts(engine: &mut Engine, op: &Experts<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read("x", &op.x)?;
    let ids = a.read("ids", &op.ids)?;
    let weights = a.read("weights", &op.weights)?;
    let residual = op.residual.as_ref().map(|r| a.read_also("residual", r)).transpose()?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let (rows, hidden, k, count) = (x.dim(0), x.dim(1), ids.dim(1), op.source.experts());
    u32::try_from(rows).map_err(|_| refused(format!("{rows} rows")))?;
    // SAFETY: dense i32, locked and apart from `out`.
    let ids = unsafe { ids.i32s() };
    // By expert, of the prompt and decoded.
    let mut chosen: Vec<[Chosen; 2]> = Vec::new();
    chosen.resize_with(count, Default::default);
    for (slot, &id) in ids.iter().enumerate() {
        let (row, expert) = (slot / k, usize::try_from(id).ok().filter(|&e| e < count));
        let expert = expert.ok_or_else(|| refused(format!("row {row} chose expert {id} of {count}")))?;
        // SAFETY: dense f32 of the sides of `ids`.
        let weight = unsafe { *weights.row(row).add(slot % k) };
        chosen[expert][(row >= op.prompt_rows) as usize].add(row as u32, weight);
    }
    engine.split(rows, hidden, |range| {
        for r in range {
            // SAFETY: rows of `hidden`; that of `out` is this part's alone, and `residual`'s is apart or the same.
            unsafe {
                match residual {
                    Some(from) => std::ptr::copy(from.row(r), out.row(r), hidden),
                    None => std::ptr::write_bytes(out.row(r), 0, hidden),
                }
            }
        }
    });
    let wanted: Vec<usize> = (0..count).filter(|&e| chosen[e].iter().any(|c| !c.rows.is_empty())).collect();
    // What decoded rows get of each expert is kept until all are there, so that the order in which experts come is
    // free. A prompt's would be a large buffer, and so many experts are read in a row whatever comes first.
    let kept = op.prompt_rows == 0;
    // Taken out of the engine while the kernels borrow it.
    let mut scratch = std::mem::replace(&mut engine.partial, Scratch::new());
    let most = chosen.iter().flatten().map(|c| c.rows.len()).max().unwrap_or(0);
    let inners = if kept { rows * k } else { most } * op.width;
    let (inner, parts) = scratch.get(inners + if kept { rows * k * hidden } else { 0 }).split_at_mut(inners);
    let (inner, parts) = (Shared::new(inner), Shared::new(parts));
    // By expert, the first of its decoded rows among those of all.
    let firsts = chosen.iter().scan(0, |next, [_, decoded]| {
        *next += decoded.rows.len();
        Some(*next - decoded.rows.len())
    });
    let firsts: Vec<usize> = firsts.collect();
    // What decoded rows get of an expert.
    let sums = |e: usize| Shared(parts.at(firsts[e] * hidden));
    let mut some = |list: &[(usize, Expert<'_>)]| -> Result<(), DeviceError> {
        let mut a = a.further();
        let mut layers = Vec::with_capacity(list.len());
        for (e, expert) in list {
            let of = |m: String| refused(format!("expert {e}: {m}"));
            expert.check(hidden, op.width).map_err(of)?;
            let gate = a.linear("gate", &expert.gate, expert.layout)?;
            let up = a.linear("up", &expert.up, expert.layout)?;
            let down = a.linear("down", &expert.down, expert.layout)?;
            let [_, decoded] = chosen.get(*e).ok_or_else(|| of("not wanted".into()))?;
            let (x, inner) =
                (Rows::of(&x, 0).pick(&decoded.rows), Rows::dense(inner.at(firsts[*e] * op.width), op.width));
            let (rows, finish) = (decoded.rows.len(), Finish::plain(Rows::dense(sums(*e).at(0), hidden)));
            let first = Linear { k: hidden, n: op.width, weight: up, gate: Some(gate), finish: Finish::plain(inner) };
            let second = Linear { k: op.width, n: hidden, weight: down, gate: None, finish };
            layers.push((Job { x, rows, linear: first }, Job { x: inner, rows, linear: second }));
        }
        a.finish()?;
        let (first, second): (Vec<Job<'_>>, Vec<Job<'_>>) = layers.into_iter().unzip();
        // SAFETY: checked, resolved, locked and apart; each list names a row once, and the scratch has room for the rows
        // of every expert.
        unsafe {
            blocks::rows(engine, &first);
            blocks::rows(engine, &second);
        }
        Ok(())
    };
    if kept {
        let done = op.source.as_ready(&wanted, &mut some);
        if done.is_ok() {
            let parts = chosen.iter().enumerate().map(|(e, [_, decoded])| (decoded, sums(e)));
            let parts: Vec<(&Chosen, Shared<f32>)> = parts.collect();
            engine.split(hidden, 2 * rows * k, |columns| {
                engine.kernels.run(Sum { parts: &parts, out: Rows::of(&out, 0), hidden, columns });
            });
        }
        engine.partial = scratch;
        return done;
    }
    let mut each = |e: usize, expert: Expert<'_>| -> Result<(), DeviceError> {
        let of = |m: String| refused(format!("expert {e}: {m}"));
        expert.check(hidden, op.width).map_err(of)?;
        let mut a = a.further();
        let gate = a.linear("gate", &expert.gate, expert.layout)?;
        let up = a.linear("up", &expert.up, expert.layout)?;
        let down = a.linear("down", &expert.down, expert.layout)?;
        a.finish()?;
        let [prompt, decoded] = chosen.get(e).ok_or_else(|| of("not wanted".into()))?;
        for (chosen, kind) in [(prompt, Kind::Matrix), (decoded, Kind::Row)] {
            let m = chosen.rows.len();
            let inner = Rows::dense(inner.at(0), op.width);
            let x = Rows::of(&x, 0).pick(&chosen.rows);
            let finish = Finish::plain(Rows::of(&out, 0).pick(&chosen.rows));
            let finish = Finish { scale: Some(&chosen.weights), ..finish };
            let first = Linear { k: hidden, n: op.width, weight: up, gate: Some(gate), finish: Finish::plain(inner) };
            let second = Linear { k: op.width, n: hidden, weight: down, gate: None, finish };
            // SAFETY: checked, resolved, locked and apart; each list names a row once, and the scratch has room for
            // the rows of every expert.
            unsafe {
                blocks::linear(engine, kind, x, m, &first);
                blocks::linear(engine, kind, inner, m, &second);
            }
        }
        Ok(())
    };
    let done = op.source.with(&wanted, &mut each);
    engine.partial = scratch;
    done
}

/// Adds what rows get of each expert, one expert after the other: `out += weight * part`.
struct Sum<'a> {
    /// By expert: its rows and their weights, and `[rows of the expert, hidden]`.
    parts: &'a [(&'a Chosen, Shared<f32>)],
    out: Rows<'a>,
    hidden: usize,
    columns: Range<usize>,
}

impl Task for Sum<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (chosen, sums) in self.parts {
            for (i, (&row, &weight)) in chosen.rows.iter().zip(&chosen.weights).enumerate() {
                let (from, out) = (sums.at(i * self.hidden), self.out.row(row as usize));
                for j in self.columns.clone().step_by(S::LANES) {
                    let some = S::LANES.min(self.columns.end - j);
                    // SAFETY: rows of `hidden`; these columns of `out` are this part's alone, and nothing writes `from`.
                    unsafe {
                        let sum = s.load_some(from.wrapping_add(j), some);
                        let to = out.wrapping_add(j);
                        s.store_some(to, s.fma(s.splat(weight), sum, s.load_some(to, some)), some);
                    }
                }
            }
        }
    }
}
