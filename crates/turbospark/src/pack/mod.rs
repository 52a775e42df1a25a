//! Packing: any checkpoint that can be read, laid out anew for reading from disk, and quantised if asked.
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

mod check;
mod fill;
mod units;

use std::path::Path;

use serde_json::Value;
use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Quant, plan};
use turbospark_weights::gguf::Mmproj;
use turbospark_weights::packed::{PackError, Writer};
use turbospark_weights::{Checkpoint, Folder, Sidecar};

use crate::{Cancel, Error, Result};
pub use check::{Agreement, check};
use fill::Filler;
use units::Job;

/// How a checkpoint is packed.
#[derive(Clone, Debug, Default)]
pub struct PackOptions {
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
    /// Bytes of the packed weights.
    pub bytes: u64,
    /// Bytes of the weights before.
    pub source_bytes: u64,
    /// Bytes that an interrupted run had written already.
    pub resumed: u64,
    /// Weights that stay quantised as they were, although another format was asked for.
    pub kept_quantised: usize,
    /// Parts and formats in the order of use; empty for files that an earlier run wrote.
    pub groups: Vec<GroupQuality>,
}

/// Packs the checkpoint at `source` into the folder `target`, which is new, empty, or of an interrupted run of the
/// same packing.
///
/// # Errors
/// What is wrong with the source, by tensor; the disk's; [`Error::Cancelled`]. What is whole stays for the next run.
pub fn pack(
    source: impl AsRef<Path>,
    target: impl AsRef<Path>,
    options: &PackOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<PackReport> {
    let (source, target) = (source.as_ref(), target.as_ref());
    let folder = Folder::open_with(source, &options.mmproj)?;
    let config_text = folder.require(Sidecar::Config)?;
    let config = Config::parse(&config_text).map_err(turbospark_models::ModelError::from)?;
    let checkpoint = folder.checkpoint()?;
    let how = LoadAs {
        quant: options.quant,
        vision_quant: options.vision_quant,
        requantise: options.requantise,
        threads: options.threads,
    };
    let planned = plan(config, &checkpoint, &how)?;
    let asked = options.quant.is_some() && !options.requantise;
    let kept_quantised = if asked { planned.iter().filter(|p| units::stays_quantised(p)).count() } else { 0 };
    let units = units::units(&planned);
    let layout: Vec<_> = units.iter().map(|(name, jobs)| units::layout(name, jobs)).collect();
    let mut writer = Writer::new(target, &made(source, &checkpoint, options), checkpoint.conventions(), &layout)?;
    let (of, resumed) = (writer.total(), writer.resumed());
    room(target, of - resumed)?;
    let mut filler = Filler::new(&checkpoint, options.threads);
    let mut done = resumed;
    progress(PackProgress { bytes: done, of });
    writer.write(|[u, t, p], sink| {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        let job: &Job = &units[u].1[t];
        filler.fill(job, p, &mut |bytes| {
            done += bytes.len() as u64;
            progress(PackProgress { bytes: done, of });
            sink(bytes)
        })
    })?;
    side_files(&folder, &writer, &config_text)?;
    writer.finish()?;
    progress(PackProgress { bytes: of, of });
    let source_bytes = checkpoint.total_bytes();
    Ok(PackReport { bytes: of, source_bytes, resumed, kept_quantised, groups: filler.report() })
}

/// What the manifest says of its making; a resumed run must say the same.
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

/// Refuses early where the disk is too small.
fn room(target: &Path, needed: u64) -> Result<()> {
    match fs4::available_space(target) {
        Ok(free) if free < needed => Err(PackError::NoSpace { path: target.to_owned(), needed, free }.into()),
        _ => Ok(()),
    }
}

/// The texts beside the weights; of the configuration without what it said of another program's quantising.
fn side_files(folder: &Folder, writer: &Writer, config_text: &str) -> Result<()> {
    let mut config: Value = serde_json::from_str(config_text).expect("it was read as a configuration");
    for key in ["quantization", "quantization_config", "compression_config"] {
        if let Some(object) = config.as_object_mut() {
            object.shift_remove(key);
        }
        if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
            text.shift_remove(key);
        }
    }
    let config = serde_json::to_string_pretty(&config).expect("it was read from text");
    writer.side_file(Sidecar::Config.file_name(), config.as_bytes())?;
    for sidecar in Sidecar::ALL.into_iter().filter(|s| *s != Sidecar::Config) {
        if let Some(text) = folder.text(sidecar)? {
            writer.side_file(sidecar.file_name(), text.as_bytes())?;
        }
    }
    Ok(())
}
