//! Named tensors of every stage, to hold against a reference.
//!
//! [`trace_fixtures`] reruns every case of a fixture set on a device and writes the results under the same
//! paths and names, so that the set's own `compare.py` or a test compares them. What a case is fed (ids,
//! patches, grids, block inputs) comes from the set; everything else is computed here by the code that
//! answers requests.

mod blocks;
mod error;
mod file;
mod model;
mod ops;
mod pictures;
mod prompt;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use turbospark_device::Device;
use turbospark_models::KvFormat;

pub use error::TraceError;
use file::Files;

/// What a trace wrote.
#[derive(Clone, Debug, Default)]
pub struct TraceReport {
    /// Files written, relative to the output folder.
    pub files: Vec<String>,
    /// Tensors in them.
    pub tensors: usize,
    /// Cases that were not rerun, each with the reason: inputs, and kinds that this build does not know.
    pub left_out: Vec<(String, String)>,
}

/// Reruns every case of the fixture set in `fixtures` on `device`, with keys and values kept as `kv`, and writes the
/// results to `out`.
///
/// # Errors
/// A file of the set that can't be read or does not fit, by path; what the model or the device refuses.
pub fn trace_fixtures(
    fixtures: &Path,
    out: &Path,
    device: &dyn Device,
    kv: KvFormat,
    progress: &mut dyn FnMut(&str),
) -> Result<TraceReport, TraceError> {
    trace_matching(fixtures, out, device, kv, &|_| true, progress)
}

/// [`trace_fixtures`] for the cases alone whose path `wanted` accepts, such as
/// `qwen3_vl/vision_image_three.safetensors`.
///
/// # Errors
/// As [`trace_fixtures`].
pub fn trace_matching(
    fixtures: &Path,
    out: &Path,
    device: &dyn Device,
    kv: KvFormat,
    wanted: &dyn Fn(&str) -> bool,
    progress: &mut dyn FnMut(&str),
) -> Result<TraceReport, TraceError> {
    let files = Files { fixtures, out };
    let index = files.json("INDEX.json")?;
    let listed = index["files"].as_object().ok_or_else(|| files.broken("INDEX.json", "it has no \"files\""))?;
    // One folder after the other, so that a model is loaded once.
    let mut folders: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for path in listed.keys().filter(|p| wanted(p)) {
        let (folder, name) = path.split_once('/').unwrap_or(("", path));
        folders.entry(folder).or_default().insert(name);
    }
    let mut report = TraceReport::default();
    for (folder, names) in folders {
        let is_model = fixtures.join(folder).join("checkpoint").is_dir();
        let mut family = None;
        for name in names {
            let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            let case = || Case { files, device, folder, name, path: &path };
            let made = match folder {
                _ if name == "checkpoint" => continue,
                _ if is_model => {
                    if family.is_none() {
                        progress(&format!("{folder}: loading"));
                        family = Some(model::Family::load(files, device, kv, folder)?);
                    }
                    progress(&path);
                    family.as_mut().map_or(Ok(Made::Unknown), |f| f.run(&case()))
                }
                "" if name == "rope_index.json" => pictures::rope_index(&case()),
                "prompts" => Ok(Made::Input),
                "preprocess" | "video" => {
                    progress(&path);
                    pictures::run(&case())
                }
                "ops" => {
                    progress(&path);
                    ops::run(&case())
                }
                _ => Ok(Made::Unknown),
            };
            match made? {
                Made::Tensors(tensors) => {
                    report.tensors += tensors.len();
                    files.write(&path, &tensors)?;
                    report.files.push(path);
                }
                Made::Json(value) => {
                    files.write_json(&path, &value)?;
                    report.files.push(path);
                }
                Made::Input => report.left_out.push((path, "an input of other cases".into())),
                Made::Unknown => report.left_out.push((path, "this build knows no such case".into())),
            }
        }
    }
    Ok(report)
}

/// One case of a fixture set.
struct Case<'a> {
    files: Files<'a>,
    device: &'a dyn Device,
    folder: &'a str,
    /// The path inside the folder.
    name: &'a str,
    /// The whole path.
    path: &'a str,
}

impl Case<'_> {
    /// The name without its ending.
    fn stem(&self) -> &str {
        self.name.split('.').next().unwrap_or(self.name)
    }

    fn broken(&self, problem: impl Into<String>) -> TraceError {
        self.files.broken(self.path, problem)
    }
}

/// What a case came to.
enum Made {
    Tensors(file::Tensors),
    Json(serde_json::Value),
    Input,
    Unknown,
}
