//! Byte-level BPE, `gpt2` in a file: tokens and merges are spelled in the alphabet of bytes.

use serde_json::json;

use super::{Model, TokenizerFile, Vocabulary, keys, post_processor, pre::Pre};
use crate::{MetadataError, Result, error::shorten, gguf::Metadata};

pub(super) fn file<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary<'a>) -> Result<TokenizerFile<'a>> {
    let name = metadata.text(keys::PRE)?.ok_or_else(|| {
        let expected = "the name of the pre-tokenizer; convert the model again with a current converter";
        metadata.refuse(keys::PRE, MetadataError::absent(expected))
    })?;
    let pre = Pre::of(name).ok_or_else(|| {
        let is = format!("string {:?}", shorten(name));
        let expected = format!("a pre-tokenizer that is supported: {}", Pre::known());
        metadata.refuse(keys::PRE, MetadataError::Wrong { is, expected })
    })?;
    Ok(TokenizerFile {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added(),
        normalizer: pre.normalizer(),
        pre_tokenizer: pre.pre_tokenizer(),
        post_processor: post_processor(metadata, vocabulary.tokens, pre.add_bos)?,
        decoder: json!({ "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true }),
        model: Model {
            kind: "BPE",
            dropout: (),
            unk_token: None,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: pre.ignore_merges,
            vocab: vocabulary.map(),
            merges: merges(metadata, vocabulary)?,
        },
    })
}

/// Pairs of tokens that make a third.
fn merges<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary<'a>) -> Result<Vec<(&'a str, &'a str)>> {
    let lines = metadata.texts(keys::MERGES)?.ok_or_else(|| metadata.missing(keys::MERGES))?;
    let mut merges = Vec::with_capacity(lines.len());
    let mut merged = String::new();
    for (index, line) in lines.iter().enumerate() {
        let refuse = |problem: &str| {
            let problem = format!("{:?} {problem}", shorten(line));
            metadata.refuse(keys::MERGES, MetadataError::Element { index, problem })
        };
        let pair = line.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '));
        let Some((a, b)) = pair else { return Err(refuse("is not two tokens with a space between them")) };
        merged.clear();
        merged.extend([a, b]);
        if [a, b, &merged].iter().any(|token| !vocabulary.ids.contains_key(token)) {
            return Err(refuse("takes or makes a token outside the vocabulary"));
        }
        merges.push((a, b));
    }
    Ok(merges)
}
