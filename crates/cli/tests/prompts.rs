//! `turbospark preprocess --messages` on the cases S07, S10 and S11: ids, spans, positions.

mod common;

use common::{case_input, expected, grey, root, run};
use serde_json::{Value, json};

fn prompt(path: &std::path::Path, more: &[&str]) -> (Vec<Value>, Value) {
    let args = ["preprocess", "--json", "--messages", path.to_str().unwrap()];
    let ran = run(args.iter().chain(more)).ends_with_code(0);
    let mut objects = ran.objects();
    let prompt = objects.pop().unwrap();
    (objects, prompt)
}

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
}

/// The layouts begin and end with fewer tokens than the template writes, so the prompt holds each of them from
/// some token on; positions there are the layout's, moved by that many.
#[test]
fn s07_positions_of_several_pictures() {
    // Three tokens in the embedded vocabulary, which with two markers make five.
    const THREE_TOKENS: &str = "first:";
    let folder = tempfile::tempdir().unwrap();
    for item in expected("S07.json")["items"].as_array().unwrap() {
        let layout = item["layout"].as_array().unwrap();
        let mut content = Vec::new();
        for (i, part) in layout.iter().enumerate() {
            if let Some(grid) = part.get("image") {
                let grid = numbers(grid);
                let file = grey(folder.path(), 16 * grid[2] as usize, 16 * grid[1] as usize);
                content.push(json!({"type": "image_url", "image_url": {"url": file}, "min_pixels": 1}));
            } else if i > 0 && i + 1 < layout.len() {
                match part["text"].as_u64() {
                    Some(2) => {}
                    Some(5) => content.push(json!({"type": "text", "text": THREE_TOKENS})),
                    other => panic!("a text of {other:?} tokens"),
                }
            } else if i == 0 && part["text"].as_u64() == Some(6) {
                content.push(json!({"type": "text", "text": THREE_TOKENS}));
            }
        }
        let path = folder.path().join("request.json");
        std::fs::write(&path, json!({"messages": [{"role": "user", "content": content}]}).to_string()).unwrap();
        let (_, prompt) = prompt(&path, &[]);

        let expect = &item["expect"];
        let spans = expect["image_spans"].as_array().unwrap();
        let start = |span: &Value| span["start"].as_i64().unwrap();
        let moved = start(&prompt["spans"][0]) - numbers(&spans[0])[0];
        assert!(moved >= 0);
        for (got, wanted) in prompt["spans"].as_array().unwrap().iter().zip(spans) {
            let got = [start(got) - moved, got["tokens"].as_i64().unwrap()];
            assert_eq!(got[..], numbers(wanted));
        }
        let length = expect["length"].as_u64().unwrap() as usize;
        for axis in ["t", "h", "w"] {
            let all = numbers(&prompt["positions"][axis]);
            let got: Vec<i64> = all[moved as usize..][..length].iter().map(|p| p - moved).collect();
            assert_eq!(got, numbers(&expect[axis]), "axis {axis}");
        }
        assert_eq!(prompt["rope_delta"], expect["rope_delta"]);
        let more = prompt["tokens"].as_i64().unwrap() - length as i64;
        let first = prompt["first_decode_position"].as_i64().unwrap();
        assert_eq!(first - more, expect["first_decode_position"].as_i64().unwrap());
    }
}

#[test]
fn s10_control_text_typed_by_a_user_stays_text() {
    let expect = &expected("S10.json")["expect"];
    let (images, prompt) = prompt(&case_input("s10_literal.request.json"), &[]);
    assert_eq!(images.len(), 1);
    let spans = prompt["spans"].as_array().unwrap();
    assert_eq!(spans.len() as u64, expect["image_runs"].as_u64().unwrap());
    assert_eq!(spans[0]["tokens"], expect["image_tokens"]);

    let tokenizer = std::fs::read_to_string(root().join("assets/tiny-ocr-qwen3_vl/tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_str(&tokenizer).unwrap();
    let ids = numbers(&prompt["ids"]);
    let count = |token: &str| {
        let added = tokenizer["added_tokens"].as_array().unwrap();
        let id = added.iter().find(|t| t["content"] == token).expect("the vocabulary has it")["id"].as_i64();
        ids.iter().filter(|&&i| Some(i) == id).count()
    };
    assert_eq!(count("<|im_start|>") as u64, expect["im_start_count"].as_u64().unwrap());
    assert_eq!(count("<|im_end|>") as u64, expect["im_end_count"].as_u64().unwrap());
    assert_eq!(count("<|image_pad|>") as u64, expect["image_tokens"].as_u64().unwrap());
    let text = prompt["pieces"][2]["text"].as_str().unwrap();
    let typed = expect["text_after_image"].as_str().unwrap();
    assert!(text.contains(typed), "{text:?}");
}

#[test]
fn s11_parts_stay_in_the_order_given() {
    let (images, prompt) = prompt(&case_input("s11_order.request.json"), &[]);
    assert_eq!(images.len(), 2);
    assert_ne!(images[0]["pixel_sha256"], images[1]["pixel_sha256"], "red and blue");
    let mut pieces = prompt["pieces"].as_array().unwrap().iter();
    for part in expected("S11.json")["expect"]["part_order"].as_array().unwrap() {
        let (kind, what) = part.as_str().unwrap().split_once(':').unwrap();
        let piece = pieces.next().unwrap();
        match kind {
            "image" => assert_eq!(piece["tokens"].to_string(), what),
            _ => assert!(piece["text"].as_str().unwrap().contains(what), "{piece}"),
        }
    }
    assert!(pieces.next().is_none());
    let spans: Vec<i64> = prompt["spans"].as_array().unwrap().iter().map(|s| s["image"].as_i64().unwrap()).collect();
    assert_eq!(spans, [0, 1]);
}

#[test]
fn people_see_the_prompt_too() {
    let path = case_input("s11_order.request.json");
    let ran = run(["preprocess".as_ref(), "--messages".as_ref(), path.as_os_str()]).ends_with_code(0);
    for word in ["image 2", "151 tokens", "second:", "<image 1: 64 tokens>", "rope_delta"] {
        assert!(ran.out.contains(word), "{word} is not in {}", ran.out);
    }
}
