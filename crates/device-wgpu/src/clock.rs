//! How long the adapter was busy, by its own clock.

use std::time::Duration;

use turbospark_device::{DeviceError, OpTimes};

use crate::device::Gpu;
use crate::memory::Memory;

/// Spans that a clock holds: the API's queries end at 4096.
pub(crate) const MOST: usize = 2048;

/// Begin and end of spans of the adapter's work.
#[derive(Debug)]
pub(crate) struct Clock {
    set: wgpu::QuerySet,
    times: Memory,
    resolved: wgpu::Buffer,
    used: u32,
    /// What was read so far.
    pub sums: Sums,
}

/// What is timed.
#[derive(Debug)]
pub(crate) enum Sums {
    /// Submissions, whole.
    Whole(Duration),
    /// Every kernel apart.
    Each(OpTimes),
}

impl Clock {
    /// `None` where the adapter has no clock.
    pub fn new(gpu: &Gpu, sums: Sums) -> Option<Self> {
        if !gpu.features.contains(wgpu::Features::TIMESTAMP_QUERY) {
            return None;
        }
        let count = 2 * MOST as u32;
        let descriptor = wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count };
        let times = wgpu::BufferDescriptor {
            label: Some("times"),
            size: 8 * u64::from(count),
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        };
        let resolved = gpu.device.create_buffer(&times);
        let times = Memory::new(gpu, resolved.clone());
        Some(Clock { set: gpu.device.create_query_set(&descriptor), times, resolved, used: 0, sums })
    }

    /// Whether every kernel is timed.
    pub fn is_each(&self) -> bool {
        matches!(self.sums, Sums::Each(_))
    }

    /// Where the next span's times go.
    pub fn next(&mut self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        if self.used as usize == MOST {
            return None;
        }
        self.used += 1;
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(2 * self.used - 2),
            end_of_pass_write_index: Some(2 * self.used - 1),
        })
    }

    /// Adds up the spans since the last call, which are waited for. `labels` are theirs.
    ///
    /// # Errors
    /// When the device is lost.
    pub fn read(&mut self, gpu: &Gpu, labels: &[String]) -> Result<(), DeviceError> {
        if self.used == 0 {
            return Ok(());
        }
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("times") });
        encoder.resolve_query_set(&self.set, 0..2 * self.used, &self.resolved, 0);
        gpu.queue.submit([encoder.finish()]);
        let mut times = vec![[0u64; 2]; self.used as usize];
        gpu.get(&self.times, 0, bytemuck::cast_slice_mut(&mut times))?;
        self.used = 0;
        let period = f64::from(gpu.queue.get_timestamp_period());
        let lengths = times.iter().map(|[start, end]| end.saturating_sub(*start) as f64 * period);
        let mut lengths = lengths.map(|ns| Duration::from_nanos(ns as u64));
        match &mut self.sums {
            Sums::Whole(sum) => *sum += lengths.sum::<Duration>(),
            Sums::Each(sums) => labels.iter().zip(&mut lengths).for_each(|(label, time)| sums.add(label.clone(), time)),
        }
        Ok(())
    }
}
