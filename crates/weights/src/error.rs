use std::{io, path::PathBuf};

use turbospark_tensor::{DType, Shape};

use crate::{MetadataError, SplitError, header::MAX_HEADER_BYTES};

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

/// Why the whole header of a safetensors or GGUF file is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// No room for the header's length.
    #[error("{0} bytes are too few for a safetensors file; it may be cut")]
    TooShort(u64),
    /// The length field is larger than any real header.
    #[error("header length {0} is above the limit of {MAX_HEADER_BYTES} bytes; this is not a safetensors file")]
    TooLarge(u64),
    /// The header ends past the file.
    #[error("header of {header} bytes does not fit a file of {file}; it may be cut")]
    PastEnd {
        /// Length as the file says.
        header: u64,
        /// Length of the file.
        file: u64,
    },
    /// Not the JSON of a header.
    #[error("header: {0}")]
    Json(#[from] serde_json::Error),
    /// Data that no tensor covers, or a file that ends early.
    #[error("tensors cover {covered} bytes of data, the file has {data}; it may be cut")]
    Uncovered {
        /// End of the last tensor.
        covered: u64,
        /// Bytes after the header.
        data: u64,
    },
    /// A file that is something else altogether.
    #[error("{0}")]
    Not(&'static str),
    /// Other first bytes than a GGUF file's.
    #[error("begins with \"{}\", not with \"GGUF\"; this is not a GGUF file", .0.escape_ascii())]
    NotGguf([u8; 4]),
    /// Bytes in the other order.
    #[error("a big-endian GGUF file is not supported; convert the model again without `--bigendian`")]
    BigEndian,
    /// A version of GGUF that this build doesn't read.
    #[error("GGUF version {0} is not supported, only 2 and 3; convert the model again with a current converter")]
    GgufVersion(u32),
    /// Something ends past the file.
    #[error("{what}: {count} x {size} bytes at offset {offset} end past the file's {file}; it may be cut")]
    Cut {
        /// What was read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// How many items.
        count: u64,
        /// Bytes that each has at least.
        size: u64,
        /// Length of the file.
        file: u64,
    },
    /// More before the data than any real file has.
    #[error("{what}: metadata and list of tensors are above the limit of {limit} bytes")]
    TooLong {
        /// What was read.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A file that ends with its list of tensors.
    #[error("the file of {0} bytes ends before the data of its tensors; it may be cut")]
    NoData(u64),
}

/// Why a header's entry for one tensor is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The same name twice in one header.
    #[error("stored twice")]
    Duplicate,
    /// An empty name or one longer than any real one.
    #[error("the name has {0} bytes")]
    Name(usize),
    /// Offsets that run backwards or past the data.
    #[error("data offsets [{begin}, {end}] do not lie in the file's {data} bytes of data; it may be cut")]
    Offsets {
        /// First byte.
        begin: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes after the header.
        data: u64,
    },
    /// Offsets that begin inside the tensor before, or leave a gap.
    #[error(
        "data begins at {begin}, expected {expected}, the end of the tensor before it (tensors overlap or leave a gap)"
    )]
    NotContiguous {
        /// First byte.
        begin: u64,
        /// End of the tensor before.
        expected: u64,
    },
    /// Element type, shape and length disagree.
    #[error("{length} bytes of data, expected {expected} for {dtype} {shape:?}")]
    Length {
        /// Length by its offsets.
        length: u64,
        /// Length by type and shape.
        expected: u64,
        /// The type.
        dtype: String,
        /// The sides.
        shape: Vec<u64>,
    },
    /// Data that begins inside another tensor's.
    #[error("data begins at {begin}, inside tensor {other:?}, which ends at {end}")]
    Overlap {
        /// First byte, counted from the beginning of the data.
        begin: u64,
        /// The other tensor.
        other: String,
        /// One past its last byte.
        end: u64,
    },
    /// An offset that the file's alignment rules out.
    #[error("data begins at {begin}, no multiple of the alignment {alignment}")]
    Unaligned {
        /// First byte, counted from the beginning of the data.
        begin: u64,
        /// What it should be a multiple of.
        alignment: u64,
    },
    /// More sides than any real tensor has.
    #[error("{rank} dimensions, at most {most} are read")]
    Rank {
        /// How many.
        rank: u32,
        /// The limit.
        most: u32,
    },
    /// Rows that end inside a block.
    #[error("rows of {row} elements are no whole number of {dtype} blocks, which have {block}")]
    Row {
        /// The innermost side.
        row: u64,
        /// The type.
        dtype: String,
        /// Elements of a block.
        block: u64,
    },
    /// A name that is not UTF-8.
    #[error("the name is not UTF-8 text")]
    NotText,
    /// The size leaves 64 bits, or is no whole number of bytes.
    #[error("{dtype} {shape:?} has no size in bytes")]
    Size {
        /// The type.
        dtype: String,
        /// The sides.
        shape: Vec<u64>,
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
