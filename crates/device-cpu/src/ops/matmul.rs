//! Linear layers: prompt rows to the matrix kernel, the others to the row kernel.

use turbospark_device::op::{GatedMatmul, Matmul};

use super::blocks::{self, Kind};
use super::finish::{Finish, Linear};
use super::{Done, Engine, Rows};
use crate::memory::Tensor;

pub(super) fn matmul(engine: &mut Engine, op: &Matmul<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read("x", &op.x)?;
    let weight = a.linear("weight", &op.weight, op.layout)?;
    let bias = op.bias.as_ref().map(|b| a.weight("bias", b)).transpose()?.map(|b| b.vector());
    let residual = op.residual.as_ref().map(|r| a.read_also("residual", r)).transpose()?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let linear = |first: usize| {
        let residual = residual.map(|r| Rows::of(&r, first));
        let finish = Finish { bias, activation: op.activation, residual, ..Finish::plain(Rows::of(&out, first)) };
        Linear { k: x.dim(1), n: out.dim(1), weight, gate: None, finish }
    };
    both(engine, &x, op.prompt_rows, linear);
    Ok(())
}

pub(super) fn gated_matmul(engine: &mut Engine, op: &GatedMatmul<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read("x", &op.x)?;
    let gate = a.linear("gate", &op.gate, op.layout)?;
    let weight = a.linear("up", &op.up, op.layout)?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let linear = |first: usize| Linear {
        k: x.dim(1),
        n: out.dim(1),
        weight,
        gate: Some(gate),
        finish: Finish::plain(Rows::of(&out, first)),
    };
    both(engine, &x, op.prompt_rows, linear);
    Ok(())
}

/// Runs a layer on all rows of `x`; `linear(r)` has its outputs from row `r` on.
fn both<'a>(engine: &mut Engine, x: &Tensor, prompt_rows: usize, linear: impl Fn(usize) -> Linear<'a>) {
    let rest = x.dim(0) - prompt_rows;
    let plain = linear(0);
    let ordered = plain.weight.order().or(plain.gate.and_then(|g| g.order())).is_some();
    // Several layers in a row may have the same inputs: q, k and v. Another's may be what this one writes over.
    let place = Rows::of(x, 0).place(prompt_rows, x.dim(1));
    engine.kept = engine.kept.filter(|&kept| Some(kept) == place);
    // Rows being decoded use the same memory.
    engine.keeps = !ordered && rest == 0;
    // SAFETY: the op's views are checked, resolved, locked and apart; the rows are those of `x`.
    unsafe {
        blocks::linear(engine, Kind::Matrix, Rows::of(x, 0), prompt_rows, &plain);
        blocks::linear(engine, Kind::Row, Rows::of(x, prompt_rows), rest, &linear(prompt_rows));
    }
}
