//! Fetches checkpoints from a model hub into the cache folder that other programs of the hub use too.
//!
//! What comes over the network is hostile: a list's paths may lead out of the cache, a file may be another than
//! the list says, an address may lead to a stranger who would like the token. Nothing gets its name in the cache
//! before its length and checksum are the listed ones, and the token is shown to the hub alone.
//!
//! What goes wrong unseen is a file of the right length with a hole in it: a resumed download whose server sent
//! the whole file again, or another part of it.
//!
//! ```
//! # fn main() -> Result<(), turbospark_hub::Error> {
//! use turbospark_hub::{Cache, Error, Spec};
//!
//! let spec: Spec = "Qwen/Qwen3-VL-2B-Instruct-GGUF:q4_k_m".parse()?;
//! let cache = Cache::new("/nonexistent");
//! let error = cache.find(&spec).unwrap_err();
//! assert!(error.to_string().contains("turbospark pull Qwen/Qwen3-VL-2B-Instruct-GGUF:q4_k_m"));
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod address;
mod cache;
mod choose;
mod digest;
mod download;
mod error;
mod event;
mod gguf;
mod http;
mod listing;
mod local;
mod pull;
mod remove;
mod settings;
mod spec;

pub use cache::Cache;
pub use choose::Bytes;
pub use error::{Error, Result};
pub use event::{Event, Watch};
pub use local::{Format, LocalModel};
pub use pull::{Pulled, PulledFile, pull};
pub use remove::Removal;
pub use settings::{Settings, Token};
pub use spec::{RepoId, Spec};
