//! The values of metadata.

use std::fmt;

use super::cursor::Cursor;
use crate::{Error, MetadataError, Result, error::shorten};

/// One value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the format's own names")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A list of values of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the format's own names")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

/// What a message says of a value: its type, and itself where it is short.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::U8(v) => write!(f, "u8 {v}"),
            Value::I8(v) => write!(f, "i8 {v}"),
            Value::U16(v) => write!(f, "u16 {v}"),
            Value::I16(v) => write!(f, "i16 {v}"),
            Value::U32(v) => write!(f, "u32 {v}"),
            Value::I32(v) => write!(f, "i32 {v}"),
            Value::U64(v) => write!(f, "u64 {v}"),
            Value::I64(v) => write!(f, "i64 {v}"),
            Value::F32(v) => write!(f, "f32 {v}"),
            Value::F64(v) => write!(f, "f64 {v}"),
            Value::Bool(v) => write!(f, "bool {v}"),
            Value::String(v) => write!(f, "string {:?}", shorten(v)),
            Value::Array(v) => write!(f, "{v}"),
        }
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::String(_) => "string",
        };
        write!(f, "array of {} {kind}", self.len())
    }
}

impl Value {
    /// As an integer; `None` for all that is none.
    pub(super) fn integer(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// As a number of any type.
    pub(super) fn number(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => self.integer().map(|v| v as f64),
        }
    }
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
        }
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers; `None` where they are none.
    pub(super) fn integers(&self) -> Option<Vec<i128>> {
        Some(match self {
            Array::U8(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I8(v) => v.iter().map(|&v| v.into()).collect(),
            Array::U16(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I16(v) => v.iter().map(|&v| v.into()).collect(),
            Array::U32(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I32(v) => v.iter().map(|&v| v.into()).collect(),
            Array::U64(v) => v.iter().map(|&v| v.into()).collect(),
            Array::I64(v) => v.iter().map(|&v| v.into()).collect(),
            _ => return None,
        })
    }

    /// The elements as numbers of any type.
    pub(super) fn numbers(&self) -> Option<Vec<f64>> {
        match self {
            Array::F32(v) => Some(v.iter().map(|&v| v.into()).collect()),
            Array::F64(v) => Some(v.clone()),
            _ => Some(self.integers()?.into_iter().map(|v| v as f64).collect()),
        }
    }
}

impl Value {
    /// The number of its type, and its bytes.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let mut put = |kind: u32, bytes: &[u8]| {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Value::U8(v) => put(0, &v.to_le_bytes()),
            Value::I8(v) => put(1, &v.to_le_bytes()),
            Value::U16(v) => put(2, &v.to_le_bytes()),
            Value::I16(v) => put(3, &v.to_le_bytes()),
            Value::U32(v) => put(4, &v.to_le_bytes()),
            Value::I32(v) => put(5, &v.to_le_bytes()),
            Value::F32(v) => put(6, &v.to_le_bytes()),
            Value::Bool(v) => put(7, &[u8::from(*v)]),
            Value::String(v) => {
                put(8, &[]);
                write_text(v, out);
            }
            Value::Array(v) => {
                put(9, &[]);
                v.write(out);
            }
            Value::U64(v) => put(10, &v.to_le_bytes()),
            Value::I64(v) => put(11, &v.to_le_bytes()),
            Value::F64(v) => put(12, &v.to_le_bytes()),
        }
    }
}

impl Array {
    fn write(&self, out: &mut Vec<u8>) {
        fn put<const N: usize>(kind: u32, out: &mut Vec<u8>, elements: impl ExactSizeIterator<Item = [u8; N]>) {
            out.extend(kind.to_le_bytes());
            out.extend((elements.len() as u64).to_le_bytes());
            out.extend(elements.flatten());
        }
        match self {
            Array::U8(v) => put(0, out, v.iter().map(|v| v.to_le_bytes())),
            Array::I8(v) => put(1, out, v.iter().map(|v| v.to_le_bytes())),
            Array::U16(v) => put(2, out, v.iter().map(|v| v.to_le_bytes())),
            Array::I16(v) => put(3, out, v.iter().map(|v| v.to_le_bytes())),
            Array::U32(v) => put(4, out, v.iter().map(|v| v.to_le_bytes())),
            Array::I32(v) => put(5, out, v.iter().map(|v| v.to_le_bytes())),
            Array::F32(v) => put(6, out, v.iter().map(|v| v.to_le_bytes())),
            Array::Bool(v) => put(7, out, v.iter().map(|v| [u8::from(*v)])),
            Array::String(v) => {
                out.extend(8u32.to_le_bytes());
                out.extend((v.len() as u64).to_le_bytes());
                v.iter().for_each(|v| write_text(v, out));
            }
            Array::U64(v) => put(10, out, v.iter().map(|v| v.to_le_bytes())),
            Array::I64(v) => put(11, out, v.iter().map(|v| v.to_le_bytes())),
            Array::F64(v) => put(12, out, v.iter().map(|v| v.to_le_bytes())),
        }
    }
}

/// A string as it lies in a file: its length and its bytes.
pub(super) fn write_text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// What values are read for: their place in the file and their name in messages.
pub(super) struct Reader<'c, 'f> {
    pub(super) cursor: &'c mut Cursor<'f>,
    pub(super) key: &'c str,
}

impl Reader<'_, '_> {
    fn refuse(&self, problem: MetadataError) -> Error {
        Error::Metadata { file: self.cursor.file().name().to_owned(), key: shorten(self.key), problem }
    }

    /// The type's number and the value.
    pub(super) fn value(&mut self) -> Result<Value> {
        let kind = self.u32()?;
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.bytes()?)),
            1 => Value::I8(i8::from_le_bytes(self.bytes()?)),
            2 => Value::U16(u16::from_le_bytes(self.bytes()?)),
            3 => Value::I16(i16::from_le_bytes(self.bytes()?)),
            4 => Value::U32(u32::from_le_bytes(self.bytes()?)),
            5 => Value::I32(i32::from_le_bytes(self.bytes()?)),
            6 => Value::F32(f32::from_le_bytes(self.bytes()?)),
            7 => Value::Bool(self.flag()?),
            8 => Value::String(self.string(None)?),
            9 => Value::Array(self.array()?),
            10 => Value::U64(u64::from_le_bytes(self.bytes()?)),
            11 => Value::I64(i64::from_le_bytes(self.bytes()?)),
            12 => Value::F64(f64::from_le_bytes(self.bytes()?)),
            other => return Err(self.refuse(MetadataError::Type(other))),
        })
    }

    fn array(&mut self) -> Result<Array> {
        let kind = self.u32()?;
        let count = u64::from_le_bytes(self.bytes()?);
        Ok(match kind {
            0 => Array::U8(self.list(count, u8::from_le_bytes)?),
            1 => Array::I8(self.list(count, i8::from_le_bytes)?),
            2 => Array::U16(self.list(count, u16::from_le_bytes)?),
            3 => Array::I16(self.list(count, i16::from_le_bytes)?),
            4 => Array::U32(self.list(count, u32::from_le_bytes)?),
            5 => Array::I32(self.list(count, i32::from_le_bytes)?),
            6 => Array::F32(self.list(count, f32::from_le_bytes)?),
            7 => {
                self.expect(count, 1)?;
                let mut flags = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    flags.push(self.flag()?);
                }
                Array::Bool(flags)
            }
            8 => {
                self.expect(count, 8)?;
                let mut strings = Vec::with_capacity(count as usize);
                for i in 0..count {
                    strings.push(self.string(Some(i))?);
                }
                Array::String(strings)
            }
            9 => return Err(self.refuse(MetadataError::Nested)),
            10 => Array::U64(self.list(count, u64::from_le_bytes)?),
            11 => Array::I64(self.list(count, i64::from_le_bytes)?),
            12 => Array::F64(self.list(count, f64::from_le_bytes)?),
            other => return Err(self.refuse(MetadataError::Type(other))),
        })
    }

    fn list<T, const N: usize>(&mut self, count: u64, from: fn([u8; N]) -> T) -> Result<Vec<T>> {
        self.expect(count, N as u64)?;
        let mut list = Vec::with_capacity(count as usize);
        for _ in 0..count {
            list.push(from(self.bytes()?));
        }
        Ok(list)
    }

    fn string(&mut self, element: Option<u64>) -> Result<String> {
        let bytes = self.cursor.text(&Key(self.key))?;
        String::from_utf8(bytes).map_err(|e| {
            let offset = e.utf8_error().valid_up_to();
            self.refuse(MetadataError::NotText { element, offset })
        })
    }

    fn flag(&mut self) -> Result<bool> {
        match self.bytes()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.refuse(MetadataError::Bool(other))),
        }
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.cursor.array(&Key(self.key))
    }

    fn expect(&self, count: u64, size: u64) -> Result<()> {
        self.cursor.expect(count, size, &Key(self.key))
    }
}

/// A key as messages name it.
struct Key<'a>(&'a str);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {:?}", shorten(self.0))
    }
}
