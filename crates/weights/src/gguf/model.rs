//! A model of GGUF files: its trunk, and beside it the vision tower (`mmproj`).

use std::path::{Path, PathBuf};

use turbospark_tensor::DType;

use super::{Metadata, Set, config, is_gguf, names, one_file, open, tokenizer};
use crate::checkpoint::Table;
use crate::{Checkpoint, Error, Result, WeightFile, error::shorten};

/// Where the vision tower of a GGUF model is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mmproj {
    /// Beside the model: a file with `mmproj` in its name.
    #[default]
    Beside,
    /// Nowhere: the model reads text.
    Without,
    /// In this file.
    At(PathBuf),
}

/// The texts that a folder of the hub has beside the weights, and the files of the weights.
#[derive(Debug)]
pub(crate) struct GgufModel {
    trunk: Set,
    tower: Option<Set>,
    pub config: String,
    pub tokenizer: String,
    pub tokenizer_config: String,
    pub generation_config: String,
    pub preprocessor: Option<String>,
}

impl GgufModel {
    /// Reads the headers of a trunk and of its tower.
    pub(crate) fn open(path: &Path, mmproj: &Mmproj) -> Result<Self> {
        let mut trunk = open(path)?;
        let own = one_file::take_tower(&mut trunk)?;
        let shape = config::trunk_shape(&trunk)?;
        let tower = match (mmproj, own) {
            (Mmproj::Without, _) => None,
            (Mmproj::At(path), _) => Some(open_tower(path)?),
            (Mmproj::Beside, Some(own)) => Some(own),
            (Mmproj::Beside, None) if !shape.arch.may_see() => None,
            (Mmproj::Beside, None) => beside(path, &trunk)?,
        };
        let factors = rope_factors(&trunk)?;
        let metadata = &trunk.metadata;
        Ok(GgufModel {
            config: config::config_json(&trunk, tower.as_ref(), factors)?,
            tokenizer: tokenizer::tokenizer_json(metadata)?,
            tokenizer_config: tokenizer::tokenizer_config_json(metadata)?,
            generation_config: tokenizer::generation_config_json(metadata)?,
            preprocessor: tower.as_ref().map(|tower| config::preprocessor_json(&trunk, tower)).transpose()?,
            trunk,
            tower,
        })
    }

    /// The trunk's keys.
    pub(crate) fn metadata(&self) -> &Metadata {
        &self.trunk.metadata
    }

    /// All tensors under the published names.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint> {
        let shape = config::trunk_shape(&self.trunk)?;
        let mut files: Vec<WeightFile> = self.trunk.files.clone();
        let towers = self.tower.iter().flat_map(|tower| tower.files.iter().cloned());
        let own: Vec<WeightFile> = towers.collect();
        // A tower without files of its own lies in the trunk's.
        let first = if own.is_empty() { 0 } else { files.len() };
        files.extend(own);
        let mut table = Table::new();
        names::trunk(&self.trunk, shape, 0, &files, &mut table)?;
        if let Some(tower) = &self.tower {
            names::tower(tower, first, &files, &mut table)?;
        }
        Ok(Checkpoint::of(files, table, names::conventions(shape)))
    }
}

fn open_tower(path: &Path) -> Result<Set> {
    let mut set = open(path)?;
    // A file that has both may be named for its tower alone.
    if let Some(tower) = one_file::take_tower(&mut set)? {
        return Ok(Set { files: set.files, ..tower });
    }
    match set.metadata.text("general.architecture")? {
        Some("clip") => Ok(set),
        other => Err(Error::Gguf {
            file: set.metadata.file().to_owned(),
            problem: format!("architecture {:?} is no vision tower (\"clip\")", other.unwrap_or_default()),
        }),
    }
}

/// The factors by which Llama 3 divides its frequencies, which are stored as a tensor.
fn rope_factors(trunk: &Set) -> Result<Option<Vec<f32>>> {
    let Some((file, tensor)) = trunk.tensors.iter().find(|(_, t)| t.name == "rope_freqs.weight") else {
        return Ok(None);
    };
    const MOST: u64 = 1 << 16;
    if tensor.dtype != Some(DType::F32) || tensor.length > MOST {
        return Err(Error::Gguf {
            file: trunk.metadata.file().to_owned(),
            problem: format!("tensor {:?} is {}, expected a short list of F32", tensor.name, tensor.type_name),
        });
    }
    let mut bytes = vec![0; tensor.length as usize];
    trunk.files[*file].read_at(tensor.offset, &mut bytes)?;
    Ok(Some(bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()))
}

/// The one model of a folder of GGUF files.
pub(crate) fn trunk_of(folder: &Path, names: &[String]) -> Result<PathBuf> {
    let mut trunks: Vec<&String> = names.iter().filter(|name| !is_mmproj(name)).collect();
    // Of a set, the first stands for all.
    trunks.retain(|name| !name.contains("-of-") || name.contains("-00001-of-"));
    match trunks[..] {
        [only] => Ok(folder.join(only)),
        [] => Err(Error::NoWeights { folder: folder.display().to_string() }),
        _ => {
            let some: Vec<_> = trunks.iter().take(8).map(|name| shorten(name)).collect();
            Err(Error::Gguf {
                file: folder.display().to_string(),
                problem: format!("several models ({}); name one of them", some.join(", ")),
            })
        }
    }
}

/// Whether a file's name says that it is a vision tower.
pub(crate) fn is_mmproj(name: &str) -> bool {
    name.to_ascii_lowercase().contains("mmproj")
}

/// The vision tower that belongs to a model, by its name: the only one there is, else the one whose name has the most
/// in common with the model's; of several precisions F16, BF16, F32, then Q8_0.
fn beside(path: &Path, trunk: &Set) -> Result<Option<Set>> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if let Some(path) = chosen(folder, &stem)? {
        return open_tower(&path).map(Some);
    }
    // Repositories with a folder a format have the tower in the one above; what else lies there is not asked for.
    let Some(path) = folder.parent().map(|above| chosen(above, &stem)).transpose()?.flatten() else { return Ok(None) };
    let tower = open_tower(&path)?;
    Ok(config::config_json(trunk, Some(&tower), None).is_ok().then_some(tower))
}

fn chosen(folder: &Path, stem: &str) -> Result<Option<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(None) };
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.retain(|name| is_mmproj(name) && name.to_ascii_lowercase().ends_with(".gguf"));
    let Some(name) = best(stem, &names) else { return Ok(None) };
    let path = folder.join(name);
    Ok(is_gguf(&WeightFile::open(&path)?)?.then_some(path))
}

fn best<'a>(stem: &str, names: &'a [String]) -> Option<&'a String> {
    const PRECISIONS: [&str; 4] = ["bf16", "f16", "f32", "q8_0"];
    let precision = |name: &str| {
        let found = PRECISIONS.iter().position(|p| name.contains(p));
        // F16 first; "bf16" holds "f16", so it is looked for first.
        found.map_or(4, |i| [1, 0, 2, 3][i])
    };
    let alike = |name: &str| {
        let bare = name.trim_start_matches("mmproj").trim_start_matches(['-', '_', '.']);
        bare.bytes().zip(stem.bytes()).take_while(|(a, b)| a == b).count()
    };
    names
        .iter()
        .map(|name| (name.to_ascii_lowercase(), name))
        .max_by_key(|(lower, name)| (alike(lower), std::cmp::Reverse(precision(lower)), std::cmp::Reverse(*name)))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::best;

    #[test]
    fn the_tower_beside_a_model_is_the_one_that_is_named_alike() {
        let list = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let shelf = list(&["fixture-qwen3_vl-mmproj-f32.gguf", "tiny-ocr-mmproj-f16.gguf", "mmproj-other.gguf"]);
        assert_eq!(best("tiny-ocr-q8_0", &shelf).unwrap(), "tiny-ocr-mmproj-f16.gguf");
        let repo = list(&["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"]);
        assert_eq!(best("qwen3-vl-2b-q4_k_m", &repo).unwrap(), "mmproj-F16.gguf");
        let own = list(&["mmproj-qwen3-vl-2b-q8_0.gguf"]);
        assert_eq!(best("qwen3-vl-2b-q4_k_m", &own), Some(&own[0]));
        assert_eq!(best("x", &[]), None);
    }
}
