//! Decoded rows over the paged cache: each in splits of its keys, and what makes its heads ready at the beginning.

use std::collections::BTreeSet;

use turbospark_device::op::PagedAttention;
use turbospark_device::{DeviceError, Op, Recorded};

use super::heads::{self, Heads};
use super::norm::threads;
use super::paged::{aligned, cached, first_page};
use super::{Done, apart, same, strides};
use crate::kernel::{Form, Source};
use crate::linear::COUNTERS;
use crate::plan::{Plan, refused, word};

const DECODE: Source = Source {
    name: "paged_decode",
    text: include_str!("../shaders/paged_decode.wgsl"),
    includes: &[include_str!("../shaders/cache.wgsl")],
};
const COMBINED: Source = Source {
    name: "paged_decode_combined",
    text: include_str!("../shaders/paged_decode.wgsl"),
    includes: &[include_str!("../shaders/cache.wgsl"), include_str!("../shaders/combine.wgsl")],
};
const READY: Source = Source {
    name: "paged_decode_ready",
    text: include_str!("../shaders/paged_decode.wgsl"),
    includes: &[
        include_str!("../shaders/cache.wgsl"),
        include_str!("../shaders/combine.wgsl"),
        include_str!("../shaders/ready.wgsl"),
    ],
};
const COMBINE: Source = Source {
    name: "paged_combine",
    text: include_str!("../shaders/paged_combine.wgsl"),
    includes: &[include_str!("../shaders/combine.wgsl")],
};

/// Keys of a split; a split is work for a workgroup.
const SPLIT: usize = 64;

/// Splits that the workgroup which ends last puts together: more are work for many.
const FEW: usize = 64;

/// Vectors of values that a thread asks for ahead at most: more would not find room in its registers.
const MOST_AHEAD: u32 = 16;

/// Partial results of decoded rows that are held at once, in bytes.
const PARTS: usize = 64 << 20;

/// Buffers that the kernel binds which makes heads ready too.
const BUFFERS: u32 = 15;

/// Ops that it replaces.
pub(super) const OPS: usize = heads::OPS + 1;

/// A decoded row: its number, the keys that it sees, and the first of its pages.
type Row = (usize, usize, u32);

pub(super) fn decode(plan: &mut Plan<'_>, op: &PagedAttention<'_>) -> Done {
    let rows = rows_of(plan, op)?;
    let record = 4 * op.q.dim(1) * (op.q.dim(2) + 2);
    let mut rest = rows.as_slice();
    while !rest.is_empty() {
        // As many rows as there is room for their parts; at least one, whatever it takes.
        let mut splits = 0;
        let fits = |&&(_, seen, _): &&Row| {
            splits += seen.div_ceil(SPLIT);
            splits * record <= PARTS
        };
        let some = rest.iter().take_while(fits).count().max(1);
        decode_rows(plan, op, &rest[..some], None)?;
        plan.end_op();
        rest = &rest[some..];
    }
    Ok(())
}

fn rows_of(plan: &Plan<'_>, op: &PagedAttention<'_>) -> Result<Vec<Row>, DeviceError> {
    let pages = plan.view(&op.pages)?;
    let spans = op.spans.iter().filter(|s| s.decode);
    let rows = spans.flat_map(|s| {
        let page = first_page(op, &pages, s);
        (0..s.rows).map(move |i| (s.first_row + i, s.start + i + 1, page))
    });
    Ok(rows.collect())
}

/// Plans attention at the head of `ops` with what makes its heads ready as one; `None` where they are others.
///
/// That is for decode steps: each row belongs to another sequence, and sees keys that were stored before but for its own.
pub(super) fn ready(plan: &mut Plan<'_>, ops: &[Recorded<'_>]) -> Option<Done> {
    let [.., last] = ops.get(..OPS)? else { return None };
    let Op::PagedAttention(op) = &last.op else { return None };
    let heads = heads::matched(plan, ops)?;
    let (rows, shared, n) = (op.q.dim(0), op.q.dim(1) / op.k_cache.dim(1), op.q.dim(2));
    let tables: BTreeSet<usize> = op.spans.iter().map(|s| s.table).collect();
    let firsts: BTreeSet<usize> = op.spans.iter().map(|s| s.first_row).collect();
    let steps = op.spans.iter().all(|s| s.decode && s.rows == 1) && [tables.len(), firsts.len()] == [rows; 2];
    let splits = op.spans.iter().map(|s| (s.start + 1).div_ceil(SPLIT));
    let parts = 4 * splits.sum::<usize>() * op.q.dim(1) * (n + 2);
    let limits = &plan.gpu.limits;
    let fits = steps
        && same(&op.q, &heads.q.x)
        && same(&op.k_cache, &heads.store.k_cache)
        && same(&op.v_cache, &heads.store.v_cache)
        && apart(&[&op.q, &heads.k.x, &heads.store.v, &op.out])
        && shared <= MOST_HEADS
        && combines(plan, op, &op.spans.iter().map(|s| (s.first_row, s.start + 1, 0)).collect::<Vec<_>>())
        && parts <= PARTS
        && limits.max_storage_buffers_per_shader_stage >= BUFFERS
        && room(shared, n) <= limits.max_compute_workgroup_storage_size as usize;
    fits.then(|| decode_rows(plan, op, &rows_of(plan, op)?, Some(&heads)))
}

/// Workgroup memory of the kernel that makes `shared` heads of queries ready, and one of keys.
fn room(shared: usize, n: usize) -> usize {
    let fours = n.div_ceil(4);
    let attention = 16 * shared * fours + 4 * SPLIT + 24 * shared * SPLIT + 4 * shared + 16 * 256;
    attention + 4 * (shared + 1) * (n + threads(n) as usize) + 8 * n + 64
}

/// Heads of a workgroup at most: more would not find room in its memory.
const MOST_HEADS: usize = 8;

/// Heads of a workgroup.
fn group_of(op: &PagedAttention<'_>) -> usize {
    let shared = op.q.dim(1) / op.k_cache.dim(1);
    (1..=MOST_HEADS).rev().find(|g| shared.is_multiple_of(*g)).unwrap_or(1)
}

/// Whether splits are put together by the workgroup that ends last.
fn combines(plan: &Plan<'_>, op: &PagedAttention<'_>, rows: &[Row]) -> bool {
    let groups = rows.len() * (op.q.dim(1) / group_of(op));
    plan.gpu.coherent && groups <= COUNTERS && rows.iter().all(|r| r.1.div_ceil(SPLIT) <= FEW)
}

fn decode_rows(plan: &mut Plan<'_>, op: &PagedAttention<'_>, rows: &[Row], heads: Option<&Heads<'_>>) -> Done {
    let (all, n, kv_heads) = (op.q.dim(1), op.q.dim(2), op.k_cache.dim(1));
    let (mut list, mut splits, mut most) = (Vec::new(), 0, 0);
    for &(row, seen, page) in rows {
        list.extend([row as u32, seen as u32, page, splits as u32]);
        let own = seen.div_ceil(SPLIT);
        (splits, most) = (splits + own, most.max(own));
    }
    let parts = plan.temp((4 * splits * all * (n + 2)) as u64)?;
    let (q, k, v, out) =
        (plan.view(&op.q)?, cached(plan, &op.k_cache)?, cached(plan, &op.v_cache)?, plan.view(&op.out)?);
    let pages = plan.view(&op.pages)?;
    let ([q_row, q_head], [out_row, out_head]) = (strides(&op.q)?, strides(&op.out)?);
    let list = plan.table(list);
    let mut words = vec![list, op.scale.to_bits(), q.at, q_row, q_head, k.at.at, v.at.at, word(kv_heads)?];
    words.extend([out.at, out_row, out_head]);
    let fours = word(n.div_ceil(4))?;
    if fours > 256 {
        return Err(refused(format!("heads of {n} elements, a workgroup has at most 1024")));
    }
    // Threads that share a vector of outputs, each some keys.
    let shares = (1 << (256 / fours).ilog2()).min(SPLIT as u32);
    let (group, combined) = (group_of(op), combines(plan, op, rows));
    let counters = if combined { Some(plan.gpu.linear.counters(plan.gpu)?) } else { None };
    let tables = plan.tables();
    let made = heads.map(|h| h.places(plan)).transpose()?;
    let source = match (heads, combined) {
        (Some(_), _) => &READY,
        (None, true) => &COMBINED,
        (None, false) => &DECODE,
    };
    let mut run = plan
        .kernel(source)
        .set("N", word(n)?)
        .set("GROUP", word(group)?)
        .set("TIMES", word(all / kv_heads / group)?)
        .set("SPLIT", SPLIT as u32)
        .set("PAGE", word(op.page_len)?)
        .set("QUANTISED", k.quantised)
        .set("SIZE", k.size)
        .set("ALIGNED", aligned(&k, &v, n))
        .set("HALVES", 0)
        .set("STEPS", fours.div_ceil(4))
        .set("SHARES", shares)
        .set("OWN", SPLIT as u32 / shares)
        .set("AHEAD", (SPLIT as u32 / shares <= MOST_AHEAD).into())
        .set("COMBINED", combined.into())
        .set("READY", heads.is_some().into())
        .read("tables", Form::U32, &tables)
        .read("pages", Form::I32, &pages.window);
    run = match &made {
        None => run.read("q", Form::F32, &q.window).read("k_cache", k.form, &k.at.window).read(
            "v_cache",
            v.form,
            &v.at.window,
        ),
        Some(made) => {
            words.extend(made.words);
            made.bind(run, word(group + 1)?, n)
                .write("q", Form::F32, &q.window)
                .write("k_cache", k.form, &k.at.window)
                .write("v_cache", v.form, &v.at.window)
        }
    };
    let grid = [word(most)?, word(all / group)?, word(rows.len())?];
    if let Some(counters) = counters {
        return run
            .write("parts", Form::Coherent, &parts)
            .write("out", Form::F32, &out.window)
            .write("counters", Form::Atomic, &counters)
            .grid(&words, grid);
    }
    run.write("parts", Form::F32, &parts).grid(&words, grid)?;
    plan.kernel(&COMBINE)
        .set("WG", word(n)?.next_power_of_two().clamp(32, 128))
        .set("N", word(n)?)
        .set("SPLIT", SPLIT as u32)
        .read("tables", Form::U32, &tables)
        .read("parts", Form::F32, &parts)
        .write("out", Form::F32, &out.window)
        .grid(&[list, word(all)?, out.at, out_row, out_head], [word(all)?, word(rows.len())?, 1])
}

#[cfg(test)]
mod tests {
    use turbospark_device::op::{RmsNorm, Rope, StoreKv};
    use turbospark_device::{Device, Pass, Span};
    use turbospark_tensor::DType;

    use super::*;
    use crate::{Adapter, WgpuDevice, WgpuOptions, testing};

    const SEEN: [usize; 3] = [1, 70, 150];
    const PAGE: usize = 16;
    const PAGES: usize = 10;

    /// Where key `t` of sequence `i` lies: pages go backwards.
    fn place(i: usize, t: usize) -> usize {
        (3 * PAGES - 1 - i * PAGES - t / PAGE) * PAGE + t % PAGE
    }

    /// The six ops on known numbers, in one pass or each in its own; all that they write, in bits.
    fn run(device: &dyn Device, dtype: DType, together: bool) -> Vec<Vec<u8>> {
        let (rows, heads, kv_heads, n, half, capacity) = (3, 4, 2, 20, 6, 3 * PAGE * PAGES);
        let put = |count: usize, seed: usize| {
            let buffer = device.alloc("test", 4 * count).unwrap();
            let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 31) % 997) as f32 / 498.5 - 1.0).collect();
            device.write_f32(buffer.view(0, DType::F32, [count]), &values).unwrap();
            buffer
        };
        let rows_of = put(rows * (2 * heads + 2 * kv_heads) * n, 1);
        let part = |at: usize, heads: usize| rows_of.view(4 * rows * at * n, DType::F32, [rows, heads, n]);
        let (q, k, v) = (part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads));
        let out = part(heads + 2 * kv_heads, heads);
        let (weights, angles) = (put(2 * n, 2), put(2 * rows * half, 3));
        let weight = |i: usize| weights.view(4 * i * n, DType::F32, [n]);
        let turn = |i: usize| angles.view(4 * i * rows * half, DType::F32, [rows, half]);
        let whole = |name, values: Vec<usize>| {
            let buffer = device.alloc(name, 4 * values.len()).unwrap();
            let bytes: Vec<u8> = values.into_iter().flat_map(|v| (v as i32).to_le_bytes()).collect();
            device.write(buffer.bytes(), &bytes).unwrap();
            buffer
        };
        // The last row is stored elsewhere than where it is looked for.
        let slots = whole("slots", vec![place(0, SEEN[0] - 1), place(1, SEEN[1] - 1), place(0, 100)]);
        let pages = whole("pages", (0..3 * PAGES).map(|p| 3 * PAGES - 1 - p).collect());
        let caches = [4, 5].map(|seed| {
            let (from, to) = (put(capacity * kv_heads * n, seed), device.alloc("cache", 4 * capacity * kv_heads * n));
            let (to, mut pass) = (to.unwrap(), Pass::new(device));
            let sides = [capacity, kv_heads, n];
            pass.copy(turbospark_device::op::Copy {
                from: from.view(0, DType::F32, sides),
                to: to.view(0, dtype, sides),
            });
            pass.submit().unwrap();
            to
        });
        let [k_cache, v_cache] = caches.each_ref().map(|c| c.view(0, dtype, [capacity, kv_heads, n]));
        let norm = |x, i| Op::RmsNorm(RmsNorm { x, weight: weight(i), one_plus: true, eps: 1e-6, gate: None, out: x });
        let rope = |x| Op::Rope(Rope { x, cos: turn(0), sin: turn(1) });
        let store = StoreKv { k, v, slots: slots.view(0, DType::I32, [rows]), k_cache, v_cache };
        let span = |i: usize| Span {
            first_row: i,
            rows: 1,
            start: SEEN[i] - 1,
            decode: true,
            table: i,
            state: 0,
            snapshots: Vec::new(),
        };
        let spans = [0, 1, 2].map(span);
        let pages = pages.view(0, DType::I32, [3, PAGES]);
        let attention = PagedAttention { q, k_cache, v_cache, pages, page_len: PAGE, spans: &spans, scale: 0.3, out };
        let ops = [norm(q, 0), rope(q), norm(k, 1), rope(k), Op::StoreKv(store), Op::PagedAttention(attention)];
        testing::run(device, ops, together);
        testing::bytes(device, &[&rows_of, &caches[0], &caches[1]])
    }

    #[test]
    fn a_decode_step_of_attention_in_one_kernel_gives_the_bits_of_seven() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            // Matrix units would be tried out, by kernels of their own.
            let options = WgpuOptions { no_matrix_units: true, ..WgpuOptions::default() };
            let mut device = WgpuDevice::new(&adapter, options).unwrap();
            if !device.gpu.coherent {
                return eprintln!("skipped: workgroups can't tell each other what they wrote");
            }
            let one = run(&device, dtype, true);
            assert!(device.kernels().iter().any(|k| k.0 == READY.name));
            assert!(one == run(&device, dtype, true), "{dtype}: again, with counters as the first left them");
            assert!(one == run(&device, dtype, false), "{dtype}: op by op");
            device.gpu.coherent = false;
            assert!(one == run(&device, dtype, false), "{dtype}: with splits put together apart");
        }
    }
}
