//! Token ids to text, one at a time.

use crate::tokenizer::LeadingStrip;
use crate::{Tokenizer, Utf8Stream};

/// A streamed detokenizer: one id in, the text that is certain by now out.
///
/// A character may be spread over several tokens, also over a skipped special token; it is held back
/// until it is whole. An id without bytes (a padding row of the vocabulary) gives nothing.
///
/// SentencePiece's vocabularies begin a text with a space that is not the text's; it is left out. Their bytes
/// (`<0xE5>`) that make no character become U+FFFD as in [`String::from_utf8_lossy`]. The reference writes one
/// for every byte of the whole run around them, which is known only when the run ends.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    utf8: Utf8Stream,
    /// What may still go from the beginning of the text.
    strip: Option<LeadingStrip>,
    keep_special: bool,
}

impl StreamDecoder {
    /// A decoder that skips special tokens.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        let strip = tokenizer.leading_strip();
        StreamDecoder { tokenizer: tokenizer.clone(), utf8: Utf8Stream::default(), strip, keep_special: false }
    }

    /// Whether special tokens such as `<|im_end|>` are written out.
    pub fn keep_special(mut self, keep: bool) -> Self {
        self.keep_special = keep;
        self
    }

    /// The text that token `id` completes; often empty.
    pub fn push(&mut self, id: u32) -> String {
        if !self.keep_special && self.tokenizer.is_special(id) {
            return String::new();
        }
        let text = match self.tokenizer.bytes_of(id) {
            Some(bytes) => self.utf8.push(bytes),
            None => return String::new(),
        };
        match &mut self.strip {
            Some(strip) => {
                let kept = strip.apply(&text).to_owned();
                if !kept.is_empty() {
                    self.strip = None;
                }
                kept
            }
            None => text,
        }
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}
