//! How a vocabulary spells text: which bytes a token stands for.
//!
//! There are two ways. A byte-level vocabulary writes every byte as a printable character. SentencePiece's
//! writes text as it is, a space as `▁`, and a byte of a character that has no token as `<0xE5>`; its
//! `decoder` says how that is undone.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::bytes::Alphabet;
use super::invalid;
use crate::error::Result;

pub(super) enum Spelling {
    ByteLevel(Box<Alphabet>),
    Pieces(Pieces),
}

/// SentencePiece's spelling, from a decoder.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Pieces {
    /// Within a token, in this order.
    replace: Vec<(String, String)>,
    /// Whether `<0xE5>` is a byte.
    byte_fallback: bool,
    pub(super) strip: Option<LeadingStrip>,
}

/// What goes at the beginning of a whole text: the space that the encoder put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeadingStrip {
    content: char,
    /// At most this many.
    count: usize,
}

impl LeadingStrip {
    /// What is left of a piece at the beginning, and fewer to go from the next if that is nothing.
    pub(crate) fn apply<'a>(&mut self, mut text: &'a str) -> &'a str {
        while let Some(rest) = text.strip_prefix(self.content).filter(|_| self.count > 0) {
            text = rest;
            self.count -= 1;
        }
        text
    }
}

impl Spelling {
    /// Appends the bytes of a token. An added token of a byte-level vocabulary is written as it is.
    pub(super) fn append(&self, token: &str, added: bool, out: &mut Vec<u8>) {
        match self {
            Spelling::ByteLevel(alphabet) if !added && alphabet.append(token, out) => {}
            Spelling::ByteLevel(_) => out.extend_from_slice(token.as_bytes()),
            Spelling::Pieces(pieces) => pieces.append(token, out),
        }
    }
}

impl Pieces {
    fn append(&self, token: &str, out: &mut Vec<u8>) {
        let mut token = Cow::Borrowed(token);
        for (from, to) in &self.replace {
            if token.contains(from.as_str()) {
                token = Cow::Owned(token.replace(from, to));
            }
        }
        match byte(&token).filter(|_| self.byte_fallback) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(token.as_bytes()),
        }
    }

    /// Reads a decoder: replacements, then `ByteFallback`, `Fuse` and `Strip`, any of which may be absent.
    ///
    /// Another order or step would need the whole text to decode any of it, so it is refused.
    pub(super) fn from_decoder(decoder: &Value) -> Result<Self> {
        let steps = match decoder {
            Value::Null => return Err(invalid("there is neither a byte-level pre-tokenizer nor a decoder")),
            decoder if decoder["type"] == "Sequence" => {
                decoder["decoders"].as_array().ok_or_else(|| invalid("decoder: \"decoders\" is not a list"))?
            }
            decoder => std::slice::from_ref(decoder),
        };
        let mut pieces = Pieces::default();
        let mut fused = false;
        for step in steps {
            let refuse =
                || invalid(format!("decoder: {step} is not supported here, only a byte-level or SentencePiece's"));
            match Step::deserialize(step).map_err(|_| refuse())? {
                Step::Replace { pattern: Pattern::String(from), content }
                    if !pieces.byte_fallback && !fused && grows_nothing(&from, &content) =>
                {
                    pieces.replace.push((from, content));
                }
                Step::ByteFallback if !fused => pieces.byte_fallback = true,
                Step::Fuse => fused = true,
                Step::Strip { content, start, stop: 0 } if fused && pieces.strip.is_none() => {
                    pieces.strip = Some(LeadingStrip { content, count: start });
                }
                _ => return Err(refuse()),
            }
        }
        Ok(pieces)
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    Replace { pattern: Pattern, content: String },
    ByteFallback,
    Fuse,
    Strip { content: char, start: usize, stop: usize },
}

#[derive(Deserialize)]
enum Pattern {
    String(String),
}

/// A hostile replacement could make a table of any size from a small file.
fn grows_nothing(from: &str, to: &str) -> bool {
    !from.is_empty() && to.len() <= from.len()
}

/// The byte that `<0xE5>` stands for.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 { None } else { u8::from_str_radix(digits, 16).ok() }
}
