//! Text in and out of a model: tokenizer, chat template, prompt, streamed detokenizer.
//!
//! A request's way through this crate:
//! messages -> [`ChatTemplate::render`] -> [`Segment`]s -> [`expand_media`] -> [`encode_segments`] -> ids,
//! and back: ids -> [`StreamDecoder`] -> [`StopStrings`] -> text.
//!
//! One rule runs through all of it: **what a user typed never becomes a control token.** The
//! tokenizer itself knows no control tokens ([`Tokenizer::encode_text`] cannot yield one); they enter
//! a prompt only as [`Segment::Control`], which only the checkpoint's own template can create.

#![forbid(unsafe_code)]

mod decode;
mod error;
mod generation;
mod message;
mod prompt;
mod stop;
mod template;
mod tokenizer;
mod utf8;

pub use decode::StreamDecoder;
pub use error::TextError;
pub use generation::GenerationConfig;
pub use message::{Content, ImageSource, Message, Part, Role, ToolCall, ToolCallFunction, VideoSource, media};
pub use prompt::{
    EncodedPrompt, ExpandedPrompt, MediaSpan, Modality, Placeholders, Segment, VideoGroup, VideoWrap, encode_chat,
    encode_segments, expand, expand_media, slots,
};
pub use stop::{StopStep, StopStrings};
pub use template::{ChatTemplate, ChatTemplates, RenderOptions, TemplateTexts};
pub use tokenizer::Tokenizer;
pub use utf8::Utf8Stream;
