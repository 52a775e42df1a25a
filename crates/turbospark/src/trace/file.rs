//! Reading and writing the files of a fixture set.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::TraceError;

/// Where cases come from and results go to.
#[derive(Clone, Copy)]
pub(super) struct Files<'a> {
    pub fixtures: &'a Path,
    pub out: &'a Path,
}

#[derive(Clone, Debug)]
pub(super) enum Values {
    F32(Vec<f32>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub dims: Vec<usize>,
    pub values: Values,
}

/// The tensors of one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Tensors(BTreeMap<String, Tensor>);

impl Tensors {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    fn put(&mut self, name: impl Into<String>, dims: &[usize], values: Values) {
        self.0.insert(name.into(), Tensor { dims: dims.to_vec(), values });
    }

    pub fn f32(&mut self, name: impl Into<String>, dims: &[usize], values: Vec<f32>) {
        self.put(name, dims, Values::F32(values));
    }

    pub fn i32(&mut self, name: impl Into<String>, dims: &[usize], values: Vec<i32>) {
        self.put(name, dims, Values::I32(values));
    }

    pub fn i64(&mut self, name: impl Into<String>, dims: &[usize], values: Vec<i64>) {
        self.put(name, dims, Values::I64(values));
    }

    pub fn u8(&mut self, name: impl Into<String>, dims: &[usize], values: Vec<u8>) {
        self.put(name, dims, Values::U8(values));
    }

    /// Takes over a tensor of another file: an input.
    pub fn copy(&mut self, from: &Tensors, name: &str) {
        if let Some(t) = from.0.get(name) {
            self.0.insert(name.into(), t.clone());
        }
    }
}

/// A file of the set, with its path for messages.
pub(super) struct Golden<'a> {
    pub tensors: Tensors,
    files: Files<'a>,
    path: String,
}

impl Golden<'_> {
    fn get(&self, name: &str) -> Result<&Tensor, TraceError> {
        self.tensors.0.get(name).ok_or_else(|| self.files.broken(&self.path, format!("tensor {name:?} is missing")))
    }

    pub fn dims(&self, name: &str) -> Result<&[usize], TraceError> {
        Ok(&self.get(name)?.dims)
    }

    pub fn f32s(&self, name: &str) -> Result<&[f32], TraceError> {
        match &self.get(name)?.values {
            Values::F32(v) => Ok(v),
            _ => Err(self.files.broken(&self.path, format!("tensor {name:?} is no float tensor"))),
        }
    }

    pub fn u8s(&self, name: &str) -> Result<&[u8], TraceError> {
        match &self.get(name)?.values {
            Values::U8(v) => Ok(v),
            _ => Err(self.files.broken(&self.path, format!("tensor {name:?} is not of bytes"))),
        }
    }

    /// Non-negative integers, such as row numbers.
    pub fn numbers(&self, name: &str) -> Result<Vec<usize>, TraceError> {
        let wide: Vec<i64> = match &self.get(name)?.values {
            Values::I64(v) => v.clone(),
            Values::I32(v) => v.iter().map(|&x| x.into()).collect(),
            Values::U8(v) => v.iter().map(|&x| x.into()).collect(),
            Values::F32(_) => vec![-1],
        };
        let numbers = wide.into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<_>>();
        numbers.ok_or_else(|| self.files.broken(&self.path, format!("tensor {name:?} holds no plain numbers")))
    }

    /// Rows of three numbers.
    pub fn triples(&self, name: &str) -> Result<Vec<[usize; 3]>, TraceError> {
        Ok(self.numbers(name)?.as_chunks().0.to_vec())
    }
}

fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
}

impl<'a> Files<'a> {
    pub fn broken(&self, path: &str, problem: impl Into<String>) -> TraceError {
        TraceError::Broken { path: self.fixtures.join(path), problem: problem.into() }
    }

    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, TraceError> {
        let path = self.fixtures.join(path);
        std::fs::read(&path).map_err(|source| TraceError::Io { path, source })
    }

    pub fn text(&self, path: &str) -> Result<String, TraceError> {
        String::from_utf8(self.bytes(path)?).map_err(|e| self.broken(path, e.to_string()))
    }

    pub fn json(&self, path: &str) -> Result<Value, TraceError> {
        serde_json::from_slice(&self.bytes(path)?).map_err(|e| self.broken(path, e.to_string()))
    }

    pub fn golden(&self, path: &str) -> Result<Golden<'a>, TraceError> {
        let bytes = self.bytes(path)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| self.broken(path, e.to_string()))?;
        let mut tensors = Tensors::default();
        for (name, t) in file.iter() {
            let values = match t.dtype() {
                Dtype::F32 => Values::F32(each(t.data(), f32::from_le_bytes)),
                Dtype::I32 => Values::I32(each(t.data(), i32::from_le_bytes)),
                Dtype::I64 => Values::I64(each(t.data(), i64::from_le_bytes)),
                Dtype::U8 => Values::U8(t.data().to_vec()),
                other => return Err(self.broken(path, format!("tensor {name:?} is {other:?}"))),
            };
            tensors.put(name, t.shape(), values);
        }
        Ok(Golden { tensors, files: *self, path: path.into() })
    }

    pub fn write(&self, path: &str, tensors: &Tensors) -> Result<(), TraceError> {
        let parts: Vec<_> = tensors.0.iter().map(|(name, t)| (name, t, t.stored())).collect();
        let views = parts
            .iter()
            .map(|(name, t, (dtype, bytes))| Ok((name.as_str(), TensorView::new(*dtype, t.dims.clone(), bytes)?)));
        let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
        let packed = views.and_then(|v| safetensors::serialize(v, None)).map_err(TraceError::of(path))?;
        self.write_bytes(path, &packed)
    }

    pub fn write_json(&self, path: &str, value: &Value) -> Result<(), TraceError> {
        self.write_bytes(path, format!("{value:#}\n").as_bytes())
    }

    fn write_bytes(&self, path: &str, bytes: &[u8]) -> Result<(), TraceError> {
        let path = self.out.join(path);
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        folder.and_then(|()| std::fs::write(&path, bytes)).map_err(|source| TraceError::Io { path, source })
    }
}

impl Tensor {
    fn stored(&self) -> (Dtype, &[u8]) {
        match &self.values {
            Values::F32(v) => (Dtype::F32, bytemuck::cast_slice(v)),
            Values::I32(v) => (Dtype::I32, bytemuck::cast_slice(v)),
            Values::I64(v) => (Dtype::I64, bytemuck::cast_slice(v)),
            Values::U8(v) => (Dtype::U8, v),
        }
    }
}
