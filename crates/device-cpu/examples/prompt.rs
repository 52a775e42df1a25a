//! Measures ops on the rows of prompts and pictures: `cargo run --release --example prompt [threads] [isa] [part of a name]`.
//!
//! Sizes are those of the 2B model. Each op runs for some time in three rounds over all ops; the median and the best
//! time are given, the rate of each, and how far the numbers lie from those in f32.

use std::time::Instant;

use turbospark_device::op::{Attention, GatedMatmul, LayerNorm, Matmul, PagedAttention, Rope, WeightLayout};
use turbospark_device::{Activation, Buffer, Device, DeviceError, Pass, Precision, Span};
use turbospark_device_cpu::{CpuDevice, CpuOptions};
use turbospark_tensor::{DType, f32_to_bf16, f32_to_f16, quant};

/// Seconds that an op is timed in a round.
const SECONDS: f64 = 0.25;

/// Rows on which an op is compared with f32.
const COMPARED: usize = 300;

type Done<T> = Result<T, DeviceError>;

fn main() -> Done<()> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).or(Some(2));
    let isa = args.next().filter(|a| a != "best").map(|a| a.parse()).transpose()?;
    let word = args.next().unwrap_or_default();
    let device = |precision| CpuDevice::new(CpuOptions { threads, isa, precision });
    let (cpu, exact) = (device(Precision::Auto)?, device(Precision::F32)?);
    println!("{}; {:?}", cpu.name(), cpu.limits()?);
    let cases: Vec<Case> = cases().into_iter().filter(|c| c.name.contains(&word)).collect();
    let mut took = vec![Vec::new(); cases.len()];
    for _ in 0..3 {
        for (case, took) in cases.iter().zip(&mut took) {
            let data = case.data(&cpu, case.rows)?;
            case.run(&cpu, &data, case.rows)?;
            let began = Instant::now();
            while began.elapsed().as_secs_f64() < SECONDS {
                let start = Instant::now();
                case.run(&cpu, &data, case.rows)?;
                took.push(start.elapsed().as_secs_f64());
            }
        }
    }
    for (case, mut took) in cases.iter().zip(took) {
        took.sort_by(f64::total_cmp);
        let rate = |t: f64| 1e-12 * case.operations() / t;
        let (middle, best) = (took[took.len() / 2], took[0]);
        let rows = case.rows.min(COMPARED);
        let mut both = Vec::new();
        for d in [&cpu, &exact] {
            let data = case.data(d, rows)?;
            case.run(d, &data, rows)?;
            both.push((d as &dyn Device).read_f32(data.out.view(0, DType::F32, [rows * case.n]))?);
        }
        println!(
            "{:28} {:8.2} ms {:5.2} TFLOP/s; best {:8.2} ms {:5.2} TFLOP/s; off by {:.1e}",
            case.name,
            1e3 * middle,
            rate(middle),
            1e3 * best,
            rate(best),
            distance(&both[0], &both[1]),
        );
    }
    Ok(())
}

/// The distance of two vectors over the length of the second.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = a.iter().zip(b).map(|(&a, &b)| square(a - b)).sum();
    (apart / b.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
}

/// What runs.
#[derive(Clone, Copy)]
enum Kind {
    /// A linear layer of `k` inputs, with bias; `true` adds what was there.
    Linear(DType, usize, Option<Activation>, bool),
    /// A gated one.
    Gated(DType, usize),
    /// Attention of all rows to each other, `n / 64` heads.
    Whole,
    /// Causal attention after so many rows, two heads of 128 to one of keys.
    Cached(usize),
    /// A block of the tower up to attention.
    Front,
    /// Its last half.
    Mlp(usize),
}

struct Case {
    name: String,
    kind: Kind,
    rows: usize,
    /// Elements of a row of the output.
    n: usize,
}

fn cases() -> Vec<Case> {
    let (gelu, bf16) = (Some(Activation::GeluTanh), DType::BF16);
    let case = |name: &str, kind, rows, n| Case { name: name.into(), kind, rows, n };
    let mut all = vec![
        case("attention, 4 heads of 64", Kind::Whole, 4096, 256),
        case("cached attention after 1024", Kind::Cached(1024), 512, 2048),
        case("linear 4096x1024x1024", Kind::Linear(bf16, 1024, None, false), 4096, 1024),
        case("linear, gelu 512x1024x4096", Kind::Linear(bf16, 1024, gelu, false), 512, 4096),
        case("linear, adds 512x4096x1024", Kind::Linear(bf16, 4096, None, true), 512, 1024),
        case("gated 512x2048x6144", Kind::Gated(bf16, 2048), 512, 6144),
        case("linear, adds 512x6144x2048", Kind::Linear(bf16, 6144, None, true), 512, 2048),
        case("norm, qkv, rope 4096x1024", Kind::Front, 4096, 1024),
        case("norm, mlp 4096x1024x4096", Kind::Mlp(4096), 4096, 1024),
    ];
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q6_K] {
        all.push(case(&format!("{dtype} 512x2048x6144"), Kind::Linear(dtype, 2048, None, false), 512, 6144));
    }
    all
}

/// What a case works on.
struct Data {
    x: Buffer,
    weights: Buffer,
    more: Buffer,
    inner: Buffer,
    out: Buffer,
}

/// `n` values of a type between -1 and 1, spread like a sum of a few.
fn values(d: &CpuDevice, dtype: DType, n: usize, seed: u32) -> Done<Buffer> {
    let mut state = 0x9e37_79b9u32.wrapping_mul(2 * seed + 1);
    let mut number = || {
        let mut sum = 0.0;
        for _ in 0..3 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            sum += (state >> 8) as f32 / (1 << 24) as f32 - 0.5;
        }
        2.0 / 3.0 * sum
    };
    let floats: Vec<f32> = (0..n).map(|_| number()).collect();
    let bytes: Vec<u8> = match dtype {
        DType::F32 => floats.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::BF16 => floats.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes()).collect(),
        DType::F16 => floats.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes()).collect(),
        other => {
            let mut blocks = vec![0; other.bytes(n).expect("whole blocks")];
            quant::quantise(&floats, other, &mut blocks).expect("finite values");
            blocks
        }
    };
    let buffer = d.alloc("example", bytes.len())?;
    d.write(buffer.bytes(), &bytes)?;
    Ok(buffer)
}

impl Case {
    fn operations(&self) -> f64 {
        let (rows, n) = (self.rows as f64, self.n as f64);
        match self.kind {
            Kind::Linear(_, k, ..) => 2.0 * rows * n * k as f64,
            Kind::Gated(_, k) => 4.0 * rows * n * k as f64,
            Kind::Whole => 4.0 * rows * rows * n,
            Kind::Cached(start) => 4.0 * rows * (start as f64 + rows / 2.0) * n,
            Kind::Front => 6.0 * rows * n * n,
            Kind::Mlp(inner) => 4.0 * rows * n * inner as f64,
        }
    }

    fn data(&self, d: &CpuDevice, rows: usize) -> Done<Data> {
        let n = self.n;
        let (dtype, [x, weights, more, inner]) = match self.kind {
            Kind::Linear(dtype, k, ..) => (dtype, [rows * k, k * n, n, 1]),
            Kind::Gated(dtype, k) => (dtype, [rows * k, 2 * k * n, 1, 1]),
            Kind::Whole => (DType::F32, [3 * rows * n, 1, 1, 1]),
            Kind::Cached(start) => (DType::F16, [rows * n, (start + rows) * n, 1, 1]),
            Kind::Front => (DType::BF16, [rows * n, 3 * n * n, 3 * n, 4 * rows * n]),
            Kind::Mlp(inner) => (DType::BF16, [rows * n, 2 * n * inner, n.max(inner), rows * n + 512 * inner]),
        };
        Ok(Data {
            x: values(d, DType::F32, x, 1)?,
            weights: values(d, dtype, weights, 2)?,
            more: values(d, DType::F32, more, 3)?,
            inner: values(d, DType::F32, inner, 4)?,
            out: values(d, DType::F32, rows * n, 5)?,
        })
    }

    fn run(&self, d: &CpuDevice, data: &Data, rows: usize) -> Done<()> {
        let n = self.n;
        let mut pass = Pass::new(d);
        let out = data.out.view(0, DType::F32, [rows, n]);
        let (cu_seqlens, scale) = ([0, rows], 1.0);
        let table: Vec<i32> = (0..4096 / 64).collect();
        let pages = d.alloc("pages", 4 * table.len())?;
        let span = |start| Span { first_row: 0, rows, start, decode: false, table: 0, state: 0, snapshots: Vec::new() };
        let spans = [span(if let Kind::Cached(start) = self.kind { start } else { 0 })];
        match self.kind {
            Kind::Linear(dtype, k, activation, adds) => {
                let x = data.x.view(0, DType::F32, [rows, k]);
                let bias = Some(data.more.view(0, DType::F32, [n]));
                let residual = adds.then_some(out);
                let weight = data.weights.view(0, dtype, [n, k]);
                pass.matmul(Matmul { bias, activation, residual, ..Matmul::new(x, weight, out) });
            }
            Kind::Gated(dtype, k) => {
                let both = data.weights.view(0, dtype, [2 * n, k]);
                pass.gated_matmul(GatedMatmul {
                    x: data.x.view(0, DType::F32, [rows, k]),
                    gate: both.rows(0..n).into(),
                    up: both.rows(n..2 * n).into(),
                    layout: WeightLayout::OutIn,
                    out,
                    prompt_rows: rows,
                });
            }
            Kind::Whole => {
                let fused = data.x.view(0, DType::F32, [rows, 3 * n]);
                let part = |i: usize| fused.narrow(1, i * n..(i + 1) * n).split_last(64);
                let (q, k, v, out) = (part(0), part(1), part(2), out.split_last(64));
                pass.attention(Attention { q, k, v, cu_seqlens: &cu_seqlens, scale, out });
            }
            Kind::Cached(start) => {
                (d as &dyn Device).write_i32(pages.view(0, DType::I32, [table.len()]), &table)?;
                let len = (start + rows) / 64 * 64;
                let cache = [len, n / 256, 128];
                let spans = &spans;
                pass.paged_attention(PagedAttention {
                    q: data.x.view(0, DType::F32, [rows, n]).split_last(128),
                    k_cache: data.weights.view(0, DType::F16, cache),
                    v_cache: data.weights.view(len * n, DType::F16, cache),
                    pages: pages.view(0, DType::I32, [1, table.len()]),
                    page_len: 64,
                    spans,
                    scale,
                    out: out.split_last(128),
                });
            }
            Kind::Front => {
                let x = data.x.view(0, DType::F32, [rows, n]);
                let part = |i: usize| data.inner.view(4 * i * rows * n, DType::F32, [rows, n]);
                let bias = data.more.view(0, DType::F32, [3 * n]);
                let weight = data.weights.view(0, DType::BF16, [3 * n, n]);
                pass.layer_norm(LayerNorm {
                    x,
                    weight: bias.rows(0..n),
                    bias: bias.rows(n..2 * n),
                    eps: 1e-6,
                    out: part(3),
                });
                for i in 0..3 {
                    let third = i * n..(i + 1) * n;
                    let out = if i == 2 { out } else { part(i) };
                    let bias = Some(bias.rows(third.clone()));
                    pass.matmul(Matmul { bias, ..Matmul::new(part(3), weight.rows(third), out) });
                }
                let angles = data.x.view(0, DType::F32, [rows, 32]);
                for i in 0..2 {
                    pass.rope(Rope { x: part(i).split_last(64), cos: angles, sin: angles });
                }
            }
            Kind::Mlp(width) => {
                let x = data.x.view(0, DType::F32, [rows, n]);
                let normed = data.inner.view(0, DType::F32, [rows, n]);
                let (up, down) = (
                    data.weights.view(0, DType::BF16, [width, n]),
                    data.weights.view(2 * n * width, DType::BF16, [n, width]),
                );
                let bias = data.more.view(0, DType::F32, [n]);
                let wide = Some(data.more.view(0, DType::F32, [width]));
                pass.layer_norm(LayerNorm { x, weight: bias, bias, eps: 1e-6, out: normed });
                for first in (0..rows).step_by(512) {
                    let some = first..rows.min(first + 512);
                    let inner = data.inner.view(4 * rows * n, DType::F32, [some.len(), width]);
                    let activation = Some(Activation::GeluTanh);
                    pass.matmul(Matmul { bias: wide, activation, ..Matmul::new(normed.rows(some.clone()), up, inner) });
                    let out = out.rows(some.clone());
                    pass.matmul(Matmul {
                        bias: Some(bias),
                        residual: Some(x.rows(some)),
                        ..Matmul::new(inner, down, out)
                    });
                }
            }
        }
        pass.submit()
    }
}
