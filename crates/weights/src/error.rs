use std::{io, path::PathBuf};

use turbospark_tensor::{DType, Shape};

pub use headers::{HeaderError, TensorError};

use crate::{MetadataError, SplitError};

mod headers;

/// Why a checkpoint or a file beside it was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A pipe, a device, or a folder where a file belongs.
    #[error("{}: not a regular file", .0.display())]
    NotAFile(PathBuf),
    /// A folder without weights that this build reads.
    #[error("{folder}: no model.safetensors, no model.safetensors.index.json and no other .safetensors or .gguf file")]
    NoWeights {
        /// Where they were looked for.
        folder: String,
    },
    /// A folder with weights in a form that this build doesn't read.
    #[error("{folder}: {file} {what}")]
    ForeignWeights {
        /// Where it lies.
        folder: String,
        /// Name of the file.
        file: String,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// Several weight files and no index that says what belongs together.
    #[error("{folder}: several weight files ({files}) and no model.safetensors.index.json; name one of them")]
    AmbiguousWeights {
        /// Where they lie.
        folder: String,
        /// Some of their names.
        files: String,
    },
    /// The header of a weight file cannot be trusted as a whole.
    #[error("{file}: {problem}")]
    Header {
        /// Name of the file.
        file: String,
        /// What is wrong.
        problem: HeaderError,
    },
    /// The header contradicts itself, or the file, about one tensor.
    #[error("{file}: tensor {name:?}: {problem}")]
    Tensor {
        /// Name of the file.
        file: String,
        /// Name of the tensor.
        name: String,
        /// What is wrong.
        problem: TensorError,
    },
    /// A key of a GGUF file's metadata that can't be read, or not as what it should be.
    #[error("{file}: key {key:?}: {problem}")]
    Metadata {
        /// Name of the file.
        file: String,
        /// The key.
        key: String,
        /// What is wrong.
        problem: MetadataError,
    },
    /// A GGUF model that this build doesn't run, or whose files don't belong together.
    #[error("{file}: {problem}")]
    Gguf {
        /// Name of the file.
        file: String,
        /// What is wrong.
        problem: String,
    },
    /// The files of a split GGUF model don't belong together.
    #[error("{file}: {problem}")]
    Split {
        /// Name of the file that doesn't fit.
        file: String,
        /// What is wrong.
        problem: SplitError,
    },
    /// One name in two shards.
    #[error("tensor {name:?}: stored twice, in {first} and in {second}")]
    DuplicateTensor {
        /// Name of the tensor.
        name: String,
        /// The shard that has it first.
        first: String,
        /// The other one.
        second: String,
    },
    /// The shard index is not what an index looks like.
    #[error("{file}: not a valid shard index: {source}")]
    Index {
        /// Name of the index.
        file: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A shard index names a file outside its folder, or something that is no weight file.
    #[error("{file}: shard name {shard:?} is not a plain .safetensors file name")]
    ShardName {
        /// Name of the index.
        file: String,
        /// What it says.
        shard: String,
    },
    /// A shard index lists a tensor that the shard it names doesn't hold.
    #[error("{file}: tensor {name:?} is not in {shard}{}", .actual.as_ref().map(|a| format!(" but in {a}")).unwrap_or_default())]
    NotInShard {
        /// Name of the index.
        file: String,
        /// Name of the tensor.
        name: String,
        /// Where it should be.
        shard: String,
        /// Where it is, if anywhere.
        actual: Option<String>,
    },
    /// A shard holds a tensor that the index doesn't list.
    #[error("{shard}: tensor {name:?} is not listed in {file}")]
    Unlisted {
        /// Name of the index.
        file: String,
        /// Name of the tensor.
        name: String,
        /// Which shard has it.
        shard: String,
    },
    /// A tensor that the model needs is absent.
    #[error("tensor {name:?}: missing, expected {expected} from config.json{}", .nearest.as_ref().map(|n| format!("; the nearest name is {n:?}")).unwrap_or_default())]
    MissingTensor {
        /// Name of the tensor, or several joined by "or".
        name: String,
        /// Its shape, or several.
        expected: String,
        /// A name in the file that might be meant.
        nearest: Option<String>,
    },
    /// A tensor of another shape than the configuration gives.
    #[error("tensor {name:?}: shape {got}, expected {expected} from config.json")]
    WrongShape {
        /// Name of the tensor.
        name: String,
        /// Shape in the file.
        got: Shape,
        /// Shape that the model needs, or several.
        expected: String,
    },
    /// A tensor whose element type or rank this build doesn't read.
    #[error(
        "tensor {name:?}: element type {dtype} with shape {shape} is not supported; this build reads F32, F16 and BF16 \
         weights of up to {} dimensions",
        Shape::MAX_RANK
    )]
    UnsupportedDType {
        /// Name of the tensor.
        name: String,
        /// Its type as written.
        dtype: String,
        /// Its sides as written.
        shape: String,
    },
    /// A weight stored as integers.
    #[error("tensor {name:?}: element type {dtype}, expected F32, F16 or BF16")]
    NotFloat {
        /// Name of the tensor.
        name: String,
        /// Its type.
        dtype: DType,
    },
    /// A packed folder's list of its weights contradicts itself or the files.
    #[error("turbospark.json: {0}")]
    Manifest(String),
    /// A way of quantising that this build doesn't read, or that contradicts itself.
    #[error("config.json: quantisation: {0}")]
    Quantisation(String),
    /// A tensor of a quantised or converted checkpoint that doesn't fit the others, or its configuration.
    #[error("tensor {name:?}: {problem}")]
    Reading {
        /// Name of the tensor as its file has it.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// Tensors that no part of the model uses.
    #[error("{count} tensor(s) are not part of this model: {listed}{}", if *.complete { "" } else { ", ..." })]
    Unclaimed {
        /// How many.
        count: usize,
        /// The first of them with type and shape.
        listed: String,
        /// Whether all are listed.
        complete: bool,
    },
    /// A read that the file's length rules out.
    #[error("{file}: {length} bytes at offset {offset} end past the file's {file_length}")]
    OutOfRange {
        /// Name of the file.
        file: String,
        /// Where the read begins.
        offset: u64,
        /// How much was asked for.
        length: u64,
        /// How much there is.
        file_length: u64,
    },
    /// The file was replaced or cut after it was opened.
    #[error("{file}: changed while open, {was} bytes became {now}")]
    Changed {
        /// Name of the file.
        file: String,
        /// Length when opened.
        was: u64,
        /// Length now.
        now: u64,
    },
    /// A file beside the weights is needed and absent.
    #[error("{folder}: {file} is missing")]
    MissingFile {
        /// Where it was looked for.
        folder: String,
        /// Its name.
        file: String,
    },
    /// A file beside the weights is larger than any real one.
    #[error("{file}: {length} bytes, at most {limit} are read")]
    TooLarge {
        /// Its name.
        file: String,
        /// How long it is.
        length: u64,
        /// The limit.
        limit: u64,
    },
    /// A file beside the weights that is not UTF-8.
    #[error("{file}: not UTF-8 text (byte {offset})")]
    NotText {
        /// Its name.
        file: String,
        /// Where the first bad byte is.
        offset: usize,
    },
}

/// A foreign string, cut where a message would drown in it.
pub(crate) fn shorten(text: &str) -> String {
    const MOST: usize = 120;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Sides of a foreign shape, cut likewise.
pub(crate) fn shorten_dims(dims: &[u64]) -> String {
    const MOST: usize = 8;
    if dims.len() <= MOST { format!("{dims:?}") } else { format!("of rank {}", dims.len()) }
}
