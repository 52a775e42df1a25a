//! Quantised checkpoints run as the checkpoints of their dequantised weights do.
//!
//! Each format is written by the plain packers of `support/packers.rs`, which also say what the packed weights mean;
//! the same values stored as F32 must give the same logits, so that a swapped nibble, a zero point one off or a scale
//! along the wrong axis can't hide behind a loose tolerance.

mod support;

use std::path::Path;

use serde_json::Value;
use support::formats::{Format, Stored, formats, quantised, with_one};
use support::shapes::{dense, hybrid, mixture};
use support::*;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::config::Config;
use turbospark_models::{Model, Row, Source};
use turbospark_testkit::{ExpertLayout, RawTensor, Values, pack, random_checkpoint, read, shared};
use turbospark_weights::{Checkpoint, Entry};

fn load(config: &Value, tensors: &Stored, device: &dyn Device) -> Model {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), config, tensors);
    let checkpoint = Checkpoint::open(folder.path()).unwrap_or_else(|e| panic!("{e}"));
    Model::load(Config::parse(&config.to_string()).unwrap(), &checkpoint, device).unwrap_or_else(|e| panic!("{e}"))
}

fn write(folder: &Path, config: &Value, tensors: &Stored) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), pack(tensors)).unwrap();
}

/// Logits of a prompt with an image, and of one decoded row.
fn logits(model: &Model, device: &dyn Device) -> Vec<f32> {
    prompt_and_row(model, device, 3)
}

fn check_all(device: &dyn Device, most: f32) {
    for config in [dense(), mixture(64), hybrid()] {
        for format in formats() {
            let furthest = off(&config, &format, device);
            println!("{} {}: {furthest:.1e}", config["model_type"], format.name);
            assert!(furthest <= most, "{} {}: {furthest}", config["model_type"], format.name);
        }
    }
}

/// How far a format's logits are from those of its dequantised weights.
fn off(config: &Value, format: &Format, device: &dyn Device) -> f32 {
    let source = random_checkpoint(config, ExpertLayout::Split, false, 21);
    let (mut folder, plain) = quantised(&source, format);
    if format.mlx {
        with_one(&mut folder);
    }
    let expected = logits(&load(config, &plain, device), device);
    let mut config = config.clone();
    config[format.config.0] = format.config.1.clone();
    furthest(&logits(&load(&config, &folder, device), device), &expected)
}

/// One-line wrong readings: each must show in the formats that it touches.
#[test]
#[cfg(feature = "mutants")]
fn wrong_readings_are_caught() {
    use turbospark_tensor::mutant::{Mutant, set};
    let of = |name: &str| formats().into_iter().find(|f| f.name == name).unwrap();
    for (mutant, config, name) in [
        (Mutant::NibblesSwapped, dense(), "mlx 4-bit g32"),
        (Mutant::NibblesSwapped, dense(), "awq gemm"),
        (Mutant::ZeroPointOneOff, dense(), "gptq 4-bit"),
        (Mutant::ZeroPointOneOff, dense(), "gptq 3-bit"),
        (Mutant::ScalesNotTurned, dense(), "gptq 8-bit"),
        (Mutant::ScalesNotTurned, dense(), "awq gemm"),
        (Mutant::NormShiftedTwice, hybrid(), "mlx 8-bit g64"),
    ] {
        set(Some(mutant));
        let off = off(&config, &of(name), &ReferenceDevice);
        set(None);
        println!("{mutant:?} in {name}: {off:.1e}");
        assert!(off > 1e-3, "{mutant:?} lives in {name}: {off}");
    }
}

#[test]
fn folders_of_the_real_tool_give_the_logits_of_the_reference() {
    let device = &ReferenceDevice;
    for name in ["fixture-qwen3_vl-4bit-g32", "fixture-qwen3_vl-mxfp4"] {
        let files = [format!("models/mlx/{name}"), format!("models/mlx/golden/{name}.safetensors")];
        let [Some(folder), Some(golden)] = files.map(|f| shared(&f)) else {
            println!("skipped: {name} is not part of the project");
            continue;
        };
        let golden = read(&golden).unwrap();
        let Values::I64(ids) = &golden["input_ids"].values else { panic!("ids are integers") };
        let Values::F32(expected) = &golden["logits"].values else { panic!("logits are floats") };
        let config = Config::parse(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap();
        let model = Model::load(config, &Checkpoint::open(&folder).unwrap(), device).unwrap();
        let row =
            |(i, &id): (usize, &i64)| Row { source: Source::Token(id as u32), position: [i as u32; 3], logits: true };
        let rows: Vec<Row> = ids.iter().enumerate().map(row).collect();
        let mut room = Room::new(&model, device, 1, rows.len());
        let piece = Piece { rows: &rows, start: 0, decode: false, images: &[], snapshots: vec![] };
        let off = furthest(&room.forward(&[(0, piece)]), expected);
        println!("{name}: {off:.1e}");
        // The f32 tolerance of the fixtures for logits of this size.
        assert!(off < 1e-4, "{name}: {off}");
    }
}

#[test]
fn every_quantised_folder_runs_as_its_dequantised_weights_do() {
    check_all(&ReferenceDevice, 1e-5);
}

#[test]
#[cfg(feature = "device-cpu")]
fn on_the_processor_too() {
    let options = turbospark_device_cpu::CpuOptions {
        precision: turbospark_device::Precision::F32,
        threads: Some(2),
        ..Default::default()
    };
    check_all(&turbospark_device_cpu::CpuDevice::new(options).unwrap(), 1e-4);
}

/// What writers add to a checkpoint without changing what it means, and what looks like it.
#[test]
fn a_copy_of_the_embedding_and_frequencies_are_left_out() {
    let mut config = dense();
    config["tie_word_embeddings"] = Value::Bool(true);
    let mut stored = random_checkpoint(&config, ExpertLayout::Split, false, 21);
    stored.remove("lm_head.weight");
    let device = &ReferenceDevice;
    let expected = logits(&load(&config, &stored, device), device);
    let table = stored["model.language_model.embed_tokens.weight"].clone();
    stored
        .insert("model.language_model.layers.0.self_attn.rotary_emb.inv_freq".into(), RawTensor::f32(&[2], &[1.0; 2]));
    stored.insert("lm_head.weight".into(), table.clone());
    assert_eq!(logits(&load(&config, &stored, device), device), expected);
    let mut other = table.values();
    *other.last_mut().unwrap() += 1.0;
    stored.insert("lm_head.weight".into(), RawTensor::f32(&table.dims, &other));
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &config, &stored);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let error = Model::load(Config::parse(&config.to_string()).unwrap(), &checkpoint, device).unwrap_err().to_string();
    assert!(error.contains("lm_head.weight") && error.contains("tie_word_embeddings"), "{error}");
}

/// Codes, scales, biases and the order of columns each find their place in a packed folder.
#[test]
fn laid_out_for_reading_they_stay_what_they_are() {
    let device = &ReferenceDevice;
    for format in formats().iter().filter(|f| ["gptq", "compressed", "awq"].iter().any(|kind| f.name.contains(kind))) {
        let (folder, _) = quantised(&random_checkpoint(&dense(), ExpertLayout::Split, false, 21), format);
        let mut config = dense();
        config[format.config.0] = format.config.1.clone();
        let [source, target] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        write(source.path(), &config, &folder);
        let options = turbospark::pack::PackOptions::default();
        turbospark::pack::pack(source.path(), target.path(), &options, &turbospark::Cancel::new(), &mut |_| {})
            .unwrap();
        let of = |path: &Path| {
            let checkpoint = Checkpoint::open(path).unwrap();
            let scaled = checkpoint.entries().filter(|(_, entry)| matches!(entry, Entry::Scaled(_))).count();
            let model = Model::load(Config::parse(&config.to_string()).unwrap(), &checkpoint, device).unwrap();
            (scaled, logits(&model, device))
        };
        let (expected, got) = (of(source.path()), of(target.path()));
        assert!(expected.0 > 0, "{}: nothing stays quantised", format.name);
        assert!(expected == got, "{}", format.name);
    }
}
