//! What a pass becomes: a list of dispatches.

use turbospark_device::{DeviceError, Op, View};
use turbospark_tensor::DType;

use crate::device::Gpu;
use crate::kernel::{Form, Key, Matrices, Source};
use crate::linear::Kept;
use crate::memory::PARTED;

/// Which buffer a binding reaches.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A buffer of the device, with its number.
    Buffer(u64, wgpu::Buffer),
    /// The tables of the submission.
    Tables,
    /// Work space that lasts as long as an op.
    Temp,
}

impl Place {
    fn is(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Buffer(a, _), Place::Buffer(b, _)) => a == b,
            (Place::Tables, Place::Tables) | (Place::Temp, Place::Temp) => true,
            _ => false,
        }
    }
}

/// A window of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub place: Place,
    pub offset: u64,
    pub size: u64,
}

impl Window {
    /// Whether another is the same bytes.
    pub fn is(&self, other: &Window) -> bool {
        self.place.is(&other.place) && (self.offset, self.size) == (other.offset, other.size)
    }
}

/// A view as a kernel gets it.
#[derive(Clone, Debug)]
pub(crate) struct At {
    pub window: Window,
    /// Where the view starts in the window: in elements for four-byte types, else in bytes.
    pub at: u32,
}

/// One run of a kernel.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub source: &'static Source,
    pub key: Key,
    pub windows: Vec<Window>,
    pub words: Vec<u32>,
    pub grid: [u32; 3],
}

/// Dispatches that are submitted together.
#[derive(Debug)]
pub(crate) struct Plan<'d> {
    pub gpu: &'d Gpu,
    pub dispatches: Vec<Dispatch>,
    /// What each dispatch is, while they are timed one by one.
    pub labels: Vec<String>,
    /// Small lists that kernels read: spans, segments, groups.
    pub tables: Vec<u32>,
    temp: u64,
    /// The most work space of any op.
    pub temp_bytes: u64,
    /// Rows that the last op converted.
    pub kept: Kept,
}

/// The numbers of elements from one index of an axis to the next, and other small numbers, as a kernel takes them.
pub(crate) fn word(n: usize) -> Result<u32, DeviceError> {
    u32::try_from(n).map_err(|_| refused(format!("{n} is more than a kernel can count")))
}

/// An error of an op; the device adds which.
pub(crate) fn refused(message: String) -> DeviceError {
    DeviceError::Op { scope: String::new(), op: "", message }
}

impl<'d> Plan<'d> {
    pub fn new(gpu: &'d Gpu) -> Self {
        Plan {
            gpu,
            dispatches: Vec::new(),
            labels: Vec::new(),
            tables: Vec::new(),
            temp: 0,
            temp_bytes: 0,
            kept: Kept::default(),
        }
    }

    /// Begins anew, once it was submitted.
    pub fn clear(&mut self) {
        self.dispatches.clear();
        self.labels.clear();
        self.tables.clear();
        (self.temp, self.temp_bytes, self.kept) = (0, 0, Kept::default());
    }

    /// Ends an op: its work space is free again.
    pub fn end_op(&mut self) {
        self.temp = 0;
    }

    /// Names the dispatches since the last call after the op that they are for.
    pub fn label(&mut self, op: &Op<'_>) {
        let op = op.label();
        let unnamed = &self.dispatches[self.labels.len()..];
        self.labels.extend(unnamed.iter().map(|d| format!("{op}: {}", d.source.name)));
    }

    /// Work space that the op has taken so far.
    pub fn taken(&self) -> u64 {
        self.temp
    }

    /// Takes what the op before had, with what is in it.
    pub fn take_over(&mut self, end: u64) {
        self.temp = self.temp.max(end);
    }

    /// A view, for a kernel to read or write.
    ///
    /// # Errors
    /// When it belongs to another device, or is longer than a binding may be: then the op takes it in parts.
    pub fn view(&self, view: &View<'_>) -> Result<At, DeviceError> {
        let memory = self.gpu.memory(view)?;
        let end = view.end_bytes().unwrap_or(usize::MAX) as u64;
        let (start, part) = memory.part(view.offset_bytes() as u64);
        let most = self.most(view)?;
        let (mut offset, mut size) = (0, part.buffer.size());
        if size > most {
            let align = u64::from(self.gpu.limits.min_storage_buffer_offset_alignment).max(16);
            offset = (view.offset_bytes() as u64 - start) / align * align;
            // Whole vectors, and a word more for reads of words that begin anywhere.
            let wanted = (end.saturating_add(4) - start - offset).next_multiple_of(16);
            size = wanted.min(size - offset);
            if size > most {
                return Err(refused(format!("{view:?} takes {size} bytes of a buffer, a kernel sees at most {most}")));
            }
        }
        let unit = if matches!(view.dtype(), DType::F32 | DType::I32 | DType::U32) { 4 } else { 1 };
        let at = view.offset_bytes() - (start + offset) as usize;
        if !at.is_multiple_of(unit) {
            return Err(refused(format!("{view:?} is not aligned to its elements")));
        }
        let window = Window { place: Place::Buffer(part.id, part.buffer.clone()), offset, size };
        Ok(At { window, at: word(at / unit)? })
    }

    /// The most bytes that a kernel sees of the memory behind a view.
    pub fn most(&self, view: &View<'_>) -> Result<u64, DeviceError> {
        let most = self.gpu.limits.max_storage_buffer_binding_size;
        let parted = self.gpu.memory(view)?.is_parted();
        Ok(if parted { most.min(self.gpu.overlap()) } else { most })
    }

    /// A view of a float type that may start anywhere, as [`Form::Stored`] takes it: in bytes.
    pub fn stored(&self, view: &View<'_>) -> Result<At, DeviceError> {
        let bytes = view.buffer().view(
            view.offset_bytes(),
            DType::U8,
            [view.end_bytes().unwrap_or(0).saturating_sub(view.offset_bytes())],
        );
        self.view(&bytes)
    }

    /// A small list that kernels find at the returned word of the tables.
    pub fn table(&mut self, words: impl IntoIterator<Item = u32>) -> u32 {
        let at = self.tables.len() as u32;
        self.tables.extend(words);
        at
    }

    /// The tables, as a binding.
    pub fn tables(&self) -> Window {
        Window { place: Place::Tables, offset: 0, size: 0 }
    }

    /// Work space for the rest of an op.
    pub fn temp(&mut self, bytes: u64) -> Result<Window, DeviceError> {
        let size = bytes.max(16).next_multiple_of(256);
        let most = self.gpu.limits.max_storage_buffer_binding_size;
        if size > most {
            return Err(refused(format!("{size} bytes of work space, a binding has at most {most}")));
        }
        let offset = self.temp;
        self.temp += size;
        self.temp_bytes = self.temp_bytes.max(self.temp);
        Ok(Window { place: Place::Temp, offset, size })
    }

    /// A run of a kernel, whose bindings are given in order.
    pub fn kernel(&mut self, source: &'static Source) -> Run<'_, 'd> {
        Run {
            plan: self,
            source,
            bindings: Vec::new(),
            windows: Vec::new(),
            constants: Vec::new(),
            f16: false,
            matrices: Matrices::No,
        }
    }
}

/// A run of a kernel that is being put together.
pub(crate) struct Run<'p, 'd> {
    plan: &'p mut Plan<'d>,
    source: &'static Source,
    bindings: Vec<(&'static str, Form, bool)>,
    windows: Vec<Window>,
    constants: Vec<(&'static str, u32)>,
    f16: bool,
    matrices: Matrices,
}

impl Run<'_, '_> {
    /// Binds what the kernel only reads.
    pub fn read(mut self, name: &'static str, form: Form, window: &Window) -> Self {
        self.bindings.push((name, form, false));
        self.windows.push(window.clone());
        self
    }

    /// Binds what it writes, and perhaps reads.
    pub fn write(mut self, name: &'static str, form: Form, window: &Window) -> Self {
        self.bindings.push((name, form, true));
        self.windows.push(window.clone());
        self
    }

    /// Sets a constant that the kernel is compiled with.
    pub fn set(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self
    }

    /// Lets the text use matrix units, and the type `f16`.
    pub fn with_matrices(mut self) -> Self {
        self.matrices = if self.plan.gpu.emulated { Matrices::Emulated } else { Matrices::Units };
        self.with_f16(true)
    }

    /// Lets the text use the type `f16`.
    pub fn with_f16(mut self, f16: bool) -> Self {
        self.f16 = f16;
        self
    }

    /// Runs `groups` workgroups, laid out in two sides where they are many: see `group_index` of `common.wgsl`.
    pub fn over(self, words: &[u32], groups: u64) -> Result<(), DeviceError> {
        let most = u64::from(self.plan.gpu.limits.max_compute_workgroups_per_dimension);
        if groups > most * most {
            return Err(refused(format!("{groups} workgroups")));
        }
        let rows = groups.div_ceil(most).max(1);
        let columns = groups.div_ceil(rows);
        self.grid(words, [columns as u32, rows as u32, 1])
    }

    /// Runs a grid of workgroups. `words` are the kernel's parameters, in the order of its struct.
    pub fn grid(mut self, words: &[u32], grid: [u32; 3]) -> Result<(), DeviceError> {
        let most = self.plan.gpu.limits.max_compute_workgroups_per_dimension;
        if grid.iter().any(|&side| side > most) {
            return Err(refused(format!("a grid of {grid:?} workgroups")));
        }
        if grid.contains(&0) {
            return Ok(());
        }
        assert!(words.len() <= 32, "parameters fit into 128 bytes");
        let parted = |i: usize| matches!(self.windows[i].place, Place::Buffer(id, _) if id & PARTED != 0);
        if (0..self.windows.len()).any(|i| self.bindings[i].2 && parted(i)) {
            let most = self.plan.gpu.limits.max_buffer_size;
            return Err(refused(format!("what is written may take {most} bytes, the most of a buffer")));
        }
        // A buffer that is written is not bound as read-only beside that.
        for i in 0..self.bindings.len() {
            let shares = |j: usize| self.bindings[j].2 && self.windows[j].place.is(&self.windows[i].place);
            self.bindings[i].2 = (0..self.bindings.len()).any(shares);
        }
        let key = Key {
            name: self.source.name,
            bindings: self.bindings,
            constants: self.constants,
            f16: self.f16,
            matrices: self.matrices,
            hard_half: self.plan.gpu.linear.hard_half(self.plan.gpu),
        };
        let words = words.to_vec();
        self.plan.dispatches.push(Dispatch { source: self.source, key, windows: self.windows, words, grid });
        Ok(())
    }
}
