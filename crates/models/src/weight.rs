use std::sync::Arc;

use turbospark_device::{Buffer, View};
use turbospark_tensor::{DType, Shape};

/// A tensor of the checkpoint where a pass can reach it.
#[derive(Clone, Debug)]
pub struct Weight {
    buffer: Arc<Buffer>,
    offset_bytes: usize,
    dtype: DType,
    shape: Shape,
}

impl Weight {
    /// The tensor of `shape` that starts `offset_bytes` into `buffer`.
    pub fn new(buffer: Arc<Buffer>, offset_bytes: usize, dtype: DType, shape: Shape) -> Self {
        Weight { buffer, offset_bytes, dtype, shape }
    }

    /// What an op takes.
    pub fn view(&self) -> View<'_> {
        self.buffer.view(self.offset_bytes, self.dtype, self.shape)
    }

    /// The same elements with other sides.
    pub fn reshaped(self, dims: &[usize]) -> Self {
        let shape = Shape::new(dims);
        assert_eq!(shape.elements(), self.shape.elements(), "{} reshaped to {shape}", self.shape);
        Weight { shape, ..self }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sides.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

/// A linear layer with a bias.
#[derive(Clone, Debug)]
pub(crate) struct Affine {
    pub weight: Weight,
    pub bias: Weight,
}
