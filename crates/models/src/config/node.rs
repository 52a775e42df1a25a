//! Walking a JSON object with the path of every key at hand for messages.

use serde_json::{Map, Value};

use super::ConfigError;

/// An object of the file and the path that leads to it.
#[derive(Clone)]
pub(super) struct Node<'a> {
    map: &'a Map<String, Value>,
    /// Empty at the top, else ends with a dot.
    prefix: String,
}

type Result<T> = std::result::Result<T, ConfigError>;

impl<'a> Node<'a> {
    pub(super) fn root(value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Node { map, prefix: String::new() }),
            other => {
                Err(ConfigError::Value { key: "(top level)".into(), expected: "an object".into(), got: shorten(other) })
            }
        }
    }

    /// The full path of `key`.
    pub(super) fn path(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The value at `key`; null counts as absent, as it does in the reference.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub(super) fn child(&self, key: &str) -> Result<Option<Node<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Node { map, prefix: format!("{}{key}.", self.prefix) })),
            Some(other) => Err(self.wrong(key, "an object", other)),
        }
    }

    /// A positive integer of at most `max`.
    pub(super) fn size_if_any(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()) {
            Some(n) if (1..=max).contains(&n) => Ok(Some(n)),
            Some(n) if n > max => Err(self.wrong(key, &format!("an integer from 1 to {max}"), value)),
            _ => Err(self.wrong(key, "a positive integer", value)),
        }
    }

    pub(super) fn size(&self, key: &str, max: usize) -> Result<usize> {
        self.size_if_any(key, max)?.ok_or_else(|| self.missing(key, "a positive integer"))
    }

    /// Integers below `limit`; an absent list is `None`.
    pub(super) fn indexes(&self, key: &str, limit: usize) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let expected = || format!("a list of integers below {limit}");
        let list = value.as_array().ok_or_else(|| self.wrong(key, &expected(), value))?;
        let mut indexes = Vec::new();
        for item in list {
            match item.as_u64().and_then(|n| usize::try_from(n).ok()) {
                Some(n) if n < limit => indexes.push(n),
                _ => return Err(self.wrong(key, &expected(), item)),
            }
        }
        Ok(Some(indexes))
    }

    pub(super) fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong(key, "a list of strings", value))?;
        list.iter()
            .map(|item| item.as_str().ok_or_else(|| self.wrong(key, "a list of strings", item)))
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.wrong(key, "true or false", other)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong(key, "a string", other)),
        }
    }

    /// A finite number above zero.
    pub(super) fn real(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
            _ => Err(self.wrong(key, "a number above zero", value)),
        }
    }

    /// Refuses a string other than the one spelling that is implemented.
    pub(super) fn only(&self, key: &str, supported: &str) -> Result<()> {
        match self.text(key)? {
            Some(got) if got != supported => {
                Err(self.unsupported(key, &Value::from(got), &format!("only {supported:?} is")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a flag that is the opposite of what is implemented.
    pub(super) fn only_flag(&self, key: &str, supported: bool) -> Result<()> {
        match self.flag(key)? {
            Some(got) if got != supported => Err(self.unsupported(key, &got.into(), &format!("only {supported} is"))),
            _ => Ok(()),
        }
    }

    pub(super) fn missing(&self, key: &str, expected: &str) -> ConfigError {
        ConfigError::Missing { key: self.path(key), expected: expected.into() }
    }

    pub(super) fn wrong(&self, key: &str, expected: &str, got: &Value) -> ConfigError {
        ConfigError::Value { key: self.path(key), expected: expected.into(), got: shorten(got) }
    }

    pub(super) fn unsupported(&self, key: &str, got: &Value, supported: &str) -> ConfigError {
        ConfigError::Unsupported { key: self.path(key), got: shorten(got), supported: supported.into() }
    }

    pub(super) fn contradiction(&self, key: &str, problem: String) -> ConfigError {
        ConfigError::Contradiction { key: self.path(key), problem }
    }
}

/// A value as JSON, cut where a message would drown in it.
fn shorten(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
