//! One GGUF file, written from a list of keys and a list of tensors.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use turbospark_tensor::{DType, Shape};

use super::value::write_text;
use super::{Value, types};
use crate::packed::PackError;

/// Where tensors begin; the format's default, so that no key says it.
const ALIGNMENT: u64 = 32;

/// A tensor that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct NewTensor {
    /// Its name in the file.
    pub name: String,
    /// How its elements are stored.
    pub dtype: DType,
    /// Its sides, outermost first.
    pub shape: Shape,
}

impl NewTensor {
    fn bytes(&self) -> u64 {
        self.dtype.bytes(self.shape.elements()).expect("rows of whole blocks") as u64
    }
}

/// A file in the making: it lies under another name until [`Writer::finish`], and is removed if that isn't reached.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    partial: PathBuf,
    header: Vec<u8>,
    tensors: Vec<NewTensor>,
}

impl Writer {
    /// Lays the file out; nothing is written yet.
    ///
    /// # Errors
    /// A file of that name that is there already.
    ///
    /// # Panics
    /// When a tensor's type is none of GGUF's, or its rows are no whole blocks.
    pub fn new(target: &Path, keys: &[(String, Value)], tensors: Vec<NewTensor>) -> Result<Self, PackError> {
        if target.exists() {
            return Err(PackError::Exists(target.to_owned()));
        }
        let mut header = b"GGUF\x03\0\0\0".to_vec();
        header.extend((tensors.len() as u64).to_le_bytes());
        header.extend((keys.len() as u64).to_le_bytes());
        for (key, value) in keys {
            write_text(key, &mut header);
            value.write(&mut header);
        }
        let mut offset = 0u64;
        for tensor in &tensors {
            write_text(&tensor.name, &mut header);
            let dims = tensor.shape.dims();
            header.extend((dims.len() as u32).to_le_bytes());
            header.extend(dims.iter().rev().flat_map(|&side| (side as u64).to_le_bytes()));
            let number = types::number(tensor.dtype);
            header.extend(number.unwrap_or_else(|| panic!("{} is no type of GGUF", tensor.dtype)).to_le_bytes());
            header.extend(offset.to_le_bytes());
            offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
        }
        let data = (header.len() as u64).next_multiple_of(ALIGNMENT);
        header.resize(data as usize, 0);
        let mut partial = target.as_os_str().to_owned();
        partial.push(".partial");
        Ok(Writer { target: target.to_owned(), partial: partial.into(), header, tensors })
    }

    /// Bytes of the whole file.
    pub fn total(&self) -> u64 {
        let data = self.tensors.iter().map(|tensor| tensor.bytes().next_multiple_of(ALIGNMENT));
        self.header.len() as u64 + data.sum::<u64>()
    }

    /// Where the file will lie.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes header and tensors. `fill` gives the bytes of a tensor, in pieces, to the sink that it gets.
    ///
    /// # Errors
    /// The first of `fill` or the system.
    ///
    /// # Panics
    /// When `fill` gives another number of bytes than the tensor has.
    pub fn write<E: From<PackError>>(
        &self,
        mut fill: impl FnMut(usize, &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), E>,
    ) -> Result<(), E> {
        let io = |source| PackError::Io { path: self.partial.clone(), source };
        let mut file = io::BufWriter::with_capacity(1 << 20, File::create(&self.partial).map_err(io)?);
        file.write_all(&self.header).map_err(io)?;
        for (i, tensor) in self.tensors.iter().enumerate() {
            let mut written = 0u64;
            fill(i, &mut |bytes| {
                written += bytes.len() as u64;
                file.write_all(bytes).map_err(io)
            })?;
            assert_eq!(written, tensor.bytes(), "{}: a tensor is as long as planned", tensor.name);
            let pad = written.next_multiple_of(ALIGNMENT) - written;
            file.write_all(&[0; ALIGNMENT as usize][..pad as usize]).map_err(io)?;
        }
        let file = file.into_inner().map_err(|e| io(e.into_error()))?;
        Ok(file.sync_all().map_err(io)?)
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self) -> Result<(), PackError> {
        fs::rename(&self.partial, &self.target).map_err(|source| PackError::Io { path: self.target.clone(), source })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // After `finish` there is none.
        let _ = fs::remove_file(&self.partial);
    }
}
