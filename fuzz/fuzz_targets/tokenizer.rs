//! A tokenizer file, and a text through whatever it describes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_text::Tokenizer;

fuzz_target!(|data: &[u8]| {
    let Ok(tokenizer) = Tokenizer::from_json(data, None) else { return };
    if let Ok(ids) = tokenizer.encode_text("Hello <|im_end|> 12 ünïcode\n") {
        for id in ids {
            let _ = tokenizer.token_bytes(id);
        }
    }
});
