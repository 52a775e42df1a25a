//! The device's memory, and how an op gets at it.
//!
//! Kernels work on raw pointers. What makes that sound, in this order:
//!
//! * a buffer's bytes are touched only while its lock is held. `write`, `read` and `fill` hold the lock of
//!   their buffer; an op holds those of all its buffers, through [`Access`], while its kernels run;
//! * only one thread at a time holds more than one lock (the device runs one pass at a time), so the locks
//!   can't deadlock, and a slot may be filled while ops use other buffers;
//! * a buffer is only used by the device that made it, so that two devices don't run ops on it at once;
//! * views were checked against their buffers when the op was recorded, and are again when they are resolved;
//! * what an op writes overlaps nothing else that it touches, unless the two views are the same and the op
//!   allows that ([`Access::finish`]).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use turbospark_device::op::{LinearWeight, WeightLayout};
use turbospark_device::{DeviceError, Mapping, View};
use turbospark_tensor::DType;

use crate::overlap::overlap;
use crate::owned::{ALIGN, HUGE, Owned, give_pages_back};
use crate::simd::stored::{Scales, Vector, Weight};

enum Place {
    Owned(Owned),
    /// From this byte on of memory that others have parts of too, none of which overlap.
    Part(Arc<Owned>, usize),
    Adopted(Mapping),
}

/// What a buffer of this device holds.
pub(crate) struct Memory {
    owner: usize,
    len: usize,
    place: Place,
    lock: Mutex<()>,
}

fn bytes_of(mapping: &Mapping) -> &[u8] {
    (**mapping).as_ref()
}

impl Memory {
    pub(crate) fn zeroed(owner: usize, len: usize) -> Option<Self> {
        Some(Memory { owner, len, place: Place::Owned(Owned::zeroed(len)?), lock: Mutex::new(()) })
    }

    /// `count` buffers of `len` bytes, one right after the other: what lies between huge pages at the end of each would
    /// be small ones, into which direct reads were half as fast.
    pub(crate) fn side_by_side(owner: usize, count: usize, len: usize) -> Option<Vec<Self>> {
        let step = len.checked_next_multiple_of(ALIGN)?;
        // As large as a huge page at least, and aligned like one: direct reads need pages.
        let all = Arc::new(Owned::zeroed(step.checked_mul(count)?.max(HUGE))?);
        let part = |i| Memory { owner, len, place: Place::Part(all.clone(), i * step), lock: Mutex::new(()) };
        Some((0..count).map(part).collect())
    }

    pub(crate) fn adopted(owner: usize, mapping: Mapping) -> Self {
        let len = bytes_of(&mapping).len();
        Memory { owner, len, place: Place::Adopted(mapping), lock: Mutex::new(()) }
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first byte, for reading only where the memory is adopted.
    fn base(&self) -> Result<*mut u8, DeviceError> {
        match &self.place {
            Place::Owned(owned) => Ok(owned.ptr()),
            Place::Part(all, at) => Ok(all.ptr().wrapping_add(*at)),
            Place::Adopted(mapping) => {
                // Asked each time: nothing obliges a mapping to give the same slice twice.
                let bytes = bytes_of(mapping);
                if bytes.len() < self.len {
                    let (end, len) = (self.len, bytes.len());
                    return Err(DeviceError::OutOfBounds { offset: 0, end, len });
                }
                Ok(bytes.as_ptr().cast_mut())
            }
        }
    }

    /// Whether it is of the device with this number.
    pub(crate) fn is_of(&self, owner: usize) -> bool {
        self.owner == owner
    }

    /// Gives its pages back to the system, where it has pages of its own.
    pub(crate) fn discard(&self) {
        let _held = self.lock();
        if let (Place::Owned(_) | Place::Part(..), Ok(first)) = (&self.place, self.base()) {
            give_pages_back(first, self.len);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of a buffer of device `owner`.
pub(crate) fn memory<'a>(view: &View<'a>, owner: usize, name: &str) -> Result<&'a Memory, DeviceError> {
    let memory = view.buffer().storage::<Memory>().filter(|m| m.owner == owner);
    memory.ok_or_else(|| DeviceError::ForeignBuffer(name.into()))
}

fn in_bounds(view: &View<'_>, len: usize) -> Result<(), DeviceError> {
    match view.end_bytes() {
        Some(end) if end <= len => Ok(()),
        end => Err(DeviceError::OutOfBounds { offset: view.offset_bytes(), end: end.unwrap_or(usize::MAX), len }),
    }
}

/// Runs `f` on the first `len` bytes of a dense view, for reading.
pub(crate) fn with_bytes<R>(
    view: &View<'_>,
    m: &Memory,
    len: usize,
    f: impl FnOnce(&[u8]) -> R,
) -> Result<R, DeviceError> {
    let start = dense_part(view, m, len)?;
    let _held = m.lock();
    let base = m.base()?;
    // SAFETY: within the buffer (checked), which nobody writes while its lock is held.
    Ok(f(unsafe { std::slice::from_raw_parts(base.add(start), len) }))
}

/// Runs `f` on the first `len` bytes of a dense view, for writing.
pub(crate) fn with_bytes_mut<R>(
    view: &View<'_>,
    m: &Memory,
    len: usize,
    f: impl FnOnce(&mut [u8]) -> R,
) -> Result<R, DeviceError> {
    let start = dense_part(view, m, len)?;
    if matches!(m.place, Place::Adopted(_)) {
        return Err(DeviceError::Unsupported("a mapping that was adopted cannot be written to".into()));
    }
    let _held = m.lock();
    // SAFETY: within the buffer (checked), which is owned and which nobody else touches while its lock is held.
    Ok(f(unsafe { std::slice::from_raw_parts_mut(m.base()?.add(start), len) }))
}

fn dense_part(view: &View<'_>, m: &Memory, len: usize) -> Result<usize, DeviceError> {
    in_bounds(view, m.len)?;
    let (offset, end) = (view.offset_bytes(), view.offset_bytes().saturating_add(len));
    if !view.is_dense() || view.end_bytes().is_none_or(|e| end > e) {
        return Err(DeviceError::OutOfBounds { offset, end, len: m.len });
    }
    Ok(offset)
}

/// A view resolved to memory. Valid while the [`Access`] that made it lives.
#[derive(Clone, Copy)]
pub(crate) struct Tensor {
    ptr: *mut u8,
    /// Element type.
    pub dtype: DType,
    dims: [usize; 5],
    strides: [usize; 5],
    rank: usize,
}

// SAFETY: an address; kernels share it under the rules of this module.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// One side.
    pub(crate) fn dim(&self, axis: usize) -> usize {
        self.dims[..self.rank][axis]
    }

    /// The sides.
    pub(crate) fn dims(&self) -> &[usize] {
        &self.dims[..self.rank]
    }

    /// Elements from one index of `axis` to the next.
    pub(crate) fn stride(&self, axis: usize) -> usize {
        self.strides[..self.rank][axis]
    }

    /// The address of the first element or block.
    pub(crate) fn first(&self) -> *const u8 {
        self.ptr
    }

    /// The address of the element `elements` after the first; of a plain type.
    pub(crate) fn byte(&self, elements: usize) -> *mut u8 {
        self.ptr.wrapping_add(elements * self.dtype.size())
    }

    /// Bytes of `elements` elements of a row; of a block type they are whole blocks.
    pub(crate) fn bytes(&self, elements: usize) -> usize {
        self.dtype.bytes(elements).expect("checked: rows of whole blocks")
    }

    /// Start of row `r`, for f32 tensors.
    pub(crate) fn row(&self, r: usize) -> *mut f32 {
        self.ptr.cast::<f32>().wrapping_add(r * self.strides[0])
    }

    /// Start of `[r, h]`, for f32 tensors of rank 3.
    pub(crate) fn head(&self, r: usize, h: usize) -> *mut f32 {
        self.row(r).wrapping_add(h * self.strides[1])
    }

    /// Length of the innermost axis; 1 for a scalar.
    pub(crate) fn last(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// Number of runs along the innermost axis.
    pub(crate) fn lines(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Elements from the first one to the start of line `i`.
    pub(crate) fn line(&self, mut i: usize) -> usize {
        let mut at = 0;
        for axis in (0..self.rank.saturating_sub(1)).rev() {
            at += i % self.dims[axis] * self.strides[axis];
            i /= self.dims[axis];
        }
        at
    }

    /// Start of line `i`, for f32 tensors.
    pub(crate) fn f32_line(&self, i: usize) -> *mut f32 {
        self.ptr.cast::<f32>().wrapping_add(self.line(i))
    }

    /// As a linear weight.
    pub(crate) fn weight(&self, layout: WeightLayout) -> Weight {
        Weight { ptr: self.ptr, dtype: self.dtype, layout, stride: self.strides[0], scales: None }
    }

    /// As a dense vector.
    pub(crate) fn vector(&self) -> Vector {
        Vector { ptr: self.ptr, dtype: self.dtype }
    }

    /// The values of a dense i32 tensor.
    ///
    /// # Safety
    /// The tensor is dense i32, its [`Access`] lives as long as the slice, and nothing writes it meanwhile.
    pub(crate) unsafe fn i32s<'a>(&self) -> &'a [i32] {
        // SAFETY: in bounds and aligned, as `Access::tensor` checked; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.dims().iter().product()) }
    }
}

/// The buffers of one op, locked, and its views, resolved.
pub(crate) struct Access<'a> {
    owner: usize,
    device: Arc<str>,
    /// Locked by the access that this one is part of.
    outer: Vec<*const Memory>,
    held: Vec<(*const Memory, MutexGuard<'a, ()>)>,
    used: Vec<(&'static str, View<'a>, Use)>,
}

/// What an op does with a view.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    /// Read, and may be the very view that is written.
    ReadAlso,
    Write,
}

impl<'a> Access<'a> {
    pub(crate) fn new(owner: usize, device: Arc<str>) -> Self {
        Access { owner, device, outer: Vec::new(), held: Vec::with_capacity(8), used: Vec::with_capacity(8) }
    }

    /// Further views of the same op, whose buffers may be among those that it holds already.
    pub(crate) fn further<'b>(&self) -> Access<'b>
    where
        'a: 'b,
    {
        let mut inner = Access::new(self.owner, Arc::clone(&self.device));
        inner.outer.extend(self.held.iter().map(|(m, _)| *m));
        inner.used.extend(self.used.iter().copied());
        inner
    }

    fn tensor(&mut self, name: &'static str, view: &View<'a>, how: Use) -> Result<Tensor, DeviceError> {
        let m = memory(view, self.owner, &self.device)?;
        in_bounds(view, m.len)?;
        if how == Use::Write && matches!(m.place, Place::Adopted(_)) {
            return Err(refused(format!("{name} lies in an adopted mapping, which cannot be written to")));
        }
        let held = |one: &*const Memory| std::ptr::eq(*one, m);
        if !self.held.iter().any(|(one, _)| held(one)) && !self.outer.iter().any(held) {
            self.held.push((m, m.lock()));
        }
        let ptr = m.base()?.wrapping_add(view.offset_bytes());
        // Weights may start anywhere; what has a four-byte type and isn't one is loaded aligned.
        let mut t = Tensor { ptr, dtype: view.dtype(), dims: [1; 5], strides: [1; 5], rank: view.dims().len() };
        for (axis, &d) in view.dims().iter().enumerate() {
            t.dims[axis] = d;
            t.strides[axis] = view.stride(axis);
        }
        self.used.push((name, *view, how));
        Ok(t)
    }

    fn aligned(name: &str, t: Tensor) -> Result<Tensor, DeviceError> {
        if (t.ptr as usize).is_multiple_of(t.dtype.size()) {
            Ok(t)
        } else {
            Err(refused(format!("{name} is not aligned in the mapping that it lies in")))
        }
    }

    /// An f32 or i32 view that is read.
    pub(crate) fn read(&mut self, name: &'static str, view: &View<'a>) -> Result<Tensor, DeviceError> {
        Self::aligned(name, self.tensor(name, view, Use::Read)?)
    }

    /// An f32 view that is read and may also be an output.
    pub(crate) fn read_also(&mut self, name: &'static str, view: &View<'a>) -> Result<Tensor, DeviceError> {
        Self::aligned(name, self.tensor(name, view, Use::ReadAlso)?)
    }

    /// A view that is read and may start at any byte.
    pub(crate) fn weight(&mut self, name: &'static str, view: &View<'a>) -> Result<Tensor, DeviceError> {
        self.tensor(name, view, Use::Read)
    }

    /// A linear weight of `layout`.
    pub(crate) fn linear(
        &mut self,
        name: &'static str,
        w: &LinearWeight<'a>,
        layout: WeightLayout,
    ) -> Result<Weight, DeviceError> {
        match w {
            LinearWeight::View(v) => Ok(self.weight(name, v)?.weight(layout)),
            LinearWeight::Scaled(w) => {
                let codes = self.weight(name, &w.codes)?.weight(layout);
                let scales = self.weight(name, &w.scales)?;
                let biases = w.biases.as_ref().map(|b| self.weight(name, b)).transpose()?.map(|b| b.first());
                let order = w.order.as_ref().map(|o| self.order(name, o)).transpose()?;
                let (first, dtype, stride) = (scales.first(), scales.dtype, scales.dim(1));
                let scales = Scales { first, biases, dtype, stride, form: w.form, order };
                Ok(Weight { scales: Some(scales), ..codes })
            }
        }
    }

    /// The order of a weight's columns, each of which there must be.
    fn order(&mut self, name: &'static str, view: &View<'a>) -> Result<*const i32, DeviceError> {
        let order = self.read(name, view)?;
        let k = order.dim(0);
        // SAFETY: dense i32, aligned, checked to lie in their buffer, which is locked.
        let all = unsafe { std::slice::from_raw_parts(order.first().cast::<i32>(), k) };
        match all.iter().find(|&&i| usize::try_from(i).map_or(true, |i| i >= k)) {
            Some(i) => Err(refused(format!("{name} has a column for input {i} of {k}"))),
            None => Ok(all.as_ptr()),
        }
    }

    /// A view that is written and perhaps read.
    pub(crate) fn write(&mut self, name: &'static str, view: &View<'a>) -> Result<Tensor, DeviceError> {
        Self::aligned(name, self.tensor(name, view, Use::Write)?)
    }

    /// A view that is written and may start at any byte.
    pub(crate) fn write_bytes(&mut self, name: &'static str, view: &View<'a>) -> Result<Tensor, DeviceError> {
        self.tensor(name, view, Use::Write)
    }

    /// Checks that what is written overlaps nothing that it must not. Call before any kernel runs.
    pub(crate) fn finish(&self) -> Result<(), DeviceError> {
        for (i, (out_name, out, how)) in self.used.iter().enumerate() {
            if *how != Use::Write {
                continue;
            }
            for (j, (name, other, other_how)) in self.used.iter().enumerate() {
                let twice = *other_how == Use::Write && j <= i;
                if !twice && overlap(out, other, *other_how == Use::ReadAlso) {
                    return Err(refused(format!("{name} and {out_name} overlap")));
                }
            }
        }
        Ok(())
    }
}

/// An op's error; the device fills in where it was recorded.
pub(crate) fn refused(message: String) -> DeviceError {
    DeviceError::Op { scope: String::new(), op: "", message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_side_by_side_begin_on_pages_and_end_before_the_next() {
        let len = HUGE + 5 * 4096;
        let all = Memory::side_by_side(0, 3, len).unwrap();
        let starts: Vec<usize> = all.iter().map(|m| m.base().unwrap() as usize).collect();
        assert!(starts[0].is_multiple_of(HUGE) && starts.windows(2).all(|pair| pair[1] - pair[0] == len));
        // What is given back is zeros, and nothing of its neighbours goes with it.
        // SAFETY: bytes of the three buffers, which nobody else has.
        unsafe {
            all.iter().for_each(|m| m.base().unwrap().write_bytes(7, len));
            all[1].discard();
            let sum = |m: &Memory| (0..len).map(|i| *m.base().unwrap().add(i) as usize).sum::<usize>();
            let given = if cfg!(target_os = "linux") { 0 } else { 7 * len };
            assert_eq!([&all[0], &all[1], &all[2]].map(sum), [7 * len, given, 7 * len]);
        }
        // The memory lives as long as any of them.
        let last = all.into_iter().next_back().unwrap();
        // SAFETY: the last byte of the only buffer that is left, which nobody else has.
        unsafe { last.base().unwrap().add(len - 1).write(7) };
        assert!(Memory::side_by_side(0, usize::MAX / 2, 4096).is_none());
    }
}
