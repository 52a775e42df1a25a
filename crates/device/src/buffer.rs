use std::{any::Any, fmt, ops::Range};

use turbospark_tensor::{DType, Shape};

/// A piece of a device's memory. What lies inside is the device's business.
pub struct Buffer {
    len: usize,
    storage: Box<dyn Any + Send + Sync>,
}

impl Buffer {
    /// Made by devices only: `storage` is what they get back from [`Buffer::storage`].
    pub fn new(len: usize, storage: impl Any + Send + Sync) -> Self {
        Buffer { len, storage: Box::new(storage) }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device's own storage, or `None` when the buffer belongs to another kind of device.
    pub fn storage<T: 'static>(&self) -> Option<&T> {
        self.storage.downcast_ref()
    }

    /// A dense view that starts at `offset_bytes`. Bounds are checked when an op that uses it is recorded.
    pub fn view(&self, offset_bytes: usize, dtype: DType, shape: impl Into<Shape>) -> View<'_> {
        let shape = shape.into();
        View { buffer: self, offset_bytes, dtype, shape, strides: dense_strides(&shape) }
    }

    /// The whole buffer as bytes.
    pub fn bytes(&self) -> View<'_> {
        self.view(0, DType::U8, [self.len])
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

/// A tensor in a buffer: where it starts, what its elements are, its sides and strides.
///
/// Copied freely; borrows the buffer, so nothing it names can be freed or reused before the pass that
/// records it is submitted.
#[derive(Clone, Copy)]
pub struct View<'a> {
    buffer: &'a Buffer,
    offset_bytes: usize,
    dtype: DType,
    shape: Shape,
    strides: [usize; Shape::MAX_RANK],
}

fn dense_strides(shape: &Shape) -> [usize; Shape::MAX_RANK] {
    let mut strides = [1; Shape::MAX_RANK];
    let dims = shape.dims();
    for axis in (0..dims.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * dims[axis + 1];
    }
    strides
}

impl<'a> View<'a> {
    /// The buffer it lies in.
    pub fn buffer(&self) -> &'a Buffer {
        self.buffer
    }

    /// First byte in the buffer.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sides.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The sides, outermost first.
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// One side.
    ///
    /// # Panics
    /// When there is no such axis.
    pub fn dim(&self, axis: usize) -> usize {
        self.shape.dims()[axis]
    }

    /// Elements from one index of `axis` to the next.
    pub fn stride(&self, axis: usize) -> usize {
        self.strides[axis]
    }

    /// Bytes of its elements where they lie one after the other; `None` where that leaves `usize`, or for a block
    /// type where they are no whole blocks.
    pub fn len_bytes(&self) -> Option<usize> {
        self.dtype.bytes(self.shape.elements())
    }

    /// Whether the elements lie one after the other.
    pub fn is_dense(&self) -> bool {
        let dense = dense_strides(&self.shape);
        self.dims().iter().enumerate().all(|(i, &d)| d <= 1 || self.strides[i] == dense[i])
    }

    /// One past the last byte (of the last block), or `None` where that leaves `usize`.
    pub fn end_bytes(&self) -> Option<usize> {
        if self.shape.elements() == 0 {
            return Some(self.offset_bytes);
        }
        let mut last = 0usize;
        for (axis, &d) in self.dims().iter().enumerate() {
            last = last.checked_add((d - 1).checked_mul(self.strides[axis])?)?;
        }
        let block = self.dtype.block();
        (last / block.elements).checked_add(1)?.checked_mul(block.bytes)?.checked_add(self.offset_bytes)
    }

    /// Indices `range` of `axis` only.
    ///
    /// # Panics
    /// When the range leaves the axis, or starts within a block of a block type: ranges come from checked shapes.
    pub fn narrow(mut self, axis: usize, range: Range<usize>) -> Self {
        assert!(
            axis < self.shape.rank() && range.start <= range.end && range.end <= self.dim(axis),
            "{range:?} leaves axis {axis} of {}",
            self.shape
        );
        let start = self.dtype.bytes(range.start * self.strides[axis]);
        self.offset_bytes +=
            start.unwrap_or_else(|| panic!("{range:?} of axis {axis} of {} starts within a block", self.shape));
        let mut dims = [0; Shape::MAX_RANK];
        let rank = self.shape.rank();
        dims[..rank].copy_from_slice(self.shape.dims());
        dims[axis] = range.len();
        self.shape = Shape::new(&dims[..rank]);
        self
    }

    /// Indices `range` of the outermost axis only.
    pub fn rows(self, range: Range<usize>) -> Self {
        self.narrow(0, range)
    }

    /// The same elements with other sides.
    ///
    /// # Panics
    /// When the view isn't dense or the number of elements differs.
    pub fn reshape(self, shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        assert!(self.is_dense(), "only a dense view is reshaped");
        assert_eq!(shape.elements(), self.shape.elements(), "{} reshaped to {shape}", self.shape);
        View { shape, strides: dense_strides(&shape), ..self }
    }

    /// The innermost axis split in two: `[.., n * len]` to `[.., n, len]`; works on strided views.
    ///
    /// # Panics
    /// When `len` doesn't divide the axis, the axis is strided, or the rank is full.
    pub fn split_last(self, len: usize) -> Self {
        let rank = self.shape.rank();
        let last = self.shape.last();
        let fits = (1..Shape::MAX_RANK).contains(&rank) && len > 0 && last.is_multiple_of(len);
        assert!(fits, "{} split by {len}", self.shape);
        assert_eq!(self.strides[rank - 1], 1, "the innermost axis is dense");
        let mut dims = [0; Shape::MAX_RANK];
        dims[..rank].copy_from_slice(self.shape.dims());
        dims[rank - 1] = last / len;
        dims[rank] = len;
        let mut strides = self.strides;
        strides[rank - 1] = len;
        strides[rank] = 1;
        View { shape: Shape::new(&dims[..rank + 1]), strides, ..self }
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} at {}", self.dtype, self.shape, self.offset_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_split_in_two_is_strided_and_ends_where_it_should() {
        let buffer = Buffer::new(2 * 3 * 8 * 4, ());
        // [rows 2, heads 3, query 4 | gate 4]
        let both = buffer.view(0, DType::F32, [2, 3 * 8]).split_last(8);
        let gate = both.narrow(2, 4..8);
        assert_eq!(gate.dims(), [2, 3, 4]);
        assert_eq!((gate.stride(0), gate.stride(1), gate.stride(2)), (24, 8, 1));
        assert_eq!(gate.offset_bytes(), 16);
        assert_eq!(gate.end_bytes(), Some(buffer.len()));
        assert!(!gate.is_dense() && both.is_dense());
        assert_eq!(both.rows(1..2).offset_bytes(), 96);
    }

    #[test]
    fn rows_of_blocks_begin_where_whole_blocks_end() {
        let buffer = Buffer::new(1000 + 4 * 3 * 144, ());
        let experts = buffer.view(1000, DType::Q4_K, [2, 2, 768]);
        assert_eq!((experts.len_bytes(), experts.end_bytes()), (Some(12 * 144), Some(buffer.len())));
        let second = experts.rows(1..2).reshape([2, 768]);
        assert_eq!((second.offset_bytes(), second.end_bytes()), (1000 + 6 * 144, Some(buffer.len())));
        assert_eq!(second.narrow(0, 1..2).offset_bytes(), 1000 + 9 * 144);
        assert_eq!(buffer.view(0, DType::Q8_0, [3, 30]).len_bytes(), None);
        assert_eq!(buffer.view(0, DType::Q8_0, [2, 33]).end_bytes(), Some(3 * 34));
    }

    #[test]
    #[should_panic(expected = "starts within a block")]
    fn a_view_does_not_begin_within_a_block() {
        let buffer = Buffer::new(4096, ());
        buffer.view(0, DType::Q8_0, [4, 64]).narrow(1, 16..48);
    }
}
