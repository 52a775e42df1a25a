//! A GGUF file: its header, its metadata under every getter, its tensors, and the texts written from it.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use turbospark_text::{GenerationConfig, Tokenizer};
use turbospark_weights::gguf;

fuzz_target!(|data: &[u8]| {
    let Ok(set) = gguf::from_bytes("fuzz.gguf", Arc::<[u8]>::from(data)) else { return };
    let m = &set.metadata;
    for (key, value) in m.iter() {
        assert!(m.get(key).is_some_and(|found| std::ptr::eq(found, value)), "{key} is there twice");
        let _ = (m.text(key), m.count(key), m.number(key), m.flag(key), m.texts(key), m.counts(key), m.numbers(key));
    }
    let mut tensors: Vec<_> = set.tensors.iter().map(|(_, tensor)| tensor).collect();
    tensors.sort_by_key(|t| (t.offset, t.length));
    let mut end = 0;
    for t in tensors {
        assert!(t.offset >= end, "{} overlaps", t.name);
        end = t.offset + t.length;
        assert!(end <= data.len() as u64, "{} leaves the file", t.name);
        let elements = t.dims.iter().product::<u64>() as usize;
        assert!(t.dtype.is_none_or(|dtype| dtype.bytes(elements) == Some(t.length as usize)));
    }
    let config = gguf::tokenizer_config_json(m).ok();
    if let Ok(text) = gguf::tokenizer_json(m) {
        if let Ok(tokenizer) = Tokenizer::from_json(text.as_bytes(), config.as_deref()) {
            let _ = tokenizer.encode_template("Hello <|im_end|> 12 ünïcode\n");
        }
    }
    if let Ok(text) = gguf::generation_config_json(m) {
        let _ = GenerationConfig::from_json(&text);
    }
});
