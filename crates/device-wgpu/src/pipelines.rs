//! Kernels, compiled once.

use std::collections::HashMap;
use std::sync::Arc;

use turbospark_device::DeviceError;

use crate::kernel::{Form, Key, Source, compose};
use crate::trust::{Kept, shader_module};

/// Bytes of a kernel's parameters; every API allows as many.
pub(crate) const IMMEDIATE_BYTES: u32 = 128;

/// A compiled kernel and how its buffers are bound.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub pipeline: wgpu::ComputePipeline,
    pub layout: wgpu::BindGroupLayout,
}

/// Compiled kernels by what they depend on.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    compiled: HashMap<Key, (&'static Source, Arc<Pipeline>)>,
    layouts: HashMap<Vec<bool>, wgpu::BindGroupLayout>,
    kept: Option<Kept>,
}

impl Pipelines {
    /// With what earlier processes compiled.
    pub fn kept(kept: Option<Kept>) -> Self {
        let mut pipelines = Pipelines::default();
        pipelines.kept = kept;
        pipelines
    }

    /// Name and whole text of every kernel that was compiled.
    pub fn texts(&self) -> Vec<(&'static str, String)> {
        self.compiled.iter().map(|(key, (source, _))| (key.name, compose(source, key))).collect()
    }

    /// The kernel of `key`, compiled on first use.
    ///
    /// # Errors
    /// When the driver refuses it.
    pub fn get(
        &mut self,
        device: &wgpu::Device,
        source: &'static Source,
        key: &Key,
    ) -> Result<Arc<Pipeline>, DeviceError> {
        if let Some((_, known)) = self.compiled.get(key) {
            return Ok(Arc::clone(known));
        }
        let written: Vec<bool> = key.bindings.iter().map(|&(_, form, w)| w || form == Form::Atomic).collect();
        let layout = self.layouts.entry(written.clone()).or_insert_with(|| bind_group_layout(device, &written)).clone();
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let module = shader_module(device, key.name, compose(source, key));
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: IMMEDIATE_BYTES,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(key.name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            // Kernels write what they read of workgroup memory.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.kept.as_ref().map(|k| &k.cache),
        });
        if let Some(error) = pollster::block_on(scope.pop()) {
            return Err(DeviceError::Failed(format!("kernel {} was refused: {error}", key.name)));
        }
        let compiled = Arc::new(Pipeline { pipeline, layout });
        self.compiled.insert(key.clone(), (source, Arc::clone(&compiled)));
        Ok(compiled)
    }
}

impl Drop for Pipelines {
    fn drop(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.save(self.compiled.len());
        }
    }
}

fn bind_group_layout(device: &wgpu::Device, written: &[bool]) -> wgpu::BindGroupLayout {
    let entry = |(i, &written): (usize, &bool)| wgpu::BindGroupLayoutEntry {
        binding: i as u32,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer {
            ty: wgpu::BufferBindingType::Storage { read_only: !written },
            has_dynamic_offset: false,
            min_binding_size: None,
        },
        count: None,
    };
    let entries: Vec<_> = written.iter().enumerate().map(entry).collect();
    device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries })
}
