//! Prompts against the reference's, id for id.

mod common;

use common::*;
use serde_json::{Value, json};
use turbospark_text::{
    ExpandedPrompt, Message, Modality, Segment, VideoGroup, VideoWrap, encode_chat, encode_segments, expand,
    expand_media,
};

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The message behind a prompt of `prompts.json`, as `make_fixtures.py` wrote it.
fn message(name: &str) -> Option<Vec<Message>> {
    let image = || json!({"type": "image_url", "image_url": {"url": "a.png"}});
    let video = || json!({"type": "video", "video": "a.mp4"});
    let text = |text: &str| json!({"type": "text", "text": text});
    let content = match name {
        "text_chat" => json!([text("describe the red square. 1234 café 你好")]),
        "image_one" => json!([image(), text("what is this?")]),
        "image_three" => json!([
            text("first"),
            image(),
            text("then the second image "),
            image(),
            text(" and a third one "),
            image(),
            text("compare the two images and describe this picture in detail")
        ]),
        "video_one" => json!([video(), text("what happens?")]),
        "image_video" => json!([image(), text("and "), video(), text("which?")]),
        _ => return None,
    };
    Some(messages(json!([{"role": "user", "content": content}])))
}

fn image_tokens(case: &Value) -> Vec<usize> {
    let grids = case["image_grid_thw"].as_array().cloned().unwrap_or_default();
    let tokens = |grid: &Value| {
        let sides: Vec<usize> = serde_json::from_value(grid.clone()).unwrap();
        sides.iter().product::<usize>() / 4
    };
    grids.iter().map(tokens).collect()
}

fn video_groups(name: &str) -> Vec<Vec<VideoGroup>> {
    let times: &[f64] = match name {
        "video_one" => &[0.25, 1.25, 2.0],
        "image_video" => &[0.5, 2.5],
        _ => return Vec::new(),
    };
    let group = |&seconds: &f64| VideoGroup { seconds, tokens: 6 };
    vec![times.iter().map(group).collect()]
}

#[test]
fn prompts_equal_the_references_id_for_id() {
    let cases = json("fixtures/prompts/prompts.json");
    let mut compared = 0;
    for checkpoint in FIXTURES {
        let tokenizer = tokenizer(checkpoint);
        let template = template(checkpoint);
        let places = placeholders(&tokenizer);
        for (name, case) in cases.as_object().unwrap() {
            let Some(text) = case["text"].as_str() else { continue };
            let segments = match message(name) {
                Some(messages) => {
                    let chat = encode_chat(&template, &tokenizer, &places, &messages, &open_turn());
                    let (segments, prompt) = chat.unwrap();
                    assert_eq!(common::text(&tokenizer, &segments), text, "{name}");
                    assert_eq!(prompt.image_slots.len(), image_tokens(case).len(), "{name}");
                    assert_eq!(prompt.ids, tokenizer.encode_template(text).unwrap(), "{name}");
                    segments
                }
                None => tokenizer.split_template(text),
            };
            let expanded = |wrap| -> ExpandedPrompt {
                let (images, videos) = (image_tokens(case), video_groups(name));
                let segments = expand_media(&segments, &places, &images, &videos, wrap).unwrap();
                encode_segments(&tokenizer, &segments).unwrap()
            };
            let nested = expanded(VideoWrap::Nested);
            assert_eq!(nested.ids, ids(&case["ids"]), "{checkpoint} {name}");
            let types: Vec<u8> = serde_json::from_value(case["mm_token_type_ids"].clone()).unwrap();
            assert_eq!(nested.modality, types, "{checkpoint} {name}");
            if let Some(single) = case.get("ids_single_wrapped") {
                assert_eq!(expanded(VideoWrap::default()).ids, ids(single), "{checkpoint} {name}");
            } else {
                assert_eq!(expanded(VideoWrap::Single), nested, "{checkpoint} {name}");
            }
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * 6);
}

#[test]
fn spans_cover_exactly_the_pads() {
    let cases = json("fixtures/prompts/prompts.json");
    let tokenizer = tokenizer(FIXTURES[0]);
    let places = placeholders(&tokenizer);
    for (name, case) in cases.as_object().unwrap() {
        let Some(text) = case["text"].as_str() else { continue };
        let segments = tokenizer.split_template(text);
        let (images, videos) = (image_tokens(case), video_groups(name));
        let segments = expand_media(&segments, &places, &images, &videos, VideoWrap::Single);
        let prompt = encode_segments(&tokenizer, &segments.unwrap()).unwrap();
        let mut covered = vec![0; prompt.ids.len()];
        for span in &prompt.spans {
            covered[span.range.clone()].fill(span.modality as u8);
        }
        assert_eq!(covered, prompt.modality, "{name}");
        let of_images = prompt.spans.iter().filter(|span| span.modality == Modality::Image);
        let lengths: Vec<usize> = of_images.map(|span| span.range.len()).collect();
        assert_eq!(lengths, images, "{name}");
    }
}

#[test]
fn expanding_ids_equals_expanding_segments_for_images() {
    let case = &json("fixtures/prompts/prompts.json")["image_three"];
    let tokenizer = tokenizer(FIXTURES[0]);
    let places = placeholders(&tokenizer);
    let ids_before = tokenizer.encode_template(case["text"].as_str().unwrap()).unwrap();
    let prompt = turbospark_text::slots(ids_before, &places);
    let images = image_tokens(case);
    let expanded = expand(&prompt.ids, &prompt.image_slots, &images, Modality::Image).unwrap();
    assert_eq!(expanded.ids, ids(&case["ids"]));
    assert_eq!(expanded.spans.len(), 3);

    assert!(expand(&prompt.ids, &prompt.image_slots, &[4], Modality::Image).is_err());
    assert!(expand(&prompt.ids, &[9999], &[4], Modality::Image).is_err());
    assert!(expand(&prompt.ids, &[5, 5], &[4, 4], Modality::Image).is_err());
    assert!(expand(&[], &[usize::MAX], &[4], Modality::Image).is_err());
}

#[test]
fn parts_stay_in_the_order_given() {
    let tokenizer = tokenizer(TINY);
    let template = template(TINY);
    let places = placeholders(&tokenizer);
    let request = json("cases/inputs/s11_order.request.json");
    let messages = messages(request["messages"].clone());
    let chat = encode_chat(&template, &tokenizer, &places, &messages, &open_turn());
    let (segments, _) = chat.unwrap();
    let segments = expand_media(&segments, &places, &[64, 64], &[], VideoWrap::Single).unwrap();
    let shown = segments.iter().filter_map(|segment| match segment {
        Segment::Plain(text) => Some(format!("text:{}", text.trim_start_matches("user\n"))),
        Segment::Pads { tokens, .. } => Some(format!("image:{tokens}")),
        Segment::Control(_) => None,
    });
    let shown: Vec<String> = shown.collect();
    let expected = json("cases/expect/S11.json")["expect"]["part_order"].clone();
    let expected: Vec<String> = serde_json::from_value(expected).unwrap();
    assert_eq!(shown[..expected.len()], expected);
}

#[test]
fn counts_that_differ_are_refused_with_both_numbers() {
    let tokenizer = tokenizer(TINY);
    let template = template(TINY);
    let places = placeholders(&tokenizer);
    let two = messages(json!([{"role": "user", "content": [
        {"type": "image", "image": "a.png"}, {"type": "image", "image": "b.png"}]}]));

    let forgetful = turbospark_text::ChatTemplate::new("{{ '<|image_pad|>' }}").unwrap();
    let error = encode_chat(&forgetful, &tokenizer, &places, &two, &open_turn()).unwrap_err();
    assert_eq!(error.to_string(), "the chat template placed 1 image placeholder(s), the messages hold 2 image part(s)");
    let (segments, _) = encode_chat(&template, &tokenizer, &places, &two, &open_turn()).unwrap();
    let error = expand_media(&segments, &places, &[4], &[], VideoWrap::Single).unwrap_err();
    assert_eq!(error.to_string(), "the prompt holds 2 image placeholder(s), sizes were given for 1");
    let error = expand_media(&segments, &places, &[4, 0], &[], VideoWrap::Single).unwrap_err();
    assert_eq!(error.to_string(), "image 1 has no tokens");
}
