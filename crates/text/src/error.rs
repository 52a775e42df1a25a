//! What can go wrong between messages and ids, as sentences.

/// An error of this crate. Every message says which file, key or part is meant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// `tokenizer.json` (or the tokenizer part of another format) cannot be used.
    #[error("tokenizer: {0}")]
    Tokenizer(String),

    /// `tokenizer_config.json` cannot be used.
    #[error("tokenizer_config.json: {0}")]
    TokenizerConfig(String),

    /// A text could not be encoded.
    #[error("text could not be tokenised: {0}")]
    Encode(String),

    /// The checkpoint has no chat template, or one that does not parse.
    #[error("chat template: {0}")]
    Template(String),

    /// The template itself refused the messages through `raise_exception`.
    #[error("the chat template refuses these messages: {0}")]
    TemplateRefused(String),

    /// The template did more work than a chat template has any reason to.
    #[error("chat template: stopped after using its whole budget of {0} steps")]
    TemplateBudget(u64),

    /// The template wrote more text than a prompt can hold.
    #[error("chat template: wrote more than {0} bytes")]
    TemplateOutput(usize),

    /// A template argument that this crate sets itself.
    #[error("template argument {0:?} is set from the request itself and cannot be given as an argument")]
    ReservedArgument(String),

    /// JSON handed in (tools, arguments) nests too deeply.
    #[error("{what} nests deeper than {limit} levels")]
    TooDeep {
        /// What was being read.
        what: &'static str,
        /// The deepest level accepted.
        limit: usize,
    },

    /// A message or one of its parts is not supported or malformed.
    #[error("{0}")]
    Message(String),

    /// The messages use every private-use character, so that none is left to mark typed text with.
    #[error("the messages use every private-use character; at least {0} must be unused")]
    NoPrivateUse(usize),

    /// The template emitted another number of placeholders than there are images or videos.
    #[error("the chat template placed {placeholders} {kind} placeholder(s), the messages hold {parts} {kind} part(s)")]
    PlaceholderCount {
        /// `image` or `video`.
        kind: &'static str,
        /// Placeholders in the rendered prompt.
        placeholders: usize,
        /// Parts in the messages.
        parts: usize,
    },

    /// Expansion was given another number of sizes than the prompt has placeholders.
    #[error("the prompt holds {placeholders} {kind} placeholder(s), sizes were given for {given}")]
    ExpansionCount {
        /// `image` or `video`.
        kind: &'static str,
        /// Placeholders in the prompt.
        placeholders: usize,
        /// Sizes given.
        given: usize,
    },

    /// An image or a group of video frames that would take no token at all.
    #[error("{kind} {index} has no tokens")]
    EmptyMedia {
        /// `image` or `video`.
        kind: &'static str,
        /// Which one, from 0.
        index: usize,
    },

    /// A slot that does not point at a token of the prompt.
    #[error("placeholder slot {slot} is not in a prompt of {len} tokens, or slots are not ascending")]
    Slot {
        /// The offending slot.
        slot: usize,
        /// Length of the prompt.
        len: usize,
    },

    /// A stop string that would match everywhere.
    #[error("stop string {0} is empty")]
    EmptyStop(usize),

    /// A key of `generation_config.json` (or its fallbacks) has the wrong type or range.
    #[error("{file}: key {key:?} is {found}, expected {expected}")]
    Generation {
        /// The file.
        file: &'static str,
        /// The key.
        key: &'static str,
        /// What was there.
        found: String,
        /// What was wanted.
        expected: &'static str,
    },

    /// A configuration file is not a JSON object.
    #[error("{file}: {message}")]
    Json {
        /// The file.
        file: &'static str,
        /// What the parser said.
        message: String,
    },
}

pub(crate) type Result<T> = std::result::Result<T, TextError>;
