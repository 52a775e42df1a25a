//! `model.safetensors.index.json`: which shard holds which tensor.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};

use crate::{Checkpoint, Error, Result, error::shorten};

/// Name of the index in a folder.
pub(crate) const INDEX_NAME: &str = "model.safetensors.index.json";

/// Larger than the index of any model by far; 64 bytes a tensor would be a million of them.
pub(crate) const MAX_INDEX_BYTES: u64 = 64 << 20;

/// Which shard holds which tensor, as the index says.
pub(crate) struct ShardIndex {
    file: String,
    weight_map: BTreeMap<String, String>,
}

impl ShardIndex {
    /// Reads an index; its shard names are plain file names afterwards.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Whole {
            weight_map: UniqueMap,
        }
        let whole: Whole =
            serde_json::from_str(text).map_err(|source| Error::Index { file: file.to_owned(), source })?;
        let index = ShardIndex { file: file.to_owned(), weight_map: whole.weight_map.0 };
        match index.weight_map.values().find(|shard| !is_plain_name(shard)) {
            Some(shard) => Err(Error::ShardName { file: index.file, shard: shorten(shard) }),
            None => Ok(index),
        }
    }

    /// The shards, each once, in name order.
    pub(crate) fn shards(&self) -> Vec<&str> {
        let mut shards: Vec<_> = self.weight_map.values().map(String::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    /// Holds the table of all shards against the index, both ways.
    pub(crate) fn check(&self, checkpoint: &Checkpoint) -> Result<()> {
        let file_of = |name: &str| checkpoint.entry(name).map(|e| checkpoint.files()[e.file().index()].name());
        for (name, shard) in &self.weight_map {
            let actual = file_of(name);
            if actual != Some(shard) {
                return Err(Error::NotInShard {
                    file: self.file.clone(),
                    name: shorten(name),
                    shard: shard.clone(),
                    actual: actual.map(str::to_owned),
                });
            }
        }
        match checkpoint.entries().find(|(name, _)| !self.weight_map.contains_key(*name)) {
            Some((name, entry)) => Err(Error::Unlisted {
                file: self.file.clone(),
                name: shorten(name),
                shard: checkpoint.files()[entry.file().index()].name().to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Whether joining `name` to a folder names a weight file directly in it, on every system.
fn is_plain_name(name: &str) -> bool {
    name.len() <= 255
        && name.ends_with(".safetensors")
        && !name.starts_with('.')
        && !name.chars().any(|c| matches!(c, '/' | '\\' | ':') || c.is_control())
}

/// A JSON object of strings in which a repeated name is an error.
struct UniqueMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for UniqueMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Unique;
        impl<'de> Visitor<'de> for Unique {
            type Value = UniqueMap;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object from tensor names to shard names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<UniqueMap, A::Error> {
                let mut unique = BTreeMap::<String, String>::new();
                while let Some((name, shard)) = map.next_entry::<String, String>()? {
                    if let Some(first) = unique.get(&name) {
                        let (name, first, shard) = (shorten(&name), shorten(first), shorten(&shard));
                        return Err(A::Error::custom(format_args!(
                            "tensor {name:?} is listed twice, in {first:?} and in {shard:?}"
                        )));
                    }
                    unique.insert(name, shard);
                }
                Ok(UniqueMap(unique))
            }
        }
        deserializer.deserialize_map(Unique)
    }
}
