//! Values written as Python writes them, since templates were written and models trained with it.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Deepest nesting written out.
pub(super) const MAX_DEPTH: usize = 128;

pub(super) fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("value nests deeper than {MAX_DEPTH} levels"))
}

/// `str(value)`. Each item written is charged to the render: a list may hold itself many times over,
/// so that a few bytes of template stand for gigabytes of text.
pub(super) fn str_of(state: &State, value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => {
            let mut out = String::new();
            repr(state, value, MAX_DEPTH, &mut out)?;
            Ok(out)
        }
    }
}

fn repr(state: &State, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
    let next = depth.checked_sub(1).ok_or_else(too_deep)?;
    charge(state, value)?;
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => out.push_str(&number(value)?),
        ValueKind::String => repr_str(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (index, item) in value.try_iter()?.checked().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr(state, &item?, next, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if index > 0 {
                    out.push_str(", ");
                }
                repr(state, &key, next, out)?;
                out.push_str(": ");
                repr(state, &value.get_item(&key)?, next, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// One step for an item, and one for every 64 bytes of a string.
pub(super) fn charge(state: &State, value: &Value) -> Result<(), Error> {
    let bytes = value.as_str().map_or(0, str::len);
    state.consume_fuel(1 + bytes as u64 / 64)
}

fn repr_str(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                out.push_str(&format!("\\x{:02x}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// `repr` of a number: integers in full, floats as the shortest digits that give them back.
pub(super) fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    Ok(float(f64::try_from(value.clone())?))
}

fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    // Python turns to the exponent form below 1e-4 and from 1e16 on, with two digits at least.
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

/// `str.isspace` of one character; Rust's own set lacks the four separators of ASCII.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (123456.789, "123456.789"),
        ];
        for (x, text) in cases {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let json = serde_json::json!([true, null, 1, 2.5, "it's", {"a": "b\n"}]);
        let value = Value::from(minijinja::value::Serde(&json));
        let text = str_of(&minijinja::Environment::new().empty_state(), &value).unwrap();
        assert_eq!(text, r#"[True, None, 1, 2.5, "it's", {'a': 'b\n'}]"#);
    }
}
