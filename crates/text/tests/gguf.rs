//! Tokenizers written from the metadata of GGUF files, held against the models' own files.

mod common;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use common::*;
use proptest::prelude::*;
use serde_json::Value;
use turbospark_testkit::{GgufWriter, shared};
use turbospark_text::{ChatTemplates, GenerationConfig, TemplateTexts, Tokenizer};
use turbospark_weights::gguf::{self, Metadata};

/// One text of every kind that a pre-tokenizer or a normaliser treats in its own way.
const TEXTS: &[&str] = &[
    "",
    " ",
    "Hello, world!",
    "  two  spaces\tand\ttabs  ",
    "\n\n\r\n line\r\nbreaks \n \n",
    "I'm, you'll, we'D, they've; it's 'TIS",
    "1 12 123 1234567890 3.14 ½ ² ٣٤",
    "cafe\u{301} café Ångström \u{212b} ﬁ",
    "नमस्ते दुनिया, ภาษาไทย, 日本語のテキスト, 한국어, Ελληνικά, עברית",
    "👩\u{200d}👩\u{200d}👧 🏳️\u{200d}🌈 \u{1f600}",
    "fn main() { println!(\"{}\", x[0] + 0x1F); } // ok?!",
    "a\u{a0}b\u{3000}c\u{2028}d\u{0}e\u{7f}",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<|vision_start|><|image_pad|><|vision_end|><think>x</think> <|im_end",
    "▁▁ Ġ <unk> <s> </s> <0x0A>",
    "ALLCAPS camelCase snake_case kebab-case ...___---",
];

fn metadata(bytes: Vec<u8>) -> Metadata {
    gguf::from_bytes("x.gguf", Arc::<[u8]>::from(bytes)).unwrap().metadata
}

/// The reference implementation of `tokenizer.json` on what we wrote.
fn reference(json: &str) -> tokenizers::Tokenizer {
    json.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn ids(tokenizer: &tokenizers::Tokenizer, text: &str, add_special_tokens: bool) -> Vec<u32> {
    tokenizer.encode(text, add_special_tokens).unwrap().get_ids().to_vec()
}

/// The texts of a file give what `folder`'s own texts give, in the reference implementation and in ours.
fn assert_same(case: &str, metadata: &Metadata, folder: &Path) {
    let own_json = std::fs::read_to_string(folder.join("tokenizer.json")).unwrap();
    let own_config = std::fs::read_to_string(folder.join("tokenizer_config.json")).unwrap();
    let written = gguf::tokenizer_json(metadata).unwrap();
    let written_config = gguf::tokenizer_config_json(metadata).unwrap();
    let (theirs, again) = (reference(&own_json), reference(&written));
    let ours = Tokenizer::from_json(own_json.as_bytes(), Some(&own_config)).unwrap();
    let ours_again = Tokenizer::from_json(written.as_bytes(), Some(&written_config)).unwrap();
    for text in TEXTS {
        for add in [false, true] {
            assert_eq!(ids(&theirs, text, add), ids(&again, text, add), "{case}: {text:?}");
        }
        assert_eq!(ours.encode_text(text).unwrap(), ours_again.encode_text(text).unwrap(), "{case}: {text:?}");
        assert_eq!(ours.encode_template(text).unwrap(), ours_again.encode_template(text).unwrap(), "{case}: {text:?}");
    }
    assert_eq!(ours.vocab_size(), ours_again.vocab_size(), "{case}");
    for id in 0..ours.vocab_size() as u32 {
        assert_eq!(ours.token_bytes(id), ours_again.token_bytes(id), "{case}: {id}");
        // llama.cpp's converter takes tokens for control tokens that only look like it: `<|fim_prefix|>`.
        let looks = ours.token_bytes(id).is_some_and(|b| b.starts_with(b"<|") && b.ends_with(b"|>"));
        assert!(ours.is_special(id) == ours_again.is_special(id) || looks, "{case}: {id}");
        assert_eq!(theirs.decode(&[id], false).unwrap(), again.decode(&[id], false).unwrap(), "{case}: {id}");
    }
    assert_eq!(ours.eos_token_id(), ours_again.eos_token_id(), "{case}");

    let own = std::fs::read_to_string(folder.join("generation_config.json")).unwrap();
    let own = GenerationConfig::from_json(&own).unwrap();
    let generation = GenerationConfig::from_json(&gguf::generation_config_json(metadata).unwrap()).unwrap();
    assert_eq!(generation.eos_token_ids, own.eos_token_ids, "{case}");
    assert_eq!(generation.pad_token_id, own.pad_token_id, "{case}");
}

/// A file of what a converter takes from a folder.
fn converted(checkpoint: &str, pre: &str) -> Vec<u8> {
    let tokenizer = json(&format!("{checkpoint}/tokenizer.json"));
    let config = json(&format!("{checkpoint}/tokenizer_config.json"));
    let mut tokens: HashMap<u64, (String, i32)> = HashMap::new();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        tokens.insert(id.as_u64().unwrap(), (token.clone(), 1));
    }
    for token in tokenizer["added_tokens"].as_array().unwrap() {
        let kind = if token["special"].as_bool().unwrap() { 3 } else { 4 };
        tokens.insert(token["id"].as_u64().unwrap(), (token["content"].as_str().unwrap().to_owned(), kind));
    }
    // Rows of the embedding beyond the vocabulary; the last two lie behind all added tokens.
    let rows = tokens.keys().max().unwrap() + 3;
    let (texts, kinds): (Vec<_>, Vec<_>) =
        (0..rows).map(|id| tokens.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), 5))).unzip();
    let merges: Vec<String> = tokenizer["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()))
        .collect();
    let id = |name: &str| texts.iter().position(|t| Some(t.as_str()) == config[name].as_str()).unwrap() as u32;
    GgufWriter::new()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &texts)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &merges)
        .u32("tokenizer.ggml.eos_token_id", id("eos_token"))
        .u32("tokenizer.ggml.padding_token_id", id("pad_token"))
        .bytes()
}

#[test]
fn a_converted_tokenizer_gives_the_ids_of_the_original() {
    for (checkpoint, pre) in [(FIXTURES[0], "qwen2"), (FIXTURES[1], "qwen35"), (TINY, "qwen2")] {
        assert_same(checkpoint, &metadata(converted(checkpoint, pre)), &asset(checkpoint));
    }
}

#[test]
fn files_of_llama_cpp_give_the_ids_of_the_original() {
    let mut seen = 0;
    for (file, checkpoint) in [
        ("fixture-qwen3_vl-bf16", FIXTURES[0]),
        ("fixture-qwen3_vl_moe-f32", "fixtures/qwen3_vl_moe/checkpoint"),
        ("tiny-ocr-qwen3_vl-q8_0", TINY),
        ("tiny-ocr-qwen3_vl-q4_k_m", TINY),
    ] {
        let Some(path) = shared(&format!("models/gguf/{file}.gguf")) else {
            println!("skipped: no ../shared/models/gguf/{file}.gguf");
            continue;
        };
        let metadata = gguf::open(path).unwrap().metadata;
        assert_same(file, &metadata, &asset(checkpoint));
        let config: Value = serde_json::from_str(&gguf::tokenizer_config_json(&metadata).unwrap()).unwrap();
        let template = read(&format!("{checkpoint}/chat_template.jinja"));
        assert_eq!(config["chat_template"].as_str().unwrap().trim(), template.trim(), "{file}");
        seen += 1;
    }
    println!("{seen} files");
}

/// The keys that are written of a folder's texts, as a file has them.
fn exported(tokenizer: &str, tokenizer_config: &str, generation: &str, vocab_size: usize) -> Metadata {
    written(&gguf::TokenizerTexts {
        tokenizer,
        tokenizer_config: Some(tokenizer_config),
        generation_config: Some(generation),
        config: "{}",
        chat_template: None,
        named_templates: &[],
        vocab_size,
    })
}

fn written(texts: &gguf::TokenizerTexts<'_>) -> Metadata {
    let keys = gguf::tokenizer_keys(texts);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.gguf");
    let mut writer = gguf::Writer::new(&path, "", &keys.unwrap_or_else(|e| panic!("{e}")), Vec::new()).unwrap();
    writer.write(|_, _| Ok::<(), turbospark_weights::packed::PackError>(())).unwrap();
    writer.finish().unwrap();
    gguf::open(path).unwrap().metadata
}

#[test]
fn named_templates_are_written_and_found_again() {
    let texts = gguf::TokenizerTexts {
        tokenizer: &read(&format!("{TINY}/tokenizer.json")),
        tokenizer_config: None,
        generation_config: None,
        config: "{}",
        chat_template: Some("own"),
        named_templates: &[("tool_use", "tools"), ("rag-2", "with documents")],
        vocab_size: 2048,
    };
    let metadata = written(&texts);
    let names = metadata.iter().find(|(key, _)| *key == "tokenizer.chat_templates").unwrap().1;
    assert_eq!(*names, gguf::Value::Array(gguf::Array::String(vec!["tool_use".into(), "rag_2".into()])));
    let config = gguf::tokenizer_config_json(&metadata).unwrap();
    let found = ChatTemplates::read(&TemplateTexts { tokenizer_config: Some(&config), ..Default::default() }).unwrap();
    let mut found: Vec<_> = found.iter().collect();
    found.sort_unstable();
    assert_eq!(found, [("default", "own"), ("rag_2", "with documents"), ("tool_use", "tools")]);
}

#[test]
fn a_written_tokenizer_gives_the_ids_of_the_original() {
    for (checkpoint, rows) in [(FIXTURES[0], 320), (FIXTURES[1], 320), (TINY, 2048)] {
        let text = |name: &str| read(&format!("{checkpoint}/{name}.json"));
        let metadata = exported(&text("tokenizer"), &text("tokenizer_config"), &text("generation_config"), rows);
        assert_same(checkpoint, &metadata, &asset(checkpoint));
    }
}

/// Reads a file's tokenizer, writes it, and reads it again.
fn assert_there_and_back(case: &str, writer: GgufWriter) {
    let file = metadata(writer.bytes());
    let texts = |m: &Metadata| {
        let all = [gguf::tokenizer_json(m), gguf::tokenizer_config_json(m), gguf::generation_config_json(m)];
        all.map(|text| serde_json::from_str::<Value>(&text.unwrap()).unwrap())
    };
    let [tokenizer, config, generation] = texts(&file);
    let rows = file.texts("tokenizer.ggml.tokens").unwrap().unwrap().len();
    let written = exported(&tokenizer.to_string(), &config.to_string(), &generation.to_string(), rows);
    let [again, config_again, generation_again] = texts(&written);
    assert_eq!(again, tokenizer, "{case}");
    assert_eq!(generation_again, generation, "{case}");
    for key in ["bos_token", "eos_token", "unk_token"] {
        assert_eq!(config_again[key], config[key], "{case}: {key}");
    }
}

#[test]
fn every_tokenizer_that_is_read_is_written() {
    for pre in ["qwen2", "qwen35", "llama-bpe", "smollm", "gpt-2", "default"] {
        assert_there_and_back(pre, small(pre));
        assert_there_and_back(pre, small(pre).flag("tokenizer.ggml.add_bos_token", true));
    }
    let ends = small("llama-bpe").u32("tokenizer.ggml.eos_token_id", 256).u32("tokenizer.ggml.eot_token_id", 257);
    assert_there_and_back("two ends", ends);
    assert_there_and_back("scores", sentencepiece(PIECES));
    assert_there_and_back("no space", sentencepiece(PIECES).flag("tokenizer.ggml.add_space_prefix", false));
    assert_there_and_back("no begin", sentencepiece(PIECES).flag("tokenizer.ggml.add_bos_token", false));
}

/// The byte-level alphabet and a few words, under a pre-tokenizer.
fn small(pre: &str) -> GgufWriter {
    // The characters that stand for bytes are those of a fixture's vocabulary.
    let vocab = json(&format!("{}/tokenizer.json", FIXTURES[0]));
    let mut tokens: Vec<String> =
        vocab["model"]["vocab"].as_object().unwrap().keys().filter(|t| t.chars().count() == 1).cloned().collect();
    assert_eq!(tokens.len(), 256);
    let words = ["12", "123", "1234", "ab", "abc", "Ġa", "Ġ1", "ĠĠ", "xyz"];
    tokens.extend(words.map(str::to_owned));
    tokens.push("<s>".to_owned());
    let mut kinds = vec![1; tokens.len()];
    *kinds.last_mut().unwrap() = 3;
    GgufWriter::new()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .texts("tokenizer.ggml.merges", &["1 2", "12 3", "123 4", "a b", "ab c", "Ġ a", "Ġ 1", "Ġ Ġ"])
        .u32("tokenizer.ggml.bos_token_id", tokens.len() as u32 - 1)
}

fn pieces(writer: GgufWriter, text: &str, add_special_tokens: bool) -> Vec<String> {
    let tokenizer = reference(&gguf::tokenizer_json(&metadata(writer.bytes())).unwrap());
    tokenizer.encode(text, add_special_tokens).unwrap().get_tokens().to_vec()
}

#[test]
fn each_pre_tokenizer_cuts_in_its_own_way() {
    for (pre, numbers) in [
        ("qwen2", &["Ġ", "1", "2", "3", "4", "5"][..]),
        ("qwen35", &["Ġ", "1", "2", "3", "4", "5"]),
        ("llama-bpe", &["Ġ", "123", "4", "5"]),
        ("smollm", &["Ġ", "1", "2", "3", "4", "5"]),
        ("gpt-2", &["Ġ", "1234", "5"]),
        ("default", &["Ġ", "123", "4", "5"]),
    ] {
        assert_eq!(pieces(small(pre), " 12345", false), numbers, "{pre}");
        assert_eq!(pieces(small(pre), "abc  abc", false), ["abc", "Ġ", "Ġ", "abc"], "{pre}");
    }
    // Only a model of this kind takes a word as it stands, though no merge makes it.
    assert_eq!(pieces(small("llama3"), "xyz", false), ["xyz"]);
    assert_eq!(pieces(small("qwen2"), "xyz", false), ["x", "y", "z"]);
}

#[test]
fn a_begin_token_is_added_where_the_file_or_its_kind_says_so() {
    let add = |pre: &str, flag| small(pre).flag("tokenizer.ggml.add_bos_token", flag);
    assert_eq!(pieces(small("qwen2"), "ab", true), ["ab"]);
    assert_eq!(pieces(small("llama-bpe"), "ab", true), ["<s>", "ab"]);
    assert_eq!(pieces(small("llama-bpe"), "ab", false), ["ab"]);
    assert_eq!(pieces(add("llama-bpe", false), "ab", true), ["ab"]);
    assert_eq!(pieces(add("qwen2", true), "ab", true), ["<s>", "ab"]);
    let both = add("qwen2", true).flag("tokenizer.ggml.add_eos_token", true).u32("tokenizer.ggml.eos_token_id", 256);
    assert_eq!(pieces(both, "ab", true), ["<s>", "ab", "12"]);
}

/// A small SentencePiece model: `<unk> <s> </s>`, 256 bytes, a token of its own, then pieces with scores.
fn sentencepiece(pieces: &[(&str, f32)]) -> GgufWriter {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.push("<tag>".to_owned());
    let mut kinds = vec![2, 3, 3];
    kinds.extend([6; 256]);
    kinds.push(4);
    let mut scores = vec![0.0; tokens.len()];
    for (piece, score) in pieces {
        tokens.push((*piece).to_owned());
        kinds.push(1);
        scores.push(*score);
    }
    GgufWriter::new()
        .text("tokenizer.ggml.model", "llama")
        .text("tokenizer.ggml.pre", "default")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.bos_token_id", 1)
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.unknown_token_id", 0)
}

const PIECES: &[(&str, f32)] = &[
    ("▁", -9.0),
    ("a", -10.0),
    ("b", -11.0),
    ("c", -12.0),
    ("bc", -1.0),
    ("ab", -2.0),
    ("abc", -3.0),
    ("▁a", -4.0),
    ("▁abc", -5.0),
    ("▁▁", -6.0),
];

#[test]
fn the_pair_with_the_best_score_merges_first() {
    let model = || sentencepiece(PIECES);
    assert_eq!(pieces(model(), "abc", false), ["▁abc"]);
    // "bc" before "ab", then "abc" before "▁a".
    assert_eq!(pieces(model(), "aabc", false), ["▁a", "abc"]);
    assert_eq!(pieces(model(), "abc abab", true), ["<s>", "▁abc", "▁", "ab", "ab"]);
    assert_eq!(pieces(model(), "  a", false), ["▁▁", "▁a"]);
    let bare = model().flag("tokenizer.ggml.add_space_prefix", false);
    assert_eq!(pieces(bare, "abc  c", false), ["abc", "▁▁", "c"]);
}

#[test]
fn what_has_no_piece_is_spelled_in_bytes() {
    let json = gguf::tokenizer_json(&metadata(sentencepiece(PIECES).bytes())).unwrap();
    let tokenizer = reference(&json);
    let tokens = |text: &str| tokenizer.encode(text, false).unwrap().get_tokens().to_vec();
    assert_eq!(tokens("aé\n"), ["▁a", "<0xC3>", "<0xA9>", "<0x0A>"]);
    // Literals of control tokens and of the model's own are found, those of bytes are not.
    assert_eq!(tokens("<tag>a</s>"), ["<tag>", "▁a", "</s>"]);
    assert_eq!(tokens("<0x0A>")[1], "<0x3C>");
    for text in ["abc abc", "é ü", "  a\n\n日本", "a"] {
        let encoding = tokenizer.encode(text, true).unwrap();
        assert_eq!(tokenizer.decode(encoding.get_ids(), true).unwrap(), text);
    }
}

/// SentencePiece's own rule, without a list of merges.
fn by_scores(scores: &HashMap<&str, f32>, text: &str) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let pairs = symbols.windows(2).enumerate().filter_map(|(i, pair)| Some((scores.get(&*pair.concat())?, i)));
        let Some((_, i)) = pairs.max_by(|a, b| a.0.total_cmp(b.0).then(b.1.cmp(&a.1))) else { return symbols };
        let right = symbols.remove(i + 1);
        symbols[i].push_str(&right);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn merges_do_what_scores_do(
        more in prop::collection::btree_set("[abc▁]{2,4}", 0..12),
        order in any::<prop::sample::Index>(),
        text in "[abc▁]{1,12}",
    ) {
        let mut tokens: Vec<&str> = vec!["▁", "a", "b", "c"];
        // Some order that is not that of the alphabet.
        let mut more: Vec<&str> = more.iter().map(String::as_str).collect();
        if !more.is_empty() {
            let middle = order.index(more.len());
            more.rotate_left(middle);
        }
        tokens.extend(more);
        let scored: Vec<(&str, f32)> = tokens.iter().zip(0..).map(|(t, i)| (*t, -(i as f32))).collect();
        let model = sentencepiece(&scored).flag("tokenizer.ggml.add_space_prefix", false);
        assert_there_and_back("drawn", model.clone());
        let scores = scored.into_iter().collect();
        prop_assert_eq!(pieces(model, &text.replace('▁', " "), false), by_scores(&scores, &text));
    }
}
