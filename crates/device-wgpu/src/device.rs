use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use turbospark_device::{
    Buffer, Device, DeviceError, Limits, Mapping, MemoryKind, Op, OpTime, OpTimes, Precision, Recorded, View,
};

use crate::clock::{Clock, Sums};
use crate::encode::Encoder;
use crate::linear::matrices_work;
use crate::ops;
use crate::plan::Plan;
use crate::trust::{Kept, experimental};
use crate::{Adapter, AdapterKind};

/// How a [`WgpuDevice`] is made.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// Whether inputs of matrix products may be rounded to f16, where the adapter multiplies it.
    pub precision: Precision,
    /// Leave the adapter's matrix units alone, to compare.
    pub no_matrix_units: bool,
    /// Side, 8 or 16, of the squares that plain arithmetic multiplies in place of matrix units, to check kernels that are
    /// written for them on an adapter that has f16 and no such units. Slow.
    pub emulate_matrix_units: Option<u32>,
    /// Folder for compiled kernels, where the API has a place for them; without it they are compiled in every process.
    pub cache: Option<PathBuf>,
}

/// A GPU, or any other adapter of the graphics API.
///
/// ```no_run
/// use turbospark_device::Device;
/// use turbospark_device_wgpu::{Adapter, WgpuDevice, WgpuOptions};
///
/// let gpu = WgpuDevice::new(&Adapter::choose(None)?, WgpuOptions::default())?;
/// println!("{}", gpu.name());
/// # Ok::<(), turbospark_device::DeviceError>(())
/// ```
pub struct WgpuDevice {
    kind: AdapterKind,
    /// Of the adapter's own memory, where the API tells.
    memory_bytes: Option<u64>,
    pub(crate) gpu: Gpu,
    encoder: Mutex<Encoder>,
}

/// The API's device, what it can do, and what went wrong with it.
#[derive(Debug)]
#[allow(dead_code, reason = "read where a kernel has variants")]
pub(crate) struct Gpu {
    pub name: String,
    pub owner: usize,
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub features: wgpu::Features,
    /// Fewest and most lanes of a subgroup; zero without them.
    pub subgroups: (u32, u32),
    pub precision: Precision,
    pub backend: wgpu::Backend,
    /// Side of the squares that matrix units multiply, f16 times f16 into f32, where products may be rounded so.
    pub matrix_side: Option<u32>,
    /// Whether plain arithmetic stands for them.
    pub emulated: bool,
    /// Whether workgroups of a run may read what others of it wrote, once a counter tells that these have ended.
    pub coherent: bool,
    /// Whether attention runs on them too, and then whether its arrays in workgroup memory are of vectors.
    pub matrix_attention: Option<bool>,
    pub read_back: Mutex<Option<wgpu::Buffer>>,
    /// Bytes of all buffers that were allocated and live.
    pub used: Arc<AtomicU64>,
    /// Bytes that were handed over since everything handed over was last waited for.
    pub staged: AtomicU64,
    pub linear: crate::linear::Shared,
    failure: Arc<Mutex<Option<String>>>,
}

/// What memory of direct reads begins at multiples of.
const PAGE: usize = 4096;

/// Numbers the devices of a process, so that each knows its buffers.
static DEVICES: AtomicUsize = AtomicUsize::new(0);

/// What kernels use where an adapter has it.
const WANTED: wgpu::Features = wgpu::Features::SHADER_F16
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::MEMORY_DECORATION_COHERENT)
    .union(wgpu::Features::PIPELINE_CACHE)
    .union(wgpu::Features::TIMESTAMP_QUERY)
    .union(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);

/// Dispatches after which a pass is submitted for the first time, the second and so on, so that the adapter is at work
/// while the rest is recorded: from one to the next there is about as much as it does meanwhile.
const EARLY: [usize; 5] = [6, 24, 48, 48, 48];

/// Multiplications and additions of a submission, about: a tenth of a second of a fast adapter, a few seconds of a slow
/// one, after which some systems take it for hung. A decoded token has far fewer.
const MOST_WORK: f64 = 4e12;

impl WgpuDevice {
    /// Opens an adapter.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when it has no compute, or the driver refuses.
    pub fn new(adapter: &Adapter, options: WgpuOptions) -> Result<Self, DeviceError> {
        let has = adapter.inner.features();
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("turbospark"),
            required_features: (has & WANTED) | wgpu::Features::IMMEDIATES,
            required_limits: adapter.inner.limits(),
            experimental_features: experimental(),
            ..Default::default()
        };
        if !has.contains(wgpu::Features::IMMEDIATES) {
            return Err(DeviceError::Unsupported(format!("{adapter} takes no parameters of kernels")));
        }
        let mut opened = pollster::block_on(adapter.inner.request_device(&descriptor));
        if opened.is_err() {
            // A driver may list what it then refuses.
            let features = descriptor.required_features - wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
            let plain = wgpu::DeviceDescriptor { required_features: features, ..descriptor };
            opened = pollster::block_on(adapter.inner.request_device(&plain));
        }
        let (device, queue) = opened.map_err(|e| DeviceError::Unsupported(format!("{adapter}: {e}")))?;
        Self::with_device(adapter, device, queue, options)
    }

    /// Uses a device and queue that the application already has, of this adapter.
    ///
    /// Kernels use what the device was made with: `Features::IMMEDIATES` with 128 bytes is needed, `SHADER_F16` and
    /// `SUBGROUP` make it faster, and limits should be the adapter's own. Its handlers for lost devices and errors that
    /// nobody caught are replaced.
    ///
    /// # Errors
    /// [`DeviceError::Unsupported`] when something that is needed is missing.
    pub fn with_device(
        adapter: &Adapter,
        device: wgpu::Device,
        queue: wgpu::Queue,
        options: WgpuOptions,
    ) -> Result<Self, DeviceError> {
        let (features, limits) = (device.features(), device.limits());
        if !features.contains(wgpu::Features::IMMEDIATES) || limits.max_immediate_size < 128 {
            return Err(DeviceError::Unsupported(format!(
                "{adapter} was opened without IMMEDIATES of 128 bytes, which hold the parameters of kernels"
            )));
        }
        let failure = Arc::new(Mutex::new(None));
        let note = |failure: &Arc<Mutex<Option<String>>>, text: String| {
            failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        };
        let on_error = Arc::clone(&failure);
        device.on_uncaptured_error(Arc::new(move |error| note(&on_error, error.to_string())));
        let on_lost = Arc::clone(&failure);
        device.set_device_lost_callback(move |reason, message| {
            note(&on_lost, format!("the device was lost ({reason:?}): {message}"));
        });
        let info = adapter.info();
        let has_subgroups = features.contains(wgpu::Features::SUBGROUP);
        let subgroups = if has_subgroups { (info.subgroup_min_size, info.subgroup_max_size) } else { (0, 0) };
        let one_size = subgroups == (32, 32);
        let rounds = options.precision == Precision::Auto && !options.no_matrix_units;
        let room = limits.max_compute_workgroup_storage_size;
        let emulated = options.emulate_matrix_units.filter(|_| features.contains(wgpu::Features::SHADER_F16));
        let matrix_side = match emulated {
            Some(side) if side == 8 || side == 16 => Some(side),
            Some(side) => {
                return Err(DeviceError::Unsupported(format!("squares of {side}: matrix units have 8 or 16")));
            }
            None => adapter
                .matrix_side(features)
                .filter(|side| one_size && rounds && room >= crate::linear::matrix_bytes(*side)),
        };
        let gpu = Gpu {
            name: format!("gpu ({adapter})"),
            owner: DEVICES.fetch_add(1, Ordering::Relaxed),
            device,
            queue,
            limits,
            features,
            subgroups,
            precision: options.precision,
            backend: info.backend,
            matrix_side,
            emulated: emulated.is_some(),
            // A barrier that reaches over the whole device is Vulkan's alone, as shaders are translated.
            coherent: features.contains(wgpu::Features::MEMORY_DECORATION_COHERENT)
                && info.backend == wgpu::Backend::Vulkan,
            // Metal's units read scalars only.
            matrix_attention: matrix_side.map(|_| info.backend != wgpu::Backend::Metal),
            read_back: Mutex::new(None),
            used: Arc::default(),
            staged: AtomicU64::new(0),
            linear: crate::linear::Shared::default(),
            failure,
        };
        let kept = options.cache.and_then(|folder| Kept::open(&gpu.device, info, &folder));
        let mut device = WgpuDevice {
            kind: adapter.kind(),
            memory_bytes: crate::trust::memory_bytes(&adapter.inner),
            gpu,
            encoder: Mutex::new(Encoder::new(kept)),
        };
        // What drivers get wrong, or refuse, is left aside; what stands for the units is for tests, which look themselves.
        if device.gpu.matrix_side.is_some() && emulated.is_none() {
            if !matches!(matrices_work(&device), Ok(true)) {
                (device.gpu.matrix_side, device.gpu.matrix_attention) = (None, None);
            }
            while let Some(vectors) = device.gpu.matrix_attention {
                if matches!(ops::attention_works(&device, &ops::HEADS), Ok(true)) {
                    break;
                }
                device.gpu.matrix_attention = vectors.then_some(false);
            }
        }
        Ok(device)
    }

    /// Name and WGSL of every kernel that was compiled so far: they are compiled when an op first needs them.
    pub fn kernels(&self) -> Vec<(&'static str, String)> {
        self.encoder().pipelines.texts()
    }

    /// Side of the squares that matrix units multiply for this device; `None` where it has none, may not round to f16, or
    /// a trial of them gave wrong numbers.
    pub fn matrix_units(&self) -> Option<u32> {
        self.gpu.matrix_side
    }

    /// How long the adapter was busy with what `run` submits, by its own clock; `None` where it has none.
    ///
    /// # Errors
    /// `run`'s, or when the device is lost.
    pub fn timed(&self, run: impl FnOnce() -> Result<(), DeviceError>) -> Result<Option<Duration>, DeviceError> {
        let mut done = Ok(());
        let sums = self.clocked(Sums::Whole(Duration::ZERO), || done = run())?;
        done.map(|()| sums.and_then(|sums| if let Sums::Whole(sum) = sums { Some(sum) } else { None }))
    }

    /// Has a clock while `run` submits.
    fn clocked(&self, sums: Sums, run: impl FnOnce()) -> Result<Option<Sums>, DeviceError> {
        self.encoder().clock = Clock::new(&self.gpu, sums);
        run();
        let Some(mut clock) = self.encoder().clock.take() else { return Ok(None) };
        clock.read(&self.gpu, &[])?;
        Ok(Some(clock.sums))
    }

    fn encoder(&self) -> MutexGuard<'_, Encoder> {
        self.encoder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn adapter_kind(&self) -> AdapterKind {
        self.kind
    }

    /// The most bytes that a kernel may see of a buffer.
    pub(crate) fn most_bytes(&self) -> u64 {
        self.gpu.limits.max_storage_buffer_binding_size.min(self.gpu.limits.max_buffer_size)
    }

    /// Whether matrix products take f16: where that may be, and the adapter has it.
    pub(crate) fn multiplies_f16(&self) -> bool {
        self.gpu.small_tiles()
    }

    /// Plans the first of `ops`, and those after it that one kernel does with it: how many.
    fn step<'d>(&'d self, plan: &mut Plan<'d>, ops: &[Recorded<'_>]) -> (Result<(), DeviceError>, usize) {
        if let Some((taken, done)) = ops::plan_some(plan, ops) {
            return (done, taken);
        }
        let done = match &ops[0].op {
            Op::Acquire(op) => self.submit(plan).and_then(|()| op.source.acquire(op.unit)),
            // What fills the slot next is queued behind the ops that were submitted.
            Op::Release(op) => self.submit(plan).map(|()| op.source.release(op.unit)),
            Op::Experts(op) => crate::linear::experts(plan, op, &mut |plan| self.submit(plan)),
            op => ops::plan(plan, op),
        };
        (done, 1)
    }

    fn submit(&self, plan: &mut Plan<'_>) -> Result<(), DeviceError> {
        self.encoder().submit(plan)?;
        plan.clear();
        Ok(())
    }
}

impl Gpu {
    /// The first error that no call returned.
    ///
    /// # Errors
    /// It.
    pub fn failed(&self) -> Result<(), DeviceError> {
        // The API tells of a lost device when it is asked how far it is, and takes work until then.
        let _ = self.device.poll(wgpu::PollType::Poll);
        match &*self.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(message) => Err(DeviceError::Failed(format!("{}: {message}", self.name))),
            None => Ok(()),
        }
    }

    /// Whether tiles in workgroup memory are f16: where rounding is allowed, and the adapter has the type.
    pub fn small_tiles(&self) -> bool {
        self.precision == Precision::Auto && self.features.contains(wgpu::Features::SHADER_F16)
    }

    /// Waits for a submission, or for the device to be lost.
    pub fn wait(&self, index: wgpu::SubmissionIndex) -> Result<(), DeviceError> {
        loop {
            let timeout = Some(Duration::from_secs(5));
            let poll = wgpu::PollType::Wait { submission_index: Some(index.clone()), timeout };
            match self.device.poll(poll) {
                Ok(_) => return self.failed(),
                Err(wgpu::PollError::Timeout) => self.failed()?,
                Err(error) => {
                    self.failed()?;
                    return Err(DeviceError::Failed(format!("{}: {error}", self.name)));
                }
            }
        }
    }
}

impl fmt::Debug for WgpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgpuDevice").field("name", &self.gpu.name).field("precision", &self.gpu.precision).finish()
    }
}

impl Device for WgpuDevice {
    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn precision(&self) -> Precision {
        self.gpu.precision
    }

    fn prompt_rows(&self) -> usize {
        if self.kind == AdapterKind::Discrete { 4096 } else { 512 }
    }

    fn memory_kind(&self) -> MemoryKind {
        match self.kind {
            AdapterKind::Discrete => MemoryKind::Own { bytes: self.memory_bytes },
            _ => MemoryKind::Staged,
        }
    }

    fn alloc(&self, label: &str, bytes: usize) -> Result<Buffer, DeviceError> {
        Ok(Buffer::new(bytes, self.gpu.allocate_memory(label, bytes)?))
    }

    fn adopt(&self, _: Mapping) -> Result<Option<Buffer>, DeviceError> {
        Ok(None)
    }

    fn write(&self, to: View<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        let memory = self.gpu.memory(&to)?;
        let (at, _) = self.gpu.range(&to, bytes.len())?;
        self.gpu.put(memory, to.buffer().len(), at, bytes)
    }

    fn read(&self, from: View<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        let memory = self.gpu.memory(&from)?;
        let (at, _) = self.gpu.range(&from, out.len())?;
        self.gpu.get(memory, at, out)
    }

    fn fill(&self, slot: View<'_>, reader: &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> Result<(), DeviceError> {
        let memory = self.gpu.memory(&slot)?;
        let (offset, len) = (slot.offset_bytes(), slot.buffer().len());
        let bytes = slot.len_bytes().ok_or(DeviceError::OutOfBounds { offset, end: usize::MAX, len })?;
        let (at, _) = self.gpu.range(&slot, bytes)?;
        // Direct reads need memory that begins at a page.
        let mut staged = vec![0; bytes + PAGE];
        let start = staged.as_ptr().align_offset(PAGE).min(PAGE);
        let staged = &mut staged[start..start + bytes];
        reader(staged).map_err(DeviceError::Weights)?;
        self.gpu.put(memory, len, at, staged)
    }

    fn run(&self, ops: &[Recorded<'_>]) -> Result<(), DeviceError> {
        let mut plan = Plan::new(&self.gpu);
        let labelled = self.encoder().clock.as_ref().is_some_and(Clock::is_each);
        let (mut pending, mut early) = (0.0, EARLY.iter());
        let mut rest = ops;
        while let Some((r, after)) = rest.split_first() {
            let (done, taken) = self.step(&mut plan, rest);
            rest = &after[taken - 1..];
            plan.end_op();
            if labelled {
                plan.label(&r.op);
            }
            pending += ops::work(&r.op);
            let starts = early.as_slice().first().is_some_and(|&n| plan.dispatches.len() >= n && !labelled);
            let done = if (starts || pending > MOST_WORK) && done.is_ok() {
                (pending, _) = (0.0, early.next());
                self.submit(&mut plan)
            } else {
                done
            };
            done.map_err(|error| match error {
                DeviceError::Op { scope, message, op } if scope.is_empty() => {
                    let op = if op.is_empty() { r.op.name() } else { op };
                    DeviceError::Op { scope: r.scope.to_string(), op, message }
                }
                other => other,
            })?;
        }
        self.submit(&mut plan)
    }

    fn finish(&self) -> Result<(), DeviceError> {
        self.gpu.wait(self.gpu.queue.submit([]))
    }

    fn limits(&self) -> Result<Option<Limits>, DeviceError> {
        crate::limits::measure(self).map(Some)
    }

    fn time_ops(&self, run: &mut dyn FnMut()) -> Result<Option<Vec<OpTime>>, DeviceError> {
        let sums = self.clocked(Sums::Each(OpTimes::default()), run)?;
        Ok(sums.and_then(|sums| if let Sums::Each(each) = sums { Some(each.sums()) } else { None }))
    }
}
