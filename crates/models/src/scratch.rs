//! Scratch memory planned by lifetime.
//!
//! A pass's intermediate tensors are placed in one buffer. What is dead by the time something else is
//! written shares its bytes: take a [`Plan::mark`], place tensors, [`Plan::release`], place the next ones.

use turbospark_device::{Buffer, View};
use turbospark_tensor::{DType, Shape};

use crate::Result;

/// Where a tensor lies in the scratch buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    offset_bytes: usize,
    dtype: DType,
    shape: Shape,
}

impl Region {
    pub(crate) fn of<'a>(&self, buffer: &'a Buffer) -> View<'a> {
        buffer.view(self.offset_bytes, self.dtype, self.shape)
    }
}

/// Hands out regions from the bottom up and remembers the peak.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Plan {
    at: usize,
    peak: usize,
}

impl Plan {
    /// Regions start at multiples of this many bytes: whole vectors and cache lines, and what GPUs ask of bindings.
    const ALIGN: usize = 256;

    pub(crate) fn place(&mut self, dtype: DType, dims: &[usize]) -> Region {
        let shape = Shape::new(dims);
        let region = Region { offset_bytes: self.at, dtype, shape };
        self.at += (shape.elements() * dtype.size()).next_multiple_of(Self::ALIGN);
        self.peak = self.peak.max(self.at);
        region
    }

    pub(crate) fn f32(&mut self, dims: &[usize]) -> Region {
        self.place(DType::F32, dims)
    }

    pub(crate) fn i32(&mut self, dims: &[usize]) -> Region {
        self.place(DType::I32, dims)
    }

    pub(crate) fn mark(&self) -> usize {
        self.at
    }

    /// Everything placed since `mark` is dead.
    pub(crate) fn release(&mut self, mark: usize) {
        self.at = mark;
    }

    /// Bytes that the plan needs.
    pub(crate) fn bytes(&self) -> usize {
        self.peak
    }
}

/// A buffer that grows to the largest plan seen and is reused.
#[derive(Debug, Default)]
pub struct Scratch {
    buffer: Option<Buffer>,
}

impl Scratch {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, Buffer::len)
    }

    /// Gives the memory back.
    pub fn clear(&mut self) {
        self.buffer = None;
    }

    /// A buffer of at least `bytes`.
    pub(crate) fn hold(
        &mut self,
        device: &dyn turbospark_device::Device,
        label: &str,
        bytes: usize,
    ) -> Result<&Buffer> {
        if self.bytes() < bytes {
            self.buffer = None; // freed before the larger one is asked for
            self.buffer = Some(device.alloc(label, bytes)?);
        }
        Ok(self.buffer.as_ref().expect("allocated above or large enough"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_one_lifetime_are_apart_and_dead_ones_are_reused() {
        let mut plan = Plan::default();
        let kept = plan.f32(&[3, 5]);
        let mark = plan.mark();
        let a = plan.f32(&[100]);
        let b = plan.i32(&[1]);
        assert!(kept.offset_bytes < a.offset_bytes && a.offset_bytes + 400 <= b.offset_bytes);
        plan.release(mark);
        assert_eq!(plan.f32(&[2]).offset_bytes, a.offset_bytes);
        assert_eq!(plan.bytes(), b.offset_bytes + Plan::ALIGN);
    }
}
