//! Speeds of linear layers on a graphics adapter, a JSON object a line.
//!
//! `cargo run --release -p turbospark-device-wgpu --example matmul -- [--adapter NAME] [--quick] [--check] [--host]`
//!
//! The first lines tell the adapter and what it reads from memory. `decode` lines tell the bytes of weights that one
//! row (or several) reads a second, `prompt` lines the multiplications and additions, each counted, of the kernels with
//! and without matrix units. Times are the adapter's own where it has a clock, else of the host. Weights go round among
//! copies that no cache holds. `--check` holds every kernel against sums in f64 first. `--host` tells instead what an op
//! costs the host, on an adapter that does nothing.

use std::time::{Duration, Instant};

use turbospark_device::op::{GatedMatmul, Matmul, WeightLayout};
use turbospark_device::{Buffer, Device, DeviceError, Pass, Precision, View};
use turbospark_device_wgpu::{Adapter, WgpuDevice, WgpuOptions};
use turbospark_tensor::{DType, widen_into};

type Done = Result<(), DeviceError>;

/// More than caches hold.
const ROUND: usize = 256 << 20;

/// How long a kernel runs, at least.
const WARM: Duration = Duration::from_millis(200);

struct Bench {
    device: WgpuDevice,
    name: &'static str,
}

fn main() -> Done {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    if has("--host") {
        return host();
    }
    let named = args.iter().position(|a| a == "--adapter").and_then(|i| args.get(i + 1));
    let adapter = match named {
        Some(name) => Adapter::choose(Some(name))?,
        None => Adapter::all().into_iter().next().ok_or_else(|| DeviceError::Unsupported("no adapter".into()))?,
    };
    println!(
        "{{\"adapter\":\"{adapter}\",\"driver\":\"{}\",\"matrices\":{:?}}}",
        adapter.driver(),
        adapter.capabilities().matrices
    );
    let open = |name, precision, no_matrix_units| -> Result<Bench, DeviceError> {
        let options = WgpuOptions { precision, no_matrix_units, ..WgpuOptions::default() };
        Ok(Bench { device: WgpuDevice::new(&adapter, options)?, name })
    };
    let auto = open("auto", Precision::Auto, false)?;
    let plain = open("no matrix units", Precision::Auto, true)?;
    let f32s = open("f32", Precision::F32, false)?;
    if has("--check") {
        for bench in [&auto, &plain, &f32s] {
            bench.check_all()?;
        }
    }
    let quick = has("--quick");
    println!("{{\"matrix_units\":{:?}}}", auto.device.matrix_units().unwrap_or(0));
    if let Some(limits) = auto.device.limits()? {
        println!("{{\"read_gb_s\":{:.1}}}", limits.read_bytes_per_s / 1e9);
    }
    let shapes: &[(usize, usize)] = if quick {
        &[(2048, 2048)]
    } else {
        &[(2048, 2048), (2048, 6144), (6144, 2048), (4096, 4096), (2048, 151_936)]
    };
    for &(k, n) in shapes {
        auto.decode(DType::F16, k, n, 1, false)?;
    }
    let (k, n) = if quick { (1024, 512) } else { (2048, 6144) };
    let formats = [DType::F32, DType::BF16].into_iter().chain(DType::BLOCKS);
    for dtype in formats {
        auto.decode(dtype, k, n, 1, false)?;
    }
    for (dtype, rows) in [DType::F16, DType::Q8_0, DType::Q4_K].iter().flat_map(|&d| [2, 4, 8, 16].map(|r| (d, r))) {
        auto.decode(dtype, k, n, rows, false)?;
    }
    auto.decode(DType::F16, k, n, 1, true)?;
    let (sizes, rows): (&[(usize, usize)], &[usize]) =
        if quick { (&[(256, 256)], &[64]) } else { (&[(2048, 2048), (2048, 6144), (6144, 2048)], &[512, 2048, 4096]) };
    for bench in [&auto, &plain, &f32s] {
        for &(k, n) in sizes {
            for &rows in rows {
                bench.prompt(DType::F16, k, n, rows, false)?;
            }
        }
        let (k, n) = sizes[0];
        for dtype in [DType::BF16, DType::Q8_0, DType::Q4_K] {
            bench.prompt(dtype, k, n, rows[rows.len() / 2], false)?;
        }
        bench.prompt(DType::F16, k, n, rows[rows.len() / 2], true)?;
    }
    Ok(())
}

/// What it costs to plan, record and submit ops, the adapter left aside.
fn host() -> Done {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = wgpu::Backends::NOOP;
    descriptor.backend_options.noop.enable = true;
    let instance = wgpu::Instance::new(descriptor);
    let adapter = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::NOOP)).into_iter().next();
    let adapter = Adapter::new(adapter.ok_or_else(|| DeviceError::Unsupported("no adapter".into()))?);
    let bench = Bench { device: WgpuDevice::new(&adapter, WgpuOptions::default())?, name: "none" };
    let weights: Vec<Buffer> = (0..100).map(|_| bench.device.alloc("weight", 4096)).collect::<Result<_, _>>()?;
    let (x, out) = (bench.device.alloc("x", 4096)?, bench.device.alloc("out", 4096)?);
    let (x, y) = (x.view(0, DType::F32, [1, 32]), out.view(0, DType::F32, [1, 32]));
    let mut least = f64::INFINITY;
    for _ in 0..50 {
        let start = Instant::now();
        let mut pass = Pass::new(bench.dev());
        for w in &weights {
            pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, w.view(0, DType::F16, [32, 32]), y) });
        }
        pass.submit()?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    println!("{{\"host_us_an_op\":{:.2}}}", least * 1e6 / weights.len() as f64);
    Ok(())
}

/// Numbers in [-1, 1), the same every time.
fn random(n: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

/// Weights of a type: floats, or blocks of random codes with small scales.
fn weights(dtype: DType, n: usize) -> Vec<u8> {
    let values = random(n.min(1 << 20));
    let all = values.iter().cycle();
    let values = all.clone().take(n);
    match dtype {
        DType::F32 => values.flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => values.flat_map(|&v| turbospark_tensor::f32_to_f16(v).to_le_bytes()).collect(),
        DType::BF16 => values.flat_map(|&v| turbospark_tensor::f32_to_bf16(v).to_le_bytes()).collect(),
        // Bytes below 0x30 are no large halves, wherever a block has its scale.
        blocks => all.map(|v| (v.abs() * 48.0) as u8).take(blocks.bytes(n).expect("whole blocks")).collect(),
    }
}

impl Bench {
    /// As many copies of a weight as no cache holds.
    fn copies(&self, bytes: &[u8], quick: bool) -> Result<Vec<Buffer>, DeviceError> {
        let round = if quick { 0 } else { ROUND };
        (0..(round / bytes.len()).clamp(1, 64)).map(|_| self.put(bytes)).collect()
    }

    /// Decode rows that share one read of the weight.
    fn decode(&self, dtype: DType, k: usize, n: usize, rows: usize, gated: bool) -> Done {
        let bytes = weights(dtype, n * k);
        let copies = self.copies(&bytes, k * n < 4 << 20)?;
        let repeats = (copies.len() * 2).max(8);
        let x = self.put(bytemuck::cast_slice(&random(rows * k)))?;
        let out = self.device.alloc("out", 4 * rows * n)?;
        let (x, y) = (x.view(0, DType::F32, [rows, k]), out.view(0, DType::F32, [rows, n]));
        let seconds = self.time(
            |pass| {
                for i in 0..repeats {
                    let [a, b] = [i, i + 1].map(|i| copies[i % copies.len()].view(0, dtype, [n, k]));
                    if gated {
                        let layout = WeightLayout::OutIn;
                        pass.gated_matmul(GatedMatmul {
                            x,
                            gate: a.into(),
                            up: b.into(),
                            layout,
                            out: y,
                            prompt_rows: 0,
                        });
                    } else {
                        pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, a, y) });
                    }
                }
                Ok(())
            },
            y,
        )? / repeats as f64;
        let read = bytes.len() as f64 * if gated { 2.0 } else { 1.0 };
        println!(
            "{{\"decode\":\"{dtype}\",\"k\":{k},\"n\":{n},\"rows\":{rows},\"gated\":{gated},\"us\":{:.2},\"gb_s\":{:.1}}}",
            seconds * 1e6,
            read / seconds / 1e9
        );
        Ok(())
    }

    /// Prompt rows.
    fn prompt(&self, dtype: DType, k: usize, n: usize, rows: usize, gated: bool) -> Done {
        let w = self.put(&weights(dtype, n * k))?;
        let x = self.put(bytemuck::cast_slice(&random(rows * k)))?;
        let out = self.device.alloc("out", 4 * rows * n)?;
        let (x, y, w) =
            (x.view(0, DType::F32, [rows, k]), out.view(0, DType::F32, [rows, n]), w.view(0, dtype, [n, k]));
        let repeats = if rows * k * n < 1 << 30 { 1 } else { 8 };
        let seconds = self.time(
            |pass| {
                for _ in 0..repeats {
                    if gated {
                        let layout = WeightLayout::OutIn;
                        pass.gated_matmul(GatedMatmul {
                            x,
                            gate: w.into(),
                            up: w.into(),
                            layout,
                            out: y,
                            prompt_rows: rows,
                        });
                    } else {
                        pass.matmul(Matmul::new(x, w, y));
                    }
                }
                Ok(())
            },
            y,
        )? / repeats as f64;
        let products = 2.0 * (rows * k * n) as f64 * if gated { 2.0 } else { 1.0 };
        println!(
            "{{\"prompt\":\"{dtype}\",\"kernels\":\"{}\",\"k\":{k},\"n\":{n},\"rows\":{rows},\"gated\":{gated},\"us\":{:.1},\"tflop_s\":{:.2}}}",
            self.name,
            seconds * 1e6,
            products / seconds / 1e12
        );
        Ok(())
    }

    /// Holds layers of edge sizes against sums in f64, and tells the largest difference over the size of the sums.
    fn check_all(&self) -> Done {
        for (dtype, k, n) in
            [(DType::F16, 264, 200), (DType::BF16, 77, 131), (DType::Q8_0, 512, 65), (DType::Q4_K, 768, 300)]
        {
            for rows in [1, 5, 70, 200] {
                for (layout, prompt) in
                    [(WeightLayout::OutIn, false), (WeightLayout::OutIn, true), (WeightLayout::InOut, true)]
                {
                    if dtype.is_block() && layout == WeightLayout::InOut {
                        continue;
                    }
                    self.check(dtype, [k, n, rows], layout, prompt)?;
                }
            }
        }
        Ok(())
    }

    fn check(&self, dtype: DType, [k, n, rows]: [usize; 3], layout: WeightLayout, prompt: bool) -> Done {
        let bytes = weights(dtype, n * k);
        let mut w = vec![0f32; n * k];
        widen_into(&bytes, dtype, &mut w);
        let x = random(rows * k);
        let (wb, xb) = (self.put(&bytes)?, self.put(bytemuck::cast_slice(&x))?);
        let outs = [0, 1].map(|_| self.device.alloc("out", 4 * rows * n));
        let [out, gated] = outs;
        let (out, gated) = (out?, gated?);
        let (xv, sides) =
            (xb.view(0, DType::F32, [rows, k]), if layout == WeightLayout::OutIn { [n, k] } else { [k, n] });
        let (wv, prompt_rows) = (wb.view(0, dtype, sides), if prompt { rows } else { 0 });
        let mut pass = Pass::new(self.dev());
        let y = out.view(0, DType::F32, [rows, n]);
        pass.matmul(Matmul { layout, prompt_rows, ..Matmul::new(xv, wv, y) });
        let z = gated.view(0, DType::F32, [rows, n]);
        pass.gated_matmul(GatedMatmul { x: xv, gate: wv.into(), up: wv.into(), layout, out: z, prompt_rows });
        pass.submit()?;
        let (y, z) = (self.dev().read_f32(y)?, self.dev().read_f32(z)?);
        let mut most = [0f64; 2];
        for r in 0..rows {
            for o in 0..n {
                let at = |i: usize| if layout == WeightLayout::OutIn { w[o * k + i] } else { w[i * n + o] };
                let terms = (0..k).map(|i| f64::from(x[r * k + i]) * f64::from(at(i)));
                let (sum, size) = terms.fold((0.0, 0.0), |(s, a), t| (s + t, a + t * t));
                let size = size.sqrt() + 1e-9;
                most[0] = most[0].max((f64::from(y[r * n + o]) - sum).abs() / size);
                let want = sum / (1.0 + (-sum).exp()) * sum;
                most[1] = most[1].max((f64::from(z[r * n + o]) - want).abs() / (size * (1.0 + 2.0 * sum.abs())));
            }
        }
        println!(
            "{{\"check\":\"{dtype}\",\"kernels\":\"{}\",\"k\":{k},\"n\":{n},\"rows\":{rows},\"layout\":\"{layout:?}\",\"prompt\":{prompt},\"error\":{:.2e},\"gated_error\":{:.2e},\"fits\":{}}}",
            self.name,
            most[0],
            most[1],
            most.iter().all(|m| *m < 4e-3)
        );
        Ok(())
    }

    fn dev(&self) -> &dyn Device {
        &self.device
    }

    fn put(&self, bytes: &[u8]) -> Result<Buffer, DeviceError> {
        let buffer = self.device.alloc("bench", bytes.len())?;
        self.device.write(buffer.bytes(), bytes)?;
        Ok(buffer)
    }

    /// Seconds of what `record` puts into a pass, the least of some tries.
    fn time<'a>(&'a self, record: impl Fn(&mut Pass<'a>) -> Done, after: View<'a>) -> Result<f64, DeviceError> {
        let mut least = f64::INFINITY;
        // An adapter that was idle takes a while to come to speed.
        let begun = Instant::now();
        let mut runs = 0;
        while runs < 6 || begun.elapsed() < WARM {
            let start = Instant::now();
            let busy = self.device.timed(|| {
                let mut pass = Pass::new(self.dev());
                record(&mut pass)?;
                pass.submit()
            })?;
            self.device.read(after, &mut [0; 4])?;
            let seconds = busy.map_or(start.elapsed().as_secs_f64(), |b| b.as_secs_f64());
            if runs > 0 {
                least = least.min(seconds);
            }
            runs += 1;
        }
        Ok(least)
    }
}
