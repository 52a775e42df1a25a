//! Texts written from GGUF metadata: what they say, and what is refused. Their ids are held against the models' own
//! files in the tests of `turbospark-text`.

use std::sync::Arc;

use serde_json::{Value, json};
use turbospark_testkit::GgufWriter;
use turbospark_weights::{
    Error,
    gguf::{self, Metadata},
};

fn metadata(writer: GgufWriter) -> Metadata {
    gguf::from_bytes("x.gguf", Arc::<[u8]>::from(writer.bytes())).unwrap().metadata
}

fn parsed(text: Result<String, Error>) -> Value {
    serde_json::from_str(&text.unwrap()).unwrap()
}

const TOKENS: [&str; 7] = ["a", "b", "ab", "<|endoftext|>", "<|im_end|>", "<tag>", "[PAD6]"];
const TYPES: [i32; 7] = [1, 1, 1, 3, 3, 4, 5];

fn gpt2(tokens: &[&str], types: &[i32], merges: &[&str]) -> GgufWriter {
    GgufWriter::new()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", tokens)
        .i32s("tokenizer.ggml.token_type", types)
        .texts("tokenizer.ggml.merges", merges)
}

fn llama(tokens: &[&str], types: &[i32], scores: &[f32]) -> GgufWriter {
    GgufWriter::new()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", tokens)
        .i32s("tokenizer.ggml.token_type", types)
        .f32s("tokenizer.ggml.scores", scores)
        .flag("tokenizer.ggml.add_bos_token", false)
}

#[test]
fn a_tokenizer_holds_every_token_but_the_unused() {
    let tokenizer = parsed(gguf::tokenizer_json(&metadata(gpt2(&TOKENS, &TYPES, &["a b"]))));
    let vocab = json!({ "a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3, "<|im_end|>": 4, "<tag>": 5 });
    assert_eq!(tokenizer["model"]["vocab"], vocab);
    assert_eq!(tokenizer["model"]["merges"], json!([["a", "b"]]));
    assert_eq!(tokenizer["normalizer"], json!({ "type": "NFC" }));
    let added: Vec<_> =
        tokenizer["added_tokens"].as_array().unwrap().iter().map(|t| (&t["id"], &t["special"])).collect();
    assert_eq!(json!(added), json!([[3, true], [4, true], [5, false]]));
}

#[test]
fn scores_become_merges() {
    let tokens = ["<unk>", "a", "b", "ab", "ba", "aba", "<0x61>"];
    let scores = [0.0, -5.0, -6.0, -2.0, -1.0, -3.0, 0.0];
    let tokenizer = parsed(gguf::tokenizer_json(&metadata(llama(&tokens, &[2, 1, 1, 1, 1, 1, 6], &scores))));
    let model = &tokenizer["model"];
    assert_eq!(model["merges"], json!([["b", "a"], ["a", "b"], ["ab", "a"], ["a", "ba"]]));
    assert_eq!((&model["unk_token"], &model["byte_fallback"]), (&json!("<unk>"), &json!(true)));
    assert_eq!(tokenizer["post_processor"], Value::Null);
}

#[test]
fn named_templates_are_a_list() {
    let file = |writer: GgufWriter| parsed(gguf::tokenizer_config_json(&metadata(writer)))["chat_template"].clone();
    let named = || gpt2(&TOKENS, &TYPES, &[]).text("tokenizer.chat_template.tool_use", "t");
    let tool_use = json!({ "name": "tool_use", "template": "t" });
    assert_eq!(file(named()), json!([tool_use]));
    let both = named().texts("tokenizer.chat_templates", &["tool_use"]).text("tokenizer.chat_template", "d");
    assert_eq!(file(both), json!([tool_use, { "name": "default", "template": "d" }]));
}

#[test]
fn configurations_name_the_special_tokens() {
    let file = metadata(
        gpt2(&TOKENS, &TYPES, &[])
            .u32("tokenizer.ggml.eos_token_id", 3)
            .i32("tokenizer.ggml.padding_token_id", 3)
            .u32("tokenizer.ggml.bos_token_id", 3)
            .flag("tokenizer.ggml.add_bos_token", false)
            .text("tokenizer.chat_template", "{{ \"x\" }}")
            .f32("general.sampling.temp", 0.5)
            .i32("general.sampling.top_k", 20),
    );
    assert_eq!(
        parsed(gguf::tokenizer_config_json(&file)),
        json!({
            "add_bos_token": false, "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>",
            "pad_token": "<|endoftext|>", "chat_template": "{{ \"x\" }}",
        })
    );
    assert_eq!(
        parsed(gguf::generation_config_json(&file)),
        json!({
            "eos_token_id": [3, 4], "bos_token_id": 3, "pad_token_id": 3,
            "temperature": 0.5, "top_k": 20, "do_sample": true,
        })
    );
    // Of another family, only what the file says ends an answer.
    let other = llama(&TOKENS, &TYPES, &[0.0; 7]).u32("tokenizer.ggml.eos_token_id", 3);
    let eot = other.u32("tokenizer.ggml.eot_token_id", 5).u32("tokenizer.ggml.eom_token_id", 3);
    assert_eq!(parsed(gguf::generation_config_json(&metadata(eot))), json!({ "eos_token_id": [3, 5] }));
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused_by_key() {
    let long = "x".repeat(300);
    let cases: Vec<(&str, GgufWriter, &[&str])> = vec![
        ("no tokenizer", GgufWriter::new(), &["tokenizer.ggml.tokens", "missing"]),
        (
            "no types",
            GgufWriter::new().texts("tokenizer.ggml.tokens", &["a"]),
            &["token_type", "missing", "convert the model again"],
        ),
        ("tokens of numbers", GgufWriter::new().i32s("tokenizer.ggml.tokens", &[1]), &["tokens", "array of 1 i32"]),
        (
            "no model",
            GgufWriter::new().texts("tokenizer.ggml.tokens", &["a"]).i32s("tokenizer.ggml.token_type", &[1]),
            &["tokenizer.ggml.model", "missing"],
        ),
        (
            "another model",
            GgufWriter::new()
                .texts("tokenizer.ggml.tokens", &["a"])
                .i32s("tokenizer.ggml.token_type", &[1])
                .text("tokenizer.ggml.model", "bert"),
            &["tokenizer.ggml.model", "\"bert\"", "gpt2 or llama"],
        ),
        ("fewer types", gpt2(&["a", "b"], &[1], &[]), &["token_type", "1 elements", "tokenizer.ggml.tokens has 2"]),
        ("an unknown type", gpt2(&["a", "b"], &[1, 7], &[]), &["token_type", "element 1", "unknown token type 7"]),
        ("a negative type", gpt2(&["a"], &[-1], &[]), &["token_type", "non-negative"]),
        ("a token twice", gpt2(&["a", "b", "a"], &[1; 3], &[]), &["tokens", "element 2", "\"a\" is also element 0"]),
        ("an empty token", gpt2(&["a", ""], &[1; 2], &[]), &["tokens", "element 1", "empty"]),
        ("half a merge", gpt2(&TOKENS, &TYPES, &["a b", "ab"]), &["merges", "element 1", "\"ab\"", "two tokens"]),
        ("a merge of three", gpt2(&TOKENS, &TYPES, &["a b a"]), &["merges", "element 0", "two tokens"]),
        ("a merge of strangers", gpt2(&TOKENS, &TYPES, &["a c"]), &["merges", "\"a c\"", "outside the vocabulary"]),
        ("a merge to a stranger", gpt2(&TOKENS, &TYPES, &["b a"]), &["merges", "\"b a\"", "outside the vocabulary"]),
        (
            "another pre-tokenizer",
            GgufWriter::new()
                .texts("tokenizer.ggml.tokens", &["a"])
                .i32s("tokenizer.ggml.token_type", &[1])
                .text("tokenizer.ggml.model", "gpt2")
                .text("tokenizer.ggml.pre", "poro-chat"),
            &["tokenizer.ggml.pre", "\"poro-chat\"", "qwen2, qwen35, llama-bpe", "default"],
        ),
        (
            "a begin token that is none",
            gpt2(&TOKENS, &TYPES, &[]).flag("tokenizer.ggml.add_bos_token", true),
            &["tokenizer.ggml.bos_token_id", "missing"],
        ),
        (
            "a begin token beyond the tokens",
            gpt2(&TOKENS, &TYPES, &[]).flag("tokenizer.ggml.add_bos_token", true).u32("tokenizer.ggml.bos_token_id", 7),
            &["tokenizer.ggml.bos_token_id", "7, expected an id below 7"],
        ),
        ("fewer scores", llama(&["a", "b"], &[1; 2], &[0.0]), &["scores", "1 elements"]),
        ("a piece without end", llama(&["a", &long], &[1; 2], &[0.0; 2]), &["element 1", "300 bytes, at most 256"]),
        (
            "spaces removed",
            llama(&["a"], &[1], &[0.0]).flag("tokenizer.ggml.remove_extra_whitespaces", true),
            &["remove_extra_whitespaces", "not supported"],
        ),
    ];
    for (case, writer, parts) in cases {
        let message = match gguf::tokenizer_json(&metadata(writer)) {
            Ok(text) => panic!("{case}: gave {text}"),
            Err(e) => e.to_string(),
        };
        for part in ["x.gguf: key \"tokenizer.ggml."].iter().chain(parts) {
            assert!(message.contains(part), "{case}: {message:?} lacks {part:?}");
        }
    }
    let beyond = || metadata(gpt2(&TOKENS, &TYPES, &[]).u32("tokenizer.ggml.eos_token_id", 1 << 31));
    for text in [gguf::tokenizer_config_json(&beyond()), gguf::generation_config_json(&beyond())] {
        let message = text.unwrap_err().to_string();
        assert!(message.contains("eos_token_id") && message.contains("below 7"), "{message}");
    }
}

#[test]
fn any_scores_make_a_tokenizer() {
    let scores = [f32::NAN, f32::INFINITY, -f32::NAN];
    assert!(gguf::tokenizer_json(&metadata(llama(&["a", "b", "ab"], &[1; 3], &scores))).is_ok());
}
