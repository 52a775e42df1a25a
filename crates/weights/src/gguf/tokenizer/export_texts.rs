//! Special tokens, what is put around a text, and sampling, as keys of a GGUF file.

use serde_json::Value as Json;

use super::export::refuse;
use super::keys;
use crate::Result;
use crate::gguf::Value;

/// Special tokens by their purpose.
#[derive(Debug)]
pub(super) struct Special {
    pub begin: Option<u32>,
    pub end: Option<u32>,
    pub unknown: Option<u32>,
    pub padding: Option<u32>,
}

impl Special {
    /// By name from `tokenizer_config.json`, else by number from `config.json`: the converter's order.
    pub fn read(json: &Json, tokenizer_config: &Json, config: &Json) -> Self {
        let added = json["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
        let of = |name: &str| {
            let named = &tokenizer_config[format!("{name}_token")];
            let text = named.as_str().or_else(|| named["content"].as_str());
            let by_name = added.iter().find(|token| text.is_some() && token["content"].as_str() == text);
            let key = format!("{name}_token_id");
            let number = if config[&key].is_null() { &config["text_config"][&key] } else { &config[&key] };
            let id = by_name.map_or(number, |token| &token["id"]).as_u64();
            id.and_then(|id| u32::try_from(id).ok())
        };
        Special { begin: of("bos"), end: of("eos"), unknown: of("unk"), padding: of("pad") }
    }

    pub fn keys(&self) -> [(&'static str, Option<u32>); 4] {
        [(keys::BOS, self.begin), (keys::EOS, self.end), (keys::UNKNOWN, self.unknown), (keys::PADDING, self.padding)]
    }
}

/// Further tokens that end an answer.
pub(super) struct Ends {
    turn: Option<u32>,
    message: Option<u32>,
}

impl Ends {
    /// Those of `generation_config.json`, without what a reader takes for an end anyway. Sets `special.end` where
    /// nothing else did.
    pub fn read(special: &mut Special, generation: &Json, qwen: bool, tokens: &[String]) -> Result<Self> {
        let list = match &generation["eos_token_id"] {
            Json::Array(list) => list.iter().filter_map(Json::as_u64).collect(),
            one => Vec::from_iter(one.as_u64()),
        };
        let mut ids: Vec<u32> = list.into_iter().filter_map(|id| u32::try_from(id).ok()).collect();
        if special.end.is_none() {
            special.end = ids.first().copied();
        }
        // A reader of a Qwen file stops at both.
        let known = |id: u32| {
            let token = tokens.get(id as usize).map(String::as_str);
            qwen && matches!(token, Some("<|im_end|>" | "<|endoftext|>"))
        };
        ids.retain(|id| Some(*id) != special.end && !known(*id));
        match ids[..] {
            [] => Ok(Ends { turn: None, message: None }),
            [turn] => Ok(Ends { turn: Some(turn), message: None }),
            [turn, message] => Ok(Ends { turn: Some(turn), message: Some(message) }),
            _ => Err(refuse(format!("answers end at {} tokens", ids.len() + 1))),
        }
    }

    pub fn keys(&self) -> [(&'static str, Option<u32>); 2] {
        [(keys::EOT, self.turn), (keys::EOM, self.message)]
    }
}

/// Whether the begin and end tokens are put around a text, where a key must say it.
pub(super) fn around(
    post_processor: &Json,
    tokenizer_config: &Json,
    special: &Special,
    tokens: &[String],
    begins_by_default: bool,
) -> Result<Vec<(&'static str, bool)>> {
    let (mut begin, mut end) = (None, None);
    let token = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).map(String::as_str);
    let steps = match post_processor["processors"].as_array() {
        Some(steps) => steps.as_slice(),
        None if post_processor.is_null() => &[],
        None => std::slice::from_ref(post_processor),
    };
    for step in steps {
        match step["type"].as_str() {
            Some("ByteLevel") => {
                begin = begin.or(Some(false));
                end = end.or(Some(false));
            }
            Some("TemplateProcessing") => {
                let single = step["single"].as_array().map(Vec::as_slice).unwrap_or_default();
                let at = single.iter().position(|part| part["Sequence"].is_object());
                let Some(at) = at.filter(|at| *at <= 1 && single.len() <= at + 2) else {
                    return Err(refuse(format!("more than one token around a text ({})", step["single"])));
                };
                let is = |part: &Json, id| part["SpecialToken"]["id"].as_str().is_some_and(|t| token(id) == Some(t));
                if at == 1 {
                    begin = Some(true);
                    if !is(&single[0], special.begin) {
                        return Err(refuse(format!("{} before a text is not the begin token", single[0])));
                    }
                }
                if let Some(last) = single.get(at + 1) {
                    end = Some(true);
                    if !is(last, special.end) {
                        return Err(refuse(format!("{last} after a text is not the end token")));
                    }
                }
            }
            other => return Err(refuse(format!("the post-processor {}", other.unwrap_or("without a type")))),
        }
    }
    let begin = begin.or(tokenizer_config["add_bos_token"].as_bool()).or(begins_by_default.then_some(false));
    let end = end.or(tokenizer_config["add_eos_token"].as_bool());
    let said = [(keys::ADD_BOS, begin), (keys::ADD_EOS, end)];
    Ok(said.into_iter().filter_map(|(key, flag)| Some((key, flag?))).collect())
}

/// How a checkpoint samples, if it does.
pub(super) fn sampling(generation: &Json) -> Vec<(String, Value)> {
    if generation["do_sample"] != true {
        return Vec::new();
    }
    let number = |(name, key): (&str, &str)| {
        Some((format!("general.sampling.{key}"), Value::F32(generation[name].as_f64()? as f32)))
    };
    let numbers =
        [("top_p", "top_p"), ("min_p", "min_p"), ("temperature", "temp"), ("repetition_penalty", "penalty_repeat")];
    let top_k = generation["top_k"].as_i64().and_then(|k| i32::try_from(k).ok());
    let top_k = top_k.filter(|k| *k >= 0).map(|k| ("general.sampling.top_k".to_owned(), Value::I32(k)));
    top_k.into_iter().chain(numbers.into_iter().filter_map(number)).collect()
}
