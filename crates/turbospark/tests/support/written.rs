//! Checkpoints with a tokenizer, and the GGUF files that are written of them.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use turbospark::Cancel;
use turbospark::pack::{PackFormat, PackOptions, PackReport, pack};
use turbospark_device::ReferenceDevice;
use turbospark_models::config::Config;
use turbospark_models::{Model, Quant};
use turbospark_testkit::{ExpertLayout, RawTensor, fixtures, random_checkpoint};
use turbospark_weights::gguf::{self, Set};
use turbospark_weights::{Folder, Sidecar};

use super::shapes::{hybrid, mixture};
use super::*;

pub type Stored = BTreeMap<String, RawTensor>;

/// As large as the tokenizer of the fixtures, and with its ids.
pub fn with_vocabulary(mut config: Value) -> Value {
    config["text_config"]["vocab_size"] = json!(320);
    for (key, id) in
        [("image_token_id", 318), ("video_token_id", 319), ("vision_start_token_id", 315), ("vision_end_token_id", 316)]
    {
        config[key] = json!(id);
    }
    config
}

pub fn experts_everywhere() -> Value {
    let mut config = with_vocabulary(mixture(64));
    config["text_config"]["mlp_only_layers"] = json!([]);
    config
}

/// Hidden and expert width the same, so that only the sides of `gate_up_proj` tell the layouts apart.
pub fn square_experts() -> Value {
    let mut config = experts_everywhere();
    config["text_config"]["moe_intermediate_size"] = json!(256);
    config
}

pub fn dense_hybrid() -> Value {
    let mut config = with_vocabulary(hybrid());
    config["model_type"] = json!("qwen3_5");
    config["text_config"]["intermediate_size"] = json!(256);
    for key in ["num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"] {
        config["text_config"].as_object_mut().unwrap().remove(key);
    }
    config
}

/// A text family: the configuration as a file has it, and its tensors.
pub fn text_only(model_type: &str, seed: u64) -> (Value, Stored) {
    let mut text = json!({
        "model_type": model_type, "vocab_size": 320, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 96, "rope_theta": 1e5, "tie_word_embeddings": model_type != "llama",
    });
    if model_type == "qwen3_moe" {
        text["num_experts"] = json!(3);
        text["num_experts_per_tok"] = json!(2);
        text["moe_intermediate_size"] = json!(64);
        text["norm_topk_prob"] = json!(true);
    }
    if model_type == "llama" {
        text["rope_scaling"] = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 32});
    }
    let whole =
        json!({"model_type": model_type, "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]});
    let mut tensors = random_checkpoint(&whole, ExpertLayout::Split, false, seed);
    if model_type == "llama" {
        tensors.retain(|name, _| !name.contains("q_norm") && !name.contains("k_norm"));
    }
    let tensors = tensors.into_iter().map(|(name, t)| (name.replace("model.language_model.", "model."), t)).collect();
    (text, tensors)
}

/// A folder with the fixtures' tokenizer; Qwen3.5 has one of its own.
pub fn folder(config: &Value, tensors: &Stored) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let family = if config["model_type"].as_str().unwrap().starts_with("qwen3_5") { "qwen3_5" } else { "qwen3_vl" };
    let texts = fixtures().join(family).join("checkpoint");
    for sidecar in Sidecar::ALL.into_iter().filter(|s| *s != Sidecar::Config) {
        let name = sidecar.file_name();
        if texts.join(name).exists() {
            std::fs::copy(texts.join(name), folder.path().join(name)).unwrap();
        }
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), turbospark_testkit::pack(tensors)).unwrap();
    folder
}

pub fn options(quant: Option<Quant>) -> PackOptions {
    PackOptions {
        format: PackFormat::Gguf,
        name: Some("m".to_owned()),
        quant,
        threads: Some(2),
        ..PackOptions::default()
    }
}

pub fn written(source: &Path, target: &Path, quant: Option<Quant>) -> PackReport {
    pack(source, target, &options(quant), &Cancel::new(), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"))
}

pub fn opened(path: &Path) -> Model {
    let folder = Folder::open(path).unwrap_or_else(|e| panic!("{e}"));
    let config = Config::parse(&folder.require(Sidecar::Config).unwrap()).unwrap_or_else(|e| panic!("{e}"));
    let checkpoint = folder.checkpoint().unwrap_or_else(|e| panic!("{e}"));
    Model::load(config, &checkpoint, &ReferenceDevice).unwrap_or_else(|e| panic!("{e}"))
}

/// Logits of a prompt, with an image where the model sees, and of one decoded row.
pub fn logits(model: &Model) -> Vec<f32> {
    prompt_and_row(model, &ReferenceDevice, 9)
}

/// The bytes of a tensor of a GGUF file.
pub fn bytes(set: &Set, name: &str) -> Vec<u8> {
    let (file, tensor) = set.tensors.iter().find(|(_, t)| t.name == name).unwrap_or_else(|| panic!("no {name}"));
    let mut bytes = vec![0; tensor.length as usize];
    set.files[*file].read_at(tensor.offset, &mut bytes).unwrap();
    bytes
}

/// Names, types, sides and bytes.
pub fn assert_same_tensors(case: &str, got: &Set, expected: &Set) {
    let described = |set: &Set| -> BTreeMap<String, (String, Vec<u64>)> {
        set.tensors.iter().map(|(_, t)| (t.name.clone(), (t.type_name.clone(), t.dims.clone()))).collect()
    };
    assert_eq!(described(got), described(expected), "{case}");
    for name in described(expected).keys() {
        assert!(bytes(got, name) == bytes(expected, name), "{case}: {name} differs");
    }
}

/// All keys but those that name the file and its size, and the pixel limits that the converter doesn't write.
pub fn keys(set: &Set) -> BTreeMap<String, gguf::Value> {
    let skipped =
        ["general.name", "general.size_label", "clip.vision.image_min_pixels", "clip.vision.image_max_pixels"];
    let all = set.metadata.iter().filter(|(key, _)| !skipped.contains(key));
    all.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}
