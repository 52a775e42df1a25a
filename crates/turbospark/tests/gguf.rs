//! GGUF files run as the checkpoints that they were converted from do.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use support::converter::As;
use support::shapes::{dense, hybrid, mixture};
use support::*;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::Model;
use turbospark_models::config::Config;
use turbospark_tensor::DType;
use turbospark_testkit::{ExpertLayout, RawTensor, fixtures, pack, random_checkpoint, shared};
use turbospark_weights::gguf::Mmproj;
use turbospark_weights::{Checkpoint, Folder, Sidecar};

type Stored = BTreeMap<String, RawTensor>;

fn open(path: &Path, mmproj: &Mmproj, device: &dyn Device) -> Result<Model, Box<dyn std::error::Error>> {
    let folder = Folder::open_with(path, mmproj)?;
    let config = Config::parse(&folder.require(Sidecar::Config)?)?;
    Ok(Model::load(config, &folder.checkpoint()?, device)?)
}

fn published(config: &Value, tensors: &Stored, device: &dyn Device) -> Model {
    let bytes: std::sync::Arc<[u8]> = pack(tensors).into();
    let checkpoint = Checkpoint::from_bytes("published", bytes).unwrap();
    Model::load(Config::parse(&config.to_string()).unwrap(), &checkpoint, device).unwrap()
}

/// Logits of a prompt, with an image where the model sees, and of one decoded row.
fn logits(model: &Model, device: &dyn Device) -> Vec<f32> {
    prompt_and_row(model, device, 70)
}

/// As [`dense`] without tower and, for Llama, without head norms.
fn text_only(model_type: &str) -> (Value, Stored) {
    let whole = dense();
    let mut tensors = random_checkpoint(&whole, ExpertLayout::Split, false, 31);
    let norms = model_type != "llama";
    tensors
        .retain(|name, _| !name.contains("visual") && (norms || !name.contains("q_norm") && !name.contains("k_norm")));
    let mut config = whole["text_config"].clone();
    config["model_type"] = json!(model_type);
    config["tie_word_embeddings"] = json!(true);
    config["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 1e4});
    (config, tensors)
}

fn check(name: &str, got: &[f32], expected: &[f32], most: f32) {
    let off = furthest(got, expected);
    println!("{name}: {off:.1e}");
    assert!(off <= most, "{name}: {off}");
}

/// How far a converted model is from its original.
fn off(config: &Value, arch: &str, device: &dyn Device) -> f32 {
    let tensors = random_checkpoint(config, ExpertLayout::Split, false, 31);
    let folder = tempfile::tempdir().unwrap();
    let (trunk, _) = support::converter::trunk(config, &tensors, arch, As::Blocks(DType::F32));
    let path = folder.path().join("model-f32.gguf");
    std::fs::write(&path, trunk).unwrap();
    std::fs::write(folder.path().join("mmproj-f32.gguf"), support::converter::tower(config, &tensors)).unwrap();
    assert!(open(&path, &Mmproj::Without, device).unwrap().vision.is_none());
    let got = logits(&open(&path, &Mmproj::Beside, device).unwrap(), device);
    furthest(&got, &logits(&published(config, &tensors, device), device))
}

fn text_off(model_type: &str, device: &dyn Device) -> f32 {
    let (config, tensors) = text_only(model_type);
    let folder = tempfile::tempdir().unwrap();
    let whole = json!({"text_config": config});
    let (trunk, _) = support::converter::trunk(&whole, &tensors, model_type, As::Blocks(DType::F32));
    let path = folder.path().join("model-f32.gguf");
    std::fs::write(&path, trunk).unwrap();
    let got = logits(&open(&path, &Mmproj::Beside, device).unwrap(), device);
    furthest(&got, &logits(&published(&config, &tensors, device), device))
}

/// One-line wrong readings: each must show in the family that it touches.
#[test]
#[cfg(feature = "mutants")]
fn wrong_readings_are_caught() {
    use turbospark_tensor::mutant::{Mutant, set};
    let device = &ReferenceDevice;
    for mutant in
        [Mutant::NormShiftedTwice, Mutant::TiledHeadsIgnored, Mutant::FramesExchanged, Mutant::RowsNotUnpermuted]
    {
        set(Some(mutant));
        let off = match mutant {
            Mutant::RowsNotUnpermuted => text_off("llama", device),
            _ => off(&hybrid(), "qwen35moe", device),
        };
        set(None);
        println!("{mutant:?}: {off:.1e}");
        assert!(off > 1e-3, "{mutant:?} lives: {off}");
    }
}

#[test]
fn converted_models_of_every_family_run_as_their_originals_do() {
    let device = &ReferenceDevice;
    // GGUF routes every layer.
    let mut routed = mixture(64);
    routed["text_config"]["mlp_only_layers"] = json!([]);
    for (config, arch) in [(dense(), "qwen3vl"), (routed, "qwen3vlmoe"), (hybrid(), "qwen35moe")] {
        let off = off(&config, arch, device);
        println!("{arch}: {off:.1e}");
        // -exp(A_log) is rounded to f32 in the file.
        assert!(off < 2e-5, "{arch}: {off}");
    }
}

#[test]
fn converted_text_models_run_as_their_originals_do() {
    for model_type in ["qwen3", "llama"] {
        let off = text_off(model_type, &ReferenceDevice);
        println!("{model_type}: {off:.1e}");
        assert!(off < 1e-6, "{model_type}: {off}");
    }
}

#[test]
fn block_types_run_as_the_weights_that_they_stand_for() {
    let device = &ReferenceDevice;
    let config = dense();
    let tensors = random_checkpoint(&config, ExpertLayout::Split, false, 31);
    for dtype in turbospark_tensor::quant::WRITTEN {
        let folder = tempfile::tempdir().unwrap();
        let (trunk, meaning) = support::converter::trunk(&config, &tensors, "qwen3vl", As::Blocks(dtype));
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, trunk).unwrap();
        std::fs::write(folder.path().join("mmproj-model.gguf"), support::converter::tower(&config, &tensors)).unwrap();
        let got = logits(&open(&path, &Mmproj::Beside, device).unwrap(), device);
        check(&dtype.to_string(), &got, &logits(&published(&config, &meaning, device), device), 1e-5);
    }
}

#[test]
fn nvfp4_blocks_with_their_scales_run_as_the_weights_that_they_stand_for() {
    let device = &ReferenceDevice;
    let mut routed = mixture(64);
    routed["text_config"]["mlp_only_layers"] = json!([]);
    for (config, arch) in [(dense(), "qwen3vl"), (routed, "qwen3vlmoe")] {
        let tensors = random_checkpoint(&config, ExpertLayout::Split, false, 31);
        let folder = tempfile::tempdir().unwrap();
        let (trunk, meaning) = support::converter::trunk(&config, &tensors, arch, As::Nvfp4);
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, trunk).unwrap();
        std::fs::write(folder.path().join("mmproj-model.gguf"), support::converter::tower(&config, &tensors)).unwrap();
        let got = logits(&open(&path, &Mmproj::Beside, device).unwrap(), device);
        check(arch, &got, &logits(&published(&config, &meaning, device), device), 1e-5);
    }
    // Llama's rows are put back in order here too.
    let (config, tensors) = text_only("llama");
    let whole = json!({"text_config": config});
    let (trunk, meaning) = support::converter::trunk(&whole, &tensors, "llama", As::Nvfp4);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, trunk).unwrap();
    let got = logits(&open(&path, &Mmproj::Beside, device).unwrap(), device);
    check("llama", &got, &logits(&published(&config, &meaning, device), device), 1e-5);
}

#[test]
fn trunk_and_tower_in_one_file_run_as_the_checkpoint_does() {
    let device = &ReferenceDevice;
    let mut routed = mixture(64);
    routed["text_config"]["mlp_only_layers"] = json!([]);
    for (config, arch) in [(dense(), "qwen3vl"), (routed, "qwen3vlmoe"), (hybrid(), "qwen35moe")] {
        let mut tensors = random_checkpoint(&config, ExpertLayout::Split, false, 31);
        for (_, tensor) in tensors.iter_mut().filter(|(name, _)| name.contains("attn.qkv")) {
            let rounded: Vec<f32> = tensor.values().into_iter().map(|v| half::f16::from_f32(v).to_f32()).collect();
            *tensor = RawTensor::f32(&tensor.dims.clone(), &rounded);
        }
        let folder = tempfile::tempdir().unwrap();
        // Such files are named by their checksums.
        let path = folder.path().join("sha256-0123");
        std::fs::write(&path, support::one_file::one_file(&config, &tensors, arch)).unwrap();
        let expected = logits(&published(&config, &tensors, device), device);
        check(arch, &logits(&open(&path, &Mmproj::Beside, device).unwrap(), device), &expected, 2e-5);
        // Its owner names it twice.
        let twice = open(&path, &Mmproj::At(path.clone()), device).unwrap();
        check(arch, &logits(&twice, device), &expected, 2e-5);
        assert!(open(&path, &Mmproj::Without, device).unwrap().vision.is_none());
    }
}

#[test]
fn files_of_the_real_converter_run_as_the_checkpoints_do() {
    let Some(folder) = shared("models/gguf") else {
        println!("skipped: the converter's files are not part of the project");
        return;
    };
    let device = &ReferenceDevice;
    for (file, family) in [("fixture-qwen3_vl-bf16", "qwen3_vl"), ("fixture-qwen3_vl_moe-f32", "qwen3_vl_moe")] {
        let got = logits(&open(&folder.join(format!("{file}.gguf")), &Mmproj::Beside, device).unwrap(), device);
        let checkpoint = Checkpoint::open(fixtures().join(family).join("checkpoint")).unwrap();
        let expected = Model::load(support::config(family), &checkpoint, device).unwrap();
        check(file, &got, &logits(&expected, device), 0.0);
    }
}

#[test]
fn a_tower_of_another_model_is_refused_by_name() {
    let Some(folder) = shared("models/gguf") else {
        println!("skipped: the converter's files are not part of the project");
        return;
    };
    let trunk = folder.join("fixture-qwen3_vl-bf16.gguf");
    let said = |mmproj: &str| {
        let mmproj = Mmproj::At(folder.join(mmproj));
        open(&trunk, &mmproj, &ReferenceDevice).unwrap_err().to_string()
    };
    let wrong = said("fixture-qwen3_vl_moe-mmproj-f32.gguf");
    for part in ["fixture-qwen3_vl_moe-mmproj-f32.gguf", "64 wide", "takes 96", "another model", "--mmproj"] {
        assert!(wrong.contains(part), "{wrong}");
    }
    let wrong = said("fixture-qwen3_vl_moe-f32.gguf");
    assert!(wrong.contains("\"qwen3vlmoe\" is no vision tower"), "{wrong}");
    let alone = open(&folder.join("fixture-qwen3_vl-mmproj-f32.gguf"), &Mmproj::Beside, &ReferenceDevice);
    let alone = alone.unwrap_err().to_string();
    assert!(alone.contains("a vision tower (mmproj) without a trunk"), "{alone}");
}
