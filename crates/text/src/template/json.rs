//! `tojson` as the reference has it: Python's `json.dumps`, by default with `ensure_ascii=False`.
//!
//! The engine's own filter writes `<`, `>`, `&` and `'` as escapes for use in HTML. Every tool schema
//! passes through here, so that would put another text before the model than it was trained on.

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

use super::python::{MAX_DEPTH, charge, number, too_deep};

/// The most spaces per level, against templates that ask for a million.
const MAX_INDENT: usize = 64;

struct Style<'a> {
    state: &'a State<'a, 'a>,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    ensure_ascii: bool,
    sort_keys: bool,
    /// Marks on typed text; never escaped.
    marks: String,
}

/// The filter.
pub(super) fn tojson(state: &State, value: &Value, indent: Option<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let flag = |name: &str| kwargs.get::<Option<bool>>(name).map(|flag| flag == Some(true));
    let indent = match indent {
        Some(indent) => Some(indent),
        None => kwargs.get::<Option<Value>>("indent")?,
    };
    let indent = match indent {
        None => None,
        Some(indent) if indent.is_none() || indent.is_undefined() => None,
        Some(indent) => Some(match indent.as_str() {
            Some(text) if text.len() <= MAX_INDENT => text.to_owned(),
            Some(_) => return Err(bad_indent()),
            None => match indent.as_usize() {
                Some(width) if width <= MAX_INDENT => " ".repeat(width),
                _ => return Err(bad_indent()),
            },
        }),
    };
    let default_item = if indent.is_some() { "," } else { ", " };
    let (item_separator, key_separator) = match kwargs.get::<Option<Vec<String>>>("separators")? {
        None => (default_item.to_owned(), ": ".to_owned()),
        Some(pair) => <[String; 2]>::try_from(pair)
            .map(|[item, key]| (item, key))
            .map_err(|_| Error::new(ErrorKind::InvalidOperation, "separators must be two strings"))?,
    };
    let style = Style {
        state,
        indent,
        item_separator,
        key_separator,
        ensure_ascii: flag("ensure_ascii")?,
        sort_keys: flag("sort_keys")?,
        marks: match state.lookup(super::MARKS) {
            Some(marks) => marks.as_str().unwrap_or_default().to_owned(),
            None => String::new(),
        },
    };
    kwargs.assert_all_used()?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

fn bad_indent() -> Error {
    Error::new(
        ErrorKind::InvalidOperation,
        format!("tojson: indent must be a number up to {MAX_INDENT}, or a string no longer than that"),
    )
}

impl Style<'_> {
    fn write(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        if level >= MAX_DEPTH {
            return Err(too_deep());
        }
        charge(self.state, value)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&json_number(value)?),
            ValueKind::String => self.write_str(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.checked();
                let items: Vec<Value> = items.collect::<Result<_, _>>()?;
                self.write_list(('[', ']'), items.len(), level, out, |this, index, out| {
                    this.write(&items[index], level + 1, out)
                })?;
            }
            ValueKind::Map => {
                let keys = value.try_iter()?.checked();
                let mut keys: Vec<(String, Value)> =
                    keys.map(|key| key.and_then(|key| Ok((key_text(&key)?, key)))).collect::<Result<_, _>>()?;
                if self.sort_keys {
                    keys.sort_by(|a, b| a.0.cmp(&b.0));
                }
                self.write_list(('{', '}'), keys.len(), level, out, |this, index, out| {
                    let (text, key) = &keys[index];
                    this.write_str(text, out);
                    out.push_str(&this.key_separator);
                    this.write(&value.get_item(key)?, level + 1, out)
                })?;
            }
            kind => {
                return Err(Error::new(ErrorKind::BadSerialization, format!("tojson: {kind} has no JSON form")));
            }
        }
        Ok(())
    }

    fn write_list(
        &self,
        (open, close): (char, char),
        len: usize,
        level: usize,
        out: &mut String,
        mut each: impl FnMut(&Self, usize, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |level: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..level).for_each(|_| out.push_str(indent));
            }
        };
        out.push(open);
        for index in 0..len {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(level + 1, out);
            each(self, index, out)?;
        }
        if len > 0 {
            new_line(level, out);
        }
        out.push(close);
        Ok(())
    }

    fn write_str(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ensure_ascii && !c.is_ascii() && !self.marks.contains(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn json_number(value: &Value) -> Result<String, Error> {
    Ok(match number(value)?.as_str() {
        "nan" => "NaN".into(),
        "inf" => "Infinity".into(),
        "-inf" => "-Infinity".into(),
        text => text.to_owned(),
    })
}

/// Python turns keys that are no strings into their JSON text.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::None => Ok("null".into()),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.into()),
        ValueKind::Number => json_number(key),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("tojson: {kind} cannot be a key"))),
    }
}
