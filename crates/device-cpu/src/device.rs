use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use turbospark_device::{Buffer, Device, DeviceError, Limits, Mapping, OpTime, OpTimes, Precision, Recorded, View};

use crate::isa::{Isa, Kernels};
use crate::limits;
use crate::memory::{self, Memory};
use crate::ops::{self, Engine};
use crate::pool::{Pool, default_threads};
use crate::scratch::Scratch;

/// How a [`CpuDevice`] is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuOptions {
    /// Threads that compute; by default one a physical core, within the CPUs and the quota granted.
    pub threads: Option<usize>,
    /// Whether inputs of matrix products may be rounded to what the CPU multiplies fastest.
    pub precision: Precision,
    /// The instruction set; by default the best that the CPU has.
    pub isa: Option<Isa>,
}

/// The CPU: buffers in ordinary memory, mappings used in place, ops on a pool of threads.
///
/// It runs one pass at a time; [`run`](Device::run) waits for its turn. A buffer being filled is locked, and ops
/// that use it wait; ops on other buffers go on.
///
/// ```
/// use turbospark_device::{Device, Pass, op::Matmul};
/// use turbospark_device_cpu::{CpuDevice, CpuOptions};
/// use turbospark_tensor::DType;
///
/// let cpu = CpuDevice::new(CpuOptions::default())?;
/// let device: &dyn Device = &cpu;
/// let memory = device.alloc("example", 1024)?;
/// let x = memory.view(0, DType::F32, [1, 2]);
/// let w = memory.view(256, DType::F32, [1, 2]);
/// let out = memory.view(512, DType::F32, [1, 1]);
/// device.write_f32(x, &[2.0, 3.0])?;
/// device.write_f32(w, &[5.0, 7.0])?;
/// let mut pass = Pass::new(device);
/// pass.matmul(Matmul::new(x, w, out));
/// pass.submit()?;
/// assert_eq!(device.read_f32(out)?, [31.0]);
/// # Ok::<(), turbospark_device::DeviceError>(())
/// ```
pub struct CpuDevice {
    name: String,
    owner: usize,
    precision: Precision,
    engine: Mutex<Engine>,
}

/// Numbers the devices of a process, so that each knows its buffers.
static DEVICES: AtomicUsize = AtomicUsize::new(0);

impl CpuDevice {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when the CPU lacks the instruction set asked for, no thread is asked for,
    /// or the threads can't be started.
    pub fn new(options: CpuOptions) -> Result<Self, DeviceError> {
        let kernels = match options.isa {
            Some(isa) => Kernels::new(isa).ok_or_else(|| {
                let has: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
                DeviceError::Unsupported(format!("this CPU has no {isa}; it has {}", has.join(", ")))
            })?,
            None => Kernels::new(Isa::best()).expect("available"),
        };
        Self::with_kernels(kernels, options)
    }

    fn with_kernels(kernels: Kernels, options: CpuOptions) -> Result<Self, DeviceError> {
        let threads = options.threads.unwrap_or_else(default_threads);
        if !(1..=1024).contains(&threads) {
            return Err(DeviceError::Unsupported(format!("{threads} threads were asked for; choose 1 to 1024")));
        }
        let pool = Pool::new(threads)
            .map_err(|e| DeviceError::Unsupported(format!("{threads} threads could not be started: {e}")))?;
        let plural = if threads == 1 { "" } else { "s" };
        let name = format!("cpu ({}, {threads} thread{plural})", kernels.isa());
        let owner = DEVICES.fetch_add(1, Ordering::Relaxed);
        let engine = Engine {
            kernels,
            exact: options.precision == Precision::F32,
            pool,
            packed: Scratch::new(),
            kept: None,
            keeps: false,
            partial: Scratch::new(),
            ordered: Scratch::new(),
            times: None,
            owner,
            name: name.as_str().into(),
        };
        Ok(CpuDevice { name, owner, precision: options.precision, engine: Mutex::new(engine) })
    }

    /// The instruction set of its kernels.
    pub fn isa(&self) -> Isa {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).kernels.isa()
    }

    fn memory<'a>(&self, view: &View<'a>) -> Result<&'a Memory, DeviceError> {
        memory::memory(view, self.owner, &self.name)
    }
}

impl fmt::Debug for CpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuDevice").field("name", &self.name).field("precision", &self.precision).finish()
    }
}

impl Device for CpuDevice {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn precision(&self) -> Precision {
        self.precision
    }

    fn takes_order(&self) -> bool {
        true
    }

    fn alloc(&self, label: &str, bytes: usize) -> Result<Buffer, DeviceError> {
        let memory = Memory::zeroed(self.owner, bytes);
        memory.map(|m| Buffer::new(bytes, m)).ok_or_else(|| DeviceError::OutOfMemory { label: label.into(), bytes })
    }

    fn alloc_slots(&self, label: &str, count: usize, bytes: usize) -> Result<Vec<Buffer>, DeviceError> {
        let all = Memory::side_by_side(self.owner, count, bytes);
        let all =
            all.ok_or_else(|| DeviceError::OutOfMemory { label: label.into(), bytes: bytes.saturating_mul(count) })?;
        Ok(all.into_iter().map(|memory| Buffer::new(bytes, memory)).collect())
    }

    fn gives_back(&self) -> bool {
        cfg!(target_os = "linux")
    }

    fn discard(&self, buffer: &Buffer) {
        if let Some(memory) = buffer.storage::<Memory>().filter(|memory| memory.is_of(self.owner)) {
            memory.discard();
        }
    }

    fn adopt(&self, mapping: Mapping) -> Result<Option<Buffer>, DeviceError> {
        let memory = Memory::adopted(self.owner, mapping);
        Ok(Some(Buffer::new(memory.len(), memory)))
    }

    fn write(&self, to: View<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        memory::with_bytes_mut(&to, self.memory(&to)?, bytes.len(), |m| m.copy_from_slice(bytes))
    }

    fn read(&self, from: View<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        memory::with_bytes(&from, self.memory(&from)?, out.len(), |m| out.copy_from_slice(m))
    }

    fn fill(&self, slot: View<'_>, reader: &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> Result<(), DeviceError> {
        let (offset, len) = (slot.offset_bytes(), slot.buffer().len());
        let len = slot.len_bytes().ok_or(DeviceError::OutOfBounds { offset, end: usize::MAX, len })?;
        memory::with_bytes_mut(&slot, self.memory(&slot)?, len, reader)?.map_err(DeviceError::Weights)
    }

    fn run(&self, ops: &[Recorded<'_>]) -> Result<(), DeviceError> {
        // A panic in a kernel leaves numbers half computed, and nothing else.
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        // The host may have written since.
        engine.kept = None;
        ops.iter().try_for_each(|r| {
            let began = engine.times.is_some().then(Instant::now);
            let done = ops::run(&mut engine, &r.op);
            if let (Some(times), Some(began)) = (&mut engine.times, began) {
                times.add(r.op.label(), began.elapsed());
            }
            match done {
                Err(DeviceError::Op { scope, message, op }) if scope.is_empty() => {
                    let op = if op.is_empty() { r.op.name() } else { op };
                    Err(DeviceError::Op { scope: r.scope.to_string(), op, message })
                }
                other => other,
            }
        })
    }

    fn limits(&self) -> Result<Option<Limits>, DeviceError> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        limits::measure(engine.kernels, &engine.pool).map(Some)
    }

    fn time_ops(&self, run: &mut dyn FnMut()) -> Result<Option<Vec<OpTime>>, DeviceError> {
        let engine = || self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine().times = Some(OpTimes::default());
        run();
        Ok(engine().times.take().map(OpTimes::sums))
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    //! The AMX unit on CPUs without it: its packing, blocking and edges, with the tile registers in plain loops.

    use turbospark_device::op::{Attention, Matmul, PagedAttention};
    use turbospark_device::{Pass, ReferenceDevice, Span};
    use turbospark_tensor::{DType, f32_to_bf16};

    use super::*;
    use crate::simd::amx::Amx;

    fn numbers(n: usize, seed: usize) -> Vec<f32> {
        let number = |i: usize| ((i + seed) * 7919 % 2011) as f32 / 1005.5 - 1.0;
        (0..n).map(|i| f32::from_bits((f32_to_bf16(number(i)) as u32) << 16)).collect()
    }

    fn floats(d: &dyn Device, values: &[f32]) -> Buffer {
        let buffer = d.alloc("test", 4 * values.len()).unwrap();
        d.write_f32(buffer.view(0, DType::F32, [values.len()]), values).unwrap();
        buffer
    }

    fn agree(tolerance: f32, f: impl Fn(&dyn Device) -> Vec<f32>) {
        let Some(unit) = Amx::software() else {
            eprintln!("skipped: this CPU has no AVX512-BF16");
            return;
        };
        let options = CpuOptions { threads: Some(2), ..CpuOptions::default() };
        let device = CpuDevice::with_kernels(Kernels::SoftwareAmx(unit), options).unwrap();
        for (i, (got, want)) in f(&device).into_iter().zip(f(&ReferenceDevice)).enumerate() {
            assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "[{i}]: {got}, expected {want}");
        }
    }

    #[test]
    fn matrices_of_all_edges_agree() {
        for (m, k, n) in [(1, 1, 1), (16, 32, 32), (17, 33, 31), (33, 515, 65), (70, 1100, 34), (40, 95, 200)] {
            agree(1e-4, |d| {
                let (x, w) = (floats(d, &numbers(m * k, 1)), floats(d, &numbers(n * k, 5)));
                let out = floats(d, &vec![0.0; m * n]);
                let view = out.view(0, DType::F32, [m, n]);
                let mut pass = Pass::new(d);
                pass.matmul(Matmul::new(x.view(0, DType::F32, [m, k]), w.view(0, DType::F32, [n, k]), view));
                pass.submit().unwrap();
                d.read_f32(view).unwrap()
            });
        }
    }

    #[test]
    fn inputs_that_layers_share_are_packed_again_once_they_change() {
        // Whole numbers, which bf16 holds through both layers.
        agree(1e-4, |d| {
            let (m, k) = (40, 64);
            let whole = |seed| numbers(k * k, seed).iter().map(|v| v.round()).collect::<Vec<_>>();
            let buffers = [1, 2, 3, 4, 5, 6].map(|seed| floats(d, &whole(seed)));
            let [x, a, b, c] = [0, 1, 2, 3].map(|i| buffers[i].view(0, DType::F32, [m, k]));
            let [w, v] = [4, 5].map(|i| buffers[i].view(0, DType::F32, [k, k]));
            let mut pass = Pass::new(d);
            for (from, weight, to) in [(x, w, a), (x, v, b), (a, v, x), (x, w, c)] {
                pass.matmul(Matmul::new(from, weight, to));
            }
            pass.submit().unwrap();
            [b, c].map(|view| d.read_f32(view).unwrap()).concat()
        });
    }

    #[test]
    fn attention_of_all_edges_agrees() {
        for (a, b, n) in [(1, 0, 1), (64, 64, 64), (33, 100, 72), (130, 17, 20)] {
            agree(4e-3, |d| {
                let (rows, heads) = (a + b, 2);
                let qkv = floats(d, &numbers(3 * rows * heads * n, 3));
                let out = floats(d, &vec![0.0; rows * heads * n]);
                let view = out.view(0, DType::F32, [rows, heads, n]);
                let fused = qkv.view(0, DType::F32, [rows, 3 * heads * n]);
                let part = |i: usize| fused.narrow(1, i * heads * n..(i + 1) * heads * n).split_last(n);
                let cu_seqlens = [0, a, rows];
                let mut pass = Pass::new(d);
                let (q, k, v) = (part(0), part(1), part(2));
                pass.attention(Attention { q, k, v, cu_seqlens: &cu_seqlens, scale: 0.3, out: view });
                pass.submit().unwrap();
                d.read_f32(view).unwrap()
            });
        }
    }

    /// Scores too large for whole numbers, so that one key takes all: weights meet their own keys' values there too.
    #[test]
    fn attention_of_huge_scores_agrees() {
        agree(1e-3, |d| {
            let (rows, n) = (60, 64);
            // Query i meets key 7 i + 3 alone.
            let one = |at: usize| (0..n).map(move |j| if j == at { 3e4 } else { 0.0 });
            let q = floats(d, &(0..rows).flat_map(|i| one((7 * i + 3) % rows)).collect::<Vec<_>>());
            let k = floats(d, &(0..rows).flat_map(one).collect::<Vec<_>>());
            let (v, out) = (floats(d, &numbers(rows * n, 9)), floats(d, &vec![0.0; rows * n]));
            let [q, k, v, out] = [&q, &k, &v, &out].map(|b| b.view(0, DType::F32, [rows, 1, n]));
            let cu_seqlens = [0, rows];
            let mut pass = Pass::new(d);
            pass.attention(Attention { q, k, v, cu_seqlens: &cu_seqlens, scale: 1.0, out });
            pass.submit().unwrap();
            d.read_f32(out).unwrap()
        });
    }

    #[test]
    fn cached_attention_of_all_edges_agrees() {
        for (start, rows, n) in [(0, 1, 16), (0, 70, 128), (63, 34, 40), (130, 20, 64)] {
            agree(4e-3, |d| {
                let (heads, kv_heads, pages) = (4, 2, usize::div_ceil(start + rows, 64));
                let q = floats(d, &numbers(rows * heads * n, 2));
                let [k, v] = [7, 8].map(|seed| floats(d, &numbers(pages * 64 * kv_heads * n, seed)));
                let table = d.alloc("test", 4 * pages).unwrap();
                d.write_i32(table.view(0, DType::I32, [pages]), &(0..pages as i32).collect::<Vec<_>>()).unwrap();
                let out = floats(d, &vec![0.0; rows * heads * n]);
                let view = out.view(0, DType::F32, [rows, heads, n]);
                let spans =
                    [Span { first_row: 0, rows, start, decode: false, table: 0, state: 0, snapshots: Vec::new() }];
                let mut pass = Pass::new(d);
                pass.paged_attention(PagedAttention {
                    q: q.view(0, DType::F32, [rows, heads, n]),
                    k_cache: k.view(0, DType::F32, [pages * 64, kv_heads, n]),
                    v_cache: v.view(0, DType::F32, [pages * 64, kv_heads, n]),
                    pages: table.view(0, DType::I32, [1, pages]),
                    page_len: 64,
                    spans: &spans,
                    scale: 0.3,
                    out: view,
                });
                pass.submit().unwrap();
                d.read_f32(view).unwrap()
            });
        }
    }
}
