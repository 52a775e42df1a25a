//! An image file, from its first byte to patches.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_vision::{DecodeLimits, ImageConfig, preprocess};

fuzz_target!(|data: &[u8]| {
    let config = ImageConfig::from_json(include_str!(
        "../../assets/fixtures/qwen3_vl/checkpoint/preprocessor_config.json"
    ))
    .expect("the file is part of the project");
    let limits = DecodeLimits { max_pixels: 1 << 20, max_alloc_bytes: 64 << 20, threads: 1 };
    if let Ok(picture) = preprocess(data, &config, &limits) {
        assert!(picture.width * picture.height <= 1 << 20);
        assert_eq!(picture.patches().len(), picture.patches_len());
    }
});
