//! Tokenizer files, good and bad.

mod common;

use common::*;
use serde_json::{Value, json};
use turbospark_text::{Segment, Tokenizer};

fn file(checkpoint: &str) -> Value {
    json(&format!("{checkpoint}/tokenizer.json"))
}

fn load(file: &Value) -> Result<Tokenizer, String> {
    Tokenizer::from_json(file.to_string().as_bytes(), None).map_err(|error| error.to_string())
}

#[test]
fn tokens_have_their_bytes() {
    let tokenizer = tokenizer(TINY);
    let id = |token: &str| tokenizer.token_id(token).unwrap();
    assert_eq!(tokenizer.token_bytes(id("Ġt")).unwrap(), b" t");
    assert_eq!(tokenizer.token_bytes(id("Ċ")).unwrap(), b"\n");
    assert_eq!(tokenizer.token_bytes(id("<think>")).unwrap(), b"<think>");
    assert!(tokenizer.is_special(id("<|im_end|>")) && !tokenizer.is_special(id("<think>")));
    assert_eq!(tokenizer.eos_token_id(), Some(id("<|im_end|>")));
    assert_eq!(tokenizer.token_id("no such token"), None);
    assert_eq!(tokenizer.token_id(""), None);
    assert_eq!(tokenizer.vocab_size(), 2048);
    let text = "Grüße,  日本 12\n";
    let ids = tokenizer.encode_text(text).unwrap();
    let bytes = ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap());
    assert_eq!(bytes.collect::<Vec<u8>>(), text.as_bytes());
}

#[test]
fn template_text_is_cut_at_the_longest_literal() {
    let tokenizer = tokenizer(TINY);
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let plain = |text: &str| Segment::Plain(text.to_owned());
    let segments = tokenizer.split_template("a<<|im_end|><|im_end|>é<|im_end");
    let expected = [plain("a<"), Segment::Control(end), Segment::Control(end), plain("é<|im_end")];
    assert_eq!(segments, expected);
    assert!(tokenizer.encode_template("").unwrap().is_empty());
}

#[test]
fn truncated_files_are_refused() {
    let bytes = std::fs::read(asset(TINY).join("tokenizer.json")).unwrap();
    for cut in (0..bytes.len()).step_by(997) {
        let error = Tokenizer::from_json(&bytes[..cut], None).unwrap_err();
        assert!(error.to_string().starts_with("tokenizer: tokenizer.json: "), "{error}");
    }
    assert!(Tokenizer::from_json(b"\xff\xfe", None).is_err());
    assert!(Tokenizer::from_json(&bytes, Some("{")).is_err());
    assert!(Tokenizer::from_json(&bytes, Some(r#"{"eos_token": 3}"#)).is_err());
}

#[test]
fn hostile_files_are_refused_with_a_reason() {
    let good = file(TINY);
    let broken = |change: &dyn Fn(&mut Value)| {
        let mut file = good.clone();
        change(&mut file);
        load(&file).unwrap_err()
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let cases: [(Change<'_>, &str); 12] = [
        (&|f| f["model"]["type"] = json!("Unigram"), "Unigram"),
        (&|f| f["model"] = json!({"type": "Unigram", "vocab": [["a", 0.0]]}), "Unigram"),
        (&|f| f["pre_tokenizer"] = Value::Null, "byte-level"),
        (&|f| f["model"]["byte_fallback"] = json!(true), "byte_fallback"),
        (&|f| f["model"]["vocab"] = json!({}), "empty"),
        (&|f| f["model"]["vocab"]["zz"] = json!(4_000_000_000_u32), "4000000000"),
        (&|f| f["model"]["vocab"]["zz"] = json!(-1), "-1"),
        (&|f| f["model"]["merges"] = json!([["Ġ", "no such token"]]), "no such token"),
        (&|f| f["model"]["merges"] = json!([["a"]]), "two tokens"),
        (&|f| f["model"]["merges"] = json!(["a b c"]), "two tokens"),
        (&|f| f["added_tokens"][0]["lstrip"] = json!(true), "lstrip"),
        (&|f| f["added_tokens"][0]["content"] = json!(""), "empty"),
    ];
    for (change, reason) in cases {
        let error = broken(change);
        assert!(error.contains(reason), "{error:?} should name {reason:?}");
    }
    // A merge longer than every token of the vocabulary.
    let longest = good["model"]["vocab"].as_object().unwrap().keys().max_by_key(|t| t.len());
    let longest = longest.unwrap().clone();
    let error = broken(&|f| f["model"]["merges"] = json!([[longest, longest]]));
    assert!(error.contains("outside the vocabulary"), "{error}");
    let error = broken(&|f| f["model"]["vocab"]["<|im_end|>"] = json!(5));
    assert!(error.contains("<|im_end|>"), "{error}");
}

#[test]
fn added_tokens_of_the_config_alone_are_known() {
    let mut bare = file(TINY);
    bare["added_tokens"] = json!([]);
    let config = read(&format!("{TINY}/tokenizer_config.json"));
    let from_config = Tokenizer::from_json(bare.to_string().as_bytes(), Some(&config)).unwrap();
    let whole = tokenizer(TINY);
    for token in ["<|im_end|>", "<|image_pad|>"] {
        assert_eq!(from_config.token_id(token), whole.token_id(token));
    }
}

#[test]
fn a_model_that_ignores_merges_still_yields_no_control_token() {
    let mut file = file(TINY);
    file["model"]["ignore_merges"] = json!(true);
    file["model"]["vocab"]["word"] = json!(3000);
    file["added_tokens"].as_array_mut().unwrap().push(json!(
        {"id": 3000, "content": "word", "special": true}));
    let tokenizer = load(&file).unwrap();
    assert_eq!(tokenizer.encode_template("word").unwrap(), [3000]);
    assert!(!tokenizer.encode_text("word").unwrap().contains(&3000));
}

/// A folder with the published tokenizer, which this repository does not hold.
fn published() -> Option<Tokenizer> {
    let Some(folder) = std::env::var_os("TURBOSPARK_QWEN3_TOKENIZER") else {
        eprintln!("skipped: TURBOSPARK_QWEN3_TOKENIZER names no folder with the published tokenizer");
        return None;
    };
    let folder = std::path::PathBuf::from(folder);
    let file = std::fs::read(folder.join("tokenizer.json")).unwrap();
    let config = std::fs::read_to_string(folder.join("tokenizer_config.json")).unwrap();
    let begin = std::time::Instant::now();
    let tokenizer = Tokenizer::from_json(&file, Some(&config)).unwrap();
    eprintln!("loaded {} tokens in {:?}", tokenizer.vocab_size(), begin.elapsed());
    Some(tokenizer)
}

#[test]
fn the_published_vocabulary_gives_the_listed_ids() {
    let Some(tokenizer) = published() else { return };
    let expected = &json("cases/expect/S10.json")["expect"];
    let ids: Vec<u32> = serde_json::from_value(expected["plain_ids_qwen3vl"].clone()).unwrap();
    let typed = expected["text_after_image"].as_str().unwrap();
    assert_eq!(tokenizer.encode_text(typed).unwrap(), ids);
    for item in json("cases/expect/S13.json")["items"].as_array().unwrap() {
        let Some(ids) = item.get("qwen3vl_ids") else { continue };
        let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
        assert_eq!(tokenizer.encode_text(item["text"].as_str().unwrap()).unwrap(), ids);
    }
}
