//! The checkpoint's BPE tokenizer, byte-level or SentencePiece's.
//!
//! The model inside holds no control tokens. Template text is cut at the literals of added tokens first
//! ([`Tokenizer::split_template`]) and only the stretches between them reach the model, which is also
//! how the reference works; typed text reaches the model whole, so no typed literal can become a
//! control token.
//!
//! A character that the vocabulary cannot spell becomes what the reference makes of it: bytes, the unknown
//! token, or nothing where there is neither.

mod added;
mod bytes;
mod config;
mod encoder;
mod file;
mod post;
mod spelling;
mod table;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::{Model, PreTokenizerWrapper};

pub(crate) use added::{AddedToken, AddedTokens};
pub(crate) use spelling::LeadingStrip;

use crate::Segment;
use crate::error::{Result, TextError};
use crate::prompt::encode_segments;
use bytes::Alphabet;
use config::TokenizerConfig;
use encoder::Encoder;
use file::{AddedEntry, Merge, ModelFile, TokenizerFile};
use spelling::{Pieces, Spelling};
use table::ByteTable;

/// A BPE tokenizer. Cloning is cheap; clones share the tables.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    encoder: Encoder,
    added: AddedTokens,
    table: ByteTable,
    strip: Option<LeadingStrip>,
    names: BTreeMap<String, String>,
    bos: Vec<u32>,
    /// The id of unknown characters, where that is also the token that begins or ends a text.
    unknown_is_control: Option<u32>,
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
        let config = match tokenizer_config {
            Some(text) => config::parse(text)?,
            None => TokenizerConfig::default(),
        };
        let byte_level = file.pre_tokenizer.as_ref().is_some_and(is_byte_level);
        check_model(&file.model, byte_level)?;
        let spelling = if byte_level {
            Spelling::ByteLevel(Box::new(Alphabet::new()))
        } else {
            Spelling::Pieces(Pieces::from_decoder(&file.decoder)?)
        };

        let added = added_tokens(file.added_tokens, config.added)?;
        let table = ByteTable::new(&file.model.vocab.0, &added, &spelling)?;
        let added = AddedTokens::new(added)?;
        let unknown = file.model.unk_token.clone();
        let encoder =
            Encoder { model: bpe(file.model, &added)?, normalizer: file.normalizer, pre_tokenizer: file.pre_tokenizer };
        let strip = match spelling {
            Spelling::ByteLevel(_) => None,
            Spelling::Pieces(pieces) => pieces.strip,
        };
        let mut inner =
            Inner { encoder, added, table, strip, names: config.names, bos: Vec::new(), unknown_is_control: None };
        inner.bos = match config.add_bos_token {
            Some(false) => Vec::new(),
            Some(true) => {
                let id = inner.named_id("bos_token");
                let error = || TextError::TokenizerConfig("add_bos_token is true, but there is no bos_token".into());
                vec![id.ok_or_else(error)?]
            }
            None => post::leading_ids(&file.post_processor)?,
        };
        if let Some(id) = inner.bos.iter().find(|&&id| inner.table.get(id).is_none()) {
            return Err(invalid(format!("post_processor: there is no token {id}")));
        }
        let control = [inner.named_id("bos_token"), inner.named_id("eos_token")];
        let unknown = unknown.and_then(|token| inner.id_of(&token));
        inner.unknown_is_control = unknown.filter(|id| control.contains(&Some(*id)) || inner.bos.contains(id));
        Ok(Tokenizer { inner: Arc::new(inner) })
    }

    /// Encodes text in which nothing is a control token, whatever it spells.
    pub fn encode_text(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.append_text(text, true, &mut ids)?;
        Ok(ids)
    }

    /// Encodes a text that no template wrote, to be continued: begins with
    /// [`bos_for_plain_text`](Tokenizer::bos_for_plain_text), and nothing in it is a control token.
    pub fn encode_plain_prompt(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = self.inner.bos.clone();
        self.append_text(text, true, &mut ids)?;
        Ok(ids)
    }

    /// What the tokenizer puts before a text that no template wrote: often one token, often none. A chat
    /// template writes it itself.
    pub fn bos_for_plain_text(&self) -> &[u32] {
        &self.inner.bos
    }

    /// `begins`: whether this is the beginning of the whole text.
    pub(crate) fn append_text(&self, text: &str, begins: bool, ids: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let start = ids.len();
        self.inner.encoder.append(text, begins, ids).map_err(|error| TextError::Encode(error.to_string()))?;
        match self.inner.unknown_is_control {
            Some(unknown) if ids[start..].contains(&unknown) => Err(TextError::Encode(
                "it has characters that this tokenizer can only write as the token that begins or ends a text".into(),
            )),
            _ => Ok(()),
        }
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
        self.inner.id_of(token)
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
        self.inner.table.len()
    }

    /// The id of `eos_token` in `tokenizer_config.json`.
    pub fn eos_token_id(&self) -> Option<u32> {
        self.inner.named_id("eos_token")
    }

    /// Special tokens by name (`eos_token`, `pad_token`, ...), as the template may ask for them.
    pub fn named_tokens(&self) -> &BTreeMap<String, String> {
        &self.inner.names
    }

    pub(crate) fn added(&self) -> &AddedTokens {
        &self.inner.added
    }

    pub(crate) fn leading_strip(&self) -> Option<LeadingStrip> {
        self.inner.strip
    }
}

impl Inner {
    fn id_of(&self, token: &str) -> Option<u32> {
        let added = self.added.prefix_of(token).filter(|added| added.content == token);
        // The model knows no token that is empty; see `bpe`.
        let plain = || self.encoder.model.token_to_id(token).filter(|_| !token.is_empty());
        added.map(|added| added.id).or_else(plain)
    }

    fn named_id(&self, name: &str) -> Option<u32> {
        self.id_of(self.names.get(name)?)
    }
}

/// Refuses models that encode or decode by rules that are not followed here.
fn check_model(model: &ModelFile, byte_level: bool) -> Result<()> {
    if let Some(kind) = model.kind.as_deref().filter(|&kind| kind != "BPE") {
        return Err(invalid(format!("model type {kind:?} is not supported, only BPE")));
    }
    let affixes = [&model.continuing_subword_prefix, &model.end_of_word_suffix];
    if affixes.into_iter().flatten().any(|affix| !affix.is_empty()) || model.dropout.is_some_and(|p| p != 0.0) {
        return Err(invalid("dropout and subword affixes are not supported"));
    }
    if byte_level && model.byte_fallback {
        // It would spell the character that stands for a byte, and decode to that.
        return Err(invalid("byte_fallback in a byte-level vocabulary is not supported"));
    }
    if model.vocab.0.is_empty() {
        return Err(invalid("the vocabulary is empty"));
    }
    Ok(())
}

/// The added tokens of both files.
fn added_tokens(entries: Vec<AddedEntry>, config: Vec<AddedToken>) -> Result<Vec<AddedToken>> {
    let mut added = Vec::with_capacity(entries.len());
    for entry in entries {
        let id = entry.id.ok_or_else(|| invalid(format!("added token {:?} has no id", entry.content)))?;
        added.push(supported(entry, id)?);
    }
    for token in config {
        // The same token may be described twice; tokenizer.json decides what it is.
        if !added.iter().any(|known| known.content == token.content) {
            added.push(token);
        }
    }
    Ok(added)
}

/// The model without its control tokens, which no text may lead to.
///
/// Converters of SentencePiece models cut control tokens into merges like any other, and a model that
/// ignores merges yields any word of its vocabulary. A single character is a letter, whatever else it is.
fn bpe(file: ModelFile, added: &AddedTokens) -> Result<BPE> {
    let mut vocab: Vocab = file.vocab.0.into_iter().collect();
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
    if let Some(Merge(a, b)) = file.merges.iter().find(|m| m.0.len() + m.1.len() > longest) {
        return Err(invalid(format!("the merge of {a:?} and {b:?} gives a token outside the vocabulary")));
    }

    let control = added.iter().filter(|token| token.special && token.content.chars().nth(1).is_some());
    let control: HashSet<&str> = control.map(|token| token.content.as_str()).collect();
    let control = |token: &str| control.contains(token);
    let mut unknown = file.unk_token;
    if let Some(token) = unknown.as_mut().filter(|token| control(token))
        && let Some(&id) = vocab.get(token)
    {
        // Under a name that no text has, so that only an unknown character leads to it.
        token.clear();
        vocab.insert(String::new(), id);
    }
    vocab.retain(|token, _| !control(token));
    let merges = file.merges.into_iter().map(|m| (m.0, m.1));
    let merges = merges.filter(|(a, b)| !control(a) && !control(b) && !control(&format!("{a}{b}")));
    let mut bpe = BPE::builder()
        .vocab_and_merges(vocab, merges.collect())
        .ignore_merges(file.ignore_merges)
        .byte_fallback(file.byte_fallback)
        .fuse_unk(file.fuse_unk);
    if let Some(unknown) = unknown {
        bpe = bpe.unk_token(unknown);
    }
    bpe.build().map_err(|error| invalid(format!("merges: {error}")))
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
