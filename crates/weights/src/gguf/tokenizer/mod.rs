//! The texts that a folder has beside its weights, from the metadata of a GGUF file.
//!
//! What is written is what the model's own files would say, as far as the metadata holds it. What goes wrong
//! unseen is the pre-tokenizer: the file has only a name for it, and with another one most texts still become
//! valid tokens, only not those that the model was trained on. So an unknown name is refused.

mod bpe;
mod config;
mod export;
mod export_texts;
mod keys;
mod pre;
mod spm;

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::Metadata;
use crate::{MetadataError, Result, error::shorten};

pub use config::{generation_config_json, tokenizer_config_json};
pub use export::{TokenizerTexts, tokenizer_keys};

/// The text of a `tokenizer.json`, from `tokenizer.ggml.*`.
///
/// Byte-level BPE (`gpt2`) and SentencePiece's BPE with scores (`llama`) are understood.
pub fn tokenizer_json(metadata: &Metadata) -> Result<String> {
    let vocabulary = Vocabulary::read(metadata)?;
    let file = match metadata.text(keys::MODEL)? {
        Some("gpt2") => bpe::file(metadata, &vocabulary)?,
        Some("llama") => spm::file(metadata, &vocabulary)?,
        Some(other) => {
            let is = format!("string {:?}", shorten(other));
            let expected = "gpt2 or llama, the tokenizers that are supported".to_owned();
            return Err(metadata.refuse(keys::MODEL, MetadataError::Wrong { is, expected }));
        }
        None => return Err(metadata.missing(keys::MODEL)),
    };
    Ok(serde_json::to_string(&file).expect("keys are strings and nothing else can fail"))
}

/// What a token is, by the numbers of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Normal,
    /// Stands for what has no token.
    Unknown,
    Control,
    /// Found by its literal before anything else, as control tokens are, but ordinary text to a reader.
    UserDefined,
    /// A row of the embedding that no text leads to.
    Unused,
    /// One byte of a character that has no token.
    Byte,
}

/// The tokens of a model, each once.
struct Vocabulary<'a> {
    tokens: &'a [String],
    kinds: Vec<Kind>,
    /// All but the unused.
    ids: HashMap<&'a str, u32>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let tokens = tokens(metadata)?;
        let numbers = metadata.counts(keys::TOKEN_TYPE)?.ok_or_else(|| {
            let expected = "what tells control tokens from text; convert the model again with a current converter";
            metadata.refuse(keys::TOKEN_TYPE, MetadataError::absent(expected))
        })?;
        same_length(metadata, keys::TOKEN_TYPE, numbers.len(), tokens.len())?;
        let refuse = |key, index, problem| metadata.refuse(key, MetadataError::Element { index, problem });
        let mut kinds = Vec::with_capacity(tokens.len());
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, (token, number)) in tokens.iter().zip(numbers).enumerate() {
            let kind = match number {
                0 | 1 => Kind::Normal,
                2 => Kind::Unknown,
                3 => Kind::Control,
                4 => Kind::UserDefined,
                5 => Kind::Unused,
                6 => Kind::Byte,
                other => return Err(refuse(keys::TOKEN_TYPE, id, format!("unknown token type {other}"))),
            };
            kinds.push(kind);
            if kind == Kind::Unused {
                continue;
            }
            if token.is_empty() {
                return Err(refuse(keys::TOKENS, id, "an empty token".to_owned()));
            }
            if let Some(first) = ids.insert(token.as_str(), id as u32) {
                let problem = format!("token {:?} is also element {first}", shorten(token));
                return Err(refuse(keys::TOKENS, id, problem));
            }
        }
        Ok(Vocabulary { tokens, kinds, ids })
    }

    /// Tokens with their ids, without the unused.
    fn entries(&self) -> impl Iterator<Item = (&'a str, u32, Kind)> {
        let all = self.tokens.iter().zip(&self.kinds).enumerate();
        all.map(|(id, (token, &kind))| (token.as_str(), id as u32, kind)).filter(|&(.., kind)| kind != Kind::Unused)
    }

    /// The tokens that are found by their literal.
    fn added(&self) -> Vec<AddedToken<'a>> {
        let special = |kind| match kind {
            Kind::Control | Kind::Unknown => Some(true),
            Kind::UserDefined => Some(false),
            Kind::Normal | Kind::Byte | Kind::Unused => None,
        };
        self.entries().filter_map(|(content, id, kind)| Some(AddedToken::new(id, content, special(kind)?))).collect()
    }

    /// All tokens, added ones too: a reader gives an added token that isn't in here the next free id.
    fn map(&self) -> VocabMap<'a> {
        VocabMap(self.entries().map(|(token, id, _)| (token, id)).collect())
    }
}

fn tokens(metadata: &Metadata) -> Result<&[String]> {
    metadata.texts(keys::TOKENS)?.ok_or_else(|| metadata.missing(keys::TOKENS))
}

fn same_length(metadata: &Metadata, key: &'static str, is: usize, expected: usize) -> Result<()> {
    if is == expected {
        return Ok(());
    }
    Err(metadata.refuse(key, MetadataError::Length { is, of: keys::TOKENS, expected }))
}

/// The id under `key`, held against the vocabulary, and its token.
fn named<'a>(metadata: &'a Metadata, key: &'static str, tokens: &'a [String]) -> Result<Option<(u64, &'a str)>> {
    let Some(id) = metadata.count(key)? else { return Ok(None) };
    match usize::try_from(id).ok().and_then(|id| tokens.get(id)) {
        Some(token) => Ok(Some((id, token))),
        None => {
            let (is, expected) = (id.to_string(), format!("an id below {}, the number of tokens", tokens.len()));
            Err(metadata.refuse(key, MetadataError::Wrong { is, expected }))
        }
    }
}

/// Puts the begin and end tokens around a text where the file says so, or where it says nothing and `add_bos` holds.
fn post_processor(metadata: &Metadata, tokens: &[String], add_bos: bool) -> Result<Value> {
    let mut special_tokens = serde_json::Map::new();
    let mut around = |add: bool, key| -> Result<Option<Value>> {
        if !add {
            return Ok(None);
        }
        let (id, token) = named(metadata, key, tokens)?.ok_or_else(|| metadata.missing(key))?;
        special_tokens.insert(token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
        Ok(Some(json!({ "SpecialToken": { "id": token, "type_id": 0 } })))
    };
    let bos = around(metadata.flag(keys::ADD_BOS)?.unwrap_or(add_bos), keys::BOS)?;
    let eos = around(metadata.flag(keys::ADD_EOS)?.unwrap_or(false), keys::EOS)?;
    if special_tokens.is_empty() {
        return Ok(Value::Null);
    }
    let sequence = |id: &str, type_id: u8| json!({ "Sequence": { "id": id, "type_id": type_id } });
    let wrapped = |id, type_id| [bos.clone(), Some(sequence(id, type_id)), eos.clone()].into_iter().flatten();
    let single: Vec<_> = wrapped("A", 0).collect();
    let pair: Vec<_> = wrapped("A", 0).chain(wrapped("B", 1)).collect();
    Ok(json!({ "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens }))
}

/// A whole `tokenizer.json`.
#[derive(Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<AddedToken<'a>>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Model<'a>,
}

#[derive(Serialize)]
struct AddedToken<'a> {
    id: u32,
    content: &'a str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

impl<'a> AddedToken<'a> {
    fn new(id: u32, content: &'a str, special: bool) -> Self {
        AddedToken { id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special }
    }
}

#[derive(Serialize)]
struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: (),
    unk_token: Option<&'a str>,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: VocabMap<'a>,
    merges: Vec<(&'a str, &'a str)>,
}

struct VocabMap<'a>(Vec<(&'a str, u32)>);

impl Serialize for VocabMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().copied())
    }
}
