#![allow(unsafe_code)]

use std::{fs::File, io, sync::Arc};

use memmap2::Mmap;

use crate::guard::Watch;

/// The bytes of one weight file: its mapped pages, or memory that holds it already.
///
/// A mapped file must not be cut while it is in use: reading a page past the new end ends the process with
/// SIGBUS (an access violation on Windows), unless the program has installed [`guard_mappings`](crate::guard_mappings).
/// A file rewritten in place changes the weights under the model. Both need someone with write access to the file while
/// it is served.
#[derive(Debug)]
pub struct Mapping {
    /// Given up before the bytes.
    watch: Option<Watch>,
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
        Ok(Mapping { watch: Watch::new(&map), bytes: Bytes::Mapped(map) })
    }

    /// Whether the file was cut under the mapping and zeros were read in place of what was lost; only with
    /// [`guard_mappings`](crate::guard_mappings).
    pub fn is_damaged(&self) -> bool {
        self.watch.as_ref().is_some_and(Watch::is_damaged)
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

    /// Gives the memory of a range back: its pages are fetched again, mostly from the system's cache, when they are
    /// used next. Nothing happens where the bytes are no file's pages.
    pub fn give_back(&self, offset: u64, length: u64) {
        #[cfg(unix)]
        if let Bytes::Mapped(map) = &self.bytes
            && self.slice(offset, length).is_some_and(|part| !part.is_empty())
        {
            let (offset, length) = (offset as usize, length as usize);
            // SAFETY: the range lies in the map, which is of a file and for reading only: what is dropped is fetched
            // again from the same file, and where the guard put a page of zeros it is zeros again.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, length) };
        }
        #[cfg(not(unix))]
        let _ = (offset, length);
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
        Mapping { watch: None, bytes: Bytes::Static(bytes) }
    }
}

impl From<Arc<[u8]>> for Mapping {
    fn from(bytes: Arc<[u8]>) -> Self {
        Mapping { watch: None, bytes: Bytes::Shared(bytes) }
    }
}
