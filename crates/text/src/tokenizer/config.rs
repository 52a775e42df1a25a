//! `tokenizer_config.json`: names of special tokens, and added tokens that `tokenizer.json` lacks.

use std::collections::BTreeMap;

use serde_json::Value;

use super::added::AddedToken;
use super::file::AddedEntry;
use super::supported;
use crate::error::{Result, TextError};

#[derive(Default)]
pub(super) struct TokenizerConfig {
    /// `eos_token` -> `<|im_end|>` and its like; the template sees them under these names.
    pub(super) names: BTreeMap<String, String>,
    pub(super) added: Vec<AddedToken>,
    /// Where it is set, it overrides the post-processor of `tokenizer.json`.
    pub(super) add_bos_token: Option<bool>,
}

pub(super) fn parse(text: &str) -> Result<TokenizerConfig> {
    let bad = |message: String| TextError::TokenizerConfig(message);
    let root: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    let root = root.as_object().ok_or_else(|| bad("not a JSON object".into()))?;

    let mut config = TokenizerConfig::default();
    for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
        // Older files hold the whole added token here.
        let content = match root.get(name) {
            Some(Value::Object(token)) => token.get("content"),
            other => other,
        };
        match content {
            None | Some(Value::Null) => {}
            Some(Value::String(content)) => {
                config.names.insert(name.to_owned(), content.clone());
            }
            Some(other) => return Err(bad(format!("{name} is {other}, expected a string"))),
        }
    }

    config.add_bos_token = match root.get("add_bos_token") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(add)) => Some(*add),
        Some(other) => return Err(bad(format!("add_bos_token is {other}, expected true or false"))),
    };

    match root.get("added_tokens_decoder") {
        None | Some(Value::Null) => {}
        Some(Value::Object(tokens)) => {
            for (key, entry) in tokens {
                let id =
                    key.parse::<u32>().map_err(|_| bad(format!("added_tokens_decoder: {key:?} is not a token id")))?;
                let entry: AddedEntry = serde::Deserialize::deserialize(entry)
                    .map_err(|error| bad(format!("added_tokens_decoder[{key:?}]: {error}")))?;
                config.added.push(supported(entry, id)?);
            }
        }
        Some(_) => return Err(bad("added_tokens_decoder is not an object".into())),
    }
    Ok(config)
}
