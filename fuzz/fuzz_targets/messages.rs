//! A request's messages through the template: no control token may come from what a user typed.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use turbospark_text::{ChatTemplate, Content, Message, Part, RenderOptions, Role, Segment, Tokenizer};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../assets/fixtures/qwen3_vl/checkpoint/");

fn tools() -> &'static (Tokenizer, ChatTemplate) {
    static TOOLS: OnceLock<(Tokenizer, ChatTemplate)> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let text = |name: &str| std::fs::read_to_string(format!("{FOLDER}{name}")).expect("part of the project");
        let tokenizer =
            Tokenizer::from_json(text("tokenizer.json").as_bytes(), Some(&text("tokenizer_config.json"))).unwrap();
        (tokenizer, ChatTemplate::new(&text("chat_template.jinja")).unwrap())
    })
}

fuzz_target!(|data: &[u8]| {
    let (tokenizer, template) = tools();
    let _ = serde_json::from_slice::<Vec<Message>>(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (a, b) = text.split_at(text.floor_char_boundary(text.len() / 2));
    let parts = vec![Part::Text(a.into()), Part::Text(b.into())];
    let messages = [Message::new(Role::User, Content::from(parts))];
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let segments = template.render(tokenizer, &messages, &options).expect("text renders");
    let control = segments.iter().filter(|s| matches!(s, Segment::Control(_))).count();
    assert_eq!(control, 3, "two turns are opened and one is closed, whatever was typed: {text:?}");
    let plain: String = segments
        .iter()
        .filter_map(|s| match s {
            Segment::Plain(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert!(plain.contains(text), "the text is in the prompt as it was typed");
});
