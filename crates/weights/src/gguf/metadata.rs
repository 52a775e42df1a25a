//! The keys of a file, and getters that tell absent from wrong.

use super::{
    cursor::Cursor,
    value::{Array, Reader, Value},
};
use crate::{Error, MetadataError, Result, error::shorten};

/// The format's own limit on a key.
const MAX_KEY_BYTES: usize = (1 << 16) - 1;

/// Length of an empty key, a type's number and the smallest value.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

/// Where no key says otherwise; the format's default.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Much more than any page or sector; it bounds padding.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// The keys of a file with their values, in the file's order.
///
/// The getters give `None` for an absent key. A key of another type than they want is an error that names it.
#[derive(Clone, Debug, PartialEq)]
pub struct Metadata {
    file: String,
    entries: Vec<(String, Value)>,
}

impl Metadata {
    pub(super) fn read(cursor: &mut Cursor, count: u64) -> Result<Self> {
        cursor.expect(count, MIN_ENTRY_BYTES, &"the list of keys")?;
        let mut metadata = Metadata { file: cursor.file().name().to_owned(), entries: Vec::new() };
        for i in 0..count {
            let bytes = cursor.text(&format_args!("key {i}"))?;
            let length = bytes.len();
            let key = String::from_utf8(bytes).map_err(|e| {
                let problem = MetadataError::NotText { element: None, offset: e.utf8_error().valid_up_to() };
                metadata.refuse(&format!("number {i}"), problem)
            })?;
            if key.is_empty() || length > MAX_KEY_BYTES {
                return Err(metadata.refuse(&key, MetadataError::Name(length)));
            }
            let value = Reader { cursor, key: &key }.value()?;
            metadata.entries.push((key, value));
        }
        let mut keys: Vec<_> = metadata.entries.iter().map(|(key, _)| key.as_str()).collect();
        keys.sort_unstable();
        match keys.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(metadata.refuse(pair[0], MetadataError::Duplicate)),
            None => Ok(metadata),
        }
    }

    /// Keys that are not read from a file; `file` stands for one in messages.
    pub(super) fn of(file: &str, entries: Vec<(String, Value)>) -> Self {
        Metadata { file: file.to_owned(), entries }
    }

    /// Name of the file it was read from, for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// All keys in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.iter().find(|&(k, _)| k == key).map(|(_, value)| value)
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A non-negative integer of any type.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "a non-negative integer", |value| u64::try_from(value.integer()?).ok())
    }

    /// A number of any type. Integers beyond 2^53 are rounded.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", Value::number)
    }

    /// A bool.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a bool", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    /// An array of strings.
    pub fn texts(&self, key: &str) -> Result<Option<&[String]>> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(texts)) => Some(texts.as_slice()),
            // Some writers give an empty list the type of a number.
            Value::Array(array) if array.is_empty() => Some(&[][..]),
            _ => None,
        })
    }

    /// An array of non-negative integers of any type, or one such integer.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.typed(key, "an array of non-negative integers", |value| match value {
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            Value::Array(array) => array.integers()?.into_iter().map(|v| u64::try_from(v).ok()).collect(),
            scalar => Some(vec![u64::try_from(scalar.integer()?).ok()?]),
        })
    }

    /// An array of numbers of any type, or one number.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.typed(key, "an array of numbers", |value| match value {
            Value::Array(array) => array.numbers(),
            scalar => Some(vec![scalar.number()?]),
        })
    }

    /// An array of bools, or one bool.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.typed(key, "an array of bools", |value| match value {
            Value::Array(Array::Bool(flags)) => Some(flags.clone()),
            Value::Bool(flag) => Some(vec![*flag]),
            _ => None,
        })
    }

    /// The error for a key that a model can't do without.
    pub fn missing(&self, key: &str) -> Error {
        self.refuse(key, MetadataError::Missing)
    }

    pub(crate) fn refuse(&self, key: &str, problem: MetadataError) -> Error {
        Error::Metadata { file: self.file.clone(), key: shorten(key), problem }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match convert(value) {
            Some(value) => Ok(Some(value)),
            None => {
                Err(self.refuse(key, MetadataError::Wrong { is: value.to_string(), expected: expected.to_owned() }))
            }
        }
    }

    /// What offsets of tensors are multiples of.
    pub(super) fn alignment(&self) -> Result<u64> {
        const KEY: &str = "general.alignment";
        let alignment = self.count(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
        if alignment.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&alignment) {
            Ok(alignment)
        } else {
            Err(self.refuse(KEY, MetadataError::Alignment { alignment, most: MAX_ALIGNMENT }))
        }
    }
}
