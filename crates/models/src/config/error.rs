/// Why a `config.json` was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not JSON.
    #[error("config.json: not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A key that this family needs is absent or null.
    #[error("config.json: {key}: missing, expected {expected}")]
    Missing {
        /// Path of the key, such as `text_config.head_dim`.
        key: String,
        /// What belongs there.
        expected: String,
    },
    /// A value of the wrong type or outside its range.
    #[error("config.json: {key}: expected {expected}, got {got}")]
    Value {
        /// Path of the key.
        key: String,
        /// What belongs there.
        expected: String,
        /// What the file has, shortened.
        got: String,
    },
    /// A well-formed setting that would change what is computed, and that is not implemented.
    #[error("config.json: {key}: {got} is not supported; {supported}")]
    Unsupported {
        /// Path of the key.
        key: String,
        /// What the file has, shortened.
        got: String,
        /// What is supported.
        supported: String,
    },
    /// Two settings that contradict each other.
    #[error("config.json: {key}: {problem}")]
    Contradiction {
        /// Path of the key.
        key: String,
        /// Both sides, with their numbers.
        problem: String,
    },
}
