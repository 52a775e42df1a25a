//! Text to ids by the parts of the `tokenizers` crate: normalizer, pre-tokenizer, BPE.
//!
//! The crate's own `Tokenizer` cuts a text at added tokens first. Here they are cut outside, so each stretch
//! goes through the parts alone, as it does there behind such a cut.

use std::borrow::Cow;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizer::Range;
use tokenizers::{
    Model, NormalizedString, Normalizer, NormalizerWrapper, OffsetType, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper,
};

pub(super) struct Encoder {
    pub(super) model: BPE,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
}

impl Encoder {
    /// Appends the ids of `text`. Whether the whole text begins here or a control token comes before makes a
    /// difference to a Metaspace with `prepend_scheme: first`.
    pub(super) fn append(&self, text: &str, begins: bool, ids: &mut Vec<u32>) -> tokenizers::Result<()> {
        // The crate tells a beginning by the offset in the text that a stretch was cut from.
        let source = if begins { Cow::Borrowed(text) } else { Cow::Owned(format!("\0{text}")) };
        let from = source.len() - text.len();
        let mut normalized = NormalizedString::from(&*source);
        if from > 0 {
            normalized = normalized.slice(Range::Original(from..)).expect("cut behind a whole character");
        }
        if let Some(normalizer) = &self.normalizer {
            normalizer.normalize(&mut normalized)?;
        }
        if normalized.is_empty() {
            return Ok(());
        }
        // Where the crate looks for tokens in the normalized text; a beginning that was stripped is none afterwards.
        let normalized = normalized.slice(Range::Normalized(..)).expect("the whole of it");
        let mut words = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = &self.pre_tokenizer {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        words.tokenize(|word| self.model.tokenize(word.get()))?;
        ids.extend_from_slice(words.into_encoding(None, 0, OffsetType::None)?.get_ids());
        Ok(())
    }
}
