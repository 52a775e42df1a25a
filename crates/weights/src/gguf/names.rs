//! GGUF tensor names as the published ones, and what the converter did to the weights.
//!
//! The converter renames tensors, splits fused experts and the patch embedding, adds 1 to the norms of Qwen3.5, stores
//! DeltaNet's decay as `-exp(A_log)` and orders its value heads anew, and for Llama permutes the rows of queries and
//! keys. What can stay as it lies does, and [`Conventions`] says so; only the patch embedding and Llama's rows are put
//! together as they are brought. A tensor that this file doesn't know keeps its own name, so that a loader refuses it.

use std::collections::BTreeMap;

use turbospark_tensor::mutant::{Mutant, active};
use turbospark_tensor::{DType, Shape};

use super::spelling::{TOWER, tower_name, trunk_name};
use super::{Metadata, Set, stored};
use crate::checkpoint::{Conventions, Entry, Table, add};
use crate::{Error, Made, Piece, Place, Result, Scaled, WeightFile};

/// An architecture of trunks, by `general.architecture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arch {
    Qwen3Vl,
    Qwen3VlMoe,
    Qwen35,
    Qwen35Moe,
    Qwen3,
    Qwen3Moe,
    Llama,
}

impl Arch {
    pub(super) const ALL: [Arch; 7] =
        [Arch::Qwen3Vl, Arch::Qwen3VlMoe, Arch::Qwen35, Arch::Qwen35Moe, Arch::Qwen3, Arch::Qwen3Moe, Arch::Llama];

    /// The name in the file.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Arch::Qwen3Vl => "qwen3vl",
            Arch::Qwen3VlMoe => "qwen3vlmoe",
            Arch::Qwen35 => "qwen35",
            Arch::Qwen35Moe => "qwen35moe",
            Arch::Qwen3 => "qwen3",
            Arch::Qwen3Moe => "qwen3moe",
            Arch::Llama => "llama",
        }
    }

    /// The published `model_type`.
    pub(crate) const fn model_type(self) -> &'static str {
        match self {
            Arch::Qwen3Vl => "qwen3_vl",
            Arch::Qwen3VlMoe => "qwen3_vl_moe",
            Arch::Qwen35 => "qwen3_5",
            Arch::Qwen35Moe => "qwen3_5_moe",
            Arch::Qwen3 => "qwen3",
            Arch::Qwen3Moe => "qwen3_moe",
            Arch::Llama => "llama",
        }
    }

    pub(crate) const fn is_qwen35(self) -> bool {
        matches!(self, Arch::Qwen35 | Arch::Qwen35Moe)
    }

    pub(crate) const fn is_moe(self) -> bool {
        matches!(self, Arch::Qwen3VlMoe | Arch::Qwen35Moe | Arch::Qwen3Moe)
    }

    /// Whether image tokens may stand in its prompts.
    pub(crate) const fn may_see(self) -> bool {
        !matches!(self, Arch::Qwen3 | Arch::Qwen3Moe | Arch::Llama)
    }

    /// The architecture of a trunk's file.
    pub(crate) fn of(metadata: &Metadata) -> Result<Self> {
        const KEY: &str = "general.architecture";
        let name = metadata.text(KEY)?.ok_or_else(|| metadata.missing(KEY))?;
        if let Some(arch) = Self::ALL.into_iter().find(|arch| arch.name() == name) {
            return Ok(arch);
        }
        if name == "clip" {
            return Err(Error::Gguf {
                file: metadata.file().to_owned(),
                problem: "a vision tower (mmproj) without a trunk; name the model's own file, or its folder".to_owned(),
            });
        }
        Err(Error::Gguf {
            file: metadata.file().to_owned(),
            problem: format!(
                "architecture {name:?} is not read; this build reads {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        })
    }
}

/// Heads and layers that the names depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrunkShape {
    pub arch: Arch,
    /// Layers that are run; those after belong to the multi-token prediction head.
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    /// Key and value heads of DeltaNet.
    pub delta_heads: Option<[usize; 2]>,
    /// Whether value heads were ordered anew; one writer has a key for it.
    pub tiled: bool,
}

/// Adds a trunk's tensors under the published names; its files begin at `first`.
pub(crate) fn trunk(set: &Set, shape: TrunkShape, first: usize, files: &[WeightFile], table: &mut Table) -> Result<()> {
    let fused = set.tensors.iter().any(|(_, t)| t.name.ends_with("ffn_gate_up_exps.weight"));
    let apart = stored::layers_apart(set);
    for stored in stored::all(set, first) {
        let tensor = stored.tensor;
        if tensor.name == "rope_freqs.weight" {
            continue; // read with the configuration
        }
        if let Some(experts) = stored.experts(&apart) {
            for (name, entry) in experts {
                add(table, files, trunk_name(&name, shape.layers, false).unwrap_or(name), entry)?;
            }
            continue;
        }
        let name = trunk_name(&tensor.name, shape.layers, fused).unwrap_or_else(|| tensor.name.clone());
        let mut entry = stored.entry();
        if let Entry::Place(place) = &mut entry {
            match *place.shape.dims() {
                [channels, kernel] if name.ends_with("conv1d.weight") => {
                    place.shape = Shape::from([channels, 1, kernel]);
                }
                [hidden] if name.ends_with("shared_expert_gate.weight") => place.shape = Shape::from([1, hidden]),
                [heads, 1] if name.ends_with("A_log") => place.shape = Shape::from([heads]),
                _ => {}
            }
        }
        let heads = match shape.arch {
            Arch::Llama if name.ends_with("q_proj.weight") => Some(shape.heads),
            Arch::Llama if name.ends_with("k_proj.weight") => Some(shape.kv_heads),
            _ => None,
        };
        if let Some(heads) = heads {
            entry = match entry {
                Entry::Place(place) => halves(place, heads),
                Entry::Scaled(scaled) => Entry::Scaled(scaled_halves(scaled, heads)),
                other => other,
            };
        }
        add(table, files, name, entry)?;
    }
    Ok(())
}

/// What the converter changed in a trunk of this shape.
pub(crate) fn conventions(shape: TrunkShape) -> Conventions {
    let qwen35 = shape.arch.is_qwen35();
    Conventions {
        norms_hold_one: qwen35,
        decay_is_negated_exp: qwen35,
        value_heads_tiled: shape.tiled && shape.delta_heads.is_some_and(|[key, value]| key != value),
    }
}

/// Adds a vision tower's tensors under the published names; its files begin at `first`.
pub(crate) fn tower(set: &Set, first: usize, files: &[WeightFile], table: &mut Table) -> Result<()> {
    let deepstack = deepstack_blocks(set);
    let mut frames: [Option<Place>; 2] = [None; 2];
    let mut apart = BTreeMap::<String, [Option<Place>; 3]>::new();
    for stored in stored::all(set, first) {
        let (tensor, entry) = (stored.tensor, stored.entry());
        if let (Some((whole, part)), Entry::Place(place)) = (third(&tensor.name), &entry) {
            apart.entry(whole).or_default()[part] = Some(*place);
            continue;
        }
        let frame = ["v.patch_embd.weight", "v.patch_embd.weight.1"].iter().position(|name| *name == tensor.name);
        if let (Some(frame), Entry::Place(place)) = (frame, &entry) {
            frames[frame] = Some(*place);
            continue;
        }
        let name = tower_name(&tensor.name, &deepstack).unwrap_or_else(|| tensor.name.clone());
        add(table, files, name, entry)?;
    }
    for (name, parts) in apart {
        let entry = joined(parts).ok_or_else(|| Error::Gguf {
            file: set.metadata.file().to_owned(),
            problem: format!("queries, keys and values of {name:?} are not three tensors of one shape"),
        })?;
        add(table, files, tower_name(&name, &deepstack).unwrap_or(name), entry)?;
    }
    if let Some(entry) = interleaved(frames) {
        add(table, files, format!("{TOWER}.patch_embed.proj.weight"), entry)?;
    }
    Ok(())
}

/// The vision blocks that a deepstack merger follows, ascending.
pub(crate) fn deepstack_blocks(set: &Set) -> Vec<usize> {
    let number = |name: &str| name.strip_prefix("v.deepstack.")?.split('.').next()?.parse().ok();
    let mut blocks: Vec<usize> = set.tensors.iter().filter_map(|(_, t)| number(&t.name)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Which tensor of a block a part of it is, and whether it is the queries, the keys or the values.
fn third(name: &str) -> Option<(String, usize)> {
    let (module, kind) = name.rsplit_once('.')?;
    let (block, part) = module.strip_prefix("v.blk.")?.split_once('.')?;
    let part = ["attn_q", "attn_k", "attn_v"].iter().position(|name| *name == part)?;
    Some((format!("v.blk.{block}.attn_qkv.{kind}"), part))
}

/// The rows of three tensors, one after the other; as F32 where they are stored in different types.
fn joined(parts: [Option<Place>; 3]) -> Option<Entry> {
    let [Some(q), Some(k), Some(v)] = parts else { return None };
    let (&rows, row) = q.shape.dims().split_first()?;
    let all = vec![q, k, v];
    let weights = all.iter().all(|p| p.shape == q.shape && p.dtype.is_weight());
    let shape = Shape::try_new(&[&[rows.checked_mul(3)?], row].concat()).ok().filter(|_| weights)?;
    if all.iter().all(|p| p.dtype == q.dtype) {
        return Some(Entry::Made(Made::new("rows joined", all, q.dtype, shape, |parts, bytes| {
            bytes.copy_from_slice(&parts.concat());
        })));
    }
    let dtypes = [q.dtype, k.dtype, v.dtype];
    Some(Entry::Made(Made::new("rows joined", all, DType::F32, shape, move |parts, bytes| {
        let third = bytes.len() / 3;
        for ((part, dtype), bytes) in parts.iter().zip(dtypes).zip(bytes.chunks_exact_mut(third.max(1))) {
            let mut wide = vec![0f32; third / 4];
            turbospark_tensor::widen_into(part, dtype, &mut wide);
            wide.iter().zip(bytes.as_chunks_mut().0).for_each(|(v, o)| *o = v.to_le_bytes());
        }
    })))
}

/// `[out, c, h, w]` of each frame as `[out, c, 2, h, w]`.
fn interleaved(frames: [Option<Place>; 2]) -> Option<Entry> {
    let [Some(first), Some(second)] = frames else { return frames.into_iter().flatten().next().map(Entry::Place) };
    let &[out, c, h, w] = first.shape.dims() else { return Some(Entry::Place(first)) };
    if (second.dtype, second.shape) != (first.dtype, first.shape) || !first.dtype.is_float() {
        return Some(Entry::Place(first));
    }
    let side = h * w * first.dtype.size();
    let shape = Shape::from([out, c, 2, h, w]);
    Some(Entry::Made(Made::new("frames interleaved", vec![first, second], first.dtype, shape, move |parts, bytes| {
        for (i, to) in bytes.chunks_exact_mut(side.max(1)).enumerate() {
            let frame = if active(Mutant::FramesExchanged) { 1 - i % 2 } else { i % 2 };
            to.copy_from_slice(&parts[frame][i / 2 * side..(i / 2 + 1) * side]);
        }
    })))
}

/// Rows of each head from pairs `(2 i, 2 i + 1)`, as the converter of Llama has them, to halves `(i, i + dim / 2)`.
fn halves(place: Place, heads: usize) -> Entry {
    let &[rows, columns] = place.shape.dims() else { return Entry::Place(place) };
    let bytes = place.dtype.bytes(columns).is_some();
    if heads == 0 || !rows.is_multiple_of(2 * heads) || !bytes || place.dtype == DType::I64 {
        return Entry::Place(place);
    }
    let dim = rows / heads;
    Entry::Made(Made::new("rows unpermuted", vec![place], place.dtype, place.shape, move |parts, bytes| {
        put_back(&parts[0], rows, dim, bytes);
    }))
}

/// The same of codes and scales that lie in rows.
fn scaled_halves(scaled: Scaled, heads: usize) -> Scaled {
    let rows = scaled.shape.dims()[0];
    if heads == 0 || !rows.is_multiple_of(2 * heads) {
        return scaled;
    }
    let put = |piece: Piece| match piece {
        Piece::Made(made) => {
            let (parts, dtype, shape) = (made.parts.clone(), made.dtype, made.shape);
            Piece::Made(Made::new("rows unpermuted", parts, dtype, shape, move |parts, bytes| {
                let mut permuted = vec![0; bytes.len()];
                made.fill(parts, &mut permuted);
                put_back(&permuted, rows, rows / heads, bytes);
            }))
        }
        Piece::Place(place) => unreachable!("blocks of {} are taken apart", place.dtype),
    };
    Scaled { codes: put(scaled.codes), scales: put(scaled.scales), ..scaled }
}

/// Copies rows of heads of `dim` from pairs to halves.
fn put_back(from: &[u8], rows: usize, dim: usize, to: &mut [u8]) {
    let row = from.len() / rows.max(1);
    for (r, to) in to.chunks_exact_mut(row.max(1)).enumerate() {
        let (head, at) = (r / dim, r % dim);
        let line = match active(Mutant::RowsNotUnpermuted) {
            true => r,
            false => head * dim + 2 * (at % (dim / 2)) + at / (dim / 2),
        };
        to.copy_from_slice(&from[line * row..(line + 1) * row]);
    }
}
