//! Every family of ops at the sizes of real models: `cargo bench -p turbospark-device-cpu [-- FILTER]`.
//!
//! `THREADS` and `ISA` in the environment choose both; by default all cores and the best instruction set. Rates
//! are in operations where arithmetic bounds an op, and in bytes where memory does.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use turbospark_device::op::{
    Attention, CausalConv, DeltaScan, Experts, GatedMatmul, LayerNorm, Matmul, PagedAttention, RmsNorm, Rope,
    UseExpert, WeightLayout,
};
use turbospark_device::{Buffer, Device, DeviceError, Expert, ExpertSource, Pass, Span, View};
use turbospark_device_cpu::{CpuDevice, CpuOptions};
use turbospark_tensor::{
    DType, f32_to_bf16, f32_to_f16,
    quant::{self, FORMATS},
};

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn device() -> CpuDevice {
    let set = |name: &str| std::env::var(name).ok();
    let threads = set("THREADS").map(|n| n.parse().expect("THREADS is a number"));
    let isa = set("ISA").map(|name| name.parse().expect("ISA is an instruction set"));
    CpuDevice::new(CpuOptions { threads, isa, ..CpuOptions::default() }).expect("a device")
}

fn group<'a>(c: &'a mut Criterion, name: &str) -> Group<'a> {
    let mut group = c.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    group
}

/// Times a pass that `record` fills.
fn time<'a>(group: &mut Group<'_>, name: &str, size: String, d: &'a CpuDevice, record: impl Fn(&mut Pass<'a>)) {
    group.bench_function(BenchmarkId::new(name, size), |b| {
        b.iter(|| {
            let mut pass = Pass::new(d);
            record(&mut pass);
            pass.submit().expect("the op runs");
        });
    });
}

/// `n` values of a float or block type, between -0.5 and 0.5, none so small that it slows arithmetic down.
fn values(d: &CpuDevice, dtype: DType, n: usize) -> Buffer {
    let value = |i: usize| (i * 7919 % 1009) as f32 / 1009.0 - 0.4995;
    let bytes: Vec<u8> = match dtype {
        DType::F32 => (0..n).flat_map(|i| value(i).to_le_bytes()).collect(),
        DType::BF16 => (0..n).flat_map(|i| f32_to_bf16(value(i)).to_le_bytes()).collect(),
        DType::F16 => (0..n).flat_map(|i| f32_to_f16(value(i)).to_le_bytes()).collect(),
        other => {
            let floats: Vec<f32> = (0..n).map(value).collect();
            let mut blocks = vec![0; other.bytes(n).expect("whole blocks")];
            quant::quantise(&floats, other, &mut blocks).expect("finite values");
            blocks
        }
    };
    let buffer = d.alloc("bench", bytes.len()).expect("memory");
    d.write(buffer.bytes(), &bytes).expect("it fits");
    buffer
}

fn floats(d: &CpuDevice, n: usize) -> Buffer {
    values(d, DType::F32, n)
}

fn indexes(d: &CpuDevice, values: &[i32]) -> Buffer {
    let buffer = d.alloc("bench", 4 * values.len()).expect("memory");
    (d as &dyn Device).write_i32(buffer.view(0, DType::I32, [values.len()]), values).expect("it fits");
    buffer
}

fn f32s<'a, const N: usize>(buffer: &'a Buffer, sides: [usize; N]) -> View<'a> {
    buffer.view(0, DType::F32, sides)
}

fn spans(rows: usize, start: usize, decode: bool) -> [Span; 1] {
    [Span { first_row: 0, rows, start, decode, table: 0, state: 0, snapshots: Vec::new() }]
}

fn matmul(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "matmul");
    let sizes = [
        // Vision tower, trunk up and down, and a short prompt.
        (512, 1024, 4096, true),
        (512, 2048, 6144, true),
        (512, 6144, 2048, true),
        (64, 2048, 6144, true),
        // Decoded rows: one, several, and the head.
        (1, 2048, 6144, false),
        (8, 2048, 6144, false),
        (1, 2048, 151_936, false),
    ];
    let dtypes = [DType::BF16, DType::F16, DType::F32].into_iter().chain(FORMATS);
    for dtype in dtypes {
        for (m, k, n, prompt) in sizes {
            if n > 100_000 && dtype != DType::BF16 {
                continue;
            }
            let (x, w, out) = (floats(&d, m * k), values(&d, dtype, n * k), floats(&d, m * n));
            let (x, w, out) = (f32s(&x, [m, k]), w.view(0, dtype, [n, k]), f32s(&out, [m, n]));
            let work = if prompt {
                Throughput::Elements(2 * (m * k * n) as u64)
            } else {
                Throughput::Bytes(dtype.bytes(n * k).expect("whole blocks") as u64)
            };
            g.throughput(work);
            let kind = if prompt { "prompt" } else { "decode" };
            let op = Matmul { prompt_rows: if prompt { m } else { 0 }, ..Matmul::new(x, w, out) };
            time(&mut g, &format!("{kind}-{dtype}"), format!("{m}x{k}x{n}"), &d, |pass| pass.matmul(op));
        }
    }
}

fn gated(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "gated");
    let (k, n) = (2048, 6144);
    let weights = values(&d, DType::BF16, 2 * n * k);
    let both = weights.view(0, DType::BF16, [2 * n, k]);
    for (m, prompt) in [(512, true), (1, false)] {
        let (x, out) = (floats(&d, m * k), floats(&d, m * n));
        let op = GatedMatmul {
            x: f32s(&x, [m, k]),
            gate: both.rows(0..n).into(),
            up: both.rows(n..2 * n).into(),
            layout: WeightLayout::OutIn,
            out: f32s(&out, [m, n]),
            prompt_rows: if prompt { m } else { 0 },
        };
        g.throughput(if prompt {
            Throughput::Elements(4 * (m * k * n) as u64)
        } else {
            Throughput::Bytes(4 * (n * k) as u64)
        });
        time(&mut g, if prompt { "prompt" } else { "decode" }, format!("{m}x{k}x{n}"), &d, |pass| {
            pass.gated_matmul(op)
        });
    }
}

fn attention(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "vision-attention");
    for (rows, heads, n) in [(1024, 16, 64), (1024, 16, 72), (4096, 2, 64)] {
        let (qkv, out) = (floats(&d, 3 * rows * heads * n), floats(&d, rows * heads * n));
        let part =
            |i: usize| f32s(&qkv, [rows, 3 * heads * n]).narrow(1, i * heads * n..(i + 1) * heads * n).split_last(n);
        let (cu_seqlens, out) = ([0, rows], f32s(&out, [rows, heads, n]));
        g.throughput(Throughput::Elements(4 * (rows * rows * heads * n) as u64));
        time(&mut g, "whole", format!("{rows}x{heads}x{n}"), &d, |pass| {
            pass.attention(Attention { q: part(0), k: part(1), v: part(2), cu_seqlens: &cu_seqlens, scale: 0.1, out });
        });
    }
}

fn paged(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "paged-attention");
    const PAGE: usize = 64;
    let (heads, kv, n) = (16, 8, 128);
    let runs: [(usize, usize, bool); 4] = [(512, 0, false), (512, 3584, false), (1, 511, true), (1, 4095, true)];
    for (rows, start, decode) in runs {
        let pages = (start + rows).div_ceil(PAGE);
        let [k, v] = [(); 2].map(|()| values(&d, DType::F16, pages * PAGE * kv * n));
        let (q, out) = (floats(&d, rows * heads * n), floats(&d, rows * heads * n));
        let table = indexes(&d, &(0..pages as i32).collect::<Vec<_>>());
        let (spans, cache) = (spans(rows, start, decode), [pages * PAGE, kv, n]);
        let pairs: usize = (start + 1..=start + rows).sum();
        g.throughput(if decode {
            Throughput::Bytes((4 * (start + 1) * kv * n) as u64)
        } else {
            Throughput::Elements(4 * (pairs * heads * n) as u64)
        });
        time(&mut g, if decode { "decode" } else { "prompt" }, format!("{rows}-after-{start}"), &d, |pass| {
            pass.paged_attention(PagedAttention {
                q: f32s(&q, [rows, heads, n]),
                k_cache: k.view(0, DType::F16, cache),
                v_cache: v.view(0, DType::F16, cache),
                pages: table.view(0, DType::I32, [1, pages]),
                page_len: PAGE,
                spans: &spans,
                scale: 0.1,
                out: f32s(&out, [rows, heads, n]),
            });
        });
    }
}

fn norms(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "norm-and-rope");
    let (rows, n) = (512, 2048);
    let (x, out, w) = (floats(&d, rows * n), floats(&d, rows * n), floats(&d, n));
    let (flat, weight) = ([rows, n], f32s(&w, [n]));
    g.throughput(Throughput::Bytes(8 * (rows * n) as u64));
    let size = || format!("{rows}x{n}");
    time(&mut g, "rms-norm", size(), &d, |pass| {
        pass.rms_norm(RmsNorm {
            x: f32s(&x, flat),
            weight,
            one_plus: false,
            eps: 1e-6,
            gate: None,
            out: f32s(&out, flat),
        });
    });
    time(&mut g, "layer-norm", size(), &d, |pass| {
        pass.layer_norm(LayerNorm { x: f32s(&x, flat), weight, bias: weight, eps: 1e-6, out: f32s(&out, flat) });
    });
    // Of one angle: rotated in place again and again, rows keep their length.
    let [cos, sin] = [0.6, 0.8].map(|value: f32| {
        let buffer = floats(&d, rows * 64);
        (&d as &dyn Device).write_f32(f32s(&buffer, [rows, 64]), &vec![value; rows * 64]).expect("it fits");
        buffer
    });
    let (cos, sin) = (f32s(&cos, [rows, 64]), f32s(&sin, [rows, 64]));
    time(&mut g, "rope", format!("{rows}x16x128"), &d, |pass| {
        pass.rope(Rope { x: f32s(&x, [rows, 16, 128]), cos, sin });
    });
}

fn delta(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "delta-net");
    let (heads, n, channels) = (16, 128, 6144);
    for (rows, decode) in [(512, false), (1, true)] {
        let kind = if decode { "decode" } else { "prompt" };
        let spans = spans(rows, 0, decode);
        g.throughput(Throughput::Elements(rows as u64));
        let (x, y, w) =
            (floats(&d, rows * channels), floats(&d, rows * channels), values(&d, DType::BF16, channels * 4));
        let tail = floats(&d, channels * 4);
        time(&mut g, &format!("conv-{kind}"), format!("{rows}x{channels}"), &d, |pass| {
            pass.causal_conv(CausalConv {
                x: f32s(&x, [rows, channels]),
                weight: w.view(0, DType::BF16, [channels, 4]),
                state: f32s(&tail, [1, channels, 4]),
                spans: &spans,
                out: f32s(&y, [rows, channels]),
            });
        });
        let [q, k, v, out] = [(); 4].map(|()| floats(&d, rows * heads * n));
        let gates = d.alloc("bench", 4 * rows * heads).expect("memory");
        let (sides, state) = ([rows, heads, n], floats(&d, heads * n * n));
        time(&mut g, &format!("scan-{kind}"), format!("{rows}x{heads}x{n}"), &d, |pass| {
            pass.delta_scan(DeltaScan {
                q: f32s(&q, sides),
                k: f32s(&k, sides),
                v: f32s(&v, sides),
                g: f32s(&gates, [rows, heads]),
                beta: f32s(&gates, [rows, heads]),
                state: f32s(&state, [1, heads, n, n]),
                tiled: false,
                spans: &spans,
                out: f32s(&out, sides),
            });
        });
    }
}

/// Experts beside each other in one buffer.
struct Resident {
    weights: Buffer,
    experts: usize,
    hidden: usize,
    width: usize,
}

impl ExpertSource for Resident {
    fn experts(&self) -> usize {
        self.experts
    }

    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        let (h, w) = (self.hidden, self.width);
        wanted.iter().try_for_each(|&e| {
            let at = |i: usize, sides| self.weights.view(2 * (3 * e + i) * h * w, DType::BF16, sides).into();
            let (gate, up, down) = (at(0, [w, h]), at(1, [w, h]), at(2, [h, w]));
            each(e, Expert { gate, up, down, layout: WeightLayout::OutIn })
        })
    }
}

fn experts(c: &mut Criterion) {
    let d = device();
    let mut g = group(c, "experts");
    // A quarter of the experts of the 30B model; the rest of its sizes as they are.
    let (experts, k, hidden, width) = (32, 8, 2048, 768);
    let weights = values(&d, DType::BF16, 3 * experts * hidden * width);
    let source = Resident { weights, experts, hidden, width };
    for (rows, prompt) in [(256, true), (1, false)] {
        let ids: Vec<i32> = (0..rows * k).map(|i| ((i * 5 + i / k) % experts) as i32).collect();
        let (ids, gates) = (indexes(&d, &ids), floats(&d, rows * k));
        let (x, out) = (floats(&d, rows * hidden), floats(&d, rows * hidden));
        let op = Experts {
            x: f32s(&x, [rows, hidden]),
            ids: ids.view(0, DType::I32, [rows, k]),
            weights: f32s(&gates, [rows, k]),
            source: &source,
            width,
            residual: None,
            out: f32s(&out, [rows, hidden]),
            prompt_rows: if prompt { rows } else { 0 },
        };
        let each = 3 * hidden * width;
        g.throughput(if prompt {
            Throughput::Elements(2 * (rows * k * each) as u64)
        } else {
            Throughput::Bytes(2 * (k * each) as u64)
        });
        time(&mut g, if prompt { "prompt" } else { "decode" }, format!("{rows}x{k}of{experts}"), &d, |pass| {
            pass.experts(op)
        });
    }
}

criterion_group!(ops, matmul, gated, attention, paged, norms, delta, experts);
criterion_main!(ops);
