use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::layout::{PlacedUnit, Unit, place};
use super::manifest::{MANIFEST_NAME, Manifest};
use crate::Conventions;

/// What says how far an interrupted run came.
pub(crate) const JOURNAL_NAME: &str = "turbospark.partial.json";

/// Why a folder or file was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A folder with something else in it.
    #[error("{}: there is something else in this folder; name an empty or new one", .0.display())]
    NotEmpty(PathBuf),
    /// A file that would be written over.
    #[error("{}: there is such a file already; remove it, or name another folder", .0.display())]
    Exists(PathBuf),
    /// The disk is too small.
    #[error("{}: {needed} bytes are needed and {free} are free", path.display())]
    NoSpace {
        /// Where.
        path: PathBuf,
        /// What is still to be written.
        needed: u64,
        /// What the file system has.
        free: u64,
    },
}

/// Bytes after which it is noted how far a file came.
const NOTED: u64 = 256 << 20;

/// How far a run came: the plan by its hash, the hashes of the files that are whole, and the bytes of the next one that
/// are whole parts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    plan: String,
    files: Vec<String>,
    #[serde(default)]
    begun: u64,
}

/// Writes a packed folder, file by file.
#[derive(Debug)]
pub struct Writer {
    folder: PathBuf,
    manifest: Manifest,
    plan: String,
    done: Vec<String>,
    /// Bytes of the file after those that an earlier run left.
    begun: u64,
}

impl Writer {
    /// Begins or goes on with a folder. `made` says what is packed and how; a folder that was begun with other words,
    /// units or sizes is begun anew.
    ///
    /// # Errors
    /// A folder with other files in it; the system's.
    pub fn new(folder: &Path, made: &str, conventions: Conventions, units: &[Unit]) -> Result<Self, PackError> {
        let io = |source| PackError::Io { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(io)?;
        let (placed, lengths) = place(units);
        let manifest = Manifest::new(made, conventions, placed, &lengths);
        let plan = serde_json::to_vec(&manifest).expect("plain data");
        let plan = hex(&Sha256::digest(plan));
        let journal = folder.join(JOURNAL_NAME);
        let known = fs::read(&journal).ok().and_then(|bytes| serde_json::from_slice::<Journal>(&bytes).ok());
        if known.is_none() && fs::read_dir(folder).map_err(io)?.next().is_some() {
            return Err(PackError::NotEmpty(folder.to_owned()));
        }
        let known = known.filter(|known| known.plan == plan).unwrap_or_default();
        let (mut done, mut begun) = (known.files, known.begun);
        let whole = |(file, _): &(&super::manifest::PlacedFile, &String)| {
            fs::metadata(folder.join(&file.name)).is_ok_and(|about| about.len() == file.bytes)
        };
        let count = manifest.files.iter().zip(&done).take_while(whole).count();
        let partial = manifest.files.get(count).map(|file| folder.join(format!("{}.partial", file.name)));
        let there = partial.and_then(|path| fs::metadata(path).ok()).map_or(0, |about| about.len());
        if count < done.len() || there < begun {
            begun = 0;
        }
        done.truncate(count);
        let writer = Writer { folder: folder.to_owned(), manifest, plan, done, begun };
        writer.note(begun)?;
        Ok(writer)
    }

    /// Bytes of all files.
    pub fn total(&self) -> u64 {
        self.manifest.files.iter().map(|file| file.bytes).sum()
    }

    /// Bytes that an earlier run wrote.
    pub fn resumed(&self) -> u64 {
        self.manifest.files.iter().take(self.done.len()).map(|file| file.bytes).sum::<u64>() + self.begun
    }

    /// Writes what is missing. `fill` gives the bytes of part `part` of tensor `tensor` of unit `unit`, in pieces, to
    /// the sink that it gets.
    ///
    /// # Errors
    /// The first of `fill` or the system; what is whole stays for the next run.
    pub fn write<E: From<PackError>>(
        &mut self,
        mut fill: impl FnMut([usize; 3], &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), E>,
    ) -> Result<(), E> {
        for i in self.done.len()..self.manifest.files.len() {
            let hash = self.write_file(i, &mut fill)?;
            self.done.push(hash);
            self.begun = 0;
            self.note(0)?;
        }
        Ok(())
    }

    fn write_file<E: From<PackError>>(
        &mut self,
        i: usize,
        fill: &mut impl FnMut([usize; 3], &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), E>,
    ) -> Result<String, E> {
        let listed = &self.manifest.files[i];
        let target = self.folder.join(&listed.name);
        let mut file = Partial::open(self.folder.join(format!("{}.partial", listed.name)), self.begun)?;
        let (begun, mut noted) = (self.begun, self.begun);
        let units = self.manifest.units.iter().enumerate().filter(|(_, unit)| unit.file == i);
        let todo = units.flat_map(|(u, unit)| parts(unit).map(move |(t, p, part)| ([u, t, p], part)));
        for (at, part) in todo.filter(|(_, part)| part.offset + part.bytes > begun) {
            let whole = file.at;
            file.pad(part.offset)?;
            if let Err(e) = fill(at, &mut |bytes| file.put(bytes)) {
                // A part that is begun is written again.
                file.sync()?;
                self.note(whole)?;
                return Err(e);
            }
            assert_eq!(file.at, part.offset + part.bytes, "{at:?}: a part is as long as planned");
            if file.at - noted >= NOTED {
                file.sync()?;
                self.note(file.at)?;
                noted = file.at;
            }
        }
        file.pad(listed.bytes)?;
        file.sync()?;
        let hash = hex(&file.hash.finalize());
        drop(file.file);
        fs::rename(&file.path, &target).map_err(|source| PackError::Io { path: target, source })?;
        Ok(hash)
    }

    /// Writes a file beside the weights, such as `config.json`.
    ///
    /// # Errors
    /// The system's.
    pub fn side_file(&self, name: &str, bytes: &[u8]) -> Result<(), PackError> {
        self.atomically(name, bytes)
    }

    /// Writes the manifest: the folder is whole.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(mut self) -> Result<(), PackError> {
        for (file, hash) in self.manifest.files.iter_mut().zip(&self.done) {
            file.sha256.clone_from(hash);
        }
        let text = serde_json::to_vec_pretty(&self.manifest).expect("plain data");
        self.atomically(MANIFEST_NAME, &text)?;
        let journal = self.folder.join(JOURNAL_NAME);
        fs::remove_file(&journal).map_err(|source| PackError::Io { path: journal, source })
    }

    /// Notes which files are whole, and `begun` bytes of the next one.
    fn note(&self, begun: u64) -> Result<(), PackError> {
        let journal = Journal { plan: self.plan.clone(), files: self.done.clone(), begun };
        self.atomically(JOURNAL_NAME, &serde_json::to_vec(&journal).expect("plain data"))
    }

    fn atomically(&self, name: &str, bytes: &[u8]) -> Result<(), PackError> {
        let target = self.folder.join(name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(|source| PackError::Io { path: parent.to_owned(), source })?;
        }
        write_whole(&target, bytes)
    }
}

/// A file that is being written, under a name of its own until it is whole.
struct Partial {
    path: PathBuf,
    file: io::BufWriter<File>,
    hash: Sha256,
    at: u64,
}

impl Partial {
    /// Goes on after the first `begun` bytes, which are read once for their hash.
    fn open(path: PathBuf, begun: u64) -> Result<Self, PackError> {
        let open = || -> io::Result<(File, Sha256)> {
            let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            let (mut hash, mut left) = (Sha256::new(), begun);
            let mut buffer = vec![0; 1 << 20];
            while left > 0 {
                let piece = &mut buffer[..left.min(1 << 20) as usize];
                file.read_exact(piece)?;
                hash.update(&*piece);
                left -= piece.len() as u64;
            }
            file.set_len(begun)?;
            file.seek(SeekFrom::Start(begun))?;
            Ok((file, hash))
        };
        match open() {
            Ok((file, hash)) => {
                Ok(Partial { path, file: io::BufWriter::with_capacity(1 << 20, file), hash, at: begun })
            }
            Err(source) => Err(PackError::Io { path, source }),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), PackError> {
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|source| PackError::Io { path: self.path.clone(), source })
    }

    /// Zeros up to `offset`.
    fn pad(&mut self, offset: u64) -> Result<(), PackError> {
        self.put(&[0; 4096][..(offset - self.at) as usize])
    }

    /// All of it is on the disk.
    fn sync(&mut self) -> Result<(), PackError> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        synced.map_err(|source| PackError::Io { path: self.path.clone(), source })
    }
}

/// Writes a small file: all of it, or what was there before stays.
pub(crate) fn write_whole(target: &Path, bytes: &[u8]) -> Result<(), PackError> {
    let mut partial = target.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let io = |source| PackError::Io { path: target.to_owned(), source };
    let mut file = File::create(&partial).map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    file.sync_all().map_err(io)?;
    drop(file);
    fs::rename(&partial, target).map_err(io)
}

/// Indices of tensor and part, and the part.
fn parts(unit: &PlacedUnit) -> impl Iterator<Item = (usize, usize, &super::layout::PlacedPart)> {
    let tensors = unit.tensors.iter().enumerate();
    tensors.flat_map(|(t, tensor)| tensor.parts.iter().enumerate().map(move |(p, part)| (t, p, part)))
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
