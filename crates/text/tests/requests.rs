//! Messages and generation settings as they come in.

mod common;

use common::*;
use serde_json::{Value, json};
use turbospark_text::{Content, GenerationConfig, Message, Part, Role, VideoSource, media};

fn parse(value: Value) -> Result<Message, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

#[test]
fn every_form_of_a_part_is_understood() {
    let chat = messages(json!([{"role": "developer", "content": "x"}, {"role": "user", "content": [
        {"type": "text", "text": "t", "cache_control": {}},
        {"type": "image_url", "image_url": {"url": "a", "detail": "high"}},
        {"type": "image_url", "image_url": "b"},
        {"type": "image", "image": "c", "min_pixels": 4, "max_pixels": 9},
        {"type": "image_url", "image_url": {"url": "d", "max_pixels": 7}},
        {"type": "video", "video": "e"},
        {"type": "video_url", "video_url": {"url": "f"}},
        {"type": "video", "video": ["g", "h"]}]}]));
    assert_eq!(chat[0].role, Role::System);
    let (images, videos) = media(&chat);
    let urls: Vec<&str> = images.iter().map(|image| image.url.as_str()).collect();
    assert_eq!(urls, ["a", "b", "c", "d"]);
    assert_eq!((images[2].min_pixels, images[2].max_pixels), (Some(4), Some(9)));
    assert_eq!(images[3].max_pixels, Some(7));
    let frames = VideoSource::Frames(vec!["g".into(), "h".into()]);
    assert_eq!(videos[1..], [&VideoSource::Url("f".into()), &frames]);
    assert!(matches!(&chat[1].content, Content::Parts(parts) if parts[0] == Part::Text("t".into())));

    let again = messages(serde_json::to_value(&chat).unwrap());
    assert_eq!(again[1].content, chat[1].content);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let part = |part: Value| parse(json!({"role": "user", "content": [part]})).unwrap_err();
    let error = part(json!({"type": "input_audio", "input_audio": {}}));
    assert!(error.contains("content part 0: type \"input_audio\" is not supported"), "{error}");
    assert!(part(json!({"text": "x"})).contains("\"type\" is missing"));
    assert!(part(json!({"type": "image_url"})).contains("no address"));
    assert!(part(json!({"type": "image_url", "image_url": {"url": 1}})).contains("\"url\""));
    assert!(part(json!({"type": "image", "image": "a", "max_pixels": "x"})).contains("max_pixels"));
    assert!(part(json!({"type": "text", "text": null})).contains("\"text\""));
    assert!(part(json!({"type": "video", "video": [1]})).contains("frame"));
    assert!(part(json!("x")).contains("not an object"));
    assert!(parse(json!({"role": "user", "content": 5})).unwrap_err().contains("string or a list"));
    assert!(parse(json!({"role": "function", "content": ""})).unwrap_err().contains("function"));
    assert!(parse(json!({"content": ""})).unwrap_err().contains("role"));
}

#[test]
fn absent_and_null_fields_are_empty() {
    let message = json!({"role": "assistant", "content": null, "tool_calls": null, "name": null});
    let message = parse(message).unwrap();
    assert_eq!(message.content, Content::Text(String::new()));
    assert!(message.tool_calls.is_empty() && message.name.is_none());
    let message = parse(json!({"role": "assistant", "reasoning": "r"})).unwrap();
    assert_eq!(message.reasoning_content.as_deref(), Some("r"));
}

#[test]
fn generation_settings_are_read_from_the_checkpoint() {
    let config = GenerationConfig::from_json(&read(&format!("{TINY}/generation_config.json"))).unwrap();
    assert_eq!(config.eos_token_ids, [2024, 2022]);
    assert_eq!((config.pad_token_id, config.bos_token_id), (Some(2022), Some(2022)));
    assert_eq!((config.do_sample, config.max_new_tokens), (Some(false), Some(400)));
    assert_eq!(config.temperature, None);
    let config = GenerationConfig::from_json(
        r#"{"eos_token_id": 5, "top_k": 20, "top_p": 0.8, "temperature": 0.7, "min_p": 0,
            "repetition_penalty": 1, "presence_penalty": 1.5, "future": {}, "bos_token_id": null}"#,
    );
    let config = config.unwrap();
    assert_eq!((config.eos_token_ids, config.top_k), (vec![5], Some(20)));
    assert_eq!((config.top_p, config.temperature), (Some(0.8), Some(0.7)));
    assert_eq!((config.min_p, config.presence_penalty), (Some(0.0), Some(1.5)));
    assert_eq!(config.repetition_penalty, Some(1.0));
}

#[test]
fn wrong_types_are_errors_that_name_the_key() {
    for (key, value) in [
        ("eos_token_id", json!("x")),
        ("eos_token_id", json!([1, -1])),
        ("eos_token_id", json!(1.5)),
        ("temperature", json!("hot")),
        ("temperature", json!(-1)),
        ("top_p", json!(1.5)),
        ("top_k", json!(-2)),
        ("do_sample", json!(1)),
        ("repetition_penalty", json!(0)),
        ("max_new_tokens", json!(99999999999_u64)),
    ] {
        let error = GenerationConfig::from_json(&json!({key: value}).to_string()).unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(&format!("generation_config.json: key {key:?} is ")), "{error}");
    }
    for text in ["", "[]", "{", "null"] {
        assert!(GenerationConfig::from_json(text).is_err());
    }
}

#[test]
fn the_end_falls_back_from_file_to_file() {
    let tokenizer = tokenizer(TINY);
    let end = |generation: Option<&str>, config: Option<&str>| {
        GenerationConfig::load(generation, config, Some(&tokenizer)).unwrap().eos_token_ids
    };
    let config = Some(r#"{"text_config": {"eos_token_id": [7, 8]}}"#);
    assert_eq!(end(Some(r#"{"eos_token_id": 3}"#), config), [3]);
    assert_eq!(end(Some("{}"), config), [7, 8]);
    assert_eq!(end(None, Some(r#"{"eos_token_id": 9, "text_config": {"eos_token_id": 7}}"#)), [9]);
    assert_eq!(end(None, None), [2024]);
    let none = GenerationConfig::load(None, None, None).unwrap();
    assert_eq!(none, GenerationConfig::default());
}
