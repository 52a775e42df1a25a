//! A safetensors file as named tensors, floats widened to f32.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

/// The elements of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// f32, and bf16 and f16 widened.
    F32(Vec<f32>),
    /// i32, and i8 and i16 widened.
    I32(Vec<i32>),
    /// i64, and u32 widened.
    I64(Vec<i64>),
    /// u8 and bool.
    U8(Vec<u8>),
}

/// Sides and elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Outermost first.
    pub dims: Vec<usize>,
    /// Dense.
    pub values: Values,
}

/// The tensors of a file by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// A tensor file that can't be read or written.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    problem: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.problem)
    }
}

impl std::error::Error for FileError {}

impl FileError {
    pub(crate) fn new(path: &Path, problem: impl fmt::Display) -> Self {
        FileError { path: path.to_owned(), problem: problem.to_string() }
    }
}

impl Tensor {
    /// A tensor of f32.
    pub fn f32(dims: &[usize], values: Vec<f32>) -> Self {
        Tensor { dims: dims.to_vec(), values: Values::F32(values) }
    }

    /// The elements as f64, exactly but for i64 past 2^53.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.values {
            Values::F32(v) => v.iter().map(|&x| x.into()).collect(),
            Values::I32(v) => v.iter().map(|&x| x.into()).collect(),
            Values::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Values::U8(v) => v.iter().map(|&x| x.into()).collect(),
        }
    }

    /// The elements where they are f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match &self.values {
            Values::F32(v) => Some(v),
            _ => None,
        }
    }

    /// Whether the elements are signed or unsigned integers.
    pub fn is_integer(&self) -> bool {
        !matches!(self.values, Values::F32(_))
    }

    fn dtype(&self) -> Dtype {
        match self.values {
            Values::F32(_) => Dtype::F32,
            Values::I32(_) => Dtype::I32,
            Values::I64(_) => Dtype::I64,
            Values::U8(_) => Dtype::U8,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        match &self.values {
            Values::F32(v) => bytemuck::cast_slice(v).to_vec(),
            Values::I32(v) => bytemuck::cast_slice(v).to_vec(),
            Values::I64(v) => bytemuck::cast_slice(v).to_vec(),
            Values::U8(v) => v.clone(),
        }
    }
}

fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
}

fn widened(view: &TensorView<'_>) -> Option<Values> {
    let bytes = view.data();
    Some(match view.dtype() {
        Dtype::F32 => Values::F32(each(bytes, f32::from_le_bytes)),
        Dtype::BF16 => Values::F32(each(bytes, |b| bf16::from_le_bytes(b).to_f32())),
        Dtype::F16 => Values::F32(each(bytes, |b| f16::from_le_bytes(b).to_f32())),
        Dtype::I8 => Values::I32(each(bytes, |b| i8::from_le_bytes(b).into())),
        Dtype::I16 => Values::I32(each(bytes, |b| i16::from_le_bytes(b).into())),
        Dtype::I32 => Values::I32(each(bytes, i32::from_le_bytes)),
        Dtype::U32 => Values::I64(each(bytes, |b| u32::from_le_bytes(b).into())),
        Dtype::I64 => Values::I64(each(bytes, i64::from_le_bytes)),
        Dtype::U8 | Dtype::BOOL => Values::U8(bytes.to_vec()),
        _ => return None,
    })
}

/// Reads all tensors of a file.
///
/// # Errors
/// What is wrong with the file, with its path.
pub fn read(path: &Path) -> Result<Tensors, FileError> {
    let bytes = std::fs::read(path).map_err(|e| FileError::new(path, e))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| FileError::new(path, e))?;
    let one = |(name, view): (&str, TensorView<'_>)| {
        let values = widened(&view);
        let values = values.ok_or_else(|| FileError::new(path, format!("tensor {name:?} is {:?}", view.dtype())))?;
        Ok((name.to_owned(), Tensor { dims: view.shape().to_vec(), values }))
    };
    file.iter().map(one).collect()
}

/// Writes tensors to a file, and the folders above it.
///
/// # Errors
/// What failed, with the path.
pub fn write(path: &Path, tensors: &Tensors) -> Result<(), FileError> {
    let bytes: Vec<_> = tensors.iter().map(|(name, t)| (name, t, t.bytes())).collect();
    let views = bytes.iter().map(|(name, t, bytes)| Ok((*name, TensorView::new(t.dtype(), t.dims.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
    let packed = views.and_then(|v| safetensors::serialize(v, None)).map_err(|e| FileError::new(path, e))?;
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    folder.and_then(|()| std::fs::write(path, packed)).map_err(|e| FileError::new(path, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut tensors = Tensors::new();
        tensors.insert("a".into(), Tensor::f32(&[2, 1], vec![1.5, -0.0]));
        tensors.insert("b".into(), Tensor { dims: vec![3], values: Values::I64(vec![-1, 0, 1 << 40]) });
        tensors.insert("c".into(), Tensor { dims: vec![], values: Values::I32(vec![7]) });
        tensors.insert("d".into(), Tensor { dims: vec![1, 0], values: Values::U8(vec![]) });
        let path = std::env::temp_dir().join(format!("turbospark-testkit-{}.safetensors", std::process::id()));
        write(&path, &tensors).unwrap();
        let back = read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(back, tensors);
        assert!(read(&path).unwrap_err().to_string().contains("turbospark-testkit"));
    }
}
