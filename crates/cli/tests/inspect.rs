//! `turbospark inspect`: the embedded model, the fixtures' families, and a checkpoint that does not fit.

mod common;

use common::{root, run};

#[test]
fn the_embedded_model_is_described() {
    let ran = run(["inspect", "--json"]).ends_with_code(0);
    let facts = &ran.objects()[0];
    assert_eq!(facts["family"], "qwen3_vl");
    assert_eq!(facts["model"], "tiny-ocr-qwen3_vl");
    assert_eq!(facts["tied_embeddings"], true);
    assert_eq!(facts["chat_template"], true);
    assert_eq!(facts["context"]["most"], 4096);
    assert_eq!(facts["images"]["max_pixels"], 409_600);
    assert_eq!(facts["can"], serde_json::json!({"text": true, "images": true, "video": false}));
    let groups = facts["tensors"].as_array().unwrap();
    let sum = |key: &str| groups.iter().map(|g| g[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("parameters"), facts["parameters"].as_u64().unwrap());
    assert_eq!(sum("bytes"), facts["bytes"].as_u64().unwrap());
    assert!(groups.iter().all(|g| g["dtype"] == "BF16" && g["bits_per_weight"] == 16.0));
    let text = run(["inspect"]).ends_with_code(0).out;
    for word in ["qwen3_vl", "11.7 million", "vision tower", "BF16", "video not yet", "model.safetensors"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

#[test]
fn every_family_is_described() {
    for family in ["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"] {
        let path = root().join("assets/fixtures").join(family).join("checkpoint");
        // The fixtures hold weights and config.json alone.
        let folder = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(root().join("assets/tiny-ocr-qwen3_vl")).unwrap().map(Result::unwrap) {
            if file.file_name() != "model.safetensors" {
                std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
            }
        }
        for file in std::fs::read_dir(path).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
        }
        let ran = run(["inspect".as_ref(), folder.path().as_os_str(), "--json".as_ref()]).ends_with_code(0);
        let facts = &ran.objects()[0];
        assert_eq!(facts["family"], family);
        let linear = facts["text"]["linear_attention_layers"].as_u64().unwrap();
        assert_eq!(linear > 0, family.starts_with("qwen3_5"), "{facts}");
        assert_eq!(facts["text"]["experts"].is_object(), family.ends_with("_moe"), "{facts}");
        let table = run(["inspect".as_ref(), folder.path().as_os_str()]).ends_with_code(0).out;
        assert!(table.contains(family), "{table}");
    }
}

#[test]
fn a_checkpoint_that_does_not_fit_its_config_is_refused_by_tensor() {
    let folder = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(root().join("assets/tiny-ocr-qwen3_vl")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let path = folder.path().join("config.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["text_config"]["intermediate_size"] = 520.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let ran = run(["inspect".as_ref(), folder.path().as_os_str()]).ends_with_code(1);
    ran.says(&["mlp", "520", "512"]);
}
