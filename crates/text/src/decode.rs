//! Token ids to text, one at a time.

use crate::{Tokenizer, Utf8Stream};

/// A streamed detokenizer: one id in, the text that is certain by now out.
///
/// A character may be spread over several tokens, also over a skipped special token; it is held back
/// until it is whole. An id without bytes (a padding row of the vocabulary) gives nothing.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Tokenizer,
    utf8: Utf8Stream,
    keep_special: bool,
}

impl StreamDecoder {
    /// A decoder that skips special tokens.
    pub fn new(tokenizer: &Tokenizer) -> Self {
        StreamDecoder { tokenizer: tokenizer.clone(), utf8: Utf8Stream::default(), keep_special: false }
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
        match self.tokenizer.bytes_of(id) {
            Some(bytes) => self.utf8.push(bytes),
            None => String::new(),
        }
    }

    /// Ends the stream: an unfinished character becomes one U+FFFD.
    pub fn finish(&mut self) -> String {
        self.utf8.finish()
    }
}
