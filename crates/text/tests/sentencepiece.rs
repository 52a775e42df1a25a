//! SentencePiece's vocabularies and incomplete byte-level ones, held against the `tokenizers` crate.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use turbospark_testkit::GgufWriter;
use turbospark_text::{
    ChatTemplate, Content, Message, RenderOptions, Role, Segment, StreamDecoder, Tokenizer, encode_segments,
};
use turbospark_weights::gguf;

const WORDS: &[&str] = &[
    "▁",
    "e",
    "t",
    "a",
    "h",
    "s",
    "n",
    "<",
    ">",
    "/",
    "[",
    "]",
    "I",
    "N",
    "S",
    "T",
    "\n",
    "0",
    "x",
    "A",
    "é",
    "▁▁",
    "th",
    "he",
    "the",
    "▁t",
    "▁th",
    "▁the",
    "▁a",
    "an",
    "▁an",
    "ST",
    "INST",
    "▁[",
    "▁the▁",
    "</",
    "[/",
    "\n\n",
    "s>",
    "▁▁▁▁",
    "a▁t",
];

const UNK: u32 = 0;
const BOS: u32 = 1;
const EOS: u32 = 2;

/// Every way to make a token of two others, as transformers' converter lists them: control tokens too.
fn merges(tokens: &[String]) -> Vec<Value> {
    let known = |token: &str| tokens.iter().any(|t| t == token);
    let mut merges = Vec::new();
    for token in tokens {
        for (at, _) in token.char_indices().skip(1) {
            let (a, b) = token.split_at(at);
            if known(a) && known(b) {
                merges.push(json!([a, b]));
            }
        }
    }
    merges
}

/// A file as Llama's is, under a normalizer and a pre-tokenizer.
fn llama(normalizer: Value, pre_tokenizer: Value) -> Value {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(WORDS.iter().map(|&word| word.to_owned()));
    let vocab: serde_json::Map<_, _> = tokens.iter().enumerate().map(|(id, t)| (t.clone(), id.into())).collect();
    let added = |id: u32, content: &str, special: bool| {
        json!({"id": id, "content": content, "special": special, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [added(UNK, "<unk>", true), added(BOS, "<s>", true), added(EOS, "</s>", true),
            added(tokens.len() as u32, "<tag>", false)],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": merges(&tokens)},
    })
}

fn legacy() -> Value {
    let prepend = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    llama(prepend, Value::Null)
}

fn metaspace(scheme: &str, split: bool) -> Value {
    llama(Value::Null, json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}))
}

/// The forms that published files have, by name.
fn forms() -> Vec<(String, Value)> {
    let mut forms = vec![("legacy".to_owned(), legacy())];
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let mut bare = llama(spaces, Value::Null);
    bare["decoder"]["decoders"].as_array_mut().unwrap().pop();
    forms.push(("without a prefix".to_owned(), bare));
    for scheme in ["first", "always", "never"] {
        for split in [false, true] {
            forms.push((format!("{scheme} {split}"), metaspace(scheme, split)));
        }
    }
    let old = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true});
    forms.push(("old metaspace".to_owned(), llama(Value::Null, old)));
    for (fuse, unk) in [(false, json!("<unk>")), (true, json!("<unk>")), (false, Value::Null)] {
        let mut file = legacy();
        let model = &mut file["model"];
        (model["byte_fallback"], model["fuse_unk"], model["unk_token"]) = (json!(false), json!(fuse), unk.clone());
        forms.push((format!("no bytes, fuse {fuse}, unk {unk}"), file));
    }
    forms
}

fn ours(file: &Value) -> Tokenizer {
    Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap()
}

fn refused(file: &Value) -> String {
    Tokenizer::from_json(file.to_string().as_bytes(), None).unwrap_err().to_string()
}

fn reference(file: &Value) -> tokenizers::Tokenizer {
    file.to_string().parse().unwrap_or_else(|error| panic!("{error}"))
}

fn ids(tokenizer: &tokenizers::Tokenizer, text: &str, special: bool) -> Vec<u32> {
    tokenizer.encode(text, special).unwrap().get_ids().to_vec()
}

/// Every piece, then the whole; a piece is text by its type, so never half a character.
fn streamed(tokenizer: &Tokenizer, ids: &[u32], keep: bool) -> String {
    let mut decoder = StreamDecoder::new(tokenizer).keep_special(keep);
    let text: String = ids.iter().map(|&id| decoder.push(id)).collect();
    text + &decoder.finish()
}

const TEXTS: &[&str] = &[
    "the ant",
    " the  ant ",
    "<s>the</s>the</s> the <tag>the",
    "the<s>the",
    "<tag> an",
    "  <s>  </s>",
    "日本 é è\n\n\u{4}x",
    "▁the▁ <0x0A> <unk>",
    "<s> [INST] the [/INST] an</s>",
    "zz the zz",
];

/// Strings of words, literals of added tokens, and characters that have no token.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(WORDS).prop_map(str::to_owned),
        3 => Just(" ".to_owned()),
        2 => prop::sample::select(&["<s>", "</s>", "<unk>", "<tag>", "<0x41>", "日", "z", "\u{338}"][..]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

fn assert_same(form: &str, ours: &Tokenizer, theirs: &tokenizers::Tokenizer, text: &str) {
    let encoded = ours.encode_template(text).unwrap();
    assert_eq!(encoded, ids(theirs, text, false), "{form}: {text:?}");
    for skip in [true, false] {
        assert_eq!(streamed(ours, &encoded, !skip), theirs.decode(&encoded, skip).unwrap(), "{form}: {text:?}");
    }
}

#[test]
fn every_form_gives_the_references_ids_and_text() {
    for (form, file) in forms() {
        let (ours, theirs) = (ours(&file), reference(&file));
        for text in TEXTS {
            assert_same(&form, &ours, &theirs, text);
            // Without added tokens, the reference takes a literal for text as well.
            let mut plain = file.clone();
            plain["added_tokens"] = json!([]);
            plain["model"]["merges"]
                .as_array_mut()
                .unwrap()
                .retain(|m| *m != json!(["<", "s>"]) && *m != json!(["</", "s>"]));
            assert_eq!(ours.encode_text(text).unwrap(), ids(&reference(&plain), text, false), "{form}: {text:?}");
        }
    }
}

#[test]
fn a_space_is_put_before_each_stretch_or_before_the_first() {
    let shown = |file: &Value, text: &str| {
        let tokenizer = ours(file);
        let ids = tokenizer.encode_template(text).unwrap();
        let token = |id: &u32| String::from_utf8(tokenizer.token_bytes(*id).unwrap()).unwrap();
        ids.iter().map(token).collect::<Vec<_>>().join("|")
    };
    assert_eq!(shown(&legacy(), "the<s>the"), " the|<s>| the");
    assert_eq!(shown(&legacy(), "<s>the"), "<s>| the");
    assert_eq!(shown(&metaspace("first", false), "the<s>the"), " the|<s>|the");
    assert_eq!(shown(&metaspace("first", false), "<s>the"), "<s>|the");
    assert_eq!(shown(&metaspace("always", false), "the<s> the"), " the|<s>| the");
    assert_eq!(shown(&metaspace("never", false), "the<s> the"), "the|<s>| the");
}

#[test]
fn tokens_have_their_bytes() {
    let tokenizer = ours(&legacy());
    let bytes = |token: &str| tokenizer.token_bytes(tokenizer.token_id(token).unwrap()).unwrap();
    assert_eq!(bytes("▁the▁"), b" the ");
    assert_eq!(bytes("<0xE5>"), [0xe5]);
    assert_eq!(bytes("<0x0A>"), b"\n");
    assert_eq!(bytes("</s>"), b"</s>");
    assert!(tokenizer.is_special(EOS) && !tokenizer.is_special(3));
    assert_eq!((tokenizer.token_id("<unk>"), tokenizer.token_id("")), (Some(UNK), None));
}

#[test]
fn only_the_first_space_of_a_text_goes_and_characters_stay_whole() {
    let tokenizer = ours(&legacy());
    let id = |token: &str| tokenizer.token_id(token).unwrap();
    let mut decoder = StreamDecoder::new(&tokenizer);
    let pieces = ["</s>", "▁", "▁the", "<0xE6>", "<0x97>", "<0xA5>", "<0x20>", "an", "<0xE6>"];
    let sent: Vec<String> = pieces.iter().map(|token| decoder.push(id(token))).collect();
    assert_eq!(sent, ["", "", " the", "", "", "日", " ", "an", ""]);
    assert_eq!(decoder.finish(), "\u{fffd}");
    // A kept control token is the beginning; the space behind it is text.
    assert_eq!(streamed(&tokenizer, &[BOS, id("▁the")], true), "<s> the");
    assert_eq!(streamed(&tokenizer, &[BOS, id("▁the")], false), "the");
}

#[test]
fn typed_literals_stay_text_though_merges_lead_to_control_tokens() {
    // As converted, "<" and "s>" make "<s>".
    assert!(legacy()["model"]["merges"].as_array().unwrap().contains(&json!(["<", "s>"])));
    let mut whole_words = metaspace("first", true);
    whole_words["model"]["ignore_merges"] = json!(true);
    for (form, file) in forms().into_iter().chain([("whole words".to_owned(), whole_words)]) {
        let tokenizer = ours(&file);
        for text in ["<s>", "</s>", "a</s><s>[INST]", " </s>", "<unk>", "s></s>s>"] {
            let ids = tokenizer.encode_text(text).unwrap();
            assert!(!ids.contains(&BOS) && !ids.contains(&EOS), "{form}: {text:?} {ids:?}");
            assert!(!ids.is_empty());
        }
        assert_eq!(tokenizer.encode_template("</s>").unwrap(), [EOS], "{form}");
    }
}

#[test]
fn a_control_token_is_found_without_a_space_before_it() {
    let mut file = legacy();
    file["added_tokens"][2]["normalized"] = json!(true);
    file["model"]["merges"].as_array_mut().unwrap().retain(|merge| *merge != json!(["</", "s>"]));
    let the = ours(&file).token_id("▁the").unwrap();
    assert_eq!(ours(&file).encode_template("the</s>").unwrap(), [the, EOS]);
    // Not so by the letter of the file.
    assert!(!ids(&reference(&file), "the</s>", false).contains(&EOS));
}

#[test]
fn a_conversation_has_the_templates_control_tokens_and_bos_once() {
    let tokenizer = Tokenizer::from_json(
        legacy().to_string().as_bytes(),
        Some(r#"{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true}"#),
    );
    let tokenizer = tokenizer.unwrap();
    let source = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]\
        {% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let message = |role, text: &str| Message::new(role, Content::from(text));
    let chat = [message(Role::User, "the</s><s>"), message(Role::Assistant, "an</s>"), message(Role::User, "<unk>")];
    let segments = template.render(&tokenizer, &chat, &RenderOptions::default()).unwrap();
    let plain = |text: &str| Segment::Plain(text.to_owned());
    let expected = [
        Segment::Control(BOS),
        plain("[INST] the</s><s> [/INST] an</s>"),
        Segment::Control(EOS),
        plain("[INST] <unk> [/INST]"),
    ];
    assert_eq!(segments, expected);
    let ids = encode_segments(&tokenizer, &segments).unwrap().ids;
    assert_eq!((ids.iter().filter(|&&id| id == BOS).count(), ids.iter().filter(|&&id| id == EOS).count()), (1, 1));
    assert_eq!(tokenizer.bos_for_plain_text(), [BOS]);
}

#[test]
fn a_plain_prompt_begins_as_the_files_say() {
    let load = |file: &Value, config: &str| Tokenizer::from_json(file.to_string().as_bytes(), Some(config)).unwrap();
    let file = legacy();
    for text in TEXTS {
        // Not so where a literal is typed: it stays text here.
        if !["<s>", "</s>", "<unk>", "<tag>"].iter().any(|literal| text.contains(literal)) {
            assert_eq!(ours(&file).encode_plain_prompt(text).unwrap(), ids(&reference(&file), text, true));
        }
    }
    let names = |add: &str| format!(r#"{{"bos_token": "</s>", "eos_token": null{add}}}"#);
    assert_eq!(load(&file, &names("")).bos_for_plain_text(), [BOS]);
    assert_eq!(load(&file, &names(r#", "add_bos_token": true"#)).bos_for_plain_text(), [EOS]);
    assert!(load(&file, &names(r#", "add_bos_token": false"#)).bos_for_plain_text().is_empty());

    let mut nested = file.clone();
    nested["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true}, file["post_processor"]]});
    assert_eq!(ours(&nested).bos_for_plain_text(), [BOS]);
    nested["post_processor"] = Value::Null;
    assert!(ours(&nested).bos_for_plain_text().is_empty());
    assert_eq!(ours(&nested).encode_plain_prompt("").unwrap(), [0; 0]);

    let mut wrong = file.clone();
    wrong["post_processor"]["special_tokens"]["<s>"]["ids"] = json!([70_000]);
    assert!(refused(&wrong).contains("70000"));
    let error = Tokenizer::from_json(file.to_string().as_bytes(), Some(r#"{"add_bos_token": true}"#));
    assert!(error.unwrap_err().to_string().contains("bos_token"));
}

#[test]
fn an_unknown_character_never_becomes_an_end() {
    let mut file = legacy();
    (file["model"]["byte_fallback"], file["model"]["unk_token"]) = (json!(false), json!("</s>"));
    let config = r#"{"eos_token": "</s>"}"#;
    let tokenizer = Tokenizer::from_json(file.to_string().as_bytes(), Some(config)).unwrap();
    assert!(tokenizer.encode_text("the ant").is_ok());
    let error = tokenizer.encode_text("the 日").unwrap_err().to_string();
    assert!(error.contains("begins or ends"), "{error}");
}

#[test]
fn decoders_that_cannot_be_streamed_are_refused() {
    let decoder = |decoder: Value| {
        let mut file = legacy();
        file["decoder"] = decoder;
        refused(&file)
    };
    let sequence = |steps: Value| decoder(json!({"type": "Sequence", "decoders": steps}));
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    assert!(decoder(Value::Null).contains("nor a decoder"));
    assert!(decoder(json!({"type": "ByteLevel"})).contains("ByteLevel"));
    assert!(decoder(json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})).contains("Metaspace"));
    assert!(sequence(json!([strip])).contains("Strip"));
    let right = json!({"type": "Strip", "content": " ", "start": 0, "stop": 1});
    assert!(sequence(json!([{"type": "Fuse"}, right])).contains("Strip"));
    let regex = json!({"type": "Replace", "pattern": {"Regex": "▁+"}, "content": " "});
    assert!(sequence(json!([regex])).contains("Regex"));
    let long = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": "long"});
    assert!(sequence(json!([long])).contains("Replace"));
    let late = json!([{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}]);
    assert!(sequence(late).contains("Replace"));
    assert!(decoder(json!({"type": "Sequence", "decoders": 3})).contains("list"));
}

/// A byte-level vocabulary of a few bytes, as SmolLM2's lacks some.
fn byte_level(unk: Value, fuse: bool) -> Value {
    let tokens = ["<|end|>", "<unk>", "a", "b", "c", "Ġ", "ab", "Ġa", "Ã", "©"];
    let vocab: serde_json::Map<_, _> = tokens.iter().enumerate().map(|(id, t)| ((*t).to_owned(), id.into())).collect();
    json!({
        "added_tokens": [{"id": 0, "content": "<|end|>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false},
            {"id": 1, "content": "<unk>", "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": unk, "fuse_unk": fuse, "byte_fallback": false,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "ignore_merges": false,
            "vocab": vocab, "merges": [["a", "b"], ["Ġ", "a"]]},
    })
}

#[test]
fn bytes_without_a_token_become_what_the_reference_makes_of_them() {
    for (unk, fuse) in [(Value::Null, false), (json!("<unk>"), false), (json!("<unk>"), true)] {
        let file = byte_level(unk, fuse);
        let (ours, theirs) = (ours(&file), reference(&file));
        for text in ["ab ab", "a\u{4}b", "a\u{101}b", "\u{4}", "é", "日a日日b", "<|end|>\u{4}a<|end|>b", "xaxbx"] {
            assert_eq!(ours.encode_template(text).unwrap(), ids(&theirs, text, false), "{text:?}");
        }
    }
    // Dropped where there is no unknown token, and the neighbours merge.
    assert_eq!(ours(&byte_level(Value::Null, false)).encode_text("a\u{101}b").unwrap(), [6]);
}

/// A GGUF file with the vocabulary of `llama`, its scores in the order of ids.
fn converted(space_prefix: bool) -> String {
    let file = legacy();
    let vocab = file["model"]["vocab"].as_object().unwrap();
    let tokens: Vec<String> = vocab.keys().cloned().collect();
    let kinds: Vec<i32> =
        (0..tokens.len()).map(|id| [2, 3, 3].get(id).copied().unwrap_or(if id < 259 { 6 } else { 1 })).collect();
    let scores: Vec<f32> = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let bytes = GgufWriter::new()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &kinds)
        .f32s("tokenizer.ggml.scores", &scores)
        .u32("tokenizer.ggml.bos_token_id", BOS)
        .u32("tokenizer.ggml.eos_token_id", EOS)
        .u32("tokenizer.ggml.unknown_token_id", UNK)
        .flag("tokenizer.ggml.add_space_prefix", space_prefix)
        .bytes();
    gguf::tokenizer_json(&gguf::from_bytes("x.gguf", Arc::<[u8]>::from(bytes)).unwrap().metadata).unwrap()
}

#[test]
fn a_gguf_file_gives_the_references_ids_and_text() {
    for space_prefix in [true, false] {
        let file: Value = serde_json::from_str(&converted(space_prefix)).unwrap();
        let (ours, theirs) = (ours(&file), reference(&file));
        for text in TEXTS {
            assert_same("gguf", &ours, &theirs, text);
        }
        assert_eq!(ours.bos_for_plain_text(), [BOS]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_gives_the_references_ids_and_text(text in text(), form in any::<prop::sample::Index>()) {
        let forms = forms();
        let (form, file) = form.get(&forms);
        let (ours, theirs) = (ours(file), reference(file));
        assert_same(form, &ours, &theirs, &text);
        let ids = ours.encode_text(&text).unwrap();
        prop_assert!(!ids.contains(&BOS) && !ids.contains(&EOS));
    }

    #[test]
    fn streamed_pieces_are_the_whole_text(ids in prop::collection::vec(0_u32..310, 0..20), keep in any::<bool>()) {
        let file = legacy();
        let tokenizer = ours(&file);
        let bytes = ids.iter().filter(|&&id| keep || !tokenizer.is_special(id)).filter_map(|&id| tokenizer.token_bytes(id));
        let whole = bytes.collect::<Vec<_>>().concat();
        let lossy = String::from_utf8_lossy(&whole);
        let text = streamed(&tokenizer, &ids, keep);
        prop_assert_eq!(&text, lossy.strip_prefix(' ').unwrap_or(&lossy));
        // The reference spells broken characters otherwise, whole ones alike.
        let theirs = reference(&file).decode(&ids, !keep).unwrap();
        if !theirs.contains('\u{fffd}') {
            prop_assert_eq!(text, theirs);
        }
    }
}
