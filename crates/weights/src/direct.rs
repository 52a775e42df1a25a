//! Reading past the page cache.
//!
//! A model larger than memory is read again for every pass. Read through the page cache, each byte would push out
//! another that is wanted next, and be counted against the process's group; so the file is opened once more for direct
//! reads, whose offsets, lengths and memory are multiples of [`DirectFile::ALIGN`]; on Apple's systems for reads that
//! are kept nowhere. Where the file system doesn't do that, reads are ordinary ones and, on Linux, the pages are given
//! back after each.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::helpers::together;
use crate::{Error, Mapping, Result, WeightFile};

/// One file of weights, opened for direct reads.
#[derive(Debug)]
pub struct DirectFile {
    name: String,
    length: u64,
    store: Store,
}

#[derive(Debug)]
enum Store {
    File {
        path: PathBuf,
        file: File,
        /// Whether reads go past the page cache.
        direct: AtomicBool,
    },
    Memory(Arc<Mapping>),
}

/// Bytes of one read: more gain nothing where a drive's queue is full with them.
const CHUNK: usize = 4 << 20;
/// Reads in flight: one leaves most drives idle between two requests, and more than four gained nothing.
const DEPTH: usize = 4;
/// The same of reads that may be of no use: what is in flight when that is known is read for nothing.
const CALM_CHUNK: usize = 1 << 20;
const CALM_DEPTH: usize = 2;
/// Below this, waking others takes longer than they save.
const ALONE: usize = 1 << 20;

/// One of several reads that are made together: see [`DirectFile::read`].
#[derive(Debug)]
pub struct DirectRead<'a> {
    /// The file.
    pub file: &'a DirectFile,
    /// Where it begins; a multiple of [`DirectFile::ALIGN`].
    pub offset: u64,
    /// How many of the first bytes must be there.
    pub needed: usize,
    /// Where they go.
    pub out: &'a mut [u8],
}

/// How reads are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// In large pieces, as many at once as keep a drive busy.
    Full,
    /// In small pieces, few at once, so that little is in flight when they are stopped.
    Calm,
}

/// Makes all `reads`, several at a time, until one fails or `stop` says so; how many of the needed bytes were read: fewer
/// than all only where it was stopped.
///
/// # Errors
/// The first that fails, as [`DirectFile::read`].
///
/// # Panics
/// As there.
pub fn read_together(reads: Vec<DirectRead<'_>>, pace: Pace, stop: &(dyn Fn() -> bool + Sync)) -> Result<u64> {
    let all: usize = reads.iter().map(|read| read.needed).sum();
    let (size, depth) = match pace {
        // What is less than so many pieces is cut evenly: the last of it would be read alone.
        Pace::Full => ((all / DEPTH).next_multiple_of(DirectFile::ALIGN).clamp(ALONE, CHUNK), DEPTH),
        Pace::Calm => (CALM_CHUNK, CALM_DEPTH),
    };
    let chunks = reads.into_iter().flat_map(|DirectRead { file, offset, needed, out }| {
        let chunk = move |(i, out)| {
            let before = i * size;
            let needed = needed.saturating_sub(before).min(size);
            DirectRead { file, offset: offset + before as u64, needed, out }
        };
        out.chunks_mut(size).enumerate().map(chunk).filter(|chunk| chunk.needed > 0)
    });
    let mut chunks: Vec<DirectRead<'_>> = chunks.collect();
    chunks.reverse(); // taken from the end
    let threads = if all <= ALONE { 1 } else { chunks.len().clamp(1, depth) };
    let (rest, problem) = (Mutex::new(chunks), Mutex::new(None));
    let work = || {
        let failed = || problem.lock().is_ok_and(|problem| problem.is_some());
        while !stop() && !failed() {
            let Some(chunk) = rest.lock().unwrap_or_else(PoisonError::into_inner).pop() else { return };
            if let Err(error) = chunk.file.read(chunk.offset, chunk.needed, chunk.out) {
                problem.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        }
    };
    together(threads - 1, &work);
    match problem.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => {
            let rest = rest.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok((all - rest.iter().map(|chunk| chunk.needed).sum::<usize>()) as u64)
        }
    }
}

impl DirectFile {
    /// What offsets, lengths and memory are multiples of.
    pub const ALIGN: usize = 4096;

    pub(crate) fn of(file: &WeightFile) -> Result<Self> {
        let (name, length) = (file.name().to_owned(), file.length());
        let store = match file.path() {
            None => Store::Memory(file.map()?),
            Some(path) => {
                let io = |source| Error::Io { path: path.to_owned(), source };
                let (opened, direct) = open(path).map_err(io)?;
                let now = opened.metadata().map_err(io)?.len();
                if now != length || !file.is_same(&opened).map_err(io)? {
                    return Err(Error::Changed { file: name, was: length, now });
                }
                Store::File { path: path.to_owned(), file: opened, direct: AtomicBool::new(direct) }
            }
        };
        Ok(DirectFile { name, length, store })
    }

    /// Fills `out` from `offset` on, at least its first `needed` bytes: the file may end within the last block.
    ///
    /// # Errors
    /// A file that was cut meanwhile; the system's, with the file's name.
    ///
    /// # Panics
    /// When `needed` is more than `out` holds.
    pub fn read(&self, offset: u64, needed: usize, out: &mut [u8]) -> Result<()> {
        assert!(needed <= out.len(), "more is needed than there is room for");
        let (path, file, direct) = match &self.store {
            Store::Memory(bytes) => {
                let part = bytes.slice(offset, needed as u64).ok_or_else(|| self.cut(offset, needed))?;
                out[..needed].copy_from_slice(part);
                return Ok(());
            }
            Store::File { path, file, direct } => (path, file, direct),
        };
        let (mut done, mut refused) = (0, false);
        while done < needed {
            let some = CHUNK.min(out.len() - done);
            match read_at(file, &mut out[done..done + some], offset + done as u64) {
                Ok(0) => return Err(self.cut(offset, needed)),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The file system opened the file so, and doesn't read it so; or the memory isn't aligned.
                Err(e) if e.kind() == io::ErrorKind::InvalidInput && !refused => {
                    refused = true;
                    direct.store(false, Ordering::Relaxed);
                    buffered(file).map_err(|source| Error::Io { path: path.clone(), source })?;
                }
                Err(source) => return Err(Error::Io { path: path.clone(), source }),
            }
        }
        if !direct.load(Ordering::Relaxed) {
            forget(file, offset, out.len() as u64);
        }
        Ok(())
    }

    /// What a read that ended early says: that the file is shorter than when it was opened, or that this was never in it.
    fn cut(&self, offset: u64, needed: usize) -> Error {
        let length = needed as u64;
        if let Store::File { file, .. } = &self.store
            && let Ok(now) = file.metadata().map(|m| m.len())
            && now < self.length
        {
            return Error::Changed { file: self.name.clone(), was: self.length, now };
        }
        Error::OutOfRange { file: self.name.clone(), offset, length, file_length: self.length }
    }
}

/// The file, and whether reads go past the page cache.
#[cfg(target_os = "linux")]
fn open(path: &Path) -> io::Result<(File, bool)> {
    use std::os::unix::fs::OpenOptionsExt;

    let flag = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    match File::options().read(true).custom_flags(flag).open(path) {
        Ok(file) => Ok((file, true)),
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok((File::open(path)?, false)),
        Err(e) => Err(e),
    }
}

/// Here nothing need be aligned, and a file system that keeps pages all the same says nothing.
#[cfg(target_vendor = "apple")]
fn open(path: &Path) -> io::Result<(File, bool)> {
    let file = File::open(path)?;
    let direct = rustix::fs::fcntl_nocache(&file, true).is_ok();
    Ok((file, direct))
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn open(path: &Path) -> io::Result<(File, bool)> {
    Ok((File::open(path)?, false))
}

/// Back to ordinary reads.
#[cfg(target_os = "linux")]
fn buffered(file: &File) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    Ok(rustix::fs::fcntl_setfl(file, flags - rustix::fs::OFlags::DIRECT)?)
}

#[cfg(not(target_os = "linux"))]
fn buffered(_: &File) -> io::Result<()> {
    Ok(())
}

/// Gives the pages of a range back; advice, so nothing depends on it.
#[cfg(target_os = "linux")]
fn forget(file: &File, offset: u64, length: u64) {
    let length = std::num::NonZeroU64::new(length);
    let _ = rustix::fs::fadvise(file, offset, length, rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn forget(_: &File, _: u64, _: u64) {}

#[cfg(unix)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
fn read_at(file: &File, out: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}
