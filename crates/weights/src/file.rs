use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use crate::{DirectFile, Error, Mapping, Result};

/// One file of weights, held open so that a file swapped under its name is not read by mistake. Clones share it.
#[derive(Clone, Debug)]
pub struct WeightFile {
    name: String,
    length: u64,
    store: Arc<Store>,
}

#[derive(Debug)]
enum Store {
    /// The mapping lives as long as someone uses it.
    File {
        path: PathBuf,
        file: File,
        mapping: Mutex<Weak<Mapping>>,
    },
    Memory(Arc<Mapping>),
}

impl WeightFile {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { path: path.to_owned(), source };
        // Asked before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::NotAFile(path.to_owned()));
        }
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(WeightFile {
            name,
            length,
            store: Arc::new(Store::File { path: path.to_owned(), file, mapping: Mutex::default() }),
        })
    }

    pub(crate) fn in_memory(name: &str, bytes: Mapping) -> Self {
        let (length, store) = (bytes.bytes().len() as u64, Store::Memory(Arc::new(bytes)));
        WeightFile { name: name.to_owned(), length, store: Arc::new(store) }
    }

    /// Its name without folders, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its first bytes, eight at most.
    pub(crate) fn beginning(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.length.min(8) as usize];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Where it lies, unless it is in memory.
    pub fn path(&self) -> Option<&Path> {
        match &*self.store {
            Store::File { path, .. } => Some(path),
            Store::Memory(_) => None,
        }
    }

    /// The file's bytes in place. Callers share one mapping, which goes when the last of them drops it.
    pub fn map(&self) -> Result<Arc<Mapping>> {
        let (path, file, mapping) = match &*self.store {
            Store::Memory(bytes) => return Ok(bytes.clone()),
            Store::File { path, file, mapping } => (path, file, mapping),
        };
        let mut mapping = mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = mapping.upgrade() {
            return Ok(live);
        }
        let io = |source| Error::Io { path: path.clone(), source };
        let now = file.metadata().map_err(io)?.len();
        if now != self.length {
            return Err(Error::Changed { file: self.name.clone(), was: self.length, now });
        }
        let fresh = Arc::new(Mapping::of_file(file).map_err(io)?);
        *mapping = Arc::downgrade(&fresh);
        Ok(fresh)
    }

    /// Gives the memory of a mapped range back, if anyone maps the file.
    pub(crate) fn give_back(&self, offset: u64, length: u64) {
        let Store::File { mapping, .. } = &*self.store else { return };
        if let Some(live) = mapping.lock().unwrap_or_else(PoisonError::into_inner).upgrade() {
            live.give_back(offset, length);
        }
    }

    /// Refuses to vouch for bytes that were read from a mapping whose file was cut meanwhile.
    pub(crate) fn check_intact(&self) -> Result<()> {
        let Store::File { path, file, mapping } = &*self.store else { return Ok(()) };
        let live = mapping.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if !live.is_some_and(|mapping| mapping.is_damaged()) {
            return Ok(());
        }
        let now = file.metadata().map_err(|source| Error::Io { path: path.clone(), source })?.len();
        Err(Error::Changed { file: self.name.clone(), was: self.length, now })
    }

    /// The file once more, for reads past the page cache.
    ///
    /// # Errors
    /// When another file lies under its name by now.
    pub fn direct(&self) -> Result<DirectFile> {
        DirectFile::of(self)
    }

    /// Whether another handle is of the very same file.
    pub(crate) fn is_same(&self, other: &File) -> io::Result<bool> {
        match &*self.store {
            Store::Memory(_) => Ok(false),
            Store::File { file, .. } => same(file, other),
        }
    }

    /// Whether a range is likely in the page cache, by a look at a few of its pages; false where the system doesn't tell.
    pub(crate) fn is_cached(&self, offset: u64, length: u64) -> bool {
        match &*self.store {
            Store::Memory(_) => true,
            Store::File { file, .. } => (0..LOOKS).all(|i| is_page_cached(file, offset + length / LOOKS * i)),
        }
    }

    /// Asks the system to bring a range to the page cache.
    pub(crate) fn fetch_ahead(&self, offset: u64, length: u64) {
        if let Store::File { file, .. } = &*self.store {
            // In steps: one call may be cut to what the system reads ahead at most.
            for at in (offset..offset + length).step_by(AHEAD) {
                will_need(file, at, (offset + length - at).min(AHEAD as u64));
            }
        }
    }

    /// Fills `out` from `offset` on, without mapping. Any number of threads may read at once.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let length = out.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.length) {
            let file = self.name.clone();
            return Err(Error::OutOfRange { file, offset, length, file_length: self.length });
        }
        match &*self.store {
            Store::File { path, file, .. } => {
                read_exact_at(file, offset, out).map_err(|source| Error::Io { path: path.clone(), source })
            }
            Store::Memory(bytes) => {
                out.copy_from_slice(bytes.slice(offset, length).expect("the range was checked above"));
                Ok(())
            }
        }
    }
}

/// Bytes that are asked for at a time.
const AHEAD: usize = 4 << 20;

#[cfg(target_os = "linux")]
fn will_need(file: &File, offset: u64, length: u64) {
    let _ = rustix::fs::fadvise(file, offset, std::num::NonZeroU64::new(length), rustix::fs::Advice::WillNeed);
}

#[cfg(not(target_os = "linux"))]
fn will_need(_: &File, _: u64, _: u64) {}

/// Pages of a range that are looked at.
const LOOKS: u64 = 8;

#[cfg(target_os = "linux")]
fn is_page_cached(file: &File, offset: u64) -> bool {
    let mut byte = [0];
    let flags = rustix::io::ReadWriteFlags::NOWAIT;
    rustix::io::preadv2(file, &mut [io::IoSliceMut::new(&mut byte)], offset, flags) == Ok(1)
}

#[cfg(not(target_os = "linux"))]
fn is_page_cached(_: &File, _: u64) -> bool {
    false
}

#[cfg(unix)]
fn same(a: &File, b: &File) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let [a, b] = [a.metadata()?, b.metadata()?];
    Ok((a.dev(), a.ino()) == (b.dev(), b.ino()))
}

#[cfg(windows)]
fn same(_: &File, _: &File) -> io::Result<bool> {
    Ok(true)
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                out = &mut out[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
