//! The project's own folder: weights laid out as a device reads them.
//!
//! What is used together lies together: a decoder layer, one expert, a vision block is a *unit*, which begins on a
//! multiple of 4 KiB, so that a direct read fetches it whole; its tensors begin on multiples of 64 bytes. Units follow
//! each other in the order of use, in files of about [`FILE_BYTES`]. `turbospark.json` lists files, units and tensors
//! with shapes, formats, sizes and a SHA-256 a file; everything else in the folder is as on the model hub.
//!
//! A folder is complete once the manifest is there: files are written under another name and renamed, the manifest
//! comes last, and a run that was interrupted goes on after the last whole file.

mod layout;
mod manifest;
mod writer;

pub use layout::{Part, Spec, Unit};
pub use manifest::MANIFEST_NAME;
pub(crate) use manifest::{MAX_MANIFEST_BYTES, open};
pub(crate) use writer::{JOURNAL_NAME, hex, write_whole};
pub use writer::{PackError, Writer};

/// Where units begin: what direct reads ask for.
pub const UNIT_ALIGNMENT: u64 = 4096;
/// Where a unit's tensors begin: a cache line.
pub const TENSOR_ALIGNMENT: u64 = 64;
/// A file ends with the unit that reaches this size.
pub const FILE_BYTES: u64 = 2 << 30;
