//! What attention does to its heads before it attends, as one kernel.
//!
//! A model records it op by op: the norm of queries and their turn, the same of keys, and the cache. In a decode step each
//! is a few microseconds of work behind a launch that takes longer than that.

use turbospark_device::op::{RmsNorm, Rope, StoreKv};
use turbospark_device::{DeviceError, Op, Recorded, View};
use turbospark_tensor::DType;

use super::norm::{is_norm_rope, threads};
use super::{Done, apart, same, strides};
use crate::kernel::{Form, Source};
use crate::plan::{Plan, Run, Window, word};

const HEADS: Source = Source {
    name: "heads",
    text: include_str!("../shaders/heads.wgsl"),
    includes: &[include_str!("../shaders/sum.wgsl")],
};

/// Buffers that the kernel binds.
const BUFFERS: u32 = 10;

/// Ops that it replaces.
pub(super) const OPS: usize = 5;

/// The five ops: the norms of queries and keys, the turn of queries, and where keys and values go.
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub q: RmsNorm<'a>,
    turn: Rope<'a>,
    pub k: RmsNorm<'a>,
    pub store: StoreKv<'a>,
}

/// Plans the five ops at the head of `ops` as one; `None` where they are others, or the cache has another form.
pub(super) fn heads(plan: &mut Plan<'_>, ops: &[Recorded<'_>]) -> Option<Done> {
    let h = matched(plan, ops)?;
    Some(one(plan, &h.q, &h.turn, &h.k, &h.store))
}

/// The five ops at the head of `ops`, if a kernel may do them together.
pub(super) fn matched<'a>(plan: &Plan<'_>, ops: &[Recorded<'a>]) -> Option<Heads<'a>> {
    let [a, b, c, d, e, ..] = ops else { return None };
    let (Op::RmsNorm(q), Op::Rope(q_turn), Op::RmsNorm(k), Op::Rope(k_turn), Op::StoreKv(store)) =
        (&a.op, &b.op, &c.op, &d.op, &e.op)
    else {
        return None;
    };
    let (n, dtype) = (q.x.shape().last(), store.k_cache.dtype());
    let whole = |cache: &View<'_>| cache.offset_bytes().is_multiple_of(4);
    let stored = match dtype {
        DType::F32 => true,
        DType::F16 | DType::BF16 => n.is_multiple_of(2),
        _ => false,
    };
    let fits = plan.gpu.limits.max_storage_buffers_per_shader_stage >= BUFFERS
        && is_norm_rope(q, q_turn)
        && is_norm_rope(k, k_turn)
        && same(&q_turn.cos, &k_turn.cos)
        && same(&q_turn.sin, &k_turn.sin)
        && same(&store.k, &k.x)
        && (q.one_plus, n) == (k.one_plus, k.x.shape().last())
        && q.x.dim(0) == k.x.dim(0)
        && (dtype, n) == (store.v_cache.dtype(), store.v.shape().last())
        && stored
        && whole(&store.k_cache)
        && whole(&store.v_cache)
        && apart(&[&q.x, &k.x, &store.v]);
    fits.then_some(Heads { q: *q, turn: *q_turn, k: *k, store: *store })
}

/// What the kernel of attention is told of heads that it makes ready, and binds for it.
pub(super) struct Places {
    pub words: [u32; 14],
    weights: [(DType, Window); 2],
    others: [Window; 5],
    half: u32,
    one_plus: bool,
    format: u32,
}

impl Heads<'_> {
    pub fn places(&self, plan: &Plan<'_>) -> Result<Places, DeviceError> {
        let Heads { q, turn, k, store } = self;
        let (key, value) = (plan.view(&k.x)?, plan.view(&store.v)?);
        let ([key_row, key_head], [value_row, value_head]) = (strides(&k.x)?, strides(&store.v)?);
        let (q_weight, k_weight) = (plan.stored(&q.weight)?, plan.stored(&k.weight)?);
        let (cos, sin, slots) = (plan.view(&turn.cos)?, plan.view(&turn.sin)?, plan.view(&store.slots)?);
        let eps = [q.eps, k.eps].map(f32::to_bits);
        let capacity = word(store.k_cache.dim(0))?;
        let heads = [key.at, key_row, key_head, value.at, value_row, value_head];
        let turned = [q_weight.at, k_weight.at, eps[0], eps[1], cos.at, sin.at, slots.at, capacity];
        let mut words = [0; 14];
        words[..6].copy_from_slice(&heads);
        words[6..].copy_from_slice(&turned);
        Ok(Places {
            words,
            weights: [(q.weight.dtype(), q_weight.window), (k.weight.dtype(), k_weight.window)],
            others: [key.window, value.window, cos.window, sin.window, slots.window],
            half: word(turn.cos.dim(1))?,
            one_plus: q.one_plus,
            format: format(store),
        })
    }
}

impl Places {
    /// `readied` heads of `n` elements, by a workgroup of 256.
    pub fn bind<'p, 'd>(&self, run: Run<'p, 'd>, readied: u32, n: usize) -> Run<'p, 'd> {
        let [key, value, cos, sin, slots] = &self.others;
        let [(q_type, q_weight), (k_type, k_weight)] = &self.weights;
        run.set("HEAD_WG", threads(n))
            .set("HALF", self.half)
            .set("EACH_TASK", (readied * (n as u32 - self.half)).div_ceil(256))
            .set("ONE_PLUS", self.one_plus.into())
            .set("FORMAT", self.format)
            .write("key", Form::F32, key)
            .read("value", Form::F32, value)
            .read("q_weight", Form::Stored(*q_type), q_weight)
            .read("k_weight", Form::Stored(*k_type), k_weight)
            .read("cos_t", Form::F32, cos)
            .read("sin_t", Form::F32, sin)
            .read("slots", Form::I32, slots)
    }
}

/// How the cache stores elements.
fn format(store: &StoreKv<'_>) -> u32 {
    match store.k_cache.dtype() {
        DType::F32 => 0,
        DType::F16 => 1,
        _ => 2,
    }
}

fn one(plan: &mut Plan<'_>, q: &RmsNorm<'_>, turn: &Rope<'_>, k: &RmsNorm<'_>, store: &StoreKv<'_>) -> Done {
    let (rows, n, heads, kv_heads) = (q.x.dim(0), q.x.dim(2), q.x.dim(1), k.x.dim(1));
    let groups = rows * (heads + 2 * kv_heads);
    let mut words = vec![word(groups)?, word(heads)?, word(kv_heads)?, q.eps.to_bits(), k.eps.to_bits()];
    let views = [q.x, k.x, store.v];
    let mut places = Vec::new();
    for view in &views {
        let at = plan.view(view)?;
        words.push(at.at);
        words.extend(strides(view)?);
        places.push(at.window);
    }
    let (q_weight, k_weight) = (plan.stored(&q.weight)?, plan.stored(&k.weight)?);
    let (cos, sin, slots) = (plan.view(&turn.cos)?, plan.view(&turn.sin)?, plan.view(&store.slots)?);
    let (k_cache, v_cache) = (plan.stored(&store.k_cache)?, plan.stored(&store.v_cache)?);
    words.extend([q_weight.at, k_weight.at, word(turn.cos.dim(1))?, cos.at, sin.at, slots.at]);
    words.extend([word(store.k_cache.dim(0))?, k_cache.at, v_cache.at]);
    plan.kernel(&HEADS)
        .set("WG", threads(n))
        .set("N", word(n)?)
        .set("ONE_PLUS", q.one_plus.into())
        .set("FORMAT", format(store))
        .write("q", Form::F32, &places[0])
        .write("k", Form::F32, &places[1])
        .read("v", Form::F32, &places[2])
        .read("q_weight", Form::Stored(q.weight.dtype()), &q_weight.window)
        .read("k_weight", Form::Stored(k.weight.dtype()), &k_weight.window)
        .read("cos_t", Form::F32, &cos.window)
        .read("sin_t", Form::F32, &sin.window)
        .read("slots", Form::I32, &slots.window)
        .write("k_cache", Form::U32, &k_cache.window)
        .write("v_cache", Form::U32, &v_cache.window)
        .over(&words, groups as u64)
}

#[cfg(test)]
mod tests {
    use turbospark_device::Device;

    use super::*;
    use crate::{Adapter, WgpuDevice, WgpuOptions, testing};

    /// The five ops on known numbers, in one pass or each in its own; all that they write, in bits.
    fn run(device: &dyn Device, dtype: DType, together: bool) -> Vec<Vec<u8>> {
        let (rows, heads, kv_heads, n, half, capacity) = (3, 4, 2, 20, 6, 5);
        let put = |count: usize, seed: usize| {
            let buffer = device.alloc("test", 4 * count).unwrap();
            let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 31) % 997) as f32 / 498.5 - 1.0).collect();
            device.write_f32(buffer.view(0, DType::F32, [count]), &values).unwrap();
            buffer
        };
        let rows_of = put(rows * (heads + 2 * kv_heads) * n, 1);
        let part = |at: usize, heads: usize| rows_of.view(4 * rows * at * n, DType::F32, [rows, heads, n]);
        let (q, k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));
        let (weights, angles) = (put(2 * n, 2), put(2 * rows * half, 3));
        let weight = |i: usize| weights.view(4 * i * n, DType::F32, [n]);
        let turn = |i: usize| angles.view(4 * i * rows * half, DType::F32, [rows, half]);
        let slots = device.alloc("slots", 4 * rows).unwrap();
        device.write(slots.bytes(), &[4i32, -1, 2].map(i32::to_le_bytes).concat()).unwrap();
        let caches = [0, 1].map(|_| device.alloc("cache", dtype.bytes(capacity * kv_heads * n).unwrap()).unwrap());
        let [k_cache, v_cache] = caches.each_ref().map(|c| c.view(0, dtype, [capacity, kv_heads, n]));
        let norm = |x, i| Op::RmsNorm(RmsNorm { x, weight: weight(i), one_plus: true, eps: 1e-6, gate: None, out: x });
        let rope = |x| Op::Rope(Rope { x, cos: turn(0), sin: turn(1) });
        let store = StoreKv { k, v, slots: slots.view(0, DType::I32, [rows]), k_cache, v_cache };
        let ops = [norm(q, 0), rope(q), norm(k, 1), rope(k), Op::StoreKv(store)];
        testing::run(device, ops, together);
        testing::bytes(device, &[&rows_of, &caches[0], &caches[1]])
    }

    #[test]
    fn five_ops_in_one_kernel_give_the_bits_of_five() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            // Matrix units would be tried out, by kernels of their own.
            let options = WgpuOptions { no_matrix_units: true, ..WgpuOptions::default() };
            let device = WgpuDevice::new(&adapter, options).unwrap();
            let one = run(&device, dtype, true);
            assert_eq!(device.kernels().iter().map(|k| k.0).collect::<Vec<_>>(), ["heads"]);
            assert!(one == run(&device, dtype, false), "{dtype}");
        }
    }
}
