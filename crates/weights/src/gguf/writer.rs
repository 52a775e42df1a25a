//! One GGUF file, written from a list of keys and a list of tensors.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use turbospark_tensor::{DType, Shape};

use super::value::write_text;
use super::{Value, types};
use crate::packed::{PackError, hex};

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

/// How far a run came: the plan by its hash, and how many tensors are whole in the file.
#[derive(Debug, Serialize, Deserialize)]
struct Journal {
    plan: String,
    tensors: usize,
}

/// A file in the making: it lies under another name until [`Writer::finish`].
///
/// Offsets are known from the beginning, so the partial file is the file up to some tensor, and a journal beside it says
/// which. What was written and never noted is written again.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    partial: PathBuf,
    journal: PathBuf,
    header: Vec<u8>,
    tensors: Vec<NewTensor>,
    plan: String,
    /// Tensors that are whole.
    done: usize,
    /// Whether an earlier run gave the file its name and then no more.
    named: bool,
}

impl Writer {
    /// A note is made this often, and sixteen times a file at least: what a killed run has to do again.
    const NOTED: u64 = 256 << 20;

    /// Lays the file out; nothing is written yet. `made` says what it is made of and how: an interrupted run of the
    /// same making, with the same keys and tensors, goes on.
    ///
    /// # Errors
    /// A file of that name that is there already.
    ///
    /// # Panics
    /// When a tensor's type is none of GGUF's, or its rows are no whole blocks.
    pub fn new(
        target: &Path,
        made: &str,
        keys: &[(String, Value)],
        tensors: Vec<NewTensor>,
    ) -> Result<Self, PackError> {
        let header = header(keys, &tensors);
        let plan = hex(&Sha256::new().chain_update(made).chain_update([0]).chain_update(&header).finalize());
        let [partial, journal] = [".partial", ".partial.json"].map(|end| {
            let mut name = target.as_os_str().to_owned();
            name.push(end);
            PathBuf::from(name)
        });
        let mut writer =
            Writer { target: target.to_owned(), partial, journal, header, tensors, plan, done: 0, named: false };
        let known = fs::read(&writer.journal).ok().and_then(|bytes| serde_json::from_slice::<Journal>(&bytes).ok());
        let known = known.filter(|known| known.plan == writer.plan).map_or(0, |known| known.tensors);
        let known = known.min(writer.tensors.len());
        let length = |path: &Path| fs::metadata(path).map_or(0, |about| about.len());
        if target.exists() {
            writer.named = known == writer.tensors.len() && known > 0 && length(target) == writer.total();
            if !writer.named {
                return Err(PackError::Exists(target.to_owned()));
            }
            writer.done = known;
        } else if known > 0 && length(&writer.partial) >= writer.end(known) {
            writer.done = known;
        }
        Ok(writer)
    }

    /// Bytes up to the end of the first `tensors` tensors.
    fn end(&self, tensors: usize) -> u64 {
        let data = self.tensors[..tensors].iter().map(|tensor| tensor.bytes().next_multiple_of(ALIGNMENT));
        self.header.len() as u64 + data.sum::<u64>()
    }

    /// Bytes of the whole file.
    pub fn total(&self) -> u64 {
        self.end(self.tensors.len())
    }

    /// Bytes that an earlier run wrote.
    pub fn resumed(&self) -> u64 {
        if self.done > 0 { self.end(self.done) } else { 0 }
    }

    /// Where the file will lie.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes what is missing of header and tensors. `fill` gives the bytes of a tensor, in pieces, to the sink that it
    /// gets.
    ///
    /// # Errors
    /// The first of `fill` or the system; whole tensors stay for the next run.
    ///
    /// # Panics
    /// When `fill` gives another number of bytes than the tensor has.
    pub fn write<E: From<PackError>>(
        &mut self,
        mut fill: impl FnMut(usize, &mut dyn FnMut(&[u8]) -> Result<(), PackError>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.named {
            return Ok(());
        }
        let partial = self.partial.clone();
        let io = |source| PackError::Io { path: partial.clone(), source };
        let mut file = io::BufWriter::with_capacity(1 << 20, self.begin().map_err(io)?);
        let noted = Self::NOTED.min(self.total() / 16);
        let mut unnoted = 0u64;
        for i in self.done..self.tensors.len() {
            let tensor = &self.tensors[i];
            let mut written = 0u64;
            let filled = fill(i, &mut |bytes| {
                written += bytes.len() as u64;
                file.write_all(bytes).map_err(io)
            });
            if let Err(e) = filled {
                // Why it stopped is what is told, and not that the note failed too.
                let _ = self.note(file, i);
                return Err(e);
            }
            assert_eq!(written, tensor.bytes(), "{}: a tensor is as long as planned", tensor.name);
            let pad = written.next_multiple_of(ALIGNMENT) - written;
            file.write_all(&[0; ALIGNMENT as usize][..pad as usize]).map_err(io)?;
            unnoted += written + pad;
            if unnoted >= noted {
                file = self.note(file, i + 1)?;
                unnoted = 0;
            }
        }
        let all = self.tensors.len();
        self.note(file, all)?;
        self.done = all;
        Ok(())
    }

    /// The partial file, at the end of what is whole.
    fn begin(&self) -> io::Result<File> {
        if self.done == 0 {
            let mut file = File::create(&self.partial)?;
            file.write_all(&self.header)?;
            return Ok(file);
        }
        let mut file = File::options().write(true).open(&self.partial)?;
        file.set_len(self.end(self.done))?;
        file.seek(io::SeekFrom::End(0))?;
        Ok(file)
    }

    /// Notes that the first `tensors` tensors are whole, once they are on the disk.
    fn note(&self, mut file: io::BufWriter<File>, tensors: usize) -> Result<io::BufWriter<File>, PackError> {
        let io = |source| PackError::Io { path: self.partial.clone(), source };
        file.flush().map_err(io)?;
        file.get_ref().sync_data().map_err(io)?;
        let journal = Journal { plan: self.plan.clone(), tensors };
        crate::packed::write_whole(&self.journal, &serde_json::to_vec(&journal).expect("plain data"))?;
        Ok(file)
    }

    /// Gives the file its name. It may be called again, and the journal stays for [`Writer::settle`]: of several files
    /// all have their names before any journal goes, so that a run that ends in between can be finished.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(&mut self) -> Result<(), PackError> {
        if !self.named {
            let io = |source| PackError::Io { path: self.target.clone(), source };
            fs::rename(&self.partial, &self.target).map_err(io)?;
            self.named = true;
        }
        Ok(())
    }

    /// Removes the journal of a file that has its name.
    ///
    /// # Errors
    /// The system's.
    pub fn settle(self) -> Result<(), PackError> {
        match fs::remove_file(&self.journal) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(PackError::Io { path: self.journal.clone(), source: e })
            }
            _ => Ok(()),
        }
    }

    /// Removes what there is of a file that can't be finished.
    pub fn abandon(self) {
        for path in [&self.partial, &self.journal] {
            let _ = fs::remove_file(path);
        }
    }
}

/// Everything before the tensors' bytes.
fn header(keys: &[(String, Value)], tensors: &[NewTensor]) -> Vec<u8> {
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend((tensors.len() as u64).to_le_bytes());
    header.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        write_text(key, &mut header);
        value.write(&mut header);
    }
    let mut offset = 0u64;
    for tensor in tensors {
        write_text(&tensor.name, &mut header);
        let dims = tensor.shape.dims();
        header.extend((dims.len() as u32).to_le_bytes());
        header.extend(dims.iter().rev().flat_map(|&side| (side as u64).to_le_bytes()));
        let number = types::number(tensor.dtype);
        header.extend(number.unwrap_or_else(|| panic!("{} is no type of GGUF", tensor.dtype)).to_le_bytes());
        header.extend(offset.to_le_bytes());
        offset = (offset + tensor.bytes()).next_multiple_of(ALIGNMENT);
    }
    header.resize((header.len() as u64).next_multiple_of(ALIGNMENT) as usize, 0);
    header
}
