//! Why a header is refused, as a whole or for one tensor.

use crate::header::MAX_HEADER_BYTES;

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
