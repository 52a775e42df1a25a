//! The device's buffers, and how bytes get in and out of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use turbospark_device::{DeviceError, View};

use crate::device::Gpu;

/// A buffer of a device.
///
/// Where it is larger than the API's buffers may be, it is several that overlap: what lies in two of them is written to
/// both. Kernels then see windows no longer than the overlap, each within one of them, and never write.
#[derive(Debug)]
pub(crate) struct Memory {
    pub owner: usize,
    parts: Vec<Part>,
    /// From the first byte of a part to that of the next.
    step: u64,
    /// Bytes of all buffers of the device.
    used: Arc<AtomicU64>,
}

/// One of the API's buffers, with its number.
#[derive(Debug)]
pub(crate) struct Part {
    pub id: u64,
    pub buffer: wgpu::Buffer,
}

/// Set in the numbers of parts.
pub(crate) const PARTED: u64 = 1 << 63;

/// Parts of a memory: no tensor has more.
const MOST_PARTS: u64 = 32;

/// Bytes that neighbouring parts share.
const OVERLAP: u64 = 64 << 20;

/// Sizes are multiples of this, so that a window may be rounded up to whole words and vectors.
pub(crate) const GRAIN: u64 = 256;

/// Numbers buffers, so that bind groups can be found again.
static BUFFERS: AtomicU64 = AtomicU64::new(1);

pub(crate) fn next_id() -> u64 {
    BUFFERS.fetch_add(1, Ordering::Relaxed)
}

impl Memory {
    /// A buffer of `gpu`, which counts it.
    pub fn new(gpu: &Gpu, buffer: wgpu::Buffer) -> Self {
        Self::of(gpu, vec![buffer], u64::MAX)
    }

    fn of(gpu: &Gpu, buffers: Vec<wgpu::Buffer>, step: u64) -> Self {
        let mark = if buffers.len() > 1 { PARTED } else { 0 };
        let parts: Vec<Part> = buffers.into_iter().map(|buffer| Part { id: next_id() | mark, buffer }).collect();
        let memory = Memory { owner: gpu.owner, parts, step, used: Arc::clone(&gpu.used) };
        memory.used.fetch_add(memory.bytes(), Ordering::Relaxed);
        memory
    }

    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.buffer.size()).sum()
    }

    /// Whether it is several of the API's buffers.
    pub fn is_parted(&self) -> bool {
        self.parts.len() > 1
    }

    /// The part in which a window that starts at `from` lies, and the part's first byte.
    pub fn part(&self, from: u64) -> (u64, &Part) {
        let i = (from / self.step).min(self.parts.len() as u64 - 1);
        (i * self.step, &self.parts[i as usize])
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes(), Ordering::Relaxed);
        // Bind groups that are kept would hold its memory.
        self.parts.iter().for_each(|part| part.buffer.destroy());
    }
}

/// What passing on news of the device from another thread takes at most, on a machine that is busy with everything else.
const PASSED_ON: Duration = Duration::from_secs(10);

impl Gpu {
    /// Zeroed memory, in several buffers where one may not be as large.
    pub fn allocate_memory(&self, label: &str, bytes: usize) -> Result<Memory, DeviceError> {
        let most = self.limits.max_buffer_size / GRAIN * GRAIN;
        let size = (bytes.max(1) as u64).next_multiple_of(GRAIN);
        if size <= most {
            return Ok(Memory::new(self, self.allocate(label, bytes)?));
        }
        let step = most - self.overlap();
        // Software adapters promise any amount and look for it when it is used.
        if size / step > MOST_PARTS {
            return Err(self.refused(label, bytes));
        }
        let mut buffers = Vec::new();
        let mut from = 0;
        loop {
            buffers.push(self.allocate(label, most.min(size - from) as usize)?);
            if from + most >= size {
                return Ok(Memory::of(self, buffers, step));
            }
            from += step;
        }
    }

    fn refused(&self, label: &str, bytes: usize) -> DeviceError {
        let used = self.used.load(Ordering::Relaxed) as f64 / f64::from(1 << 20);
        let label = format!("{label} on {}, beside {used:.0} MiB of other buffers", self.name);
        DeviceError::OutOfMemory { label, bytes }
    }

    /// Bytes that neighbouring parts of a memory share: as long as a window of it may be.
    pub fn overlap(&self) -> u64 {
        OVERLAP.min(self.limits.max_buffer_size / 4) / GRAIN * GRAIN
    }

    /// One zeroed buffer of the API.
    pub fn allocate(&self, label: &str, bytes: usize) -> Result<wgpu::Buffer, DeviceError> {
        let size = (bytes.max(1) as u64).next_multiple_of(GRAIN);
        if size > self.limits.max_buffer_size {
            return Err(DeviceError::Unsupported(format!(
                "{label}: {bytes} bytes, but a buffer of {} has at most {}",
                self.name, self.limits.max_buffer_size
            )));
        }
        let room = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let valid = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        });
        let invalid = pollster::block_on(valid.pop());
        if pollster::block_on(room.pop()).is_some() {
            return Err(self.refused(label, bytes));
        }
        match invalid {
            Some(error) => Err(DeviceError::Failed(format!("{label}: {error}"))),
            None => self.failed().map(|()| buffer),
        }
    }

    /// The memory behind a view of this device.
    pub fn memory<'a>(&self, view: &View<'a>) -> Result<&'a Memory, DeviceError> {
        let memory: Option<&Memory> = view.buffer().storage();
        memory.filter(|m| m.owner == self.owner).ok_or_else(|| DeviceError::ForeignBuffer(self.name.clone()))
    }

    /// The bytes of a dense view.
    pub fn range(&self, view: &View<'_>, len: usize) -> Result<(u64, u64), DeviceError> {
        let (offset, total) = (view.offset_bytes(), view.buffer().len());
        let end = offset.saturating_add(len);
        if view.is_dense() && view.end_bytes().is_some_and(|e| end <= e) && end <= total {
            Ok((offset as u64, len as u64))
        } else {
            Err(DeviceError::OutOfBounds { offset, end, len: total })
        }
    }

    /// Puts bytes into a buffer; they are there for whatever is submitted afterwards.
    pub fn put(&self, memory: &Memory, total: usize, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = at + bytes.len() as u64;
        // The API copies whole words. Past a buffer's last byte there is nothing to keep.
        let (head, tail) = (!at.is_multiple_of(4), !end.is_multiple_of(4) && end != total as u64);
        if head || tail || !end.is_multiple_of(4) {
            let (from, to) = (at / 4 * 4, end.next_multiple_of(4));
            let mut whole = vec![0; (to - from) as usize];
            if head {
                self.get(memory, from, &mut whole[..4])?;
            }
            if tail {
                let last = whole.len() - 4;
                self.get(memory, to - 4, &mut whole[last..])?;
            }
            let start = (at - from) as usize;
            whole[start..start + bytes.len()].copy_from_slice(bytes);
            return self.stage(memory, from, &whole);
        }
        self.stage(memory, at, bytes)
    }

    /// Whole words to a place that is a multiple of four, in every part that has it.
    fn stage(&self, memory: &Memory, at: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        // What was written and not yet copied is held by the host: not more of it than one piece.
        const PIECE: usize = 32 << 20;
        let end = at + bytes.len() as u64;
        for (i, part) in memory.parts.iter().enumerate() {
            let start = i as u64 * if memory.is_parted() { memory.step } else { 0 };
            let (from, to) = (at.max(start), end.min(start + part.buffer.size()));
            if from >= to {
                continue;
            }
            let bytes = &bytes[(from - at) as usize..(to - at) as usize];
            for (i, piece) in bytes.chunks(PIECE).enumerate() {
                self.queue.write_buffer(&part.buffer, from - start + (i * PIECE) as u64, piece);
                // Small tensors too, of which a model has many.
                let waiting = self.staged.fetch_add(piece.len() as u64, Ordering::Relaxed) + piece.len() as u64;
                if waiting >= PIECE as u64 {
                    self.staged.store(0, Ordering::Relaxed);
                    let index = self.queue.submit([]);
                    self.wait(index)?;
                }
            }
        }
        self.failed()
    }

    /// Gets bytes out of a buffer, once everything submitted before is done.
    pub fn get(&self, memory: &Memory, at: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        if out.is_empty() {
            return self.failed();
        }
        let (start, part) = memory.part(at);
        let here = start + part.buffer.size() - at;
        if (out.len() as u64) > here {
            let (first, rest) = out.split_at_mut(here as usize);
            self.get(memory, at, first)?;
            return self.get(memory, at + here, rest);
        }
        let at = at - start;
        let from = at / 4 * 4;
        let size = (at + out.len() as u64).next_multiple_of(4) - from;
        let mut kept = self.read_back.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let staging = match kept.take() {
            Some(buffer) if buffer.size() >= size => buffer,
            _ => self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read back"),
                size: size.next_power_of_two().max(4096),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
        };
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("read") });
        encoder.copy_buffer_to_buffer(&part.buffer, from, &staging, 0, size);
        let index = self.queue.submit([encoder.finish()]);
        let (sender, receiver) = std::sync::mpsc::channel();
        staging.map_async(wgpu::MapMode::Read, 0..size, move |done| {
            let _ = sender.send(done);
        });
        self.wait(index)?;
        // Another thread that waits for the device may have taken the news, and be about to pass it on.
        let mapped = receiver.recv_timeout(PASSED_ON).is_ok_and(|done| done.is_ok());
        self.failed()?;
        let view = staging.get_mapped_range(0..size).ok().filter(|_| mapped);
        let view = view.ok_or_else(|| DeviceError::Failed("memory could not be read back".into()))?;
        let start = (at - from) as usize;
        out.copy_from_slice(&view[start..start + out.len()]);
        drop(view);
        staging.unmap();
        // A large one would be held for nothing.
        if staging.size() <= 16 << 20 {
            *kept = Some(staging);
        }
        Ok(())
    }
}
