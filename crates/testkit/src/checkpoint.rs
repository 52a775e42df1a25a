//! Checkpoints taken apart and put together again, bytes untouched.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::FileError;

/// A tensor as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct RawTensor {
    dtype: Dtype,
    /// Outermost first.
    pub dims: Vec<usize>,
    /// As in the file.
    pub bytes: Vec<u8>,
}

impl RawTensor {
    /// How an element is stored.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Stored in any way.
    pub fn new(dtype: Dtype, dims: &[usize], bytes: Vec<u8>) -> Self {
        RawTensor { dtype, dims: dims.to_vec(), bytes }
    }

    /// The elements of a tensor that is stored as f32.
    ///
    /// # Panics
    /// When it is stored otherwise.
    pub fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32, "stored as f32");
        self.bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }

    /// Stored as f32.
    pub fn f32(dims: &[usize], values: &[f32]) -> Self {
        RawTensor { dtype: Dtype::F32, dims: dims.to_vec(), bytes: bytemuck::cast_slice(values).to_vec() }
    }

    /// Stored as bf16, rounded to nearest even.
    pub fn bf16(dims: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
        RawTensor { dtype: Dtype::BF16, dims: dims.to_vec(), bytes }
    }
}

/// The tensors of all `.safetensors` files of a folder, or of one file.
///
/// # Errors
/// What is wrong with which file.
pub fn read_raw(path: &Path) -> Result<BTreeMap<String, RawTensor>, FileError> {
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        let entries = std::fs::read_dir(path).map_err(|e| FileError::new(path, e))?;
        files = entries.filter_map(|e| Some(e.ok()?.path())).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "safetensors"));
    }
    let mut all = BTreeMap::new();
    for file in files {
        let bytes = std::fs::read(&file).map_err(|e| FileError::new(&file, e))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| FileError::new(&file, e))?;
        all.extend(tensors.iter().map(|(name, t)| {
            let raw = RawTensor { dtype: t.dtype(), dims: t.shape().to_vec(), bytes: t.data().to_vec() };
            (name.to_owned(), raw)
        }));
    }
    Ok(all)
}

/// One safetensors file that holds `tensors`.
///
/// # Panics
/// When a tensor's bytes don't fit its sides.
pub fn pack(tensors: &BTreeMap<String, RawTensor>) -> Vec<u8> {
    let views = tensors.iter().map(|(name, t)| {
        let view = TensorView::new(t.dtype, t.dims.clone(), &t.bytes);
        (name.as_str(), view.unwrap_or_else(|e| panic!("{name}: {e}")))
    });
    safetensors::serialize(views, None).expect("the views are sound")
}
