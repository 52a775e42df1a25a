//! Measures the row kernels against memory: `cargo run --release --example decode [threads] [isa] [MiB]`.
//!
//! By default weights are larger than any cache. Reading is measured in the same process, a few milliseconds at a time
//! in turn with the kernels, by summing eight streams a thread. Two shares are given: of medians, and of the best
//! tenth of each, which other work on the machine disturbs less. With 1 MiB the kernels run from the caches.

use std::time::Instant;

use turbospark_device::op::{Matmul, WeightLayout};
use turbospark_device::{Buffer, Device, DeviceError, Pass};
use turbospark_device_cpu::{CpuDevice, CpuOptions};
use turbospark_tensor::DType;

/// Rows that are decoded at once.
const ROWS: [usize; 4] = [1, 2, 4, 8];

/// Bytes that are timed together.
const SLICE: usize = 8 << 20;

fn main() -> Result<(), DeviceError> {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let isa = args.next().map(|a| a.parse()).transpose()?;
    let total = args.next().and_then(|a| a.parse().ok()).unwrap_or(768usize) << 20;
    let cpu = CpuDevice::new(CpuOptions { threads: Some(threads), isa, ..CpuOptions::default() })?;
    println!("{}; GB/s with 1, 2, 4 and 8 rows; its share of reading, by medians and by the best tenth", cpu.name());
    let words: Vec<u64> = (0..total as u64 / 8).collect();
    let buffer = weights(&cpu, total)?;
    let types = [DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];
    let layouts = types.map(|t| (t, WeightLayout::OutIn)).into_iter().chain([(DType::BF16, WeightLayout::InOut)]);
    for (dtype, layout) in layouts {
        let n = if total < 64 << 20 { 256 } else { 6144 };
        let mut case = Case { d: &cpu, weights: &buffer, dtype, layout, k: 2048, n, next: 0 };
        let mut read = Vec::new();
        let mut took = [const { Vec::new() }; 4];
        for round in 0..80 {
            read.push(reading(&words, threads, round));
            for (took, rows) in took.iter_mut().zip(ROWS) {
                took.push(case.slice(rows)?);
            }
        }
        let name = format!("{dtype}{}", if layout == WeightLayout::InOut { " [in, out]" } else { "" });
        let (middle, best) = (at(&mut read, 0.5), at(&mut read, 0.9));
        let mut figures = Vec::new();
        let mut rate = [0.0; 4];
        for (rate, took) in rate.iter_mut().zip(&mut took) {
            *rate = at(took, 0.5);
            let share = [*rate / middle, at(took, 0.9) / best].map(|x| 100.0 * x);
            figures.push(format!("{rate:5.1} ({:3.0} %, {:3.0} %)", share[0], share[1]));
        }
        let times = 8.0 * rate[3] / rate[0];
        println!("{name:16} {}; 8 rows: {times:.1}x the tokens of 1; reading {middle:.1}", figures.join("  "));
    }
    Ok(())
}

/// The sample that a share of all lie below.
fn at(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() as f64 * share) as usize]
}

/// Bytes that no format reads as infinite or NaN.
fn weights(d: &dyn Device, total: usize) -> Result<Buffer, DeviceError> {
    let buffer = d.alloc("weights", total)?;
    let bytes: Vec<u8> = (0..total).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8 & 0x3b).collect();
    d.write(buffer.bytes(), &bytes)?;
    Ok(buffer)
}

/// A layer whose weights are passed over in turn.
struct Case<'a> {
    d: &'a dyn Device,
    weights: &'a Buffer,
    dtype: DType,
    layout: WeightLayout,
    k: usize,
    n: usize,
    next: usize,
}

impl Case<'_> {
    /// GB/s over the next slice.
    fn slice(&mut self, rows: usize) -> Result<f64, DeviceError> {
        let (d, k, n) = (self.d, self.k, self.n);
        let (x, out) = (d.alloc("x", 4 * rows * k)?, d.alloc("out", 4 * rows * n)?);
        let values: Vec<f32> = (0..rows * k).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
        let x = x.view(0, DType::F32, [rows, k]);
        d.write_f32(x, &values)?;
        let each = self.dtype.bytes(n * k).expect("whole blocks");
        let (count, all) = (SLICE.div_ceil(each), self.weights.len() / each);
        let mut pass = Pass::new(d);
        for _ in 0..count {
            let sides = if self.layout == WeightLayout::OutIn { [n, k] } else { [k, n] };
            let weight = self.weights.view(self.next % all * each, self.dtype, sides);
            self.next += 1;
            let out = out.view(0, DType::F32, [rows, n]);
            pass.matmul(Matmul { layout: self.layout, prompt_rows: 0, ..Matmul::new(x, weight, out) });
        }
        let start = Instant::now();
        pass.submit()?;
        Ok(1e-9 * (count * each) as f64 / start.elapsed().as_secs_f64())
    }
}

/// GB/s of reading a slice.
fn reading(words: &[u64], threads: usize, round: usize) -> f64 {
    let slice = (SLICE / 8).min(words.len());
    let words = &words[round % (words.len() / slice) * slice..][..slice];
    let part = slice / threads;
    let seconds = std::thread::scope(|s| {
        let each = |words| {
            let start = Instant::now();
            std::hint::black_box(sum(words));
            start.elapsed().as_secs_f64()
        };
        let all: Vec<_> = words.chunks_exact(part).take(threads).map(|words| s.spawn(move || each(words))).collect();
        all.into_iter().map(|t| t.join().expect("no panic")).fold(0.0, f64::max)
    });
    8e-9 * (part * threads) as f64 / seconds
}

/// The sum of eight streams side by side.
fn sum(words: &[u64]) -> u64 {
    let len = words.len() / 8;
    let streams: [&[u64]; 8] = std::array::from_fn(|i| &words[i * len..(i + 1) * len]);
    // Two words a stream, so that all sums stay in registers of every instruction set.
    let mut sums = [[0u64; 2]; 8];
    for at in (0..len - 15).step_by(16) {
        for (sums, stream) in sums.iter_mut().zip(streams) {
            let line: &[u64; 16] = stream[at..at + 16].try_into().expect("sixteen");
            for i in 0..2 {
                let both = (0..8).fold(0u64, |sum, j| sum.wrapping_add(line[2 * j + i]));
                sums[i] = sums[i].wrapping_add(both);
            }
        }
    }
    sums.iter().flatten().fold(0, |a, &b| a.wrapping_add(b))
}
