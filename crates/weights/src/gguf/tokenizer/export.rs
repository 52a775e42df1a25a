//! `tokenizer.json` as the keys of a GGUF file: what `tokenizer_json` reads, written.
//!
//! The format names a way to cut words and has room for tokens, merges or scores, and little else. What it has no
//! words for is refused, and at the end the keys are read again and held against the original: a tokenizer that is
//! nearly the same gives fluent answers to slightly different prompts.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::export_texts::{Ends, Special, around};
use super::{keys, pre::Pre, tokenizer_json};
use crate::gguf::{Array, Metadata, Value};
use crate::{Error, Result, error::shorten};

const FILE: &str = "tokenizer.json";

/// The texts beside a checkpoint that a GGUF file's keys are made from.
#[derive(Clone, Copy, Debug)]
pub struct TokenizerTexts<'a> {
    /// `tokenizer.json`.
    pub tokenizer: &'a str,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<&'a str>,
    /// `generation_config.json`.
    pub generation_config: Option<&'a str>,
    /// `config.json`.
    pub config: &'a str,
    /// The chat template.
    pub chat_template: Option<&'a str>,
    /// Names and texts of further ones.
    pub named_templates: &'a [(&'a str, &'a str)],
    /// Rows of the embedding; tokens that the tokenizer lacks are written as unused.
    pub vocab_size: usize,
}

pub(super) fn refuse(problem: String) -> Error {
    Error::Gguf { file: FILE.to_owned(), problem: format!("{problem}, which GGUF can't say") }
}

/// The keys `tokenizer.*`, and `general.sampling.*` where the checkpoint samples.
///
/// # Errors
/// What GGUF has no words for, by name.
pub fn tokenizer_keys(texts: &TokenizerTexts<'_>) -> Result<Vec<(String, Value)>> {
    let json = parse(FILE, texts.tokenizer)?;
    let config = parse("config.json", texts.config)?;
    let optional = |name, text: Option<&str>| text.map_or(Ok(Json::Null), |text| parse(name, text));
    let tokenizer_config = optional("tokenizer_config.json", texts.tokenizer_config)?;
    let generation = optional("generation_config.json", texts.generation_config)?;

    let model = &json["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(refuse(format!("the tokenizer is {kind:?}, not BPE")));
    }
    let by_score = has_step(&json["decoder"], "decoders", "ByteFallback");
    let vocabulary = Vocabulary::read(&json, texts.vocab_size, by_score)?;
    let merges = merges(&model["merges"])?;
    let mut out: Vec<(String, Value)> = Vec::new();
    let mut put = |key: &str, value: Value| out.push((key.to_owned(), value));
    let (pre, added_by_default) = match by_score {
        false => byte_level(&json)?,
        true => ("default", true),
    };
    put(keys::MODEL, Value::String(if by_score { "llama" } else { "gpt2" }.to_owned()));
    put(keys::PRE, Value::String(pre.to_owned()));
    put(keys::TOKENS, Value::Array(Array::String(vocabulary.tokens.clone())));
    if by_score {
        put(keys::SCORES, Value::Array(Array::F32(vocabulary.scores(&merges))));
    }
    put(keys::TOKEN_TYPE, Value::Array(Array::I32(vocabulary.kinds.clone())));
    if by_score {
        put(keys::ADD_SPACE_PREFIX, Value::Bool(space_prefix(&json)?));
    } else {
        let joined = merges.iter().map(|(a, b)| format!("{} {}", a.replace(' ', "\u{120}"), b.replace(' ', "\u{120}")));
        put(keys::MERGES, Value::Array(Array::String(joined.collect())));
    }
    let mut special = Special::read(&json, &tokenizer_config, &config);
    if by_score && special.unknown.is_none() {
        special.unknown = model["unk_token"].as_str().and_then(|token| vocabulary.id(token));
    }
    let ends = Ends::read(&mut special, &generation, pre.starts_with("qwen"), &vocabulary.tokens)?;
    let around = around(&json["post_processor"], &tokenizer_config, &special, &vocabulary.tokens, added_by_default)?;
    for (key, id) in special.keys().into_iter().chain(ends.keys()) {
        if let Some(id) = id {
            if id as usize >= vocabulary.tokens.len() {
                return Err(refuse(format!("{key} is {id}, beyond the {} tokens", vocabulary.tokens.len())));
            }
            put(key, Value::U32(id));
        }
    }
    for (key, flag) in around {
        put(key, Value::Bool(flag));
    }
    let named: Vec<(String, &str)> = texts.named_templates.iter().map(|&(name, text)| (plain(name), text)).collect();
    for (name, template) in &named {
        put(&format!("{}.{name}", keys::CHAT_TEMPLATE), Value::String((*template).to_owned()));
    }
    if !named.is_empty() {
        put(keys::CHAT_TEMPLATES, Value::Array(Array::String(named.into_iter().map(|(name, _)| name).collect())));
    }
    if let Some(template) = texts.chat_template {
        put(keys::CHAT_TEMPLATE, Value::String(template.to_owned()));
    }
    out.extend(super::export_texts::sampling(&generation));
    vocabulary.check(&merges, &out)?;
    Ok(out)
}

/// A name of letters, digits and underscores, as a key may have it.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn parse(name: &str, text: &str) -> Result<Json> {
    serde_json::from_str(text).map_err(|e| Error::Gguf { file: name.to_owned(), problem: e.to_string() })
}

/// Whether a step, or one of a sequence, is of this type.
fn has_step(node: &Json, list: &str, kind: &str) -> bool {
    node["type"] == kind || node[list].as_array().is_some_and(|steps| steps.iter().any(|s| s["type"] == kind))
}

/// The pre-tokenizer's name, and whether the begin token is added where no key says otherwise.
fn byte_level(json: &Json) -> Result<(&'static str, bool)> {
    let Some((name, pre)) = Pre::recognised(&json["pre_tokenizer"]) else {
        let is = shorten(&json["pre_tokenizer"].to_string());
        return Err(refuse(format!("the pre-tokenizer {is} is none of {}", Pre::known())));
    };
    let normalizer = match &json["normalizer"] {
        Json::Object(n)
            if n.get("type") == Some(&"Sequence".into())
                && n["normalizers"].as_array().is_some_and(|l| l.len() == 1) =>
        {
            n["normalizers"][0].clone()
        }
        other => other.clone(),
    };
    if normalizer != pre.normalizer() {
        return Err(refuse(format!("the normalizer {normalizer} goes with pre-tokenizer {name:?}")));
    }
    if json["model"]["ignore_merges"].as_bool().unwrap_or(false) != pre.ignore_merges {
        return Err(refuse(format!("ignore_merges is {} with pre-tokenizer {name:?}", !pre.ignore_merges)));
    }
    if !has_step(&json["decoder"], "decoders", "ByteLevel") {
        return Err(refuse(format!("the decoder {} goes with a byte-level pre-tokenizer", json["decoder"])));
    }
    Ok((name, pre.add_bos))
}

/// Whether a space is put before a text; spaces must be `\u{2581}`.
fn space_prefix(json: &Json) -> Result<bool> {
    let (normalizer, pre) = (&json["normalizer"], &json["pre_tokenizer"]);
    let replaces =
        |step: &Json| step["type"] == "Replace" && step["pattern"]["String"] == " " && step["content"] == "\u{2581}";
    if pre.is_null() {
        let steps = normalizer["normalizers"].as_array();
        match steps.map(Vec::as_slice) {
            Some([first, second])
                if first["type"] == "Prepend" && first["prepend"] == "\u{2581}" && replaces(second) =>
            {
                return Ok(true);
            }
            Some([only]) if replaces(only) => return Ok(false),
            None if replaces(normalizer) => return Ok(false),
            _ => {}
        }
    } else if normalizer.is_null()
        && pre["type"] == "Metaspace"
        && pre["replacement"] == "\u{2581}"
        && pre["split"] == false
    {
        return Ok(pre["prepend_scheme"] != "never");
    }
    Err(refuse(format!("the normalizer {normalizer} with pre-tokenizer {}", shorten(&pre.to_string()))))
}

fn merges(list: &Json) -> Result<Vec<(&str, &str)>> {
    let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter().map(|merge| pair(merge).ok_or_else(|| refuse(format!("the merge {merge} is no pair")))).collect()
}

fn pair(merge: &Json) -> Option<(&str, &str)> {
    match merge {
        Json::String(line) => line.split_once(' '),
        Json::Array(pair) => match pair.as_slice() {
            [a, b] => Some((a.as_str()?, b.as_str()?)),
            _ => None,
        },
        _ => None,
    }
}

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Tokens by id with the numbers of their kinds.
struct Vocabulary {
    tokens: Vec<String>,
    kinds: Vec<i32>,
}

impl Vocabulary {
    fn read(json: &Json, size: usize, by_score: bool) -> Result<Self> {
        let mut tokens: Vec<Option<String>> = vec![None; size];
        let mut kinds = vec![UNUSED; size];
        let mut place = |token: &str, id: &Json, kind: i32| {
            let at = id.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|at| *at < size);
            let Some(at) = at else {
                return Err(refuse(format!("token {:?} has id {id}, beyond the {size} rows", shorten(token))));
            };
            match &tokens[at] {
                Some(other) if other != token => {
                    Err(refuse(format!("{:?} and {:?} are both token {at}", shorten(other), shorten(token))))
                }
                _ => {
                    tokens[at] = Some(token.to_owned());
                    kinds[at] = kind;
                    Ok(())
                }
            }
        };
        let unknown = json["model"]["unk_token"].as_str().filter(|_| by_score);
        for (token, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
            let byte = by_score && token.len() == 6 && token.starts_with("<0x") && token.ends_with('>');
            let kind = if byte {
                BYTE
            } else if unknown == Some(token) {
                UNKNOWN
            } else {
                NORMAL
            };
            place(token, id, kind)?;
        }
        for added in json["added_tokens"].as_array().into_iter().flatten() {
            let token = added["content"].as_str().unwrap_or_default();
            if let Some(flag) = ["lstrip", "rstrip", "single_word"].into_iter().find(|flag| added[*flag] == true) {
                return Err(refuse(format!("the added token {:?} has {flag}", shorten(token))));
            }
            // Some models mark tokens as ordinary that are not; llama.cpp's converter goes by their look too.
            let looks_special = token.starts_with("<|") && token.ends_with("|>");
            let kind = match added["special"] == true || looks_special {
                _ if unknown == Some(token) => UNKNOWN,
                true => CONTROL,
                false => USER_DEFINED,
            };
            place(token, &added["id"], kind)?;
        }
        let tokens = tokens.into_iter().enumerate().map(|(i, token)| token.unwrap_or_else(|| format!("[PAD{i}]")));
        Ok(Vocabulary { tokens: tokens.collect(), kinds })
    }

    fn id(&self, token: &str) -> Option<u32> {
        let found = self.tokens.iter().zip(&self.kinds).position(|(t, kind)| t == token && *kind != UNUSED);
        found.map(|id| id as u32)
    }

    /// Scores whose order is that of the merges that make the tokens.
    fn scores(&self, merges: &[(&str, &str)]) -> Vec<f32> {
        let mut first = HashMap::new();
        for (rank, (a, b)) in merges.iter().enumerate() {
            first.entry(format!("{a}{b}")).or_insert(rank);
        }
        let score = |(token, kind): (&String, &i32)| match (*kind, first.get(token.as_str())) {
            (NORMAL, Some(rank)) => -(*rank as f32),
            (NORMAL, None) => -(merges.len() as f32 + 1.0),
            (USER_DEFINED | UNUSED, _) => -1000.0 - merges.len() as f32,
            _ => 0.0,
        };
        self.tokens.iter().zip(&self.kinds).map(score).collect()
    }

    /// Reads the keys as any file's, and holds what comes of them against the original.
    fn check(&self, merges: &[(&str, &str)], entries: &[(String, Value)]) -> Result<()> {
        let again = tokenizer_json(&Metadata::of(FILE, entries.to_vec()))?;
        let again = parse(FILE, &again)?;
        let defined = |(a, b): &&(&str, &str)| {
            self.id(&format!("{a}{b}")).is_none_or(|id| self.kinds[id as usize] != USER_DEFINED)
        };
        let read = self::merges(&again["model"]["merges"])?;
        // Scores order the tokens that merges make; the ways to make one token lie beside each other.
        let made = |list: &[(&str, &str)]| {
            let mut list: Vec<String> = list.iter().map(|(a, b)| format!("{a}{b}")).collect();
            list.dedup();
            list
        };
        let sorted = |list: &[(&str, &str)]| {
            let mut list: Vec<(String, String)> =
                list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
            list.sort_unstable();
            list
        };
        let by_score = again["model"]["byte_fallback"] == true;
        let read: Vec<(&str, &str)> = if by_score { read.iter().filter(defined).copied().collect() } else { read };
        let same = match by_score {
            true => made(&read) == made(merges) && sorted(&read) == sorted(merges),
            false => read == merges || merges.iter().any(|(a, b)| a.contains(' ') || b.contains(' ')),
        };
        match same {
            true => Ok(()),
            false => Err(refuse("the order of merges is not one of scores".to_owned())),
        }
    }
}
