#![allow(unsafe_code)]

use std::{fs::File, io, sync::Arc};

use memmap2::Mmap;

/// The bytes of one weight file: its mapped pages, or memory that holds it already.
///
/// A mapped file must not be cut while it is in use: reading a page past the new end ends the process with
/// SIGBUS (an access violation on Windows), which no check made here beforehand can prevent. A file rewritten in
/// place changes the weights under the model. Both need someone with write access to the file while it is served.
#[derive(Debug)]
pub struct Mapping {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(Mmap),
    Static(&'static [u8]),
    Shared(Arc<[u8]>),
}

impl Mapping {
    /// Maps the whole file for reading.
    pub(crate) fn of_file(file: &File) -> io::Result<Self> {
        // SAFETY: the map is private to this struct and only ever lent out as `&[u8]` for as long as the struct
        // lives, so it is unmapped after the last borrow. That nobody cuts or rewrites the file meanwhile cannot be
        // checked from here; the contract is stated on the struct, and no value's validity rests on the bytes.
        let map = unsafe { Mmap::map(file) }?;
        Ok(Mapping { bytes: Bytes::Mapped(map) })
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(map) => map,
            Bytes::Static(bytes) => bytes,
            Bytes::Shared(bytes) => bytes,
        }
    }

    /// `length` bytes at `offset`, or `None` where the file is shorter.
    pub fn slice(&self, offset: u64, length: u64) -> Option<&[u8]> {
        let begin = usize::try_from(offset).ok()?;
        let end = begin.checked_add(usize::try_from(length).ok()?)?;
        self.bytes().get(begin..end)
    }

    /// Whether these are pages of a file, which count against a memory ceiling as they are touched.
    pub fn is_file_backed(&self) -> bool {
        matches!(self.bytes, Bytes::Mapped(_))
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl From<&'static [u8]> for Mapping {
    fn from(bytes: &'static [u8]) -> Self {
        Mapping { bytes: Bytes::Static(bytes) }
    }
}

impl From<Arc<[u8]>> for Mapping {
    fn from(bytes: Arc<[u8]>) -> Self {
        Mapping { bytes: Bytes::Shared(bytes) }
    }
}
