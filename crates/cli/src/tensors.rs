//! Writing named tensors.

use std::path::Path;

use anyhow::Context;
use safetensors::Dtype;
use safetensors::tensor::TensorView;

/// A tensor to write: name, element type, sides, little-endian bytes.
pub struct Named {
    name: String,
    dtype: Dtype,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

impl Named {
    /// Bytes as they are.
    pub fn u8(name: String, dims: Vec<usize>, bytes: Vec<u8>) -> Self {
        Named { name, dtype: Dtype::U8, dims, bytes }
    }

    /// Floats.
    pub fn f32(name: String, dims: Vec<usize>, values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Named { name, dtype: Dtype::F32, dims, bytes }
    }

    /// Integers.
    pub fn i64(name: String, dims: Vec<usize>, values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Named { name, dtype: Dtype::I64, dims, bytes }
    }
}

/// Writes a safetensors file.
pub fn write(path: &Path, tensors: &[Named]) -> anyhow::Result<()> {
    let views = tensors.iter().map(|t| Ok((t.name.as_str(), TensorView::new(t.dtype, t.dims.clone(), &t.bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, path).with_context(|| format!("cannot write {}", path.display()))
}
