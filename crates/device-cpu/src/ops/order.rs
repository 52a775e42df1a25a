//! Linear layers whose columns are in an order of their own: the inputs are put in that order first, once a layer.
//!
//! What a kernel then sees is a plain weight, so every kernel takes them.

use turbospark_device::Activation;

use super::blocks::{self, Kind};
use super::finish::{Finish, Linear};
use super::{Engine, Rows, Shared};
use crate::scratch::{Scratch, rounded};
use crate::simd::stored::{Scales, Weight};

/// [`blocks::linear`] where a weight has an order.
///
/// # Safety
/// As for [`blocks::linear`].
pub(super) unsafe fn linear(engine: &mut Engine, kind: Kind, x: Rows<'_>, rows: usize, linear: &Linear<'_>) {
    let Linear { k, n, weight, gate, .. } = *linear;
    // Taken out of the engine while the kernels borrow it.
    let mut scratch = std::mem::replace(&mut engine.ordered, Scratch::new());
    let (stride, width) = (rounded(k), rounded(n));
    // SAFETY: the caller's promise; orders were checked when the weights were resolved, and have `k` elements.
    unsafe {
        match gate {
            Some(gate) if !same(&weight, &gate, k) => {
                // Each with inputs of its own, then both together.
                let ordered = Shared::new(scratch.get(rows * (stride + width))).at(0);
                let (inner, out) = (Rows::dense(ordered.wrapping_add(rows * stride), width), linear.finish.out);
                let silu = Finish { activation: Some(Activation::Silu), ..Finish::plain(inner) };
                for (weight, finish) in [(gate, silu), (weight, Finish::plain(out))] {
                    let x = sorted(engine, x, rows, k, &weight, ordered);
                    blocks::linear(engine, kind, x, rows, &Linear { k, n, weight: plain(weight), gate: None, finish });
                }
                engine.split(rows, n, |range| {
                    for r in range {
                        let (gate, out) = (inner.row(r).cast_const(), out.row(r));
                        (0..n).for_each(|i| *out.add(i) *= *gate.add(i));
                    }
                });
            }
            _ => {
                let ordered = Shared::new(scratch.get(rows * stride)).at(0);
                let x = sorted(engine, x, rows, k, &weight, ordered);
                let own = Linear { weight: plain(weight), gate: gate.map(plain), ..*linear };
                blocks::linear(engine, kind, x, rows, &own);
            }
        }
    }
    engine.ordered = scratch;
}

/// Whether both have their columns in one order.
///
/// # Safety
/// Orders have `k` elements.
unsafe fn same(a: &Weight, b: &Weight, k: usize) -> bool {
    match (a.order(), b.order()) {
        (None, None) => true,
        // SAFETY: the caller's promise.
        (Some(a), Some(b)) => unsafe { std::slice::from_raw_parts(a, k) == std::slice::from_raw_parts(b, k) },
        _ => false,
    }
}

/// The weight for inputs that are in its order.
fn plain(weight: Weight) -> Weight {
    Weight { scales: weight.scales.map(|scales| Scales { order: None, ..scales }), ..weight }
}

/// The rows in the order of a weight's columns: in `out`, or as they are where it has none.
///
/// # Safety
/// The rows are readable for `k` elements, the order has as many; `out` is writable for all rows, rounded.
unsafe fn sorted<'a>(engine: &Engine, x: Rows<'a>, rows: usize, k: usize, w: &Weight, out: *mut f32) -> Rows<'a> {
    let Some(order) = w.order() else { return x };
    let (order, to) = (Shared(order.cast_mut()), Rows::dense(out, rounded(k)));
    engine.split(rows, k, |range| {
        for r in range {
            let (from, to) = (x.row(r).cast_const(), to.row(r));
            // SAFETY: the caller's promise: an input below `k` for each column; row `r` is this part's alone.
            (0..k).for_each(|j| unsafe { *to.add(j) = *from.add(*order.at(j) as usize) });
        }
    });
    to
}
