//! `tokenizer.json`, read in one pass into the parts that a BPE needs.
//!
//! The `tokenizers` crate can read the file itself, but it buffers the model as a generic value first
//! and builds the added tokens in. Here the vocabulary goes straight into its list, and the added
//! tokens stay outside the model, which is what keeps typed text plain.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

#[derive(Deserialize)]
pub(super) struct TokenizerFile {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedEntry>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    pub(super) post_processor: Value,
    #[serde(default)]
    pub(super) decoder: Value,
    pub(super) model: ModelFile,
}

/// An entry of `added_tokens`, and of `added_tokens_decoder` where the id is the key.
///
/// `normalized` is not read. Old files of Llama set it for `</s>`, which a normalizer then makes `▁</s>`: found
/// behind a space only, though the model was trained on the token alone.
#[derive(Deserialize)]
pub(super) struct AddedEntry {
    pub(super) id: Option<u32>,
    pub(super) content: String,
    #[serde(default)]
    pub(super) special: bool,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
}

#[derive(Deserialize)]
pub(super) struct ModelFile {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    #[serde(default)]
    pub(super) vocab: Vocab,
    #[serde(default)]
    pub(super) merges: Vec<Merge>,
    #[serde(default)]
    pub(super) ignore_merges: bool,
    #[serde(default)]
    pub(super) byte_fallback: bool,
    pub(super) unk_token: Option<String>,
    #[serde(default)]
    pub(super) fuse_unk: bool,
    pub(super) dropout: Option<f32>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
}

/// Token and id, in the file's order.
#[derive(Default)]
pub(super) struct Vocab(pub(super) Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct VocabVisitor;

        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary: an object of token to id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Vocab(entries))
            }

            // A unigram model's list: skipped, so that the error can name the model type.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocab, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Vocab::default())
            }
        }

        deserializer.deserialize_any(VocabVisitor)
    }
}

/// A merge, written `"a b"` or `["a", "b"]`.
pub(super) struct Merge(pub(super) String, pub(super) String);

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;

        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: two tokens")
            }

            fn visit_str<E: serde::de::Error>(self, line: &str) -> Result<Merge, E> {
                match line.split_once(' ') {
                    Some((a, b)) if !a.is_empty() && !b.is_empty() && !b.contains(' ') => {
                        Ok(Merge(a.to_owned(), b.to_owned()))
                    }
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(line), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                use serde::de::Error;
                let a: Option<String> = seq.next_element()?;
                let b: Option<String> = seq.next_element()?;
                let end = seq.next_element::<IgnoredAny>()?;
                match (a, b, end) {
                    (Some(a), Some(b), None) if !a.is_empty() && !b.is_empty() => Ok(Merge(a, b)),
                    _ => Err(A::Error::custom("a merge must hold exactly two tokens")),
                }
            }
        }

        deserializer.deserialize_any(MergeVisitor)
    }
}
