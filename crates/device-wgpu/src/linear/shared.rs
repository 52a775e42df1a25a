//! What the linear kernels of a device share.

use std::sync::OnceLock;

use turbospark_device::DeviceError;

use super::format::grids;
use crate::device::Gpu;
use crate::memory::next_id;
use crate::plan::{Place, Window};

/// Made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    grids: OnceLock<(u64, wgpu::Buffer)>,
    hard_half: OnceLock<bool>,
}

impl Shared {
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

    /// Whether the adapter widens f16 exactly, subnormals too, which the API leaves to it. Asked once, by trying.
    pub fn hard_half(&self, gpu: &Gpu) -> bool {
        *self.hard_half.get_or_init(|| {
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
    gpu.get(&crate::memory::Memory { owner: gpu.owner, id: next_id(), buffer }, 0, bytemuck::cast_slice_mut(&mut got))
        .ok()?;
    let wide = |h| turbospark_tensor::f16_to_f32(h).to_bits();
    Some(PAIRS.iter().enumerate().all(|(i, &[x, y])| got[i + 8] == wide(x) ^ (wide(y) >> 1)))
}
