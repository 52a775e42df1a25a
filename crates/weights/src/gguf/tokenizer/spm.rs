//! SentencePiece's BPE, `llama` in a file: tokens have scores, and the pair whose token has the highest merges first.
//!
//! A `tokenizer.json` has a list of merges instead, so every way to cut a token into two others becomes a merge, in
//! the order of the tokens' scores: what transformers' converter does. Spaces are `▁`, also one before the text.

use serde_json::{Value, json};

use super::{Kind, Model, TokenizerFile, Vocabulary, keys, named, post_processor, same_length};
use crate::{MetadataError, Result, gguf::Metadata};

/// Several times the longest published token; it bounds the work of cutting one everywhere.
const MAX_TOKEN_BYTES: usize = 256;

pub(super) fn file<'a>(metadata: &'a Metadata, vocabulary: &Vocabulary<'a>) -> Result<TokenizerFile<'a>> {
    if metadata.flag(keys::REMOVE_EXTRA_WHITESPACES)?.unwrap_or(false) {
        let (is, expected) = ("bool true".to_owned(), "false: removing spaces is not supported".to_owned());
        return Err(metadata.refuse(keys::REMOVE_EXTRA_WHITESPACES, MetadataError::Wrong { is, expected }));
    }
    let space_prefix = metadata.flag(keys::ADD_SPACE_PREFIX)?.unwrap_or(true);
    let unknown = match named(metadata, keys::UNKNOWN, vocabulary.tokens)? {
        Some((_, token)) => Some(token),
        None => vocabulary.entries().find(|&(.., kind)| kind == Kind::Unknown).map(|(token, ..)| token),
    };
    Ok(TokenizerFile {
        version: "1.0",
        truncation: (),
        padding: (),
        added_tokens: vocabulary.added(),
        normalizer: normalizer(space_prefix),
        pre_tokenizer: Value::Null,
        post_processor: post_processor(metadata, vocabulary.tokens, true)?,
        decoder: decoder(space_prefix),
        model: Model {
            kind: "BPE",
            dropout: (),
            unk_token: unknown.filter(|token| vocabulary.ids.contains_key(token)),
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: true,
            byte_fallback: vocabulary.kinds.contains(&Kind::Byte),
            ignore_merges: false,
            vocab: vocabulary.map(),
            merges: merges(metadata, vocabulary)?,
        },
    })
}

fn normalizer(space_prefix: bool) -> Value {
    let spaces = json!({ "type": "Replace", "pattern": { "String": " " }, "content": "▁" });
    if !space_prefix {
        return spaces;
    }
    // Before each stretch between control tokens, as llama.cpp and the published files of these models do.
    json!({ "type": "Sequence", "normalizers": [{ "type": "Prepend", "prepend": "▁" }, spaces] })
}

fn decoder(space_prefix: bool) -> Value {
    let mut steps = vec![
        json!({ "type": "Replace", "pattern": { "String": "▁" }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    if space_prefix {
        steps.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "type": "Sequence", "decoders": steps })
}

/// A way to make a token of two.
struct Merge<'a> {
    score: f64,
    left: &'a str,
    right: &'a str,
    /// Lengths in characters.
    lengths: (usize, usize),
}

fn merges<'a>(metadata: &Metadata, vocabulary: &Vocabulary<'a>) -> Result<Vec<(&'a str, &'a str)>> {
    let scores = metadata.numbers(keys::SCORES)?.ok_or_else(|| metadata.missing(keys::SCORES))?;
    same_length(metadata, keys::SCORES, scores.len(), vocabulary.tokens.len())?;
    // Control tokens and bytes are never merged, nor made by merging.
    let merges = |kind| matches!(kind, Kind::Normal | Kind::UserDefined);
    let part = |token: &str| vocabulary.ids.get(token).is_some_and(|&id| merges(vocabulary.kinds[id as usize]));
    let mut list = Vec::new();
    for (token, id, _) in vocabulary.entries().filter(|&(.., kind)| merges(kind)) {
        if token.len() > MAX_TOKEN_BYTES {
            let problem = format!("a token of {} bytes, at most {MAX_TOKEN_BYTES} are supported", token.len());
            return Err(metadata.refuse(keys::TOKENS, MetadataError::Element { index: id as usize, problem }));
        }
        let characters = token.chars().count();
        for (n, (at, _)) in token.char_indices().enumerate().skip(1) {
            let (left, right) = token.split_at(at);
            if part(left) && part(right) {
                list.push(Merge { score: scores[id as usize], left, right, lengths: (n, characters - n) });
            }
        }
    }
    // Stable: what is equal stays in the order of ids.
    list.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| b.lengths.cmp(&a.lengths)));
    Ok(list.into_iter().map(|merge| (merge.left, merge.right)).collect())
}
