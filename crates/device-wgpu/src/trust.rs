//! What the API takes on trust: kernels whose loops end, compiled kernels from the disk, and features that it still calls
//! experimental.
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
