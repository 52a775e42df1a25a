//! What the API takes on trust: kernels whose loops end, compiled kernels from the disk, features that it still calls
//! experimental, and what lies under it in Vulkan.
#![allow(unsafe_code)]

use std::io::Write;
use std::path::{Path, PathBuf};

/// Compiles our own WGSL without a counter in every loop, which would keep the driver from unrolling them. Accesses
/// stay within their buffers whatever a kernel computes: that check is kept.
pub(crate) fn shader_module(device: &wgpu::Device, name: &str, text: String) -> wgpu::ShaderModule {
    let checks = wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
    let descriptor = wgpu::ShaderModuleDescriptor { label: Some(name), source: wgpu::ShaderSource::Wgsl(text.into()) };
    // SAFETY: loops of our kernels count up to a bound that they do not change, or walk a list that ends.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}

/// The API, for adapters that compute and show nothing.
///
/// On Linux a layer of Mesa looks for a window system, and complains of the lack of one on the program's own standard
/// error, as soon as an instance could show windows: this one can't.
#[cfg(all(unix, not(target_vendor = "apple")))]
pub(crate) fn instance() -> wgpu::Instance {
    use wgpu::hal::vulkan::Instance;
    const WINDOWS: [&[u8]; 3] = [b"VK_KHR_wayland_surface", b"VK_KHR_xcb_surface", b"VK_KHR_xlib_surface"];
    let descriptor = wgpu::hal::InstanceDescriptor {
        name: "turbospark",
        flags: wgpu::InstanceFlags::default(),
        memory_budget_thresholds: wgpu::MemoryBudgetThresholds::default(),
        backend_options: wgpu::BackendOptions::default(),
        telemetry: None,
        display: None,
    };
    // SAFETY: the callback takes away extensions that are for making surfaces alone, which the API looks for in the same
    // list before it makes one; nobody has the instance but the adapters found below.
    let made = unsafe {
        Instance::init_with_callback(
            &descriptor,
            Some(Box::new(|with| with.extensions.retain(|name| !WINDOWS.contains(&name.to_bytes())))),
        )
    };
    match made {
        // SAFETY: it was made a line ago, with the API's own descriptor, and is nobody else's.
        Ok(instance) => unsafe { wgpu::Instance::from_hal::<wgpu::hal::api::Vulkan>(instance) },
        // No loader or no driver: an instance that finds nothing.
        Err(_) => wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends: wgpu::Backends::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        }),
    }
}

/// The API, for adapters that compute and show nothing.
#[cfg(not(all(unix, not(target_vendor = "apple"))))]
pub(crate) fn instance() -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: wgpu::Backends::PRIMARY,
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// Bytes of the adapter's own memory, where the API tells.
#[cfg(all(any(unix, windows), not(target_vendor = "apple")))]
pub(crate) fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the adapter is only asked what it has, and outlives the question.
    let adapter = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let (instance, physical) = (adapter.shared_instance().raw_instance(), adapter.raw_physical_device());
    // SAFETY: the physical device is of this instance, and both live as long as `adapter`.
    let memory = unsafe { instance.get_physical_device_memory_properties(physical) };
    // The bit of heaps that are local to the device.
    let local = memory.memory_heaps_as_slice().iter().filter(|heap| heap.flags.as_raw() & 1 == 1);
    local.map(|heap| heap.size).max()
}

/// Bytes of the adapter's own memory, where the API tells.
#[cfg(not(all(any(unix, windows), not(target_vendor = "apple"))))]
pub(crate) fn memory_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Leave to use matrix units.
pub(crate) fn experimental() -> wgpu::ExperimentalFeatures {
    // SAFETY: of what is experimental this crate asks for cooperative matrices alone, in kernels of its own that the API
    // validates; an option leaves them out.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// Compiled kernels that outlive the process, where the API has a place for them.
#[derive(Debug)]
pub(crate) struct Kept {
    pub cache: wgpu::PipelineCache,
    file: PathBuf,
    /// Kernels compiled when it was read or written last.
    compiled: usize,
}

impl Kept {
    /// What an earlier process left in `folder`; `None` where the adapter's API has no such thing.
    pub fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo, folder: &Path) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let file = folder.join(wgpu::util::pipeline_cache_key(info)?);
        let data = std::fs::read(&file).ok();
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data: data.as_deref(), fallback: true };
        // SAFETY: the file is one that `save` wrote to the user's own cache folder, whole, by renaming it; the API
        // checks its own header and the driver's, and begins anew where they do not fit.
        let cache = unsafe { device.create_pipeline_cache(&descriptor) };
        Some(Kept { cache, file, compiled: 0 })
    }

    /// Writes what was compiled, unless nothing was; a cache that can't be written costs time and nothing else.
    pub fn save(&mut self, compiled: usize) {
        if compiled == self.compiled {
            return;
        }
        self.compiled = compiled;
        let Some(data) = self.cache.get_data() else { return };
        if std::fs::metadata(&self.file).is_ok_and(|m| m.len() == data.len() as u64) {
            return;
        }
        let draft = self.file.with_extension(format!("{}.part", std::process::id()));
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(self.file.parent().unwrap_or(Path::new(".")))?;
            std::fs::File::create(&draft)?.write_all(&data)?;
            std::fs::rename(&draft, &self.file)
        };
        if write().is_err() {
            let _ = std::fs::remove_file(&draft);
        }
    }
}
