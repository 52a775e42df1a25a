use std::path::PathBuf;

/// Why a trace ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A file can't be read or written.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the set is not what its name promises.
    #[error("{path}: {problem}", path = .path.display())]
    Broken {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A case failed.
    #[error("case {case}: {source}")]
    Case {
        /// Path of the case in the set.
        case: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl TraceError {
    /// For `map_err`: wraps what a case failed with.
    pub(super) fn of<E: std::error::Error + Send + Sync + 'static>(case: &str) -> impl Fn(E) -> TraceError {
        move |source| TraceError::Case { case: case.to_owned(), source: Box::new(source) }
    }
}
