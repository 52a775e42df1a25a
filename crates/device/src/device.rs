use std::{io, sync::Arc};

use crate::{Buffer, DeviceError, Limits, OpTime, Recorded, View};

/// File pages or static bytes that a device may use in place.
pub type Mapping = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Whose memory a device's buffers are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The machine's, where files are read to and mapped files are used as they lie.
    Host,
    /// The machine's too, but what is read or decoded lies there twice on its way.
    Staged,
    /// A graphics card's own.
    Own {
        /// How much it has, where it tells.
        bytes: Option<u64>,
    },
}

/// How far matmul inputs may be rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Weights widened exactly, activations and caches in f32: the mode that meets every golden.
    F32,
    /// Inputs of matrix products and the KV cache in 16 bit where the device gains by it, or inputs in signed bytes
    /// with a scale of 16 elements where weights are quantised; sums in f32.
    #[default]
    Auto,
}

/// Memory and the ops that work on it.
///
/// Its memory is reached from outside in four ways only: [`write`](Device::write), [`read`](Device::read),
/// [`adopt`](Device::adopt) and [`fill`](Device::fill). A model that peeks doesn't compile.
pub trait Device: Send + Sync {
    /// The device and what it found, such as `cpu (avx512, 2 threads)`.
    fn name(&self) -> String;

    /// The precision it was made with.
    fn precision(&self) -> Precision;

    /// Rows of a prompt that it takes at a time: a multiple of 64, the same whatever the ceiling. More keep a large
    /// device busy, and need more memory for what lies between layers.
    fn prompt_rows(&self) -> usize {
        512
    }

    /// Whose memory its buffers are in, so that a plan knows what bounds them.
    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Host
    }

    /// A zeroed buffer of `bytes` bytes, aligned to at least 64.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with `label` and the size.
    fn alloc(&self, label: &str, bytes: usize) -> Result<Buffer, DeviceError>;

    /// `count` zeroed buffers of `bytes` bytes each, which begin at multiples of 4096 where `bytes` is one: slots that are
    /// filled from a disk. A device may lay them side by side.
    ///
    /// # Errors
    /// As [`alloc`](Device::alloc).
    fn alloc_slots(&self, label: &str, count: usize, bytes: usize) -> Result<Vec<Buffer>, DeviceError> {
        (0..count).map(|_| self.alloc(label, bytes)).collect()
    }

    /// Whether [`discard`](Device::discard) gives memory back to the system.
    fn gives_back(&self) -> bool {
        false
    }

    /// What is in a buffer is not needed any more, until it is filled again: its memory may go back to the system
    /// meanwhile. No op that uses it may be on its way.
    fn discard(&self, buffer: &Buffer) {
        let _ = buffer;
    }

    /// Uses a mapping in place, or says that it can't (`None`): then the caller allocates and [`fill`](Device::fill)s.
    fn adopt(&self, mapping: Mapping) -> Result<Option<Buffer>, DeviceError>;

    /// Copies `bytes` to the start of a dense view.
    fn write(&self, to: View<'_>, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies a dense view out. Everything submitted before is finished first.
    fn read(&self, from: View<'_>, out: &mut [u8]) -> Result<(), DeviceError>;

    /// Lets `reader` write the bytes of a dense view, in place where the device's memory can be written to.
    ///
    /// # Errors
    /// [`DeviceError::Weights`] with the reader's error.
    fn fill(&self, slot: View<'_>, reader: &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> Result<(), DeviceError>;

    /// Whether linear layers take weights whose columns are [in another order](crate::op::ScaledWeight::order). Of a
    /// device that doesn't they are widened as they are brought.
    fn takes_order(&self) -> bool {
        false
    }

    /// Runs ops in order. Called by [`Pass::submit`](crate::Pass::submit), with checked ops only.
    fn run(&self, ops: &[Recorded<'_>]) -> Result<(), DeviceError>;

    /// Waits until everything that was submitted is done: a device may still be at work when [`run`](Device::run)
    /// returns.
    ///
    /// # Errors
    /// What went wrong meanwhile.
    fn finish(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Measures what the hardware can do, in a second or two; `None` from a device that doesn't.
    ///
    /// # Errors
    /// When there is no memory to measure with.
    fn limits(&self) -> Result<Option<Limits>, DeviceError> {
        Ok(None)
    }

    /// Calls `run`, and tells what each op took that it submitted, by [`label`](crate::Op::label), the longest first;
    /// `None` from a device that has no clock for it. Ops are slower while they are timed: a device that overlaps them
    /// runs them one by one.
    ///
    /// # Errors
    /// When the clock can't be read.
    fn time_ops(&self, run: &mut dyn FnMut()) -> Result<Option<Vec<OpTime>>, DeviceError> {
        run();
        Ok(None)
    }
}

impl dyn Device + '_ {
    /// Reads a dense f32 view.
    pub fn read_f32(&self, from: View<'_>) -> Result<Vec<f32>, DeviceError> {
        let mut out = vec![0f32; from.shape().elements()];
        self.read(from, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// Writes f32 values to a dense view.
    pub fn write_f32(&self, to: View<'_>, values: &[f32]) -> Result<(), DeviceError> {
        self.write(to, bytemuck::cast_slice(values))
    }

    /// Writes i32 values to a dense view.
    pub fn write_i32(&self, to: View<'_>, values: &[i32]) -> Result<(), DeviceError> {
        self.write(to, bytemuck::cast_slice(values))
    }
}
