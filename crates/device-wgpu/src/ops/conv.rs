//! The causal convolution of DeltaNet layers.

use turbospark_device::op::CausalConv;

use super::{Done, WG, groups, strides};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, word};

const CONV: Source = Source { name: "causal_conv", text: include_str!("../shaders/causal_conv.wgsl"), includes: &[] };
const CONV_STATE: Source =
    Source { name: "causal_conv_state", text: include_str!("../shaders/causal_conv_state.wgsl"), includes: &[] };

/// Words of a span in the tables: first row, rows, state slot.
const SPAN: usize = 3;
/// Words of a copy of the state: span, rows seen, target slot.
const COPY: usize = 3;

pub(super) fn causal_conv(plan: &mut Plan<'_>, op: &CausalConv<'_>) -> Done {
    let (channels, kernel) = (op.weight.dim(0), op.weight.dim(1));
    let (x, out, state) = (plan.view(&op.x)?, plan.view(&op.out)?, plan.view(&op.state)?);
    let weight = plan.stored(&op.weight)?;
    let spans: Vec<_> = op.spans.iter().filter(|s| s.rows > 0).collect();
    let span_table = plan.table(spans.iter().flat_map(|s| [s.first_row, s.rows, s.state].map(|n| n as u32)));
    let row_table = plan.table(spans.iter().enumerate().flat_map(|(i, s)| {
        let at = span_table + (SPAN * i) as u32;
        (0..s.rows as u32).flat_map(move |r| [at, r])
    }));
    let rows: usize = spans.iter().map(|s| s.rows).sum();
    let tables = plan.tables();
    let count = rows * channels;
    let words = [
        word(count)?,
        word(channels)?,
        word(kernel)?,
        row_table,
        x.at,
        strides(&op.x)?[0],
        state.at,
        weight.at,
        out.at,
        strides(&op.out)?[0],
    ];
    plan.kernel(&CONV)
        .set("WG", WG)
        .read("tables", Form::U32, &tables)
        .read("x", Form::F32, &x.window)
        .read("weight", Form::Stored(op.weight.dtype()), &weight.window)
        .read("state", Form::F32, &state.window)
        .write("out", Form::F32, &out.window)
        .over(&words, groups(count))?;
    // Snapshots first: they read the state that the last copy replaces.
    for last in [false, true] {
        let copies: Vec<u32> = spans
            .iter()
            .enumerate()
            .flat_map(|(i, s)| {
                let at = span_table + (SPAN * i) as u32;
                let shots = s
                    .snapshots
                    .iter()
                    .filter(move |_| !last)
                    .map(move |shot| [at, shot.after as u32, shot.slot as u32]);
                let end = last.then_some([at, s.rows as u32, s.state as u32]);
                shots.chain(end).flatten().collect::<Vec<_>>()
            })
            .collect();
        let count = copies.len() / COPY * channels;
        if count == 0 {
            continue;
        }
        let copy_table = plan.table(copies);
        let words = [word(count)?, word(channels)?, word(kernel)?, copy_table, x.at, strides(&op.x)?[0], state.at];
        plan.kernel(&CONV_STATE)
            .set("WG", WG)
            .read("tables", Form::U32, &tables)
            .read("x", Form::F32, &x.window)
            .write("state", Form::F32, &state.window)
            .over(&words, groups(count))?;
    }
    Ok(())
}
