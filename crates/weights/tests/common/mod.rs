//! Small safetensors files, honest and crafted.
#![allow(dead_code)] // Each test binary uses its own part.

use std::path::{Path, PathBuf};

use turbospark_weights::{Checkpoint, Error};

/// A file of this header and this many bytes of data, whatever the header says.
pub fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

/// An honest file of tensors, by name, type, sides and bytes in an element.
pub fn honest(tensors: &[(&str, &str, &[u64], u64)]) -> Vec<u8> {
    let mut offset = 0;
    let mut entries = Vec::new();
    for (name, dtype, dims, size) in tensors {
        let end = offset + dims.iter().product::<u64>() * size;
        entries.push(format!(r#"{name:?}:{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":[{offset},{end}]}}"#));
        offset = end;
    }
    file(&format!("{{{}}}", entries.join(",")), offset as usize)
}

/// Opens bytes as a file in memory.
pub fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::from_bytes("x.safetensors", std::sync::Arc::<[u8]>::from(bytes))
}

/// A folder of these files.
pub fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// The assets of the repository.
pub fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets")
}
