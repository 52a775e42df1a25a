use turbospark_device::DeviceError;
use turbospark_tensor::DType;

/// What loading or running a model refuses.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// The configuration is not one that this build runs.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
    /// A tensor is unknown, missing, misshapen or damaged.
    #[error(transparent)]
    Weights(#[from] turbospark_weights::Error),
    /// A weight can't be quantised.
    #[error("tensor {name:?}: {source}")]
    Quant {
        /// Its name in the checkpoint.
        name: String,
        /// Why.
        source: turbospark_tensor::quant::QuantError,
    },
    /// A head is stored, and another one than the embedding.
    #[error(
        "tensor \"lm_head.weight\" is not the embedding, and config.json says that the head is; with \
         \"tie_word_embeddings\": false there it is used"
    )]
    TiedHead,
    /// Heads can't be cut into the blocks that keys and values are to be kept in.
    #[error("head_dim {head_dim} of config.json is no multiple of {block}, as {dtype} keys and values need; use f16")]
    KvFormat {
        /// What was asked for.
        dtype: DType,
        /// Elements of its blocks.
        block: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// The device failed or refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A batch that does not fit the model or its cache: a fault of the caller.
    #[error("{0}")]
    Batch(String),
    /// Images were given to a checkpoint without a vision tower.
    #[error(
        "this model has no vision tower and reads text only; of a .gguf model the tower is its mmproj file, beside it or \
         named with --mmproj"
    )]
    NoVision,
}

/// This crate's results.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;
