//! The header of a safetensors file: eight bytes of length, then JSON.
//!
//! Element types and their sizes are the `safetensors` crate's. The walk over the JSON is ours, because the
//! crate's own reader keeps the last of two equal names, refuses a whole file for one element type that it
//! doesn't know, and says that an entry is wrong but not which.

use std::{collections::HashMap, fmt};

use safetensors::Dtype;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IntoDeserializer, MapAccess, Visitor, value},
};

use crate::{Error, HeaderError, Result, TensorError, WeightFile, error::shorten, foreign};

/// The format's own limit on a header.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

/// No real name comes near it; it bounds messages and comparisons.
const MAX_NAME_BYTES: usize = 1024;

/// One tensor as its header describes it, checked against the file.
pub(crate) struct Described {
    pub name: String,
    /// As written; perhaps a type that nobody knows.
    pub dtype: String,
    pub dims: Vec<u64>,
    /// Absolute in the file.
    pub offset: u64,
    pub length: u64,
}

/// Reads and checks the header of `file`: every byte after it belongs to exactly one tensor.
pub(crate) fn read(file: &WeightFile) -> Result<Vec<Described>> {
    let refuse = |problem| Error::Header { file: file.name().to_owned(), problem };
    if file.length() < 8 {
        return Err(refuse(HeaderError::TooShort(file.length())));
    }
    let mut length = [0; 8];
    file.read_at(0, &mut length)?;
    let header = u64::from_le_bytes(length);
    if let Some(what) = foreign::by_first_bytes(&length) {
        return Err(refuse(HeaderError::Not(what)));
    }
    if header > MAX_HEADER_BYTES {
        return Err(refuse(HeaderError::TooLarge(header)));
    }
    let Some(data) = (file.length() - 8).checked_sub(header) else {
        return Err(refuse(HeaderError::PastEnd { header, file: file.length() }));
    };
    // At most the file's own length, and at most the limit above.
    let mut json = vec![0; header as usize];
    file.read_at(8, &mut json)?;
    let Header(entries) = serde_json::from_slice(&json).map_err(|e| refuse(e.into()))?;
    drop(json);
    check(entries, 8 + header, data).map_err(|e| match e {
        Refusal::Header(problem) => refuse(problem),
        Refusal::Tensor(name, problem) => Error::Tensor { file: file.name().to_owned(), name: shorten(&name), problem },
    })
}

enum Refusal {
    Header(HeaderError),
    Tensor(String, TensorError),
}

fn check(mut entries: Vec<(String, Raw)>, data_begin: u64, data: u64) -> std::result::Result<Vec<Described>, Refusal> {
    entries.sort_by(|(a_name, a), (b_name, b)| (a.data_offsets, a_name).cmp(&(b.data_offsets, b_name)));
    let mut described = Vec::with_capacity(entries.len());
    let mut expected = 0;
    for (name, raw) in entries {
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            let problem = TensorError::Name(name.len());
            return Err(Refusal::Tensor(name, problem));
        }
        if let Err(problem) = raw.check(expected, data) {
            return Err(Refusal::Tensor(name, problem));
        }
        let (begin, end) = raw.data_offsets;
        expected = end;
        let (dtype, dims) = (raw.dtype, raw.shape);
        described.push(Described { name, dtype, dims, offset: data_begin + begin, length: end - begin });
    }
    if expected != data {
        return Err(Refusal::Header(HeaderError::Uncovered { covered: expected, data }));
    }
    described.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = described.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(Refusal::Tensor(pair[0].name.clone(), TensorError::Duplicate));
    }
    Ok(described)
}

#[derive(Deserialize)]
struct Raw {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Raw {
    fn check(&self, expected_begin: u64, data: u64) -> std::result::Result<(), TensorError> {
        let (begin, end) = self.data_offsets;
        if begin > end || end > data {
            return Err(TensorError::Offsets { begin, end, data });
        }
        if begin != expected_begin {
            return Err(TensorError::NotContiguous { begin, expected: expected_begin });
        }
        // A type that the format doesn't define has no size to hold against the length.
        let Some(bits) = element_bits(&self.dtype) else { return Ok(()) };
        let size = self
            .shape
            .iter()
            .try_fold(1u64, |n, &side| n.checked_mul(side))
            .and_then(|n| n.checked_mul(bits))
            .filter(|bits| bits % 8 == 0)
            .map(|bits| bits / 8);
        let shape = || self.shape.iter().copied().take(16).collect();
        match size {
            None => Err(TensorError::Size { dtype: self.dtype.clone(), shape: shape() }),
            Some(expected) if expected != end - begin => {
                Err(TensorError::Length { length: end - begin, expected, dtype: self.dtype.clone(), shape: shape() })
            }
            Some(_) => Ok(()),
        }
    }
}

fn element_bits(dtype: &str) -> Option<u64> {
    let name: value::StrDeserializer<value::Error> = dtype.into_deserializer();
    Dtype::deserialize(name).ok().map(|dtype| dtype.bitsize() as u64)
}

/// All entries of a header in its own order, duplicates included.
struct Header(Vec<(String, Raw)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
        const METADATA: &str = "__metadata__";
        let mut entries = Vec::new();
        let mut metadata_seen = false;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA {
                if std::mem::replace(&mut metadata_seen, true) {
                    return Err(A::Error::duplicate_field(METADATA));
                }
                // Free text about the file; nothing that is computed may hang on it.
                map.next_value::<Option<HashMap<String, String>>>()?;
                continue;
            }
            match map.next_value() {
                Ok(raw) => entries.push((name, raw)),
                Err(e) => return Err(A::Error::custom(format_args!("tensor {:?}: {e}", shorten(&name)))),
            }
        }
        Ok(Header(entries))
    }
}
