//! The JSON files beside a checkpoint.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_models::config::Config;
use turbospark_text::GenerationConfig;
use turbospark_vision::{ImageConfig, VideoConfig};

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = Config::parse(text);
    let _ = GenerationConfig::from_json(text);
    let _ = ImageConfig::from_json(text);
    let _ = VideoConfig::from_json(text);
});
