//! `generation_config.json`: how the checkpoint wants to be sampled, and where it stops.

use serde_json::{Map, Value};

use crate::Tokenizer;
use crate::error::{Result, TextError};

/// The sampling settings that a checkpoint ships. What a file does not set stays `None`.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// Any of these ends an answer.
    pub eos_token_ids: Vec<u32>,
    /// Fills batches; never generated.
    pub pad_token_id: Option<u32>,
    /// Begins a text, for models that want one.
    pub bos_token_id: Option<u32>,
    /// Whether to sample at all; false is greedy.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the likeliest tokens that make up this probability.
    pub top_p: Option<f32>,
    /// Drops tokens less likely than this share of the likeliest.
    pub min_p: Option<f32>,
    /// Divides or multiplies the logits of tokens that occurred.
    pub repetition_penalty: Option<f32>,
    /// Lowers the logits of tokens that were generated.
    pub presence_penalty: Option<f32>,
    /// Lowers the logits of tokens by how often they were generated.
    pub frequency_penalty: Option<f32>,
    /// The longest answer.
    pub max_new_tokens: Option<u32>,
}

const FILE: &str = "generation_config.json";

impl GenerationConfig {
    /// Reads `generation_config.json`; unknown keys are skipped.
    pub fn from_json(text: &str) -> Result<Self> {
        let root = object(FILE, text)?;
        let keys = Keys { file: FILE, root: &root };
        Ok(GenerationConfig {
            eos_token_ids: keys.ids("eos_token_id")?,
            pad_token_id: keys.integer("pad_token_id")?,
            bos_token_id: keys.integer("bos_token_id")?,
            do_sample: keys.boolean("do_sample")?,
            temperature: keys.number("temperature", 0.0..=f64::from(f32::MAX), "a number, 0 or more")?,
            top_k: keys.top_k("top_k")?,
            top_p: keys.number("top_p", 0.0..=1.0, "a number from 0 to 1")?,
            min_p: keys.number("min_p", 0.0..=1.0, "a number from 0 to 1")?,
            repetition_penalty: keys.number(
                "repetition_penalty",
                f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX),
                "a number above 0",
            )?,
            presence_penalty: keys.number("presence_penalty", -1e6..=1e6, "a number")?,
            frequency_penalty: keys.number("frequency_penalty", -1e6..=1e6, "a number")?,
            max_new_tokens: keys.integer("max_new_tokens")?,
        })
    }

    /// The settings of a checkpoint from whatever files it has: `generation_config.json`; where that
    /// names no end, `config.json`; where that names none either, the tokenizer's `eos_token`.
    pub fn load(generation_config: Option<&str>, config: Option<&str>, tokenizer: Option<&Tokenizer>) -> Result<Self> {
        let mut this = match generation_config {
            Some(text) => GenerationConfig::from_json(text)?,
            None => GenerationConfig::default(),
        };
        if let Some(text) = config.filter(|_| this.eos_token_ids.is_empty()) {
            let root = object("config.json", text)?;
            let nested = root.get("text_config").and_then(Value::as_object);
            for root in [Some(&root), nested].into_iter().flatten() {
                if this.eos_token_ids.is_empty() {
                    let keys = Keys { file: "config.json", root };
                    this.eos_token_ids = keys.ids("eos_token_id")?;
                }
            }
        }
        if this.eos_token_ids.is_empty() {
            this.eos_token_ids.extend(tokenizer.and_then(Tokenizer::eos_token_id));
        }
        Ok(this)
    }
}

fn object(file: &'static str, text: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(text).map_err(|error| TextError::Json { file, message: error.to_string() })
}

struct Keys<'a> {
    file: &'static str,
    root: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn get(&self, key: &'static str) -> Option<&Value> {
        self.root.get(key).filter(|value| !value.is_null())
    }

    fn wrong(&self, key: &'static str, value: &Value, expected: &'static str) -> TextError {
        let found = value.to_string();
        TextError::Generation {
            file: self.file,
            key,
            found: match found.char_indices().nth(60) {
                Some((cut, _)) => format!("{}...", &found[..cut]),
                None => found,
            },
            expected,
        }
    }

    fn integer(&self, key: &'static str) -> Result<Option<u32>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let integer = value.as_u64().and_then(|value| u32::try_from(value).ok());
        let wrong = || self.wrong(key, value, "an integer, 0 or more");
        integer.map(Some).ok_or_else(wrong)
    }

    /// Some exporters write -1 for "all".
    fn top_k(&self, key: &'static str) -> Result<Option<u32>> {
        match self.get(key).and_then(Value::as_i64) {
            Some(-1) => Ok(Some(0)),
            _ => self.integer(key),
        }
    }

    fn ids(&self, key: &'static str) -> Result<Vec<u32>> {
        match self.get(key) {
            Some(list @ Value::Array(ids)) => {
                let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
                let ids: Option<Vec<u32>> = ids.iter().map(id).collect();
                ids.ok_or_else(|| self.wrong(key, list, "a token id or a list of them"))
            }
            _ => Ok(self.integer(key)?.into_iter().collect()),
        }
    }

    fn boolean(&self, key: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || self.wrong(key, value, "true or false");
        value.as_bool().map(Some).ok_or_else(wrong)
    }

    fn number(
        &self,
        key: &'static str,
        range: std::ops::RangeInclusive<f64>,
        expected: &'static str,
    ) -> Result<Option<f32>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|number| range.contains(number));
        let wrong = || self.wrong(key, value, expected);
        number.map(|number| Some(number as f32)).ok_or_else(wrong)
    }
}
