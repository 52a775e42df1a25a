//! Trunk and vision tower in one file, as Ollama keeps models.
//!
//! Such a file is a trunk's with the tower's tensors beside it, under names and keys of its own. They are said here in the
//! words of an `mmproj` file, so that all that follows knows one form only. Three things differ in more than a name:
//! queries, keys and values of a block are three tensors (put together in `names.rs`), the patch embedding is one whose
//! two outer sides are one, and a deepstack merger has its place in the list for a number, not the block it follows.

use super::names::Arch;
use super::{Array, GgufTensor, Metadata, Set, Value};
use crate::{Error, Result, error::shorten};

/// Keys after `clip.vision.` that have another name after `ARCH.vision.`.
const KEYS: [(&str, &str); 2] = [("shortest_edge", "image_min_pixels"), ("longest_edge", "image_max_pixels")];

const MODULES: [(&str, &str); 5] = [
    ("v.patch_embed", "v.patch_embd"),
    ("v.pos_embed", "v.position_embd"),
    ("v.merger.norm", "v.post_ln"),
    ("v.merger.linear_fc1", "mm.0"),
    ("v.merger.linear_fc2", "mm.2"),
];

/// Of a block, after `v.blk.N.`.
const PARTS: [(&str, &str); 4] =
    [("norm1", "ln1"), ("norm2", "ln2"), ("mlp.linear_fc1", "ffn_up"), ("mlp.linear_fc2", "ffn_down")];

fn renamed<'a>(pairs: &[(&str, &'a str)], name: &'a str) -> &'a str {
    pairs.iter().find(|(theirs, _)| *theirs == name).map_or(name, |(_, ours)| ours)
}

fn is_vision(name: &str) -> bool {
    name.starts_with("v.") || name.starts_with("mm.")
}

/// Takes the tower out of a file that has both; `None` of any other. Its set names no files: they are the trunk's.
pub(super) fn take_tower(trunk: &mut Set) -> Result<Option<Set>> {
    if !trunk.tensors.iter().any(|(_, t)| is_vision(&t.name)) || is_tower(&trunk.metadata)? {
        return Ok(None);
    }
    let arch = Arch::of(&trunk.metadata)?;
    let deepstack = trunk.metadata.counts(&format!("{}.vision.deepstack_visual_indexes", arch.name()))?;
    let deepstack = deepstack.unwrap_or_default();
    let (vision, rest) = std::mem::take(&mut trunk.tensors).into_iter().partition(|(_, t)| is_vision(&t.name));
    trunk.tensors = rest;
    let mut tensors: Vec<(usize, GgufTensor)> = vision;
    let channels = trunk.metadata.count(&format!("{}.vision.num_channels", arch.name()))?.unwrap_or(3);
    for (_, tensor) in &mut tensors {
        tensor.name = name(&tensor.name, &deepstack)
            .ok_or_else(|| refuse(trunk, format!("tensor {:?} has no place in its tower", shorten(&tensor.name))))?;
        if let (&[both, frames, h, w], "v.patch_embd.weight") = (tensor.dims.as_slice(), tensor.name.as_str())
            && channels > 0
            && both % channels == 0
        {
            tensor.dims = vec![both / channels, channels, frames, h, w];
        }
    }
    let metadata = keys(trunk, arch, &deepstack, &tensors)?;
    Ok(Some(Set { metadata, files: Vec::new(), tensors }))
}

fn is_tower(metadata: &Metadata) -> Result<bool> {
    Ok(metadata.text("general.architecture")? == Some("clip"))
}

fn refuse(trunk: &Set, problem: String) -> Error {
    Error::Gguf { file: trunk.metadata.file().to_owned(), problem }
}

/// The name in an `mmproj` file.
fn name(name: &str, deepstack: &[u64]) -> Option<String> {
    let (module, kind) = name.rsplit_once('.')?;
    if let Some((block, part)) = module.strip_prefix("v.blk.").and_then(|rest| rest.split_once('.')) {
        return Some(format!("v.blk.{block}.{}.{kind}", renamed(&PARTS, part)));
    }
    for list in ["v.deepstack_merger.", "v.deepstack."] {
        if let Some((number, part)) = module.strip_prefix(list).and_then(|rest| rest.split_once('.')) {
            let block = deepstack.get(number.parse::<usize>().ok()?)?;
            return Some(format!("v.deepstack.{block}.{}.{kind}", part.trim_start_matches("linear_")));
        }
    }
    Some(format!("{}.{kind}", renamed(&MODULES, module)))
}

/// The keys of an `mmproj` file.
fn keys(trunk: &Set, arch: Arch, deepstack: &[u64], tensors: &[(usize, GgufTensor)]) -> Result<Metadata> {
    let metadata = &trunk.metadata;
    let prefix = format!("{}.vision.", arch.name());
    let own = metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value.clone())));
    let mut entries: Vec<(String, Value)> = vec![
        ("general.architecture".to_owned(), Value::String("clip".to_owned())),
        ("clip.projector_type".to_owned(), Value::String("qwen3vl_merger".to_owned())),
    ];
    let limits = KEYS.map(|(theirs, _)| theirs);
    // Absent limits are written as 0.
    let own = own.filter(|(key, value)| !limits.contains(key) || value.integer() != Some(0));
    entries.extend(own.map(|(key, value)| (format!("clip.vision.{}", renamed(&KEYS, key)), value)));
    let mut put = |key: &str, value: Value| match entries.iter().any(|(known, _)| known == key) {
        true => {}
        false => entries.push((key.to_owned(), value)),
    };
    if let Some(width) = metadata.get(&format!("{}.embedding_length", arch.name())) {
        put("clip.vision.projection_dim", width.clone());
    }
    let rows = |name: &str| tensors.iter().find(|(_, t)| t.name == name).and_then(|(_, t)| t.dims.first().copied());
    if let Some(rows) = rows("v.blk.0.ffn_up.weight") {
        put("clip.vision.feed_forward_length", Value::U64(rows));
    }
    let blocks = metadata.count(&format!("{prefix}block_count"))?.unwrap_or(0);
    // More blocks than tensors can't be: the list stays as short as the file.
    let blocks = blocks.min(tensors.len() as u64);
    put(
        "clip.vision.is_deepstack_layers",
        Value::Array(Array::Bool((0..blocks).map(|b| deepstack.contains(&b)).collect())),
    );
    put("clip.vision.temporal_patch_size", Value::U32(2));
    Ok(Metadata::of(metadata.file(), entries))
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn names_become_those_of_a_tower_alone() {
        for (theirs, ours) in [
            ("v.patch_embed.weight", "v.patch_embd.weight"),
            ("v.pos_embed.weight", "v.position_embd.weight"),
            ("v.blk.3.norm1.bias", "v.blk.3.ln1.bias"),
            ("v.blk.3.mlp.linear_fc2.weight", "v.blk.3.ffn_down.weight"),
            ("v.blk.3.attn_out.weight", "v.blk.3.attn_out.weight"),
            ("v.merger.linear_fc2.bias", "mm.2.bias"),
            ("v.deepstack_merger.1.linear_fc1.bias", "v.deepstack.16.fc1.bias"),
            ("v.deepstack.0.norm.weight", "v.deepstack.8.norm.weight"),
        ] {
            assert_eq!(name(theirs, &[8, 16]).as_deref(), Some(ours));
        }
        assert_eq!(name("v.deepstack_merger.2.norm.bias", &[8, 16]), None);
    }
}
