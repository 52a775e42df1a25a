//! How long the adapter was busy, by its own clock.

use std::time::Duration;

use turbospark_device::DeviceError;

use crate::device::Gpu;
use crate::memory::Memory;

/// Submissions that are timed at most: later ones count as nothing.
const MOST: u32 = 1024;

/// Times of submissions, two each.
#[derive(Debug)]
pub(crate) struct Clock {
    set: wgpu::QuerySet,
    times: wgpu::Buffer,
    used: u32,
}

impl Clock {
    /// `None` where the adapter has no clock.
    pub fn new(gpu: &Gpu) -> Option<Self> {
        if !gpu.features.contains(wgpu::Features::TIMESTAMP_QUERY) {
            return None;
        }
        let descriptor = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: 2 * MOST };
        let times = wgpu::BufferDescriptor {
            label: Some("times"),
            size: 16 * u64::from(MOST),
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        Some(Clock { set: gpu.device.create_query_set(&descriptor), times: gpu.device.create_buffer(&times), used: 0 })
    }

    /// Where the next submission's times go.
    pub fn next(&mut self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        if self.used == MOST {
            return None;
        }
        self.used += 1;
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(2 * self.used - 2),
            end_of_pass_write_index: Some(2 * self.used - 1),
        })
    }

    /// The sum of all submissions, which are waited for.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn read(self, gpu: &Gpu) -> Result<Duration, DeviceError> {
        if self.used == 0 {
            return Ok(Duration::ZERO);
        }
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("times") });
        encoder.resolve_query_set(&self.set, 0..2 * self.used, &self.times, 0);
        gpu.queue.submit([encoder.finish()]);
        let mut times = vec![[0u64; 2]; self.used as usize];
        let memory = Memory::new(gpu, self.times);
        gpu.get(&memory, 0, bytemuck::cast_slice_mut(&mut times))?;
        let ticks: u64 = times.iter().map(|[start, end]| end.saturating_sub(*start)).sum();
        Ok(Duration::from_nanos((ticks as f64 * f64::from(gpu.queue.get_timestamp_period())) as u64))
    }
}
