//! A tokenizer from lists, for containers that hold no `tokenizer.json` (GGUF).

use std::collections::BTreeMap;

use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::added::AddedToken;
use super::file::Merge;
use super::{Source, Tokenizer, invalid};
use crate::error::Result;

// Qwen2 to Qwen3-VL split digits one by one; Qwen3.5 also takes combining marks for letters.
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The lists a GGUF file keeps under `tokenizer.ggml.*`.
#[derive(Clone, Debug, Default)]
pub struct BpeParts {
    /// `tokens`: the token of every id, in the byte-level alphabet.
    pub tokens: Vec<String>,
    /// `merges`, each `"a b"`.
    pub merges: Vec<String>,
    /// `token_type`: 1 normal, 3 control, 4 user-defined, 5 unused.
    pub token_types: Vec<i32>,
    /// `pre`: the name of the pre-tokenizer, `qwen2` or `qwen35`.
    pub pre: String,
    /// Special tokens by name (`eos_token`, `pad_token`, ...) as ids.
    pub named: BTreeMap<String, u32>,
}

impl Tokenizer {
    /// Builds a tokenizer from lists.
    pub fn from_parts(parts: BpeParts) -> Result<Self> {
        let pattern = match parts.pre.as_str() {
            "qwen2" => QWEN2,
            "qwen35" => QWEN35,
            other => {
                return Err(invalid(format!("pre-tokenizer {other:?} is not supported, only qwen2 and qwen35")));
            }
        };
        if parts.token_types.len() != parts.tokens.len() {
            return Err(invalid(format!("{} tokens, but {} token types", parts.tokens.len(), parts.token_types.len())));
        }
        let mut names = BTreeMap::new();
        for (name, id) in parts.named {
            let token = parts.tokens.get(id as usize);
            let token = token.ok_or_else(|| invalid(format!("{name} is {id}, beyond the tokens")))?;
            names.insert(name, token.clone());
        }
        let (mut vocab, mut added) = (Vec::new(), Vec::new());
        for ((id, token), kind) in (0..).zip(parts.tokens).zip(parts.token_types) {
            match kind {
                3 | 4 => added.push(AddedToken { id, content: token, special: kind == 3 }),
                5 => {}
                _ => vocab.push((token, id)),
            }
        }
        let mut merges = Vec::with_capacity(parts.merges.len());
        for line in &parts.merges {
            let merge = Merge::parse(line);
            merges.push(merge.ok_or_else(|| invalid(format!("{line:?} is not a merge")))?);
        }
        let split = Split::new(SplitPattern::Regex(pattern.to_owned()), SplitDelimiterBehavior::Isolated, false)
            .map_err(|error| invalid(error.to_string()))?;
        let steps =
            vec![PreTokenizerWrapper::Split(split), PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, false))];
        Tokenizer::build(Source {
            vocab,
            merges,
            ignore_merges: false,
            normalizer: Some(NFC.into()),
            pre_tokenizer: PreTokenizerWrapper::Sequence(Sequence::new(steps)),
            added,
            names,
        })
    }
}
