//! A checkpoint as a table of places: name -> file, offset, length, element type, shape.
//!
//! Opening reads headers alone; bytes move when a pass needs them. Files come from anywhere, so nothing here
//! is sized, indexed or allocated from a number that was not first held against the file's real length, and
//! what the table says about a tensor agrees with itself (type x shape = length, no overlap, no gap).
//!
//! What goes wrong unseen is a tensor that nobody asked for: a checkpoint of a slightly different model loads
//! and answers fluently. So a loader claims tensors by name and shape, and [`Claims::finish`] refuses the rest.
//!
//! ```
//! # fn main() -> Result<(), turbospark_weights::Error> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/fixtures/qwen3_5/checkpoint");
//! use turbospark_weights::Checkpoint;
//!
//! let checkpoint = Checkpoint::open(path)?;
//! let mut claims = checkpoint.claims();
//! let norm = claims.take("model.language_model.norm.weight", [96])?;
//! let mut bytes = vec![0; norm.length() as usize];
//! checkpoint.fill(&norm, &mut bytes)?;
//! # Ok(())
//! # }
//! ```
#![deny(missing_docs, unsafe_code)]

mod checkpoint;
mod claims;
mod direct;
mod error;
mod file;
mod folder;
mod foreign;
pub mod gguf;
mod guard;
mod header;
#[allow(unsafe_code)]
mod helpers;
mod index;
mod mapping;
pub mod packed;
mod piece;
mod readings;

pub use checkpoint::{Checkpoint, Conventions, Entry, FileId, Foreign, Place};
pub use claims::Claims;
pub use direct::{DirectFile, DirectRead, Pace, read_together};
pub use error::{Error, HeaderError, TensorError};
pub use file::WeightFile;
pub use folder::{ADDITIONAL_TEMPLATES, Folder, Sidecar};
pub use gguf::{MetadataError, SplitError};
pub use guard::guard_mappings;
pub use header::MAX_HEADER_BYTES;
pub use mapping::Mapping;
pub use piece::{Linear, Made, Piece, Scaled};

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
