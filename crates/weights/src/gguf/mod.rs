//! GGUF files: metadata and tensors in one file, or in a set of numbered ones.
//!
//! A file is a header (`GGUF`, version, two counts), metadata as typed keys, a list of tensors, and after padding
//! their data. All numbers are little-endian. Sides are stored innermost first; here they are outermost first, as
//! everywhere else in this program.
//!
//! What goes wrong unseen is the metadata: a key that is absent or of another type than expected is easily taken
//! for its default, and a model with the default rope base or epsilon still answers. So every getter of
//! [`Metadata`] tells absent (`None`) from wrong (an error).

mod config;
mod cursor;
mod error;
mod metadata;
mod model;
mod names;
mod nvfp4;
mod one_file;
mod set;
mod spelling;
mod stored;
mod tensors;
mod tokenizer;
mod types;
mod value;
mod writer;

pub use error::{MetadataError, SplitError};
pub use metadata::Metadata;
pub use model::Mmproj;
pub(crate) use model::{GgufModel, trunk_of};
pub use set::{Set, from_bytes, open, open_set};
pub use spelling::{architecture, gguf_name};
pub use tensors::GgufTensor;
pub use tokenizer::{TokenizerTexts, generation_config_json, tokenizer_config_json, tokenizer_json, tokenizer_keys};
pub use value::{Array, Value};
pub use writer::{NewTensor, Writer};

use crate::{Error, HeaderError, Result, WeightFile, foreign};
use cursor::Cursor;

/// Metadata and the list of tensors together; several times those of the largest published vocabulary.
pub const MAX_METADATA_BYTES: u64 = 128 << 20;

/// What one GGUF file says of itself.
#[derive(Debug)]
pub struct Gguf {
    /// Its keys.
    pub metadata: Metadata,
    /// Its tensors in the file's order, checked against the file.
    pub tensors: Vec<GgufTensor>,
}

/// Whether the file begins as a GGUF file does.
pub fn is_gguf(file: &WeightFile) -> Result<bool> {
    Ok(file.beginning()?.starts_with(b"GGUF"))
}

/// Reads and checks all of `file` but the data of its tensors.
pub fn read(file: &WeightFile) -> Result<Gguf> {
    let refuse = |problem| Error::Header { file: file.name().to_owned(), problem };
    let mut cursor = Cursor::new(file, MAX_METADATA_BYTES);
    let magic: [u8; 4] = cursor.array(&"the header")?;
    if let Some(what) = foreign::by_first_bytes(&file.beginning()?).filter(|_| magic != *b"GGUF") {
        return Err(refuse(HeaderError::Not(what)));
    }
    if magic != *b"GGUF" {
        return Err(refuse(HeaderError::NotGguf(magic)));
    }
    let version = cursor.u32(&"the header")?;
    match version {
        2 | 3 => {}
        // Versions are small: one whose low half is empty has its bytes in the other order.
        _ if version & 0xffff == 0 && version != 0 => return Err(refuse(HeaderError::BigEndian)),
        other => return Err(refuse(HeaderError::GgufVersion(other))),
    }
    let tensors = cursor.u64(&"the header")?;
    let keys = cursor.u64(&"the header")?;
    let metadata = Metadata::read(&mut cursor, keys)?;
    let tensors = tensors::read(&mut cursor, tensors, metadata.alignment()?)?;
    Ok(Gguf { metadata, tensors })
}
