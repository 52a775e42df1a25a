/// Why a key of a GGUF file's metadata is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The same key twice.
    #[error("stored twice")]
    Duplicate,
    /// An empty key or one longer than the format allows.
    #[error("the key has {0} bytes")]
    Name(usize),
    /// A type of value that the format doesn't define.
    #[error("unknown type of value {0}")]
    Type(u32),
    /// An array of arrays.
    #[error("an array of arrays is not supported")]
    Nested,
    /// A bool that is neither 0 nor 1.
    #[error("a bool of {0}, expected 0 or 1")]
    Bool(u8),
    /// A string that is not UTF-8.
    #[error("not UTF-8 text ({}byte {offset})", .element.map(|i| format!("element {i}, ")).unwrap_or_default())]
    NotText {
        /// Which string of an array.
        element: Option<u64>,
        /// Where the first bad byte is.
        offset: usize,
    },
    /// An alignment that the format doesn't allow.
    #[error("alignment {alignment}, expected a power of two from 8 to {most}")]
    Alignment {
        /// What the file says.
        alignment: u64,
        /// The largest that is read.
        most: u64,
    },
    /// A value of another type than the key should have.
    #[error("{is}, expected {expected}")]
    Wrong {
        /// Its type, and itself where it is short.
        is: String,
        /// What was expected.
        expected: String,
    },
    /// An element of an array that can't be used.
    #[error("element {index}: {problem}")]
    Element {
        /// Which one, from 0 on.
        index: usize,
        /// What is wrong.
        problem: String,
    },
    /// An array that doesn't go with another.
    #[error("{is} elements, {of} has {expected}")]
    Length {
        /// How many there are.
        is: usize,
        /// The key of the other array.
        of: &'static str,
        /// How many that has.
        expected: usize,
    },
    /// A key that is needed and absent.
    #[error("missing")]
    Missing,
}

/// Why the files of a split GGUF model don't belong together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// One of several files under a name that doesn't lead to the others.
    #[error(
        "is one of {count} files (split.count), but is not named like NAME-00001-of-{count:05}.gguf; give the files \
         their names back"
    )]
    Name {
        /// How many there are.
        count: u64,
    },
    /// Another number of files than the name or the first file says.
    #[error("split.count is {key}, expected {expected}")]
    Count {
        /// What the file says.
        key: u64,
        /// What its name or the named file says.
        expected: u64,
    },
    /// A file of another number than its name says.
    #[error("split.no is {}, expected {expected}", .key.map_or("missing".to_owned(), |no| no.to_string()))]
    Number {
        /// What the file says.
        key: Option<u64>,
        /// What its name says, counted from 0.
        expected: u64,
    },
    /// Tensors are missing from the files, or are too many.
    #[error("the files hold {found} tensors, split.tensors.count is {expected}")]
    Tensors {
        /// In all files.
        found: u64,
        /// What the first file says.
        expected: u64,
    },
}

impl MetadataError {
    /// A key that is not there, and what to do about it.
    pub(super) fn absent(expected: &str) -> Self {
        MetadataError::Wrong { is: "missing".to_owned(), expected: expected.to_owned() }
    }
}
