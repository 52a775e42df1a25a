use std::str::FromStr;

use serde::{Deserialize, Serialize};
use turbospark_tensor::{DType, Shape};

use super::layout::{PlacedPart, PlacedTensor, PlacedUnit};
use crate::checkpoint::{Conventions, Entry, FileId, Table, add};
use crate::{Checkpoint, Error, Piece, Place, Result, Scaled, WeightFile, error::shorten};

/// Its name in a folder.
pub const MANIFEST_NAME: &str = "turbospark.json";
/// Several times that of the largest model.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 256 << 20;
const FORMAT: &str = "turbospark";
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u32,
    /// What it was made from and how, for people.
    pub made: String,
    pub conventions: PlacedConventions,
    pub files: Vec<PlacedFile>,
    pub units: Vec<PlacedUnit>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacedFile {
    pub name: String,
    pub bytes: u64,
    /// In hexadecimal; empty while it isn't written.
    pub sha256: String,
}

/// [`Conventions`] as they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacedConventions {
    norms_hold_one: bool,
    decay_is_negated_exp: bool,
    value_heads_tiled: bool,
}

impl From<Conventions> for PlacedConventions {
    fn from(c: Conventions) -> Self {
        PlacedConventions {
            norms_hold_one: c.norms_hold_one,
            decay_is_negated_exp: c.decay_is_negated_exp,
            value_heads_tiled: c.value_heads_tiled,
        }
    }
}

impl Manifest {
    pub fn new(made: &str, conventions: Conventions, units: Vec<PlacedUnit>, lengths: &[u64]) -> Self {
        let file = |(i, &bytes): (usize, &u64)| PlacedFile {
            name: format!("weights-{:05}-of-{:05}.bin", i + 1, lengths.len()),
            bytes,
            sha256: String::new(),
        };
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            made: made.to_owned(),
            conventions: conventions.into(),
            files: lengths.iter().enumerate().map(file).collect(),
            units,
        }
    }
}

fn refuse(problem: String) -> Error {
    Error::Manifest(problem)
}

/// The checkpoint that a manifest describes; `file` opens a file of the folder.
pub(crate) fn open(text: &str, file: impl Fn(&str) -> Result<WeightFile>) -> Result<Checkpoint> {
    let manifest: Manifest = serde_json::from_str(text).map_err(|e| refuse(e.to_string()))?;
    if manifest.format != FORMAT || manifest.version != VERSION {
        let (format, version) = (shorten(&manifest.format), manifest.version);
        return Err(refuse(format!(
            "{format:?} version {version} is not read; pack the model again with this program"
        )));
    }
    let mut files = Vec::new();
    for listed in &manifest.files {
        let plain = !listed.name.is_empty() && !listed.name.contains(['/', '\\', ':']) && listed.name != "..";
        if !plain {
            return Err(refuse(format!("file name {:?} is no plain name", shorten(&listed.name))));
        }
        let file = file(&listed.name)?;
        if file.length() != listed.bytes {
            let (name, is, expected) = (&listed.name, file.length(), listed.bytes);
            return Err(refuse(format!("{name} has {is} bytes, expected {expected}; it may be cut")));
        }
        files.push(file);
    }
    let mut table = Table::new();
    for unit in &manifest.units {
        if unit.file >= files.len() {
            return Err(refuse(format!(
                "unit {:?} lies in file {} of {}",
                shorten(&unit.name),
                unit.file,
                files.len()
            )));
        }
        for tensor in &unit.tensors {
            let bad = |problem: String| refuse(format!("tensor {:?}: {problem}", shorten(&tensor.name)));
            let entry = entry(unit.file, files[unit.file].length(), tensor).map_err(bad)?;
            add(&mut table, &files, tensor.name.clone(), entry)?;
        }
    }
    let c = manifest.conventions;
    let conventions = Conventions {
        norms_hold_one: c.norms_hold_one,
        decay_is_negated_exp: c.decay_is_negated_exp,
        value_heads_tiled: c.value_heads_tiled,
    };
    Ok(Checkpoint::of(files, table, conventions))
}

/// What a block type is called, which no safetensors header does.
fn dtype(name: &str) -> Option<DType> {
    DType::from_str(name).ok().or_else(|| DType::BLOCKS.into_iter().find(|d| d.to_string() == name))
}

fn entry(file: usize, length: u64, tensor: &PlacedTensor) -> std::result::Result<Entry, String> {
    let piece = |part: &PlacedPart| -> std::result::Result<Place, String> {
        let dtype = dtype(&part.dtype).ok_or_else(|| format!("unknown type {:?}", shorten(&part.dtype)))?;
        let shape = Shape::try_new(&part.shape).map_err(|e| e.to_string())?;
        if dtype.bytes(shape.elements()).map(|n| n as u64) != Some(part.bytes) {
            return Err(format!("{} bytes are not {dtype} {shape}", part.bytes));
        }
        if part.offset.checked_add(part.bytes).is_none_or(|end| end > length) {
            return Err(format!("{} bytes at {} end past the file's {length}", part.bytes, part.offset));
        }
        Ok(Place { file: FileId::nth(file), offset: part.offset, length: part.bytes, dtype, shape })
    };
    let shape = Shape::try_new(&tensor.shape).map_err(|e| e.to_string())?;
    let parts = tensor.parts.iter().map(piece).collect::<std::result::Result<Vec<_>, _>>()?;
    let Some(form) = &tensor.form else {
        return match parts[..] {
            [place] if place.shape == shape => Ok(Entry::Place(place)),
            _ => Err("its parts are not the tensor".to_owned()),
        };
    };
    let form = form.form().ok_or_else(|| format!("unknown form {form:?}"))?;
    let mut parts = parts;
    let &[.., out, inner] = shape.dims() else { return Err("codes and scales of no matrix".to_owned()) };
    let order =
        parts.pop_if(|part| part.dtype == DType::I32 && part.shape.dims() == [inner] && shape.dims().len() == 2);
    if !matches!(parts.len(), 2 | 3) {
        return Err("its parts are not codes and scales".to_owned());
    }
    let grid = form.grid(out, inner);
    let rows = shape.elements() / inner.max(1);
    let codes_fit = parts[0].length == (rows * form.bytes(inner)) as u64;
    let grids_fit = parts[1..].iter().all(|part| part.shape.dims().ends_with(&grid));
    if !codes_fit || !grids_fit {
        return Err(format!("codes and scales do not fit {shape} as {form}"));
    }
    let mut pieces = parts.into_iter().map(Piece::Place);
    let mut next = || pieces.next();
    let (Some(codes), Some(scales), biases) = (next(), next(), next()) else { unreachable!("two or three") };
    let order = order.map(Piece::Place);
    Ok(Entry::Scaled(Scaled { shape, codes, scales, biases, order, form }))
}
