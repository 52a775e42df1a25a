//! Measures the row kernels against memory: `cargo run --release --example decode [threads] [isa] [MiB] [part of a name]`.
//!
//! By default weights are larger than any cache. Reading is measured in the same process, a few milliseconds at a time
//! in turn with the kernels, by summing eight streams a thread. Two shares are given: of medians, and of the best
//! tenth of each, which other work on the machine disturbs less. With 1 MiB the kernels run from the caches.

use std::time::Instant;

use turbospark_device::op::{LinearWeight, Matmul, ScaledWeight, WeightLayout};
use turbospark_device::{Buffer, Device, DeviceError, Pass};
use turbospark_device_cpu::{CpuDevice, CpuOptions};
use turbospark_tensor::{Code, DType, ScaledForm};

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
    for (name, form) in forms() {
        let n = if total < 64 << 20 { 256 } else { 6144 };
        let mut case = Case { d: &cpu, weights: &buffer, form, k: 2048, n, next: 0 };
        let mut read = Vec::new();
        let mut took = [const { Vec::new() }; 4];
        for round in 0..80 {
            read.push(reading(&words, threads, round));
            for (took, rows) in took.iter_mut().zip(ROWS) {
                took.push(case.slice(rows)?);
            }
        }
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

/// How weights are stored.
#[derive(Clone, Copy)]
enum Form {
    Plain(DType, WeightLayout),
    /// Codes, the type of their scales, and whether there are biases.
    Scaled(ScaledForm, DType, bool),
}

/// The forms by their names; those that contain a word given as the last argument.
fn forms() -> Vec<(String, Form)> {
    use Code::{E2M1, E4M3, Signed8, Unsigned};
    let plain = [DType::BF16].into_iter().chain(DType::BLOCKS);
    let mut all: Vec<_> = plain.map(|t| (t.to_string(), Form::Plain(t, WeightLayout::OutIn))).collect();
    all.push(("BF16 [in, out]".into(), Form::Plain(DType::BF16, WeightLayout::InOut)));
    for (name, code, group, rows, scales, biases) in [
        ("affine 4, 32", Unsigned(4), 32, 1, DType::BF16, true),
        ("affine 4, 64", Unsigned(4), 64, 1, DType::BF16, true),
        ("affine 4, 128", Unsigned(4), 128, 1, DType::F16, true),
        ("affine 8, 64", Unsigned(8), 64, 1, DType::BF16, true),
        ("affine 6, 64", Unsigned(6), 64, 1, DType::BF16, true),
        ("affine 3, 64", Unsigned(3), 64, 1, DType::BF16, true),
        ("affine 2, 64", Unsigned(2), 64, 1, DType::BF16, true),
        ("affine 5, 64", Unsigned(5), 64, 1, DType::BF16, true),
        ("gptq 4, 128", Unsigned(4), 128, 1, DType::F32, true),
        ("int8 channels", Signed8, 2048, 1, DType::BF16, false),
        ("mxfp4, apart", E2M1, 32, 1, DType::F8_E8M0, false),
        ("nvfp4", E2M1, 16, 1, DType::F8_E4M3, false),
        ("fp8, 128 x 128", E4M3, 128, 128, DType::F32, false),
        ("mxfp8", E4M3, 32, 1, DType::F8_E8M0, false),
    ] {
        let form = ScaledForm::new(code, group, rows).expect("a form that there is");
        all.push((name.into(), Form::Scaled(form, scales, biases)));
    }
    let word = std::env::args().nth(4).unwrap_or_default();
    all.retain(|(name, _)| name.contains(&word));
    all
}

/// The sample that a share of all lie below.
fn at(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() as f64 * share) as usize]
}

/// Bytes that no format reads as infinite or NaN, and no scale as a power of two below all normal numbers: subnormals
/// take their time.
fn weights(d: &dyn Device, total: usize) -> Result<Buffer, DeviceError> {
    let buffer = d.alloc("weights", total)?;
    let bytes: Vec<u8> = (0..total).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8 & 0x3b | 0x40).collect();
    d.write(buffer.bytes(), &bytes)?;
    Ok(buffer)
}

/// A layer whose weights are passed over in turn.
struct Case<'a> {
    d: &'a dyn Device,
    weights: &'a Buffer,
    form: Form,
    k: usize,
    n: usize,
    next: usize,
}

impl<'a> Case<'a> {
    /// Bytes of a weight: codes, scales and biases.
    fn parts(&self) -> [usize; 3] {
        match self.form {
            Form::Plain(dtype, _) => [dtype.bytes(self.n * self.k).expect("whole blocks"), 0, 0],
            Form::Scaled(form, scales, biases) => {
                let grid = form.grid(self.n, self.k).iter().product::<usize>() * scales.size();
                [self.n * form.bytes(self.k), grid, if biases { grid } else { 0 }]
            }
        }
    }

    /// The weight that begins so many bytes into the buffer.
    fn weight(&self, at: usize) -> (LinearWeight<'a>, WeightLayout) {
        let (n, k) = (self.n, self.k);
        match self.form {
            Form::Plain(dtype, layout) => {
                let sides = if layout == WeightLayout::OutIn { [n, k] } else { [k, n] };
                (self.weights.view(at, dtype, sides).into(), layout)
            }
            Form::Scaled(form, dtype, biases) => {
                let [codes, scales, _] = self.parts();
                let grid = form.grid(n, k);
                let weight = ScaledWeight {
                    codes: self.weights.view(at, DType::U8, [n, form.bytes(k)]),
                    scales: self.weights.view(at + codes, dtype, grid),
                    biases: biases.then(|| self.weights.view(at + codes + scales, dtype, grid)),
                    order: None,
                    form,
                };
                (weight.into(), WeightLayout::OutIn)
            }
        }
    }

    /// GB/s over the next slice.
    fn slice(&mut self, rows: usize) -> Result<f64, DeviceError> {
        let (d, k, n) = (self.d, self.k, self.n);
        let (x, out) = (d.alloc("x", 4 * rows * k)?, d.alloc("out", 4 * rows * n)?);
        let values: Vec<f32> = (0..rows * k).map(|i| (i * 7919 % 1009) as f32 / 1009.0 - 0.5).collect();
        let x = x.view(0, DType::F32, [rows, k]);
        d.write_f32(x, &values)?;
        let each: usize = self.parts().iter().sum();
        let (count, all) = (SLICE.div_ceil(each), self.weights.len() / each);
        let mut pass = Pass::new(d);
        for _ in 0..count {
            let (weight, layout) = self.weight(self.next % all * each);
            self.next += 1;
            let out = out.view(0, DType::F32, [rows, n]);
            pass.matmul(Matmul { layout, prompt_rows: 0, ..Matmul::new(x, weight, out) });
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
