//! The tiny trained checkpoint that is compiled in.

macro_rules! file {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/tiny-ocr-qwen3_vl/", $name)))
    };
}

/// Its name in answers.
pub(crate) const NAME: &str = "tiny-ocr-qwen3_vl";

/// Its files: a Qwen3-VL of 11.7 million parameters that reads printed English.
pub(crate) static FILES: &[(&str, &[u8])] = &[
    file!("config.json"),
    file!("generation_config.json"),
    file!("preprocessor_config.json"),
    file!("video_preprocessor_config.json"),
    file!("tokenizer.json"),
    file!("tokenizer_config.json"),
    file!("chat_template.jinja"),
    file!("model.safetensors"),
];
