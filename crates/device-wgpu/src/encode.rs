//! A plan becomes a command buffer.

use std::collections::HashMap;

use turbospark_device::DeviceError;

use crate::clock::{self, Clock};
use crate::device::Gpu;
use crate::memory::next_id;
use crate::pipelines::Pipelines;
use crate::plan::{Dispatch, Place, Plan, Window};
use crate::trust::Kept;

/// What submissions share: compiled kernels, bind groups, work space.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    pub pipelines: Pipelines,
    groups: HashMap<GroupKey, wgpu::BindGroup>,
    tables: Option<(u64, wgpu::Buffer)>,
    temp: Option<(u64, wgpu::Buffer)>,
    /// Times submissions while it is here.
    pub clock: Option<Clock>,
}

/// Which bindings are written, and the number, offset and size of each buffer.
type GroupKey = (Vec<bool>, Vec<(u64, u64, u64)>);

/// Bind groups kept; a step of a model uses a few hundred. More come with other shapes, and are then made anew.
const GROUPS: usize = 8192;

fn grown(
    gpu: &Gpu,
    label: &str,
    held: &mut Option<(u64, wgpu::Buffer)>,
    bytes: u64,
) -> Result<(u64, wgpu::Buffer), DeviceError> {
    match held {
        Some((id, buffer)) if buffer.size() >= bytes => Ok((*id, buffer.clone())),
        _ => {
            if let Some((_, old)) = held.take() {
                old.destroy();
            }
            let buffer = gpu.allocate(label, bytes as usize)?;
            Ok(held.insert((next_id(), buffer)).clone())
        }
    }
}

impl Encoder {
    /// With what earlier processes compiled.
    pub fn new(kept: Option<Kept>) -> Self {
        Encoder { pipelines: Pipelines::kept(kept), ..Encoder::default() }
    }

    /// Submits a plan.
    ///
    /// # Errors
    /// When there is no memory for its work space, or a kernel is refused.
    pub fn submit(&mut self, plan: &Plan<'_>) -> Result<(), DeviceError> {
        if plan.dispatches.is_empty() {
            return Ok(());
        }
        let gpu = plan.gpu;
        let tables = grown(gpu, "tables of ops", &mut self.tables, 4 * plan.tables.len().max(1024) as u64)?;
        if !plan.tables.is_empty() {
            gpu.queue.write_buffer(&tables.1, 0, bytemuck::cast_slice(&plan.tables));
        }
        let temp = grown(gpu, "work space of ops", &mut self.temp, plan.temp_bytes.max(256))?;
        if self.groups.len() > GROUPS {
            self.groups.clear();
        }
        // Timed one by one, they are as many submissions as the clock needs.
        let each = self.clock.as_ref().is_some_and(Clock::is_each);
        for (i, part) in plan.dispatches.chunks(if each { clock::MOST } else { usize::MAX }).enumerate() {
            let mut encoder =
                gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("pass") });
            for together in part.chunks(if each { 1 } else { usize::MAX }) {
                self.record(&mut encoder, gpu, together, &tables, &temp)?;
            }
            gpu.queue.submit([encoder.finish()]);
            if let Some(clock) = self.clock.as_mut().filter(|_| each) {
                // An op that submits in between has no label yet.
                let labels = plan.labels.iter().skip(i * clock::MOST).map(String::as_str);
                let names = labels.chain(std::iter::repeat(""));
                let label =
                    |(d, label): (&Dispatch, &str)| if label.is_empty() { d.source.name.into() } else { label.into() };
                let labels: Vec<String> = part.iter().zip(names).map(label).collect();
                clock.read(gpu, &labels)?;
            }
        }
        gpu.failed()
    }

    /// Records dispatches as one pass of the API.
    fn record(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        gpu: &Gpu,
        dispatches: &[Dispatch],
        tables: &(u64, wgpu::Buffer),
        temp: &(u64, wgpu::Buffer),
    ) -> Result<(), DeviceError> {
        let timestamp_writes = self.clock.as_mut().and_then(Clock::next);
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        for d in dispatches {
            let pipeline = self.pipelines.get(&gpu.device, d.source, &d.key)?;
            let resolved: Vec<_> = d.windows.iter().map(|w| resolve(w, tables, temp)).collect();
            let written = d.key.bindings.iter().map(|b| b.2 || b.1 == crate::kernel::Form::Atomic).collect();
            let key = (written, resolved.iter().map(|&(id, _, offset, size)| (id, offset, size)).collect());
            let group = self.groups.entry(key).or_insert_with(|| bind(gpu, &pipeline.layout, &resolved));
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &*group, &[]);
            if !d.words.is_empty() {
                pass.set_immediates(0, bytemuck::cast_slice(&d.words));
            }
            pass.dispatch_workgroups(d.grid[0], d.grid[1], d.grid[2]);
        }
        Ok(())
    }
}

fn resolve<'a>(
    window: &'a Window,
    tables: &'a (u64, wgpu::Buffer),
    temp: &'a (u64, wgpu::Buffer),
) -> (u64, &'a wgpu::Buffer, u64, u64) {
    match &window.place {
        Place::Buffer(id, buffer) => (*id, buffer, window.offset, window.size),
        Place::Tables => (tables.0, &tables.1, 0, tables.1.size()),
        Place::Temp => (temp.0, &temp.1, window.offset, window.size),
    }
}

fn bind(gpu: &Gpu, layout: &wgpu::BindGroupLayout, windows: &[(u64, &wgpu::Buffer, u64, u64)]) -> wgpu::BindGroup {
    fn entry<'a>(
        (i, &(_, buffer, offset, size)): (usize, &(u64, &'a wgpu::Buffer, u64, u64)),
    ) -> wgpu::BindGroupEntry<'a> {
        let size = std::num::NonZeroU64::new(size);
        let resource = wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size });
        wgpu::BindGroupEntry { binding: i as u32, resource }
    }
    let entries: Vec<_> = windows.iter().enumerate().map(entry).collect();
    gpu.device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout, entries: &entries })
}
