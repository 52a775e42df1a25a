use turbospark_device::DeviceError;
use turbospark_models::ModelError;
use turbospark_text::TextError;
use turbospark_vision::{ConfigError, ImageError};

use crate::prompt::PromptError;

/// Everything the library refuses or fails at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The checkpoint is not one that this build runs, or is damaged; or a forward pass failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file of the checkpoint can't be read.
    #[error(transparent)]
    Weights(#[from] turbospark_weights::Error),
    /// Tokenizer, template, messages or generation settings.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A packed folder can't be written.
    #[error(transparent)]
    Pack(#[from] turbospark_weights::packed::PackError),
    /// The checkpoint's image settings.
    #[error(transparent)]
    ImageConfig(#[from] ConfigError),
    /// An image of the request.
    #[error("image {number}: {source}")]
    Image {
        /// Which image of the request, from 1.
        number: usize,
        /// What is wrong with it.
        source: ImageError,
    },
    /// An image's address can't be used.
    #[error("image {number}: {message}")]
    ImageAddress {
        /// Which image of the request, from 1.
        number: usize,
        /// Why, and what to do.
        message: String,
    },
    /// The parts of a prompt don't fit each other.
    #[error(transparent)]
    Prompt(#[from] PromptError),
    /// The device failed or refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A setting that makes no sense or that this build lacks.
    #[error("{0}")]
    Options(String),
    /// Something that is recognised and not built yet.
    #[error("{0}")]
    Unsupported(String),
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {tokens} tokens and the context holds {context}, one of which the answer needs; {advice}")]
    ContextFull {
        /// Tokens of the prompt, images included.
        tokens: usize,
        /// Tokens that a sequence may have.
        context: usize,
        /// How to get it in.
        advice: &'static str,
    },
    /// Other sequences hold the cache.
    #[error(
        "the cache has {free} of {all} pages free and this step needs {needed} more; end another session or load with more sequences"
    )]
    CacheFull {
        /// Pages wanted.
        needed: usize,
        /// Pages that nobody holds.
        free: usize,
        /// Pages there are.
        all: usize,
    },
    /// The caller's [`Cancel`](crate::Cancel) was set before the answer began.
    #[error("cancelled")]
    Cancelled,
    /// A file of the user's.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
