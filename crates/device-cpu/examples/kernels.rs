//! Measures the main kernels at the sizes of a 2B model: `cargo run --release --example kernels [threads] [isa]`.
//!
//! Prints the best of several runs: noise only ever slows one down.

use std::time::Instant;

use turbospark_device::op::{Attention, DeltaScan, Matmul, PagedAttention};
use turbospark_device::{Buffer, Device, DeviceError, Pass, Span};
use turbospark_device_cpu::{CpuDevice, CpuOptions};
use turbospark_tensor::DType;

fn main() -> Result<(), DeviceError> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok());
    let isa = args.next().map(|a| a.parse()).transpose()?;
    let cpu = CpuDevice::new(CpuOptions { threads, isa, ..CpuOptions::default() })?;
    println!("{}", cpu.name());
    let d = &cpu;
    for (m, k, n) in [(64, 2048, 6144), (1024, 2048, 6144), (1024, 6144, 2048), (1024, 1024, 1024)] {
        let seconds = matmul(d, DType::BF16, m, k, n, m)?;
        println!("matrix kernel {m}x{k}x{n}: {:.0} GFLOP/s", 2e-9 * (m * k * n) as f64 / seconds);
    }
    for (rows, k, n) in [(1, 2048, 6144), (1, 2048, 151_936), (8, 2048, 151_936)] {
        let seconds = matmul(d, DType::BF16, rows, k, n, 0)?;
        println!("row kernel {rows}x{k}x{n}: {:.1} GB/s, {:.1} us", 2e-9 * (k * n) as f64 / seconds, 1e6 * seconds);
    }
    let seconds = matmul(d, DType::F32, 1, 64, 64, 0)?;
    println!("smallest matmul: {:.2} us", 1e6 * seconds);
    for (rows, heads, n) in [(4096, 4, 64), (1024, 16, 72)] {
        let seconds = attention(d, rows, heads, n)?;
        println!(
            "attention {rows} rows of {heads}x{n}: {:.0} GFLOP/s",
            4e-9 * (rows * rows * heads * n) as f64 / seconds
        );
    }
    for (rows, start) in [(1024, 0), (1, 4095)] {
        let (seconds, seen) = paged(d, rows, start)?;
        let what = format!("paged attention of {rows} rows after {start}, 16 heads, 8 shared, 128");
        let flops = 4e-9 * (seen * 16 * 128) as f64 / seconds;
        let bytes = 2e-9 * ((start + rows) * 8 * 128 * 2) as f64 / seconds;
        println!("{what}: {flops:.0} GFLOP/s, {bytes:.1} GB/s, {:.0} us", 1e6 * seconds);
    }
    for (rows, decode) in [(1024, false), (1, true)] {
        let seconds = delta(d, rows, decode)?;
        println!("delta rule, {rows} rows of 16x128x128: {:.1} us a row", 1e6 * seconds / rows as f64);
    }
    Ok(())
}

/// A zeroed buffer whose pages have been touched.
fn floats(d: &dyn Device, n: usize) -> Result<Buffer, DeviceError> {
    let buffer = d.alloc("example", 4 * n)?;
    let values: Vec<f32> = (0..n).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
    d.write_f32(buffer.view(0, DType::F32, [n]), &values)?;
    Ok(buffer)
}

/// Half as many 16-bit values as bytes, none of them odd.
fn halves(d: &dyn Device, n: usize) -> Result<Buffer, DeviceError> {
    let buffer = d.alloc("example", 2 * n)?;
    let bytes: Vec<u8> = (0..n).flat_map(|i| [(i % 251) as u8, 0x3c + (i % 3) as u8]).collect();
    d.write(buffer.bytes(), &bytes)?;
    Ok(buffer)
}

/// Seconds of the best run of a pass that repeats an op.
fn best<'a>(d: &'a dyn Device, mut record: impl FnMut(&mut Pass<'a>)) -> Result<f64, DeviceError> {
    let mut best = f64::INFINITY;
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < 0.8 {
        let mut pass = Pass::new(d);
        let repeats = 4;
        (0..repeats).for_each(|_| record(&mut pass));
        let start = Instant::now();
        pass.submit()?;
        best = best.min(start.elapsed().as_secs_f64() / repeats as f64);
    }
    Ok(best)
}

fn matmul(d: &dyn Device, t: DType, m: usize, k: usize, n: usize, prompt_rows: usize) -> Result<f64, DeviceError> {
    let (x, out) = (floats(d, m * k)?, floats(d, m * n)?);
    let w = if t == DType::F32 { floats(d, n * k)? } else { halves(d, n * k)? };
    let (x, w, out) = (x.view(0, DType::F32, [m, k]), w.view(0, t, [n, k]), out.view(0, DType::F32, [m, n]));
    best(d, |pass| pass.matmul(Matmul { prompt_rows, ..Matmul::new(x, w, out) }))
}

fn attention(d: &dyn Device, rows: usize, heads: usize, n: usize) -> Result<f64, DeviceError> {
    let (qkv, out) = (floats(d, 3 * rows * heads * n)?, floats(d, rows * heads * n)?);
    let fused = qkv.view(0, DType::F32, [rows, 3 * heads * n]);
    let part = |i: usize| fused.narrow(1, i * heads * n..(i + 1) * heads * n).split_last(n);
    let out = out.view(0, DType::F32, [rows, heads, n]);
    let cu_seqlens = [0, rows];
    best(d, |pass| {
        pass.attention(Attention { q: part(0), k: part(1), v: part(2), cu_seqlens: &cu_seqlens, scale: 0.1, out });
    })
}

/// Seconds, and how many pairs of query row and key there are.
fn paged(d: &dyn Device, rows: usize, start: usize) -> Result<(f64, usize), DeviceError> {
    let (heads, kv_heads, n, page_len) = (16, 8, 128, 256);
    let pages = (start + rows).div_ceil(page_len);
    let [k, v] = [halves(d, pages * page_len * kv_heads * n)?, halves(d, pages * page_len * kv_heads * n)?];
    let (q, out) = (floats(d, rows * heads * n)?, floats(d, rows * heads * n)?);
    let table = d.alloc("example", 4 * pages)?;
    d.write_i32(table.view(0, DType::I32, [pages]), &(0..pages as i32).collect::<Vec<_>>())?;
    let decode = rows < 64;
    let spans = [Span { first_row: 0, rows, start, decode, table: 0, state: 0, snapshots: Vec::new() }];
    let cache = [pages * page_len, kv_heads, n];
    let op = PagedAttention {
        q: q.view(0, DType::F32, [rows, heads, n]),
        k_cache: k.view(0, DType::BF16, cache),
        v_cache: v.view(0, DType::BF16, cache),
        pages: table.view(0, DType::I32, [1, pages]),
        page_len,
        spans: &spans,
        scale: 0.1,
        out: out.view(0, DType::F32, [rows, heads, n]),
    };
    let seconds = best(d, |pass| pass.paged_attention(op))?;
    Ok((seconds, (start + 1..=start + rows).sum()))
}

fn delta(d: &dyn Device, rows: usize, decode: bool) -> Result<f64, DeviceError> {
    let (heads, n) = (16, 128);
    let [q, k, v, out] = [(); 4].map(|()| floats(d, rows * heads * n));
    let (q, k, v, out) = (q?, k?, v?, out?);
    let gates = d.alloc("example", 4 * rows * heads)?;
    let state = floats(d, heads * n * n)?;
    let spans = [Span { first_row: 0, rows, start: 0, decode, table: 0, state: 0, snapshots: Vec::new() }];
    let sides = [rows, heads, n];
    let op = DeltaScan {
        q: q.view(0, DType::F32, sides),
        k: k.view(0, DType::F32, sides),
        v: v.view(0, DType::F32, sides),
        g: gates.view(0, DType::F32, [rows, heads]),
        beta: gates.view(0, DType::F32, [rows, heads]),
        state: state.view(0, DType::F32, [1, heads, n, n]),
        spans: &spans,
        out: out.view(0, DType::F32, sides),
    };
    best(d, |pass| pass.delta_scan(op))
}
