use std::str::FromStr;
use std::sync::Arc;

use turbospark_device::{Device, Precision};
use turbospark_models::{KvFormat, Quant};
use turbospark_weights::gguf::Mmproj;

use crate::memory::ResidencyChoice;
use crate::{Error, Result};

/// Which device runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The best one that this build and machine have.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A graphics adapter: Vulkan, Metal or DX12.
    Gpu,
    /// Plain loops: slow, for checking the others.
    Reference,
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name {
            "auto" => DeviceChoice::Auto,
            "cpu" => DeviceChoice::Cpu,
            "gpu" => DeviceChoice::Gpu,
            "reference" => DeviceChoice::Reference,
            "cuda" => {
                return Err(Error::Options(format!("device {name:?} is not in this build yet; use gpu or cpu")));
            }
            other => return Err(Error::Options(format!("unknown device {other:?}; choose auto, cpu or gpu"))),
        })
    }
}

/// How a model is loaded. The defaults suit a person at a machine.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// What the model is called; `None` takes the name of its folder or file.
    pub name: Option<String>,
    /// Which device runs it.
    pub device: DeviceChoice,
    /// Which graphics adapter, by a part of its name or its number; `None` takes the first that is hardware.
    pub adapter: Option<String>,
    /// Worker threads; `None` takes the physical cores that the process may use.
    pub threads: Option<usize>,
    /// Instruction set of the processor's kernels, such as `avx2`; `None` takes the best that it has.
    pub isa: Option<String>,
    /// How far matmul inputs may be rounded.
    pub precision: Precision,
    /// Quantise the trunk's linear weights while loading; `None` uses them as they are stored. What is quantised
    /// already stays as it is.
    pub quant: Option<Quant>,
    /// Where the vision tower of a GGUF model is looked for.
    pub mmproj: Mmproj,
    /// How messages become a prompt: the name of one of the checkpoint's templates, or the path of a file that ends in
    /// `.jinja`; `None` takes the checkpoint's own, and where tools are given the one called `tool_use` if there is one.
    pub chat_template: Option<String>,
    /// The most memory that the process may use, weights and caches and all; `None` takes what the system and its
    /// groups have free, less a reserve.
    pub memory: Option<u64>,
    /// The most that may be used of a graphics adapter's own memory; `None` takes what it has, less a reserve.
    pub adapter_memory: Option<u64>,
    /// Where weights live.
    pub residency: ResidencyChoice,
    /// Keep the vision tower in memory while it has nothing to do.
    pub keep_vision: bool,
    /// Shrink images that are too large for the memory, rather than refuse them.
    pub fit_images: bool,
    /// How keys and values are kept in the cache.
    pub kv: KvFormat,
    /// Tokens that a sequence may have, images and answer included; `None` takes the checkpoint's, at most
    /// [`LoadOptions::DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Sequences that may be held at once.
    pub sequences: usize,
    /// Fewest pixels of a sized image, in place of the checkpoint's.
    pub min_pixels: Option<usize>,
    /// Most pixels of a sized image, in place of the checkpoint's.
    pub max_pixels: Option<usize>,
    /// Most pixels that an image file may claim before it is decoded.
    pub max_image_pixels: u64,
}

impl LoadOptions {
    /// The context where neither the user nor a smaller checkpoint says otherwise.
    pub const DEFAULT_CONTEXT: usize = 16_384;

    /// The device that these options ask for, without a model: for traces.
    ///
    /// # Errors
    /// What this build or machine lacks.
    pub fn open_device(&self) -> Result<Box<dyn Device>> {
        device(self)
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        LoadOptions {
            name: None,
            device: DeviceChoice::Auto,
            adapter: None,
            threads: None,
            isa: None,
            precision: Precision::Auto,
            quant: None,
            mmproj: Mmproj::Beside,
            chat_template: None,
            memory: None,
            adapter_memory: None,
            residency: ResidencyChoice::Auto,
            keep_vision: false,
            fit_images: false,
            kv: KvFormat::Auto,
            context: None,
            sequences: 4,
            min_pixels: None,
            max_pixels: None,
            max_image_pixels: turbospark_vision::DecodeLimits::default().max_pixels,
        }
    }
}

/// Makes the device that the options ask for; where they leave it open, the processor.
pub(crate) fn device(options: &LoadOptions) -> Result<Box<dyn Device>> {
    let processor = matches!(options.device, DeviceChoice::Auto | DeviceChoice::Cpu);
    if options.isa.is_some() && !processor {
        let chosen = if options.device == DeviceChoice::Gpu { "gpu" } else { "reference" };
        let message = format!("instruction sets are the processor's, and --device {chosen} was asked for");
        return Err(Error::Options(message));
    }
    if options.adapter.is_some() && options.device != DeviceChoice::Gpu {
        return Err(Error::Options("an adapter was named; use --device gpu with it".into()));
    }
    match options.device {
        DeviceChoice::Reference => Ok(Box::new(turbospark_device::ReferenceDevice)),
        DeviceChoice::Gpu => gpu(options),
        DeviceChoice::Auto | DeviceChoice::Cpu => cpu(options),
    }
}

/// The graphics adapter that runs a model where the options leave it open, and there is one that is hardware and has the
/// memory. `weights` are the model's bytes, where they are worth it.
pub(crate) fn automatic(options: &LoadOptions, weights: impl FnOnce() -> Option<u64>) -> Option<Arc<dyn Device>> {
    let open = options.device == DeviceChoice::Auto && options.adapter.is_none();
    if !open || options.isa.is_some() || options.threads.is_some() {
        return None;
    }
    gpu_for(options, weights()?)
}

#[cfg(feature = "device-cpu")]
fn cpu(options: &LoadOptions) -> Result<Box<dyn Device>> {
    use turbospark_device_cpu::{CpuDevice, CpuOptions};
    let isa = isa(options.isa.as_deref())?;
    Ok(Box::new(CpuDevice::new(CpuOptions { threads: options.threads, precision: options.precision, isa })?))
}

#[cfg(not(feature = "device-cpu"))]
fn cpu(_: &LoadOptions) -> Result<Box<dyn Device>> {
    Err(Error::Options("this build has no device cpu; enable the feature device-cpu".into()))
}

/// The first adapter that is hardware, unless these bytes are more than it says that it has.
#[cfg(feature = "device-wgpu")]
fn gpu_for(options: &LoadOptions, bytes: u64) -> Option<Arc<dyn Device>> {
    let adapter = turbospark_device_wgpu::Adapter::choose(None).ok()?;
    // What is quantised on the way takes less than the files: that is tried, and the processor takes over where it fails.
    if let Some(has) = adapter.capabilities().memory_bytes.filter(|has| *has < bytes && options.quant.is_none()) {
        tracing::info!(%adapter, has, bytes, "the adapter's memory is less than the weights; the processor runs them");
        return None;
    }
    on(options, &adapter).ok().map(Arc::from)
}

#[cfg(not(feature = "device-wgpu"))]
fn gpu_for(_: &LoadOptions, _: u64) -> Option<Arc<dyn Device>> {
    None
}

#[cfg(feature = "device-wgpu")]
fn gpu(options: &LoadOptions) -> Result<Box<dyn Device>> {
    on(options, &turbospark_device_wgpu::Adapter::choose(options.adapter.as_deref())?)
}

#[cfg(feature = "device-wgpu")]
fn on(options: &LoadOptions, adapter: &turbospark_device_wgpu::Adapter) -> Result<Box<dyn Device>> {
    use turbospark_device_wgpu::{WgpuDevice, WgpuOptions};
    let cache = crate::bench::cache_folder().ok().map(|folder| folder.with_file_name("kernels"));
    Ok(Box::new(WgpuDevice::new(
        adapter,
        WgpuOptions { precision: options.precision, cache, ..WgpuOptions::default() },
    )?))
}

#[cfg(not(feature = "device-wgpu"))]
fn gpu(_: &LoadOptions) -> Result<Box<dyn Device>> {
    Err(Error::Options("this build has no device gpu; enable the feature device-wgpu".into()))
}

/// The instruction set of this name, which the processor must have.
#[cfg(feature = "device-cpu")]
fn isa(name: Option<&str>) -> Result<Option<turbospark_device_cpu::Isa>> {
    use turbospark_device_cpu::Isa;
    let Some(name) = name else { return Ok(None) };
    let has = Isa::available();
    let found = has.iter().find(|isa| isa.to_string() == name);
    found.copied().map(Some).ok_or_else(|| {
        let has: Vec<String> = has.iter().map(Isa::to_string).collect();
        Error::Options(format!("this processor has no instruction set {name:?}; it has {}", has.join(", ")))
    })
}
