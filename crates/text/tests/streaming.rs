//! Streamed text: characters over tokens, stop strings over cuts.

mod common;

use common::*;
use proptest::prelude::*;
use turbospark_text::{StopStrings, StreamDecoder, TextError, Utf8Stream};

fn pieces(item: &serde_json::Value) -> Vec<Vec<u8>> {
    let hex = |piece: &serde_json::Value| {
        let piece = piece.as_str().unwrap();
        let byte = |at| u8::from_str_radix(&piece[at..at + 2], 16).unwrap();
        (0..piece.len()).step_by(2).map(byte).collect()
    };
    item["pieces_hex"].as_array().unwrap().iter().map(hex).collect()
}

#[test]
fn characters_split_over_tokens_are_sent_whole() {
    for item in json("cases/expect/S13.json")["items"].as_array().unwrap() {
        let mut stream = Utf8Stream::default();
        let deltas: Vec<String> = pieces(item).iter().map(|piece| stream.push(piece)).collect();
        let sent = deltas.concat();
        let tail = stream.finish();
        if let Some(text) = item["text"].as_str() {
            assert_eq!((sent.as_str(), tail.as_str()), (text, ""));
        } else if let Some(prefix) = item["text_prefix"].as_str() {
            assert_eq!((sent.as_str(), tail.as_str()), (prefix, "\u{fffd}"));
        } else {
            // The invalid byte and what follows it arrive at once.
            assert_eq!(deltas, ["x", "\u{fffd}", "y"]);
        }
    }
}

#[test]
fn streamed_ids_give_the_text_they_were_made_from() {
    for checkpoint in [FIXTURES[0], FIXTURES[1], TINY] {
        let tokenizer = tokenizer(checkpoint);
        for text in ["日本語🪿テスト", "नमस्ते, a\u{300} 👨‍👩‍👧\r\n\t x  y", "<|im_end|> plain"]
        {
            let ids = tokenizer.encode_text(text).unwrap();
            let mut decoder = StreamDecoder::new(&tokenizer);
            let mut out: String = ids.iter().map(|&id| decoder.push(id)).collect();
            out += &decoder.finish();
            // The tokenizer composes, so this compares with the composed form.
            assert_eq!(out, text.replace("a\u{300}", "\u{e0}"));
        }
    }
}

#[test]
fn special_tokens_are_skipped_and_may_be_kept() {
    let tokenizer = tokenizer(TINY);
    let ids = tokenizer.encode_template("a<|im_end|>b<think>c").unwrap();
    let decode = |mut decoder: StreamDecoder| -> String { ids.iter().map(|&id| decoder.push(id)).collect() };
    let decoder = StreamDecoder::new(&tokenizer);
    assert_eq!(decode(decoder.clone()), "ab<think>c");
    assert_eq!(decode(decoder.keep_special(true)), "a<|im_end|>b<think>c");
}

#[test]
fn ids_beyond_the_vocabulary_give_nothing() {
    let tokenizer = tokenizer(TINY);
    let mut decoder = StreamDecoder::new(&tokenizer);
    for id in [tokenizer.vocab_size() as u32, 1 << 30, u32::MAX] {
        assert_eq!(decoder.push(id), "");
        assert_eq!(tokenizer.token_bytes(id), None);
        assert!(!tokenizer.is_special(id));
    }
}

#[test]
fn a_character_may_go_on_after_a_skipped_token() {
    let tokenizer = tokenizer(TINY);
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let mut decoder = StreamDecoder::new(&tokenizer);
    let byte = |wanted: &[u8]| {
        let id = (0..tokenizer.vocab_size() as u32).find(|&id| tokenizer.token_bytes(id).as_deref() == Some(wanted));
        id.unwrap()
    };
    assert_eq!(decoder.push(byte(b"\xc3")), "");
    assert_eq!(decoder.push(end), "");
    assert_eq!(decoder.push(byte(b"\xa9")), "é");
}

fn stop_all(stops: &[String], deltas: &[&str]) -> (String, Option<usize>) {
    let mut matcher = StopStrings::new(stops.iter().cloned()).unwrap();
    let mut text = String::new();
    for delta in deltas {
        text += &matcher.push(delta).text;
    }
    text += &matcher.finish();
    (text, matcher.stopped())
}

#[test]
fn stop_strings_cut_the_text_before_them() {
    let stops = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
    let (text, stop) = stop_all(&stops(&["\n\n", "END"]), &["one\n", "two E", "N", "D three"]);
    assert_eq!((text.as_str(), stop), ("one\ntwo ", Some(1)));
    let (text, stop) = stop_all(&stops(&["END"]), &["EEN", "EN"]);
    assert_eq!((text.as_str(), stop), ("EENEN", None));
    let (text, stop) = stop_all(&stops(&["日本"]), &["a日", "b日", "本c"]);
    assert_eq!((text.as_str(), stop), ("a日b", Some(0)));
    // What ends first wins; of what ends together, the longest.
    let (text, stop) = stop_all(&stops(&["abcd", "bc"]), &["xabcd"]);
    assert_eq!((text.as_str(), stop), ("xa", Some(1)));
    let (text, stop) = stop_all(&stops(&["c", "abc"]), &["xabc"]);
    assert_eq!((text.as_str(), stop), ("x", Some(1)));
    assert_eq!(stop_all(&[], &["a", "b"]), ("ab".into(), None));
}

#[test]
fn only_a_possible_beginning_is_held_back() {
    let mut matcher = StopStrings::new(["</s>".to_string()]).unwrap();
    assert_eq!(matcher.push("a < b").text, "a < b");
    assert_eq!(matcher.push("<").text, "");
    assert_eq!(matcher.push("b").text, "<b");
    assert_eq!(matcher.push("x</s").text, "x");
    assert_eq!(matcher.finish(), "</s");
}

#[test]
fn an_empty_stop_string_is_refused() {
    let error = StopStrings::new(["a".to_string(), String::new()]).unwrap_err();
    assert!(matches!(error, TextError::EmptyStop(1)));
}

/// Bytes that are often, but not always, parts of characters.
fn mixed_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::char::any().prop_map(|c| c.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 1..3),
        proptest::char::any().prop_map(|c| {
            let bytes = c.to_string().into_bytes();
            bytes[..bytes.len().div_ceil(2)].to_vec()
        }),
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_cut_of_bytes_gives_the_lossy_text(bytes in mixed_bytes(), cuts in any::<u64>()) {
        let mut stream = Utf8Stream::default();
        let (mut text, mut from) = (String::new(), 0);
        for at in 1..bytes.len() {
            if cuts >> (at % 64) & 1 == 1 {
                text += &stream.push(&bytes[from..at]);
                from = at;
            }
        }
        text += &stream.push(&bytes[from..]);
        text += &stream.finish();
        prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        prop_assert!(!stream.is_pending());
    }

    #[test]
    fn every_cut_of_text_stops_at_the_same_place(
        text in "[abé]{0,12}",
        stops in proptest::collection::vec("[abé]{1,3}", 0..3),
        cuts in any::<u32>(),
    ) {
        let whole = stop_all(&stops, &[&text]);
        let (mut deltas, mut from) = (Vec::new(), 0);
        for (at, _) in text.char_indices() {
            if cuts >> (at % 32) & 1 == 1 {
                deltas.push(&text[from..at]);
                from = at;
            }
        }
        deltas.push(&text[from..]);
        prop_assert_eq!(stop_all(&stops, &deltas), whole.clone());
        match whole.1 {
            None => prop_assert_eq!(whole.0, text),
            Some(stop) => {
                let cut = format!("{}{}", whole.0, stops[stop]);
                prop_assert!(text.starts_with(&cut));
            }
        }
    }
}
