//! The template engine, set up as the reference sets up Jinja.
//!
//! A render's budget bounds loops, recursion and text. What it does not bound is the engine's own
//! walk over a list that holds one list many times over, in `~`, `==` and filters such as `join`: a
//! template written to do that can keep a thread busy. Users' data cannot: JSON shares nothing.

use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};
use minijinja_contrib::pycompat;

use super::{NOW, clock, json, python};
use crate::error::{Result, TextError};

/// What `raise_exception` leaves in the error, to tell it from a fault of the template.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// An environment that holds `source` under `name`.
pub(super) fn environment(name: &'static str, source: String) -> Result<Environment<'static>> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
        .map_err(|error| TextError::Template(error.to_string()))?;
    env.set_syntax(syntax);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(|out: &mut Output, state: &mut State, value: &Value| match value.as_str() {
        Some(text) => Ok(out.write_str(text)?),
        None => Ok(out.write_str(&python::str_of(state, value)?)?),
    });
    env.set_unknown_method_callback(method);
    env.add_filter("tojson", json::tojson);
    env.add_filter("string", |state: &State, value: &Value| python::str_of(state, value));
    env.add_filter("trim", |text: &str, chars: Option<&str>| strip(text, chars, true, true).to_owned());
    env.add_function("raise_exception", |state: &State, message: &Value| -> std::result::Result<Value, Error> {
        let message = python::str_of(state, message)?;
        Err(Error::new(ErrorKind::InvalidOperation, "raised by the template").with_source(Raised(message)))
    });
    env.add_function("strftime_now", |state: &State, format: &str| {
        let now = state.lookup(NOW).and_then(|now| now.downcast_object_ref::<Now>().map(|n| n.0));
        clock::strftime(now.unwrap_or_else(SystemTime::now), format)
            .map_err(|message| Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_template_owned(name, source).map_err(|error| TextError::Template(describe(&error)))?;
    Ok(env)
}

/// The time of a render, carried in its context.
#[derive(Debug)]
pub(super) struct Now(pub(super) SystemTime);

impl minijinja::value::Object for Now {}

/// An error with everything it was caused by, on one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Python's methods: ours where the engine's differ, then the engine's.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> std::result::Result<Value, Error> {
    if value.kind() == ValueKind::String
        && let Some(text) = value.as_str()
        && let (start, end) = (matches!(name, "strip" | "lstrip"), matches!(name, "strip" | "rstrip"))
        && (start || end)
    {
        let (chars,): (Option<&str>,) = minijinja::value::from_args(args)?;
        return Ok(Value::from(strip(text, chars, start, end)));
    }
    if matches!(name, "format" | "join") {
        // The engine pads and prints without asking what it costs: `'{:>999999999}'` is a gigabyte,
        // and so is a list that holds one list many times over.
        state.consume_fuel(widths(value.as_str().unwrap_or_default()) / 64)?;
        for arg in args {
            python::str_of(state, arg)?;
        }
    }
    pycompat::unknown_method_callback(state, value, name, args)
}

/// The sum of all numbers in a format string: no fewer than the characters it can pad with.
fn widths(format: &str) -> u64 {
    let numbers = format.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let number = |digits: &str| digits.parse().unwrap_or(u64::MAX);
    numbers.map(number).fold(0, u64::saturating_add)
}

fn strip<'a>(text: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let drop = |c: char| chars.map_or_else(|| python::is_space(c), |chars| chars.contains(c));
    let text = if start { text.trim_start_matches(drop) } else { text };
    if end { text.trim_end_matches(drop) } else { text }
}

/// Jinja extensions mark an assistant's words with `{% generation %}`, which only training needs.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let end = tag.find("%}").unwrap_or(tag.len());
        let inner = &tag[..end];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        match word {
            "generation" => out.push_str(&inner.replace(word, "if true")),
            "endgeneration" => out.push_str(&inner.replace(word, "endif")),
            _ => out.push_str(inner),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}
