//! What the linear kernels of a device share.

use std::sync::atomic::AtomicUsize;
use std::sync::{Mutex, OnceLock, PoisonError};

use turbospark_device::DeviceError;

use super::format::grids;
use crate::device::Gpu;
use crate::memory::next_id;
use crate::plan::{Place, Window, refused};

/// Made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    grids: OnceLock<(u64, wgpu::Buffer)>,
    counters: OnceLock<(u64, wgpu::Buffer)>,
    hard_half: OnceLock<bool>,
    space: Mutex<Option<Space>>,
    /// One and the number of the choice among tiles that is taken whatever a layer's size, to check each; 0 for none.
    pub tiles: AtomicUsize,
}

/// A buffer for work that takes several submissions.
#[derive(Debug)]
pub(crate) struct Space {
    id: u64,
    buffer: wgpu::Buffer,
    parts: Vec<(u64, u64)>,
}

impl Space {
    /// One of the parts that were asked for.
    pub fn part(&self, i: usize) -> Window {
        let (offset, size) = self.parts[i];
        Window { place: Place::Buffer(self.id, self.buffer.clone()), offset, size }
    }
}

/// Counters of workgroups that have ended.
pub(crate) const COUNTERS: usize = 1 << 14;

impl Shared {
    /// Counters by which the workgroup is known that ends last: zeros, and zeros again after each run.
    pub fn counters(&self, gpu: &Gpu) -> Result<Window, DeviceError> {
        let (id, buffer) = match self.counters.get() {
            Some(known) => known,
            // The API hands buffers out with zeros in them.
            None => {
                let buffer = gpu.allocate("counters", 4 * COUNTERS)?;
                self.counters.get_or_init(|| (next_id(), buffer))
            }
        };
        Ok(Window { place: Place::Buffer(*id, buffer.clone()), offset: 0, size: buffer.size() })
    }

    /// The grids that some formats look values up in.
    pub fn grids(&self, gpu: &Gpu) -> Result<Window, DeviceError> {
        let (id, buffer) = match self.grids.get() {
            Some(known) => known,
            None => {
                let bytes = grids();
                let buffer = gpu.allocate("grids of formats", bytes.len())?;
                gpu.queue.write_buffer(&buffer, 0, &bytes);
                self.grids.get_or_init(|| (next_id(), buffer))
            }
        };
        Ok(Window { place: Place::Buffer(*id, buffer.clone()), offset: 0, size: buffer.size() })
    }

    /// A buffer of these parts that nobody else uses until it is given back.
    pub fn take_space(&self, gpu: &Gpu, parts: &[u64]) -> Result<Space, DeviceError> {
        let mut end = 0;
        let parts: Vec<(u64, u64)> = parts
            .iter()
            .map(|&bytes| {
                let size = bytes.max(16).next_multiple_of(256);
                end += size;
                (end - size, size)
            })
            .collect();
        let most = gpu.limits.max_storage_buffer_binding_size;
        if let Some((_, size)) = parts.iter().find(|p| p.1 > most) {
            return Err(refused(format!("{size} bytes of work space, a binding has at most {most}")));
        }
        let kept = self.space.lock().unwrap_or_else(PoisonError::into_inner).take();
        match kept {
            Some(kept) if kept.buffer.size() >= end => Ok(Space { parts, ..kept }),
            kept => {
                if let Some(small) = kept {
                    small.buffer.destroy();
                }
                let buffer = gpu.allocate("work space of experts", end as usize)?;
                Ok(Space { id: next_id(), buffer, parts })
            }
        }
    }

    /// Keeps a buffer for the next who asks. What was submitted with it comes before what will be.
    pub fn give_space(&self, space: Space) {
        *self.space.lock().unwrap_or_else(PoisonError::into_inner) = Some(space);
    }

    /// Whether the adapter widens f16 exactly, subnormals too, which the API leaves to it. Asked once, by trying.
    pub fn hard_half(&self, gpu: &Gpu) -> bool {
        *self.hard_half.get_or_init(|| {
            if gpu.backend == wgpu::Backend::Noop {
                return false;
            }
            // An adapter that has none of it refuses the trial.
            let scope = gpu.device.push_error_scope(wgpu::ErrorFilter::Validation);
            let widens = widens(gpu);
            pollster::block_on(scope.pop()).is_none() && widens == Some(true)
        })
    }
}

const TRIAL: &str = "
@group(0) @binding(0) var<storage, read_write> v: array<u32, 16>;
@compute @workgroup_size(1) fn main() {
    for (var i = 0u; i < 8u; i++) {
        let f = unpack2x16float(v[i]);
        v[i + 8u] = bitcast<u32>(f.x) ^ (bitcast<u32>(f.y) >> 1u);
    }
}
";

/// Widens eight pairs of halves, most of them subnormal.
fn widens(gpu: &Gpu) -> Option<bool> {
    const PAIRS: [[u16; 2]; 8] = [
        [0x0001, 0x8001],
        [0x03ff, 0x83ff],
        [0x0200, 0x0155],
        [0x0400, 0x8400],
        [0x3c00, 0xc248],
        [0x7bff, 0xfbff],
        [0x0000, 0x8000],
        [0x0010, 0x002a],
    ];
    let module = gpu.device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: Some("trial of halves"),
        source: wgpu::ShaderSource::Wgsl(TRIAL.into()),
    });
    let pipeline = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some("trial of halves"),
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions::default(),
        cache: None,
    });
    let buffer = gpu.allocate("trial of halves", 64).ok()?;
    gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&PAIRS));
    let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &[wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }],
    });
    let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(1, 1, 1);
    }
    gpu.queue.submit([encoder.finish()]);
    let mut got = [0u32; 16];
    gpu.get(&crate::memory::Memory::new(gpu, buffer), 0, bytemuck::cast_slice_mut(&mut got)).ok()?;
    let wide = |h| turbospark_tensor::f16_to_f32(h).to_bits();
    Some(PAIRS.iter().enumerate().all(|(i, &[x, y])| got[i + 8] == wide(x) ^ (wide(y) >> 1)))
}
