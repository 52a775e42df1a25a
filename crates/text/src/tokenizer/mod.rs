//! The checkpoint's byte-level BPE tokenizer.
//!
//! The model inside holds no added tokens. Template text is cut at their literals first
//! ([`Tokenizer::split_template`]) and only the stretches between them reach the model, which is also
//! how the reference works; typed text reaches the model whole, so no typed literal can become a
//! control token.

mod added;
mod bytes;
mod config;
mod file;
mod parts;

use std::collections::BTreeMap;
use std::sync::Arc;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

pub(crate) use added::{AddedToken, AddedTokens};
pub use parts::BpeParts;

use crate::Segment;
use crate::error::{Result, TextError};
use crate::prompt::encode_segments;
use bytes::Alphabet;
use file::{AddedEntry, Merge, TokenizerFile};

/// Ids beyond this are taken for a damaged file; it bounds the table of token bytes.
const MAX_ID: u32 = 1 << 22;

/// A byte-level BPE tokenizer. Cloning is cheap; clones share the tables.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    model: tokenizers::Tokenizer,
    added: AddedTokens,
    table: ByteTable,
    names: BTreeMap<String, String>,
}

/// What a BPE tokenizer is made of, whatever file it came from.
struct Source {
    vocab: Vec<(String, u32)>,
    merges: Vec<Merge>,
    ignore_merges: bool,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: PreTokenizerWrapper,
    added: Vec<AddedToken>,
    names: BTreeMap<String, String>,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("names", &self.inner.names)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and the text of `tokenizer_config.json` where there is one.
    pub fn from_json(tokenizer_json: &[u8], tokenizer_config: Option<&str>) -> Result<Self> {
        let file: TokenizerFile =
            serde_json::from_slice(tokenizer_json).map_err(|error| invalid(format!("tokenizer.json: {error}")))?;
        let model = file.model;
        if let Some(kind) = model.kind.as_deref().filter(|&kind| kind != "BPE") {
            return Err(invalid(format!("model type {kind:?} is not supported, only byte-level BPE")));
        }
        let affixed = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
        let affixed = affixed.into_iter().flatten().any(|affix| !affix.is_empty());
        if model.byte_fallback || affixed || model.dropout.is_some_and(|p| p != 0.0) {
            return Err(invalid("byte_fallback, dropout and subword affixes are not supported, only byte-level BPE"));
        }
        let pre_tokenizer =
            file.pre_tokenizer.filter(is_byte_level).ok_or_else(|| invalid("the pre-tokenizer is not byte-level"))?;

        let config = match tokenizer_config {
            Some(text) => config::parse(text)?,
            None => config::TokenizerConfig::default(),
        };
        let mut added = Vec::with_capacity(file.added_tokens.len());
        for entry in file.added_tokens {
            let id = entry.id.ok_or_else(|| invalid(format!("added token {:?} has no id", entry.content)))?;
            added.push(supported(entry, id)?);
        }
        for token in config.added {
            // The same token may be described twice; tokenizer.json decides what it is.
            if !added.iter().any(|known| known.content == token.content) {
                added.push(token);
            }
        }
        Tokenizer::build(Source {
            vocab: model.vocab.0,
            merges: model.merges,
            ignore_merges: model.ignore_merges,
            normalizer: file.normalizer,
            pre_tokenizer,
            added,
            names: config.names,
        })
    }

    fn build(mut source: Source) -> Result<Self> {
        let table = ByteTable::new(&source.vocab, &source.added)?;
        let added = AddedTokens::new(source.added)?;
        if source.ignore_merges {
            // Such a model yields any whole word of its vocabulary, so a control token must not be one.
            source.vocab.retain(|(token, _)| added.prefix_of(token).is_none_or(|a| a.content != *token || !a.special));
        }
        let vocab: Vocab = source.vocab.into_iter().collect();
        for c in Alphabet::chars() {
            if !vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str) {
                return Err(invalid(format!("the vocabulary lacks {c:?}, one of the 256 bytes of a byte-level BPE")));
            }
        }
        for token in added.iter() {
            if let Some(&id) = vocab.get(&token.content)
                && id != token.id
            {
                return Err(invalid(format!(
                    "added token {:?} has id {}, the vocabulary has it as {id}",
                    token.content, token.id
                )));
            }
        }
        // The builder copies both halves into a buffer as long as the longest token.
        let longest = vocab.keys().map(String::len).max().unwrap_or(0);
        if let Some(Merge(a, b)) = source.merges.iter().find(|m| m.0.len() + m.1.len() > longest) {
            return Err(invalid(format!("the merge of {a:?} and {b:?} gives a token outside the vocabulary")));
        }
        let merges = source.merges.into_iter().map(|m| (m.0, m.1)).collect();
        let bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(source.ignore_merges)
            .build()
            .map_err(|error| invalid(format!("merges: {error}")))?;
        let mut model = tokenizers::Tokenizer::new(bpe);
        model.with_normalizer(source.normalizer).map_err(|error| invalid(error.to_string()))?;
        model.with_pre_tokenizer(Some(source.pre_tokenizer));
        Ok(Tokenizer { inner: Arc::new(Inner { model, added, table, names: source.names }) })
    }

    /// Encodes text in which nothing is a control token, whatever it spells.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.append_text(text, &mut ids)?;
        Ok(ids)
    }

    pub(crate) fn append_text(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let encoding =
            self.inner.model.encode_fast(text, false).map_err(|error| TextError::Encode(error.to_string()))?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// Encodes trusted text: literals of added tokens become those tokens.
    pub fn encode_template(&self, text: &str) -> Result<Vec<u32>> {
        encode_segments(self, &self.split_template(text)).map(|prompt| prompt.ids)
    }

    /// Cuts trusted text at the literals of added tokens.
    pub fn split_template(&self, text: &str) -> Vec<Segment> {
        let mut segments = Vec::new();
        let mut rest = text;
        while let Some((at, token)) = self.inner.added.find(rest) {
            if at > 0 {
                segments.push(Segment::Plain(rest[..at].to_owned()));
            }
            segments.push(Segment::Control(token.id));
            rest = &rest[at + token.content.len()..];
        }
        if !rest.is_empty() {
            segments.push(Segment::Plain(rest.to_owned()));
        }
        segments
    }

    /// The id of a token as the file spells it: `<|im_end|>`, or `Ġthe` for " the".
    pub fn token_id(&self, token: &str) -> Option<u32> {
        let added = self.inner.added.prefix_of(token);
        let added = added.filter(|added| added.content == token);
        added.map(|added| added.id).or_else(|| self.inner.model.token_to_id(token))
    }

    /// The bytes a token stands for; none for ids that no token has.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.bytes_of(id).map(<[u8]>::to_vec)
    }

    pub(crate) fn bytes_of(&self, id: u32) -> Option<&[u8]> {
        self.inner.table.get(id).map(|(bytes, _)| bytes)
    }

    /// Whether `id` is a control token, which is not part of an answer's text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.table.get(id).is_some_and(|(_, special)| special)
    }

    /// One more than the largest id. A model's head may be wider; its further rows are no tokens.
    pub fn vocab_size(&self) -> usize {
        self.inner.table.ends.len()
    }

    /// The id of `eos_token` in `tokenizer_config.json`.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.token_id(self.inner.names.get("eos_token")?)
    }

    /// Special tokens by name (`eos_token`, `pad_token`, ...), as the template may ask for them.
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.inner.names
    }

    pub(crate) fn added(&self) -> &AddedTokens {
        &self.inner.added
    }
}

fn invalid(message: impl Into<String>) -> TextError {
    TextError::Tokenizer(message.into())
}

/// Refuses what the search for literals would get wrong.
fn supported(entry: AddedEntry, id: u32) -> Result<AddedToken> {
    let flags = [("single_word", entry.single_word), ("lstrip", entry.lstrip), ("rstrip", entry.rstrip)];
    if let Some((flag, _)) = flags.into_iter().find(|&(_, set)| set) {
        return Err(invalid(format!("added token {:?} uses {flag}, which is not supported", entry.content)));
    }
    Ok(AddedToken { id, content: entry.content, special: entry.special })
}

fn is_byte_level(pre_tokenizer: &PreTokenizerWrapper) -> bool {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => true,
        PreTokenizerWrapper::Sequence(steps) => steps.as_ref().iter().any(is_byte_level),
        _ => false,
    }
}

/// Bytes of all tokens in one buffer: a vocabulary has a quarter of a million of them.
struct ByteTable {
    bytes: Vec<u8>,
    /// Where token `i` ends; it begins where the one before ends.
    ends: Vec<u32>,
    kinds: Vec<Kind>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Missing,
    Plain,
    Special,
}

impl ByteTable {
    fn new(vocab: &[(String, u32)], added: &[AddedToken]) -> Result<Self> {
        let ids = vocab.iter().map(|&(_, id)| id);
        let largest = ids.chain(added.iter().map(|token| token.id)).max();
        let largest = largest.ok_or_else(|| invalid("the vocabulary is empty"))?;
        if largest >= MAX_ID {
            return Err(invalid(format!("token id {largest} is beyond {MAX_ID}, the largest supported")));
        }
        let plain = vocab.iter().map(|(token, id)| (*id, None, token));
        let added = added.iter().map(|t| (t.id, Some(t.special), &t.content));
        let mut order: Vec<(u32, Option<bool>, &String)> = plain.chain(added).collect();
        // Stable: an added token comes after the vocabulary's entry of the same id and replaces it.
        order.sort_by_key(|&(id, ..)| id);

        let alphabet = Alphabet::new();
        let mut table = ByteTable {
            bytes: Vec::with_capacity(vocab.len() * 8),
            ends: Vec::with_capacity(largest as usize + 1),
            kinds: Vec::with_capacity(largest as usize + 1),
        };
        let mut order = order.as_slice();
        for id in 0..=largest {
            let same = order.iter().take_while(|entry| entry.0 == id).count();
            let (entries, rest) = order.split_at(same);
            order = rest;
            let kind = match entries.last() {
                None => Kind::Missing,
                Some((_, special, token)) => {
                    let spelled = special.is_none() && alphabet.append(token, &mut table.bytes);
                    if !spelled {
                        table.bytes.extend_from_slice(token.as_bytes());
                    }
                    if *special == Some(true) { Kind::Special } else { Kind::Plain }
                }
            };
            table.ends.push(table.bytes.len() as u32);
            table.kinds.push(kind);
        }
        Ok(table)
    }

    fn get(&self, id: u32) -> Option<(&[u8], bool)> {
        let id = id as usize;
        let kind = *self.kinds.get(id).filter(|&&kind| kind != Kind::Missing)?;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        let bytes = &self.bytes[start as usize..self.ends[id] as usize];
        Some((bytes, kind == Kind::Special))
    }
}
