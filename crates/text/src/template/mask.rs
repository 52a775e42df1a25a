//! Marks on typed text, so that after rendering it is known who wrote each control token.
//!
//! A template gets typed strings and mixes them with its own text; in its output both look alike, and
//! a literal may even be put together from two strings, or from the template's `<` and a typed name.
//! So before rendering, the characters that begin or end a control token are swapped, in every typed
//! string, for private-use characters that occur nowhere in the request or the template. They are
//! neither space nor letter, and one for one, so that trimming, slicing and string tests go on working.
//! After rendering, any literal that is still whole was written by the template; then the characters
//! are swapped back. Since the private characters occur nowhere else, typed text cannot forge them.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value};

use crate::error::{Result, TextError};
use crate::tokenizer::AddedTokens;

/// Deepest JSON that is taken; `serde_json` reads no deeper either.
pub(super) const MAX_DEPTH: usize = 128;

/// How a typed string is marked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Marking {
    /// Every literal becomes plain text.
    All,
    /// Tags that a model writes itself (`<think>`, `<tool_call>`: added, but not special) stay what
    /// they are. This is for the assistant's own words, where templates look for them, and where they
    /// were those tokens when the model wrote them.
    KeepTags,
}

/// Which characters are swapped for which, for one render.
pub(super) struct Mask<'a> {
    added: &'a AddedTokens,
    /// Real and private character.
    pairs: Vec<(char, char)>,
    edges: BTreeSet<char>,
    /// Tokens without their first and last character: what would complete a literal whose edges the
    /// template writes.
    cores: Vec<&'a str>,
}

fn is_private(c: char) -> bool {
    matches!(c, '\u{f0000}'..='\u{ffffd}' | '\u{100000}'..='\u{10fffd}')
}

/// Collects the private-use characters that texts already hold.
#[derive(Default)]
pub(super) struct UsedPrivate(HashSet<char>);

impl UsedPrivate {
    pub(super) fn scan(&mut self, text: &str) {
        // All of them are four bytes long and begin with 0xf3 or 0xf4.
        if text.as_bytes().iter().any(|&byte| byte >= 0xf3) {
            self.0.extend(text.chars().filter(|&c| is_private(c)));
        }
    }

    pub(super) fn scan_json(&mut self, value: &Value) -> Result<()> {
        visit(value, MAX_DEPTH, &mut |text| self.scan(text))
    }
}

fn visit(value: &Value, depth: usize, each: &mut dyn FnMut(&str)) -> Result<()> {
    let next =
        depth.checked_sub(1).ok_or(TextError::TooDeep { what: "JSON given to the chat template", limit: MAX_DEPTH })?;
    match value {
        Value::String(text) => each(text),
        Value::Array(items) => {
            for item in items {
                visit(item, next, each)?;
            }
        }
        Value::Object(entries) => {
            for (key, item) in entries {
                each(key);
                visit(item, next, each)?;
            }
        }
        _ => {}
    }
    Ok(())
}

impl<'a> Mask<'a> {
    pub(super) fn new(added: &'a AddedTokens, used: &UsedPrivate) -> Result<Self> {
        let (mut edges, mut cores) = (BTreeSet::new(), BTreeSet::new());
        for token in added.iter() {
            let mut chars = token.content.chars();
            let (first, last) = (chars.next(), chars.next_back());
            let punctuation = |c: &char| !c.is_alphanumeric() && !c.is_whitespace();
            edges.extend(first.into_iter().chain(last).filter(punctuation));
            let core = chars.as_str();
            let open_ended = !first.iter().chain(&last).all(punctuation);
            // A token that begins or ends with a letter is marked as a whole.
            cores.insert(if open_ended { token.content.as_str() } else { core });
        }
        let cores: Vec<&str> = cores.into_iter().filter(|core| !core.trim().is_empty()).collect();
        let mut real = edges.clone();
        real.extend(cores.iter().filter_map(|core| core.chars().next()));

        let free = ('\u{f0000}'..='\u{10fffd}').filter(|c| is_private(*c) && !used.0.contains(c));
        let pairs: Vec<(char, char)> = real.iter().copied().zip(free).collect();
        if pairs.len() < real.len() {
            return Err(TextError::NoPrivateUse(real.len()));
        }
        Ok(Mask { added, pairs, edges, cores })
    }

    /// Marks a typed string.
    pub(super) fn hide(&self, text: &str, marking: Marking) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            if marking == Marking::KeepTags
                && let Some(tag) = self.added.prefix_of(rest).filter(|tag| !tag.special)
            {
                out.push_str(&tag.content);
                rest = &rest[tag.content.len()..];
                continue;
            }
            let pair = self.pairs.iter().find(|pair| pair.0 == c);
            let marked = |_: &&(char, char)| self.edges.contains(&c) || self.begins_core(text, rest);
            out.push(pair.filter(marked).map_or(c, |pair| pair.1));
            rest = &rest[c.len_utf8()..];
        }
        out
    }

    /// Marks every string of a JSON value, keys too.
    pub(super) fn hide_json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.hide(text, Marking::All)),
            Value::Array(items) => items.iter().map(|item| self.hide_json(item)).collect(),
            Value::Object(entries) => {
                let entries = entries.iter();
                let entry = |(key, item): (&String, &Value)| (self.hide(key, Marking::All), self.hide_json(item));
                Value::Object(entries.map(entry).collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    /// Swaps the marks back.
    pub(super) fn reveal(&self, text: &str) -> String {
        text.chars().map(|c| self.real(c)).collect()
    }

    /// The private characters of this render.
    pub(super) fn private_chars(&self) -> String {
        self.pairs.iter().map(|pair| pair.1).collect()
    }

    // A core such as `|im_end|` is marked wherever it occurs. One that is a word (`think`) is marked
    // only where it is the whole string, such as a parameter's name: elsewhere templates look for
    // words, and a template's `<` directly before one would have to be followed by its `>`.
    fn begins_core(&self, text: &str, rest: &str) -> bool {
        let word = |core: &str| core.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '_' | '-'));
        self.cores.iter().any(|core| rest.starts_with(core) && (!word(core) || text == *core))
    }

    fn real(&self, c: char) -> char {
        if !is_private(c) {
            return c;
        }
        let pair = self.pairs.iter().find(|pair| pair.1 == c);
        pair.map_or(c, |pair| pair.0)
    }
}
