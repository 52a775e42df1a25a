//! How many dispatches a layer of a decode step is: each waits for the one before, which takes longer than many of them do.

use turbospark_device::op::{
    CausalConv, DeltaGates, DeltaScan, GatedMatmul, Matmul, PagedAttention, RmsNorm, Rope, StoreKv, WeightLayout,
};
use turbospark_device::{Buffer, Device, Op, Recorded, Scope, Span, View};
use turbospark_tensor::DType;

use crate::plan::Plan;

const HIDDEN: usize = 256;
const INNER: usize = 512;
const N: usize = 64;

/// Names of the dispatches that ops become.
fn dispatches(device: &crate::WgpuDevice, ops: Vec<Op<'_>>) -> Vec<&'static str> {
    let scope = Scope { part: "layer", index: None };
    let ops: Vec<Recorded<'_>> = ops.into_iter().map(|op| Recorded { scope, op }).collect();
    let mut plan = Plan::new(&device.gpu);
    let mut rest = &ops[..];
    while let Some((first, after)) = rest.split_first() {
        first.op.check().unwrap();
        let taken = crate::ops::plan_some(&mut plan, rest).map_or_else(
            || {
                crate::ops::plan(&mut plan, &first.op).unwrap();
                1
            },
            |(taken, done)| {
                done.unwrap();
                taken
            },
        );
        plan.end_op();
        rest = &after[taken - 1..];
    }
    plan.dispatches.iter().map(|d| d.source.name.split(' ').nth(1).unwrap_or(d.source.name)).collect()
}

/// Places in a buffer, one after the other.
struct Places<'b>(&'b Buffer, usize);

impl<'b> Places<'b> {
    fn next<const R: usize>(&mut self, dtype: DType, dims: [usize; R]) -> View<'b> {
        let view = self.0.view(self.1, dtype, dims);
        self.1 += view.len_bytes().unwrap().next_multiple_of(256);
        view
    }

    fn row(&mut self, n: usize) -> View<'b> {
        self.next(DType::F32, [1, n])
    }

    fn weight(&mut self, n: usize, k: usize) -> View<'b> {
        self.next(DType::F16, [n, k])
    }

    fn norm(&mut self, x: View<'b>, out: View<'b>) -> Op<'b> {
        let weight = self.next(DType::F16, [x.shape().last()]);
        Op::RmsNorm(RmsNorm { x, weight, one_plus: false, eps: 1e-6, gate: None, out })
    }
}

fn layer<'b>(x: View<'b>, weight: View<'b>, out: View<'b>, residual: Option<View<'b>>) -> Op<'b> {
    Op::Matmul(Matmul { prompt_rows: 0, residual, ..Matmul::new(x, weight, out) })
}

/// The second half of a layer.
fn mlp<'b>(s: &mut Places<'b>, w: &mut Places<'b>, x: View<'b>, normed: View<'b>) -> [Op<'b>; 3] {
    let inner = s.row(INNER);
    let [gate, up] = [0, 1].map(|_| w.weight(INNER, HIDDEN).into());
    let layout = WeightLayout::OutIn;
    let gated = GatedMatmul { x: normed, gate, up, layout, out: inner, prompt_rows: 0 };
    let down = w.weight(HIDDEN, INNER);
    [w.norm(x, normed), Op::GatedMatmul(gated), layer(inner, down, x, Some(x))]
}

fn span() -> Span {
    Span { first_row: 0, rows: 1, start: 100, decode: true, table: 0, state: 0, snapshots: Vec::new() }
}

#[test]
fn a_layer_of_a_decode_step_is_few_dispatches() {
    let mut device = crate::variants::nothing(32, None);
    device.gpu.coherent = true;
    let (scratch, weights) = (device.alloc("rows", 4 << 20).unwrap(), device.alloc("weights", 8 << 20).unwrap());
    let (s, w) = (&mut Places(&scratch, 0), &mut Places(&weights, 0));
    let spans = [span()];
    let (x, normed) = (s.row(HIDDEN), s.row(HIDDEN));

    let [q, out, k, v] = [4, 4, 2, 2].map(|heads| s.row(heads * N));
    let [qh, oh, kh, vh] = [q, out, k, v].map(|x| x.split_last(N));
    let [cos, sin] = [0, 1].map(|_| s.row(N / 2));
    let caches = [0, 1].map(|_| w.next(DType::F16, [128, 2, N]));
    let [k_cache, v_cache] = caches;
    let (slots, pages) = (w.next(DType::I32, [1]), w.next(DType::I32, [1, 2]));
    let turn = |x| Op::Rope(Rope { x, cos, sin });
    let mut ops = vec![w.norm(x, normed)];
    for (out, heads) in [(q, 4), (k, 2), (v, 2)] {
        ops.push(layer(normed, w.weight(heads * N, HIDDEN), out, None));
    }
    ops.extend([w.norm(qh, qh), turn(qh), w.norm(kh, kh), turn(kh)]);
    ops.push(Op::StoreKv(StoreKv { k: kh, v: vh, slots, k_cache, v_cache }));
    let (page_len, scale) = (64, 0.1);
    let attention = PagedAttention { q: qh, k_cache, v_cache, pages, page_len, spans: &spans, scale, out: oh };
    ops.push(Op::PagedAttention(attention));
    ops.push(layer(out, w.weight(HIDDEN, 4 * N), x, Some(x)));
    ops.extend(mlp(s, w, x, normed));
    assert_eq!(dispatches(&device, ops), ["rows", "paged_decode_ready", "rows", "rows", "rows"]);

    let (u, y, z, out) = (s.row(4 * N), s.row(4 * N), s.row(2 * N), s.row(2 * N));
    let (a, b) = (s.row(2), s.row(2));
    let mut ops = vec![w.norm(x, normed)];
    for out in [u, z, a, b] {
        ops.push(layer(normed, w.weight(out.dim(1), HIDDEN), out, None));
    }
    let (conv, state) = (w.next(DType::F16, [4 * N, 4]), w.next(DType::F32, [1, 4 * N, 4]));
    ops.push(Op::CausalConv(CausalConv { x: u, weight: conv, state, spans: &spans, out: y }));
    let [a_log, dt_bias] = [0, 1].map(|_| w.next(DType::F32, [2]));
    ops.push(Op::DeltaGates(DeltaGates { a, b, a_log, is_rate: false, dt_bias, g: a, beta: b }));
    let state = w.next(DType::F32, [1, 2, N, N]);
    let part = |r: std::ops::Range<usize>| y.narrow(1, r).split_last(N);
    let (q, k, v, oh) = (part(0..N), part(N..2 * N), part(2 * N..4 * N), out.split_last(N));
    let tiled = false;
    ops.push(Op::DeltaScan(DeltaScan { q, k, v, g: a, beta: b, state, tiled, spans: &spans, out: oh }));
    let weight = w.next(DType::F16, [N]);
    let gate = Some(z.split_last(N));
    ops.push(Op::RmsNorm(RmsNorm { x: oh, weight, one_plus: false, eps: 1e-6, gate, out: oh }));
    ops.push(layer(out, w.weight(HIDDEN, 2 * N), x, Some(x)));
    ops.extend(mlp(s, w, x, normed));
    let mixer = ["causal_conv", "causal_conv_state", "delta_gates", "delta_norms", "delta_scan", "rms_norm"];
    assert_eq!(dispatches(&device, ops), [&["rows"], &mixer[..], &["rows"; 3]].concat());
}
