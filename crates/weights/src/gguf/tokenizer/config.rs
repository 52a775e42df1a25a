//! What a `tokenizer_config.json` and a `generation_config.json` would say.

use serde_json::{Map, Value, json};

use super::{keys, named, tokens};
use crate::{Result, gguf::Metadata};

/// The text of a `tokenizer_config.json`: the chat template and the special tokens by name.
pub fn tokenizer_config_json(metadata: &Metadata) -> Result<String> {
    let tokens = tokens(metadata)?;
    let mut config = Map::new();
    for (name, key) in [("add_bos_token", keys::ADD_BOS), ("add_eos_token", keys::ADD_EOS)] {
        if let Some(flag) = metadata.flag(key)? {
            config.insert(name.to_owned(), flag.into());
        }
    }
    for (name, key) in
        [("bos_token", keys::BOS), ("eos_token", keys::EOS), ("pad_token", keys::PADDING), ("unk_token", keys::UNKNOWN)]
    {
        if let Some((_, token)) = named(metadata, key, tokens)? {
            config.insert(name.to_owned(), token.into());
        }
    }
    let default = metadata.text(keys::CHAT_TEMPLATE)?;
    let named = |key: &str| key.strip_prefix(keys::CHAT_TEMPLATE)?.strip_prefix('.').map(str::to_owned);
    let mut templates = Vec::new();
    for name in metadata.iter().filter_map(|(key, _)| named(key)) {
        let template = metadata.text(&format!("{}.{name}", keys::CHAT_TEMPLATE))?;
        templates.push(json!({"name": name, "template": template}));
    }
    match default {
        Some(template) if templates.is_empty() => _ = config.insert("chat_template".to_owned(), template.into()),
        None if templates.is_empty() => {}
        default => {
            // As a tokenizer_config.json has several.
            templates.extend(default.map(|template| json!({"name": "default", "template": template})));
            config.insert("chat_template".to_owned(), templates.into());
        }
    }
    Ok(Value::Object(config).to_string())
}

/// The text of a `generation_config.json`: the tokens that end an answer, and sampling where the file has it.
pub fn generation_config_json(metadata: &Metadata) -> Result<String> {
    let tokens = tokens(metadata)?;
    let mut config = Map::new();
    let mut ends = Vec::new();
    for key in [keys::EOS, keys::EOT, keys::EOM] {
        ends.extend(named(metadata, key, tokens)?.map(|(id, _)| id));
    }
    // The file names one end; Qwen's own generation_config.json names both of these, and base models stop at the
    // second while chat models stop at the first.
    if metadata.text(keys::PRE)?.is_some_and(|pre| pre.starts_with("qwen")) {
        for end in ["<|im_end|>", "<|endoftext|>"] {
            ends.extend(tokens.iter().position(|token| token == end).map(|id| id as u64));
        }
    }
    let mut seen = Vec::new();
    ends.retain(|id| {
        !seen.contains(id) && {
            seen.push(*id);
            true
        }
    });
    if !ends.is_empty() {
        config.insert("eos_token_id".to_owned(), ends.into());
    }
    for (name, key) in [("bos_token_id", keys::BOS), ("pad_token_id", keys::PADDING)] {
        if let Some((id, _)) = named(metadata, key, tokens)? {
            config.insert(name.to_owned(), id.into());
        }
    }
    for (name, key) in [
        ("temperature", "general.sampling.temp"),
        ("top_p", "general.sampling.top_p"),
        ("min_p", "general.sampling.min_p"),
        ("repetition_penalty", "general.sampling.penalty_repeat"),
    ] {
        if let Some(value) = metadata.number(key)? {
            config.insert(name.to_owned(), json!(value));
        }
    }
    if let Some(top_k) = metadata.count("general.sampling.top_k")? {
        config.insert("top_k".to_owned(), top_k.into());
    }
    // A temperature is only written for a model that samples; 0 is greedy.
    if let Some(temperature) = metadata.number("general.sampling.temp")? {
        config.insert("do_sample".to_owned(), (temperature > 0.0).into());
    }
    Ok(Value::Object(config).to_string())
}
