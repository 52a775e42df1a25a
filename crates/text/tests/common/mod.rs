//! What the tests share: assets, tokenizers, and a template in the manner of the family.
#![allow(dead_code)]

use std::path::PathBuf;

use turbospark_text::{ChatTemplate, Message, Placeholders, RenderOptions, Segment, Tokenizer};

/// The two fixture checkpoints with unlike pre-tokenizers.
pub const FIXTURES: [&str; 2] = ["fixtures/qwen3_vl/checkpoint", "fixtures/qwen3_5/checkpoint"];
pub const TINY: &str = "tiny-ocr-qwen3_vl";

pub fn asset(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets")).join(path)
}

pub fn read(path: &str) -> String {
    let path = asset(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn json(path: &str) -> serde_json::Value {
    serde_json::from_str(&read(path)).unwrap()
}

pub fn tokenizer(checkpoint: &str) -> Tokenizer {
    let file = std::fs::read(asset(checkpoint).join("tokenizer.json")).unwrap();
    let config = read(&format!("{checkpoint}/tokenizer_config.json"));
    Tokenizer::from_json(&file, Some(&config)).unwrap()
}

pub fn template(checkpoint: &str) -> ChatTemplate {
    let jinja = read(&format!("{checkpoint}/chat_template.jinja"));
    ChatTemplate::from_files(Some(&jinja), None).unwrap()
}

pub fn placeholders(tokenizer: &Tokenizer) -> Placeholders {
    let id = |token: &str| tokenizer.token_id(token).unwrap();
    Placeholders {
        image: id("<|image_pad|>"),
        video: id("<|video_pad|>"),
        vision_start: id("<|vision_start|>"),
        vision_end: id("<|vision_end|>"),
    }
}

pub fn messages(value: serde_json::Value) -> Vec<Message> {
    serde_json::from_value(value).unwrap()
}

pub fn open_turn() -> RenderOptions {
    RenderOptions { add_generation_prompt: true, ..RenderOptions::default() }
}

/// The prompt as text, with control tokens between bars that no text of these tests holds: `⟦..⟧`.
pub fn marked(tokenizer: &Tokenizer, segments: &[Segment]) -> String {
    let show = |segment: &Segment| match segment {
        Segment::Plain(text) => text.clone(),
        Segment::Control(id) => {
            let bytes = tokenizer.token_bytes(*id).unwrap();
            format!("⟦{}⟧", String::from_utf8(bytes).unwrap())
        }
        Segment::Pads { tokens, .. } => format!("⟦{tokens} pads⟧"),
    };
    segments.iter().map(show).collect()
}

/// The prompt as the reference shows it: control tokens by their literals.
pub fn text(tokenizer: &Tokenizer, segments: &[Segment]) -> String {
    marked(tokenizer, segments).replace(['⟦', '⟧'], "")
}

/// A tokenizer of single bytes with the family's control tokens and tags.
pub fn byte_tokenizer() -> Tokenizer {
    tokenizer(TINY)
}
