//! A tensor of a file as an entry of a table: whole, or an expert's part of it.

use std::collections::{HashMap, HashSet};

use turbospark_tensor::Shape;

use super::{GgufTensor, Set, nvfp4};
use crate::Place;
use crate::checkpoint::{Entry, FileId, Foreign};

/// One tensor of a file.
pub(super) struct Stored<'a> {
    pub tensor: &'a GgufTensor,
    file: FileId,
    /// Scales of whole matrices, which go with blocks of NVFP4.
    whole: Option<Place>,
}

/// All tensors of a set whose files begin at `first`. Those that belong to others are not among them: scales of whole
/// matrices, and of activations, which are for speed alone.
pub(super) fn all(set: &Set, first: usize) -> Vec<Stored<'_>> {
    let blocks = set.tensors.iter().filter(|(_, t)| t.type_name == nvfp4::NAME);
    let mut wholes: HashMap<&str, Option<Place>> =
        blocks.filter_map(|(_, t)| Some((t.name.strip_suffix(".weight")?, None))).collect();
    for (file, tensor) in &set.tensors {
        if let Some(whole) = tensor.name.strip_suffix(".scale").and_then(|stem| wholes.get_mut(stem))
            && let Entry::Place(place) = entry(FileId::nth(first + file), tensor)
        {
            *whole = Some(place);
        }
    }
    let of = |tensor: &GgufTensor, suffix: &str| wholes.get(tensor.name.strip_suffix(suffix)?).copied();
    let own = set.tensors.iter().filter(|(_, t)| of(t, ".scale").is_none() && of(t, ".input_scale").is_none());
    let stored = |(file, tensor): &'_ (usize, GgufTensor)| (FileId::nth(first + file), of(tensor, ".weight").flatten());
    own.map(|pair| (stored(pair), &pair.1)).map(|((file, whole), tensor)| Stored { tensor, file, whole }).collect()
}

/// The layers, as `blk.N`, whose experts are taken one by one, since an op takes none of them as they lie.
pub(super) fn layers_apart(set: &Set) -> HashSet<&str> {
    let blocks = set.tensors.iter().filter(|(_, t)| t.type_name == nvfp4::NAME);
    blocks.filter_map(|(_, t)| Some(expert_part(&t.name)?.0)).collect()
}

/// Layer and part of a tensor that holds all experts of a layer.
fn expert_part(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_suffix("_exps.weight")?;
    let (layer, part) = rest.rsplit_once(".ffn_")?;
    Some((layer, part))
}

impl Stored<'_> {
    /// The whole tensor.
    pub(super) fn entry(&self) -> Entry {
        let blocks = match self.tensor.dims[..] {
            [rows, _] if self.tensor.type_name == nvfp4::NAME => {
                usize::try_from(rows).ok().and_then(|rows| self.rows(0, rows))
            }
            _ => None,
        };
        blocks.unwrap_or_else(|| entry(self.file, self.tensor))
    }

    /// The experts in it one by one, with names such as `blk.0.ffn_gate_exps.7.weight`, where its layer is among `apart`.
    pub(super) fn experts(&self, apart: &HashSet<&str>) -> Option<Vec<(String, Entry)>> {
        let (layer, part) = expert_part(&self.tensor.name).filter(|(layer, _)| apart.contains(layer))?;
        // More than any model has: names are made for each.
        const MOST: u64 = 1 << 14;
        let &[experts, rows, inner] = self.tensor.dims.as_slice() else { return None };
        if !(1..=MOST).contains(&experts) || rows == 0 || inner == 0 {
            return None;
        }
        let (experts, rows) = (usize::try_from(experts).ok()?, usize::try_from(rows).ok()?);
        let parts: &[&str] = match part {
            "gate_up" => &["gate", "up"],
            "gate" => &["gate"],
            "up" => &["up"],
            "down" => &["down"],
            _ => return None,
        };
        let each = rows / parts.len();
        let mut all = Vec::new();
        for e in 0..experts {
            for (i, part) in parts.iter().enumerate() {
                all.push((format!("{layer}.ffn_{part}_exps.{e}.weight"), self.rows(e * rows + i * each, each)?));
            }
        }
        Some(all)
    }

    /// Rows of all matrices, counted through.
    fn rows(&self, first: usize, rows: usize) -> Option<Entry> {
        if self.tensor.type_name == nvfp4::NAME {
            return nvfp4::rows(self.file, self.tensor, self.whole, first, rows).map(Entry::Scaled);
        }
        let Entry::Place(place) = entry(self.file, self.tensor) else { return None };
        let inner = *place.shape.dims().last()?;
        let row = place.dtype.bytes(inner)? as u64;
        let (offset, length) = (place.offset + first as u64 * row, rows as u64 * row);
        Some(Entry::Place(Place { offset, length, shape: Shape::from([rows, inner]), ..place }))
    }
}

fn entry(file: FileId, tensor: &GgufTensor) -> Entry {
    let sides: Option<Vec<usize>> = tensor.dims.iter().map(|&side| usize::try_from(side).ok()).collect();
    let shape = sides.and_then(|sides| Shape::try_new(&sides).ok());
    let (offset, length) = (tensor.offset, tensor.length);
    match (tensor.dtype, shape) {
        (Some(dtype), Some(shape)) => Entry::Place(Place { file, offset, length, dtype, shape }),
        _ => {
            Entry::Foreign(Foreign { file, offset, length, dtype: tensor.type_name.clone(), dims: tensor.dims.clone() })
        }
    }
}
