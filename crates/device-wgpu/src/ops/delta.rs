//! The gated delta rule.

use turbospark_device::op::DeltaScan;

use super::{Done, strides};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, word};

const NORMS: Source = Source {
    name: "delta_norms",
    text: include_str!("../shaders/delta_norms.wgsl"),
    includes: &[include_str!("../shaders/sum.wgsl")],
};
const SCAN: Source = Source { name: "delta_scan", text: include_str!("../shaders/delta_scan.wgsl"), includes: &[] };

pub(super) fn delta_scan(plan: &mut Plan<'_>, op: &DeltaScan<'_>) -> Done {
    let (rows, key_heads, k) = (op.q.dim(0), op.q.dim(1), op.q.dim(2));
    let (heads, columns) = (op.v.dim(1), op.v.dim(2));
    let (q, k_rows, v) = (plan.view(&op.q)?, plan.view(&op.k)?, plan.view(&op.v)?);
    let (g, beta, state, out) = (plan.view(&op.g)?, plan.view(&op.beta)?, plan.view(&op.state)?, plan.view(&op.out)?);
    let fours = word(k.div_ceil(4))?;
    let keys = rows * key_heads * fours as usize;
    let normed = plan.temp((2 * 16 * keys) as u64)?;
    let mut words = vec![word(rows)?, word(key_heads)?, word(k)?];
    for (at, view) in [(&q, &op.q), (&k_rows, &op.k)] {
        words.push(at.at);
        words.extend(strides(view)?);
    }
    plan.kernel(&NORMS)
        .set("WG", 32)
        .set("FOURS", fours)
        .read("q", Form::F32, &q.window)
        .read("k", Form::F32, &k_rows.window)
        .write("normed", Form::F32, &normed)
        .over(&words, (rows * key_heads) as u64)?;
    let mut spans = Vec::new();
    for s in op.spans.iter().filter(|s| s.rows > 0) {
        // A list of snapshots ends with one that never comes.
        let shots = s.snapshots.iter().flat_map(|shot| [shot.after as u32, shot.slot as u32]);
        let shots = plan.table(shots.chain([u32::MAX, 0]));
        spans.extend([s.first_row as u32, s.rows as u32, s.state as u32, shots]);
    }
    let count = spans.len() as u32 / 4;
    let mut words = vec![plan.table(spans), word(key_heads)?, word(heads)?, word(columns)?, word(keys)?, v.at];
    words.extend(strides(&op.v)?);
    words.extend([g.at, strides(&op.g)?[0], beta.at, strides(&op.beta)?[0], state.at, out.at]);
    words.extend(strides(&op.out)?);
    // Threads that share a column: a row takes as long as a thread has elements of the state.
    let split = if plan.gpu.subgroups.0 >= 4 && fours.is_multiple_of(4) { 4 } else { 1 };
    let threads = (split * word(columns)?).next_power_of_two().clamp(32, 64);
    // Rows at a time: as many as sixteen kilobytes hold, and at most sixteen.
    let some = (2048 / k.max(1)).clamp(1, 16) as u32;
    let tables = plan.tables();
    plan.kernel(&SCAN)
        .set("WG", threads)
        .set("K", word(k)?)
        .set("FOURS", fours)
        .set("MINE", fours / split)
        .set("SPLIT", split)
        .set("SHUFFLED", u32::from(split > 1))
        .set("ROWS", some)
        .set("EACH", (some * fours).div_ceil(threads))
        .set("EACH_V", some.div_ceil(split))
        .set("TILED", op.tiled.into())
        .read("tables", Form::U32, &tables)
        .read("normed", Form::Vec4, &normed)
        .read("v", Form::F32, &v.window)
        .read("g", Form::F32, &g.window)
        .read("beta", Form::F32, &beta.window)
        .write("state", Form::F32, &state.window)
        .write("out", Form::F32, &out.window)
        .grid(&words, [(split * word(columns)?).div_ceil(threads), word(heads)?, count])
}
