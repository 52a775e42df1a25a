//! Packing: any checkpoint that can be read, written as a folder laid out for reading from disk or as GGUF files, and
//! quantised if asked.
//!
//! ```no_run
//! # fn main() -> Result<(), turbospark::Error> {
//! use turbospark::pack::{PackOptions, pack};
//! use turbospark::{Cancel, Quant};
//!
//! let options = PackOptions { quant: Some(Quant::Q4_K), ..PackOptions::default() };
//! let report = pack("Qwen3-VL-2B-Instruct", "qwen3-vl-2b-q4k", &options, &Cancel::new(), &mut |_| {})?;
//! println!("{} bytes", report.bytes);
//! # Ok(())
//! # }
//! ```

mod change;
mod check;
mod fill;
mod folder;
mod gguf;
mod rows;
mod units;

use std::path::{Path, PathBuf};

use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Quant};
use turbospark_weights::gguf::Mmproj;
use turbospark_weights::packed::PackError;
use turbospark_weights::{Checkpoint, Folder, Sidecar};

use crate::{Cancel, Result};
pub use check::{Agreement, check};

/// What a checkpoint is written as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PackFormat {
    /// This program's own folder, in which each layer, expert and vision block is read at once.
    #[default]
    Folder,
    /// `NAME-TYPE.gguf`, and `mmproj-NAME-TYPE.gguf` with the vision tower, which llama.cpp reads too.
    Gguf,
}

/// How a checkpoint is packed.
#[derive(Clone, Debug, Default)]
pub struct PackOptions {
    /// What is written.
    pub format: PackFormat,
    /// What GGUF files are called; `None` takes the source's name.
    pub name: Option<String>,
    /// Formats of the trunk's linear weights; `None` keeps every tensor as it is stored and only lays it out.
    pub quant: Option<Quant>,
    /// Formats of the vision tower's, which else stays as it is stored.
    pub vision_quant: Option<Quant>,
    /// Whether weights that are quantised already are quantised again. That loses more than quantising the original.
    pub requantise: bool,
    /// Threads that quantise; the number changes no bit. `None` takes the processors that the process may use.
    pub threads: Option<usize>,
    /// Where the vision tower of a GGUF model is looked for.
    pub mmproj: Mmproj,
}

/// How far packing has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackProgress {
    /// Bytes written, those of an earlier run among them.
    pub bytes: u64,
    /// Of how many.
    pub of: u64,
}

/// What quantising left of one part of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupQuality {
    /// Which part, such as `mlp`.
    pub part: String,
    /// Its format now.
    pub format: String,
    /// Number of weights.
    pub weights: u64,
    /// Bytes now.
    pub bytes: u64,
    /// Root mean square error over root mean square of the weights; 0 where nothing was rounded.
    pub relative_error: f64,
}

/// What was packed.
#[derive(Clone, Debug, PartialEq)]
pub struct PackReport {
    /// What to open: the folder, or the trunk's file.
    pub model: PathBuf,
    /// The files of a GGUF model.
    pub files: Vec<PathBuf>,
    /// Bytes of the packed weights.
    pub bytes: u64,
    /// Bytes of the weights before.
    pub source_bytes: u64,
    /// Bytes that an interrupted run had written already.
    pub resumed: u64,
    /// Weights that stay quantised as they were, although another format was asked for.
    pub kept_quantised: usize,
    /// Weights with scales of their own, which GGUF has no form for, that became F16.
    pub widened: usize,
    /// Parts and formats in the order of use; empty for files that an earlier run wrote.
    pub groups: Vec<GroupQuality>,
}

/// A checkpoint that is to be packed.
struct Source<'a> {
    path: &'a Path,
    folder: Folder,
    config_text: String,
    config: Config,
    checkpoint: Checkpoint,
}

/// Packs the checkpoint at `source` into the folder `target`. As [`PackFormat::Folder`] that is new, empty, or of an
/// interrupted run of the same packing, which goes on; GGUF files are put beside what is there, and an interrupted run
/// goes on from `NAME.gguf.partial`.
///
/// # Errors
/// What is wrong with the source, by tensor; what GGUF has no words for; the disk's; [`Error::Cancelled`]. What is whole
/// stays for the next run where one may go on.
///
/// [`Error::Cancelled`]: crate::Error::Cancelled
pub fn pack(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    options: &PackOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<PackReport> {
    let (path, target) = (source.as_ref(), target.as_ref());
    let folder = Folder::open_with(path, &options.mmproj)?;
    let config_text = folder.require(Sidecar::Config)?.into_owned();
    let config = Config::parse(&config_text).map_err(turbospark_models::ModelError::from)?;
    let checkpoint = folder.checkpoint()?;
    let source = Source { path, folder, config_text, config, checkpoint };
    match options.format {
        PackFormat::Folder => folder::pack(&source, target, options, cancel, progress),
        PackFormat::Gguf => gguf::pack(&source, target, options, cancel, progress),
    }
}

impl PackOptions {
    fn load_as(&self) -> LoadAs {
        LoadAs {
            quant: self.quant,
            vision_quant: self.vision_quant,
            requantise: self.requantise,
            threads: self.threads,
            widen_ordered: false,
        }
    }
}

/// Refuses early where the disk is too small.
fn room(target: &Path, needed: u64) -> Result<()> {
    match fs4::available_space(target) {
        Ok(free) if free < needed => Err(PackError::NoSpace { path: target.to_owned(), needed, free }.into()),
        _ => Ok(()),
    }
}

/// What is packed and how; a resumed run must say the same.
fn made(source: &Path, checkpoint: &Checkpoint, options: &PackOptions) -> String {
    let format = |q: Option<Quant>| q.map_or("as stored".to_owned(), |q| q.to_string());
    let files: Vec<String> =
        checkpoint.files().iter().map(|f| format!("{} ({} bytes)", f.name(), f.length())).collect();
    let name = source.file_name().unwrap_or(source.as_os_str()).to_string_lossy();
    format!(
        "from {name}: {}; text {}, vision {}{}",
        files.join(", "),
        format(options.quant),
        format(options.vision_quant),
        if options.requantise { ", quantised again" } else { "" }
    )
}
