//! What this CPU can do: memory read and arithmetic from registers, on the device's own pool.
//!
//! Each rate is the best of several short runs, since noise only ever slows one down. What goes wrong unseen: a
//! roof that is too low makes every kernel look good. Memory that was never written is one page of zeros read
//! from the first cache, and accumulators that start equal are merged by the compiler.

use std::hint::black_box;
use std::time::{Duration, Instant};

use turbospark_device::{DeviceError, Inputs, Limits, Peak};

use crate::isa::{Isa, Kernels};
use crate::ops::Shared;
use crate::owned::Owned;
use crate::pool::Pool;
use crate::simd::{Simd, Task};

/// Row streams that a thread reads at once, as a kernel that multiplies by a row does.
const STREAMS: usize = 8;
/// Bytes of one stream of a part.
const STREAM_BYTES: usize = 1 << 20;
/// Accumulators: more than latency times issue rate of the units here.
const CHAINS: usize = 12;
/// How long a run of arithmetic takes.
const RUN: Duration = Duration::from_millis(40);
/// Runs of each; the best counts.
const RUNS: usize = 3;
/// Parts a thread: a thread that is held up leaves some of its own to the others.
const PARTS: usize = 8;

/// Measures all of them.
pub(crate) fn measure(kernels: Kernels, pool: &Pool) -> Result<Limits, DeviceError> {
    #[allow(unused_mut, reason = "other processors have one unit")]
    let mut peaks = vec![Peak::new(unit(kernels.isa()), Inputs::F32, rate(pool, 1.0, |n| multiply(kernels, n)))];
    #[cfg(target_arch = "x86_64")]
    if [Isa::Avx512, Isa::Avx512Bf16, Isa::Amx].contains(&kernels.isa()) {
        peaks.extend(x86::peaks(pool, kernels.isa()));
    }
    Ok(Limits::new(pool.threads(), read_rate(kernels, pool)?, peaks))
}

fn unit(isa: Isa) -> &'static str {
    match isa {
        Isa::Portable => "portable",
        Isa::Avx2 => "avx2",
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => "avx512",
        Isa::Neon | Isa::NeonBf16 => "neon",
    }
}

/// Operations a second of `run`, which repeats its loop as often as told and returns how many instructions of
/// `ops` operations that was.
fn rate(pool: &Pool, ops: f64, run: impl Fn(u64) -> u64 + Sync) -> f64 {
    let parts = pool.threads() * PARTS;
    let timed = |repeats: u64| {
        let began = Instant::now();
        pool.run(parts, |_| {
            black_box(run(repeats));
        });
        began.elapsed().max(Duration::from_nanos(1))
    };
    let mut repeats = 1000;
    let mut took = timed(repeats);
    while took < RUN / 4 && repeats < 1 << 40 {
        let scale = (RUN.as_secs_f64() / took.as_secs_f64()).clamp(2.0, 100.0);
        repeats = (repeats as f64 * scale) as u64;
        took = timed(repeats);
    }
    let best = (0..RUNS).map(|_| timed(repeats)).chain([took]).min().unwrap_or(took);
    ops * run(1) as f64 * repeats as f64 * parts as f64 / best.as_secs_f64()
}

/// `repeats` rounds of f32 products and sums in every chain; how many operations.
fn multiply(kernels: Kernels, repeats: u64) -> u64 {
    struct Chains<'a>(u64, &'a mut u64);
    impl Task for Chains<'_> {
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            let (a, b) = (s.splat(black_box(1.0001)), s.splat(black_box(0.5)));
            let mut chains = [a; CHAINS];
            for (i, chain) in chains.iter_mut().enumerate() {
                *chain = s.splat(black_box(i as f32));
            }
            for _ in 0..self.0 {
                for chain in &mut chains {
                    *chain = s.fma(a, b, *chain);
                }
            }
            let mut sum = chains[0];
            for chain in &chains[1..] {
                sum = s.add(sum, *chain);
            }
            black_box(s.sum(sum));
            *self.1 = self.0 * (2 * CHAINS * S::LANES) as u64;
        }
    }
    let mut ops = 0;
    kernels.run(Chains(repeats, &mut ops));
    ops
}

/// Bytes a second of reading memory several times as large as the last cache.
fn read_rate(kernels: Kernels, pool: &Pool) -> Result<f64, DeviceError> {
    const PART: usize = STREAMS * STREAM_BYTES;
    let parts = memory_to_read() / PART;
    let bytes = parts * PART;
    let memory = Owned::zeroed(bytes);
    let memory = memory.ok_or_else(|| DeviceError::OutOfMemory { label: "measuring memory".into(), bytes })?;
    let start = Shared(memory.ptr());
    let timed = |write: bool| {
        let began = Instant::now();
        pool.run(parts, |p| {
            let part = start.at(p * PART);
            if write {
                // SAFETY: this part's own bytes of `memory`, which outlives the region.
                unsafe { part.write_bytes(0, PART) };
            } else {
                // SAFETY: as above; nobody writes them now.
                kernels.run(ReadStreams(unsafe { std::slice::from_raw_parts(part.cast(), PART / 4) }));
            }
        });
        began.elapsed().max(Duration::from_nanos(1))
    };
    timed(true); // gives the memory its pages
    let began = Instant::now();
    let mut best = timed(false);
    for _ in 1..20 {
        best = best.min(timed(false));
        if began.elapsed() > 6 * RUN {
            break;
        }
    }
    Ok(bytes as f64 / best.as_secs_f64())
}

struct ReadStreams<'a>(&'a [f32]);

impl Task for ReadStreams<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let row = self.0.len() / STREAMS;
        let mut sums = [s.splat(0.0); STREAMS];
        for i in (0..row).step_by(2 * S::LANES) {
            for (stream, sum) in sums.iter_mut().enumerate() {
                let p = self.0[stream * row + i..][..2 * S::LANES].as_ptr();
                // SAFETY: `2 * LANES` elements from `p` on are in the slice.
                let (a, b) = unsafe { (s.load(p), s.load(p.add(S::LANES))) };
                *sum = s.add(*sum, s.add(a, b));
            }
        }
        let mut sum = sums[0];
        for other in &sums[1..] {
            sum = s.add(sum, *other);
        }
        black_box(s.sum(sum));
    }
}

/// Four times the last cache, between 256 MiB and 1 GiB, and at most a quarter of the memory that is free.
fn memory_to_read() -> usize {
    let free = free_memory().unwrap_or(usize::MAX) / 4;
    (4 * last_cache().unwrap_or(0)).clamp(256 << 20, 1 << 30).min(free).max(STREAMS * STREAM_BYTES)
}

/// Bytes of the largest cache, where the system tells.
fn last_cache() -> Option<usize> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |entry: std::fs::DirEntry| with_unit(std::fs::read_to_string(entry.path().join("size")).ok()?.trim());
    caches.flatten().filter_map(size).max()
}

/// `32768K` in bytes.
fn with_unit(text: &str) -> Option<usize> {
    let (number, shift) = match text.split_at_checked(text.len().checked_sub(1)?)? {
        (number, "K") => (number, 10),
        (number, "M") => (number, 20),
        _ => (text, 0),
    };
    number.parse::<usize>().ok()?.checked_mul(1 << shift)
}

/// Bytes that a process may still take, where the system tells.
fn free_memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// The units of x86 beside the vector unit's f32.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    use turbospark_device::{Inputs, Peak};

    use super::rate;
    use crate::isa::Isa;
    use crate::pool::Pool;
    use crate::simd::amx::{self, CONFIG};

    /// Those that this CPU has and that kernels of `isa` use.
    pub(super) fn peaks(pool: &Pool, isa: Isa) -> Vec<Peak> {
        let mut peaks = Vec::new();
        if isa == Isa::Avx512Bf16 {
            // 32 products and sums an instruction.
            let ops = rate(pool, 64.0, |n| {
                // SAFETY: the CPU has AVX512-BF16.
                unsafe { bf16_products(n) }
            });
            peaks.push(Peak::new("avx512-bf16", Inputs::Bf16, ops));
        }
        if is_x86_feature_detected!("avx512vnni") {
            // 64 products and sums an instruction.
            let ops = rate(pool, 128.0, |n| {
                // SAFETY: the CPU has AVX512-VNNI.
                unsafe { byte_products(n) }
            });
            peaks.push(Peak::new("avx512-vnni", Inputs::Int8, ops));
        }
        if isa == Isa::Amx {
            // Tiles of 16 x 32 and 32 x 16.
            let ops = rate(pool, 2.0 * 16.0 * 16.0 * 32.0, |n| {
                // SAFETY: the CPU has AMX-BF16 and the system granted the tiles.
                unsafe { tile_bf16_products(n) }
            });
            peaks.push(Peak::new("amx", Inputs::Bf16, ops));
        }
        if isa == Isa::Amx && amx::has_int8() {
            // Tiles of 16 x 64 and 64 x 16.
            let ops = rate(pool, 2.0 * 16.0 * 16.0 * 64.0, |n| {
                // SAFETY: the CPU has AMX-INT8 and the system granted the tiles.
                unsafe { tile_byte_products(n) }
            });
            peaks.push(Peak::new("amx", Inputs::Int8, ops));
        }
        peaks
    }

    /// A loop of one instruction on twelve accumulators, `$n` rounds; how many instructions.
    macro_rules! vector_loop {
        ($instruction:literal, $operand:expr, $n:expr) => {{
            let rounds: u64 = $n.max(1);
            let operand: [u32; 16] = [$operand; 16];
            asm!(
                "vmovups zmm12, [{p}]",
                "vmovups zmm13, [{p}]",
                "vpxord zmm0, zmm0, zmm0", "vpxord zmm1, zmm1, zmm1", "vpxord zmm2, zmm2, zmm2",
                "vpxord zmm3, zmm3, zmm3", "vpxord zmm4, zmm4, zmm4", "vpxord zmm5, zmm5, zmm5",
                "vpxord zmm6, zmm6, zmm6", "vpxord zmm7, zmm7, zmm7", "vpxord zmm8, zmm8, zmm8",
                "vpxord zmm9, zmm9, zmm9", "vpxord zmm10, zmm10, zmm10", "vpxord zmm11, zmm11, zmm11",
                "2:",
                concat!($instruction, " zmm0, zmm12, zmm13"), concat!($instruction, " zmm1, zmm12, zmm13"),
                concat!($instruction, " zmm2, zmm12, zmm13"), concat!($instruction, " zmm3, zmm12, zmm13"),
                concat!($instruction, " zmm4, zmm12, zmm13"), concat!($instruction, " zmm5, zmm12, zmm13"),
                concat!($instruction, " zmm6, zmm12, zmm13"), concat!($instruction, " zmm7, zmm12, zmm13"),
                concat!($instruction, " zmm8, zmm12, zmm13"), concat!($instruction, " zmm9, zmm12, zmm13"),
                concat!($instruction, " zmm10, zmm12, zmm13"), concat!($instruction, " zmm11, zmm12, zmm13"),
                "dec {n}",
                "jnz 2b",
                p = in(reg) operand.as_ptr(),
                n = inout(reg) rounds => _,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm12") _, out("zmm13") _,
                options(nostack, readonly),
            );
            12 * rounds
        }};
    }

    /// # Safety
    /// The CPU has AVX512-BF16.
    unsafe fn bf16_products(n: u64) -> u64 {
        // SAFETY: reads `operand` alone; the registers are declared; the caller vouches for the instruction.
        unsafe { vector_loop!("vdpbf16ps", 0x3f00_3f00, n) } // 0.5, 0.5
    }

    /// # Safety
    /// The CPU has AVX512-VNNI.
    unsafe fn byte_products(n: u64) -> u64 {
        // SAFETY: as in `bf16_products`.
        unsafe { vector_loop!("vpdpbusd", 0x0101_0101, n) }
    }

    /// A tile in memory.
    #[repr(C, align(64))]
    struct Tile([u32; 256]);

    /// A loop of one tile product on four accumulators from four tiles, `$n` rounds; how many products.
    ///
    /// The tiles are configured and released inside, so that nothing depends on their state between parts.
    macro_rules! tile_loop {
        ($instruction:literal, $operand:expr, $n:expr) => {{
            let rounds: u64 = $n.max(1);
            let (config, tile) = (&CONFIG, Tile([$operand; 256]));
            asm!(
                "ldtilecfg [{config}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                "tileloadd tmm4, [{tile} + {stride}*1]", "tileloadd tmm5, [{tile} + {stride}*1]",
                "tileloadd tmm6, [{tile} + {stride}*1]", "tileloadd tmm7, [{tile} + {stride}*1]",
                "2:",
                concat!($instruction, " tmm0, tmm4, tmm6"), concat!($instruction, " tmm1, tmm4, tmm7"),
                concat!($instruction, " tmm2, tmm5, tmm6"), concat!($instruction, " tmm3, tmm5, tmm7"),
                "dec {n}",
                "jnz 2b",
                "tilerelease",
                config = in(reg) &raw const *config,
                tile = in(reg) &raw const tile,
                stride = in(reg) 64usize,
                n = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
            4 * rounds
        }};
    }

    /// # Safety
    /// The CPU has AMX-BF16 and the system granted the process its tiles.
    unsafe fn tile_bf16_products(n: u64) -> u64 {
        // SAFETY: reads `config` and `tile` alone; the registers are declared; the caller vouches for the rest.
        unsafe { tile_loop!("tdpbf16ps", 0x3f00_3f00, n) }
    }

    /// # Safety
    /// The CPU has AMX-INT8 and the system granted the process its tiles.
    unsafe fn tile_byte_products(n: u64) -> u64 {
        // SAFETY: as in `tile_bf16_products`.
        unsafe { tile_loop!("tdpbssd", 0x0101_0101, n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_of_every_instruction_set_is_finite_and_above_zero() {
        let pool = Pool::new(2).unwrap();
        for isa in Isa::available() {
            let limits = measure(Kernels::new(isa).unwrap(), &pool).unwrap();
            assert_eq!(limits.threads, 2);
            assert!(limits.read_bytes_per_s.is_finite() && limits.read_bytes_per_s > 0.0, "{limits:?}");
            assert!(limits.peaks.iter().all(|p| p.ops_per_s.is_finite() && p.ops_per_s > 0.0), "{limits:?}");
            assert_eq!(limits.peaks[0].inputs, Inputs::F32);
        }
    }

    #[test]
    fn cache_sizes_are_read_with_their_unit() {
        assert_eq!(
            [with_unit("32768K"), with_unit("8M"), with_unit("512")],
            [Some(32 << 20), Some(8 << 20), Some(512)]
        );
        assert_eq!([with_unit(""), with_unit("K"), with_unit("much")], [None; 3]);
    }
}
