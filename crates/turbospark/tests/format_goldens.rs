//! Quantised checkpoints give the logits that the reference gives on their dequantised weights.
//!
//! `data/formats.json` is what `scripts/golden_formats.py` recorded with transformers in f32, from weights that it
//! dequantised by formulas of its own; those of GGUF files by the public `gguf` package. It reads the folders that this
//! test writes with `TURBOSPARK_FORMATS=DIR cargo test --release -p turbospark --test format_goldens`.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::formats::{Stored, formats, quantised};
use support::*;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::Model;
use turbospark_models::config::Config;
use turbospark_tensor::{DType, widen_into};
use turbospark_testkit::{RawTensor, fixtures, pack, read_raw, shared};
use turbospark_vision::Grid;
use turbospark_weights::gguf::Mmproj;
use turbospark_weights::{Checkpoint, Folder, Sidecar};

/// Formats of folders that were recorded.
const FORMATS: [&str; 13] = [
    "fp8 128x128",
    "fp8 per tensor",
    "awq gemm",
    "awq gemv",
    "gptq 4-bit with zeros",
    "gptq 4-bit activation order",
    "gptq 3-bit",
    "gptq 7-bit in planes",
    "gptq dynamic",
    "compressed 4-bit with zeros",
    "compressed 4-bit activation order",
    "compressed int8",
    "compressed nvfp4",
];

/// Trunks of GGUF files that were recorded, with their tower.
const FILES: [&str; 2] = ["tiny-ocr-qwen3_vl-q8_0.gguf", "tiny-ocr-qwen3_vl-q4_k_m.gguf"];

/// Of each row of logits every so many are kept.
const STEP: usize = 40;

/// The prompt of [`prompt_and_row`].
const PARTS: [Part; 3] = [Part::Text(3), Part::Image(Grid { t: 1, h: 4, w: 2 }), Part::Text(3)];

/// The fixture's checkpoint, experts one by one.
fn stored(family: &str) -> Stored {
    let folder = fixtures().join(family).join("checkpoint");
    let widened = |t: RawTensor| {
        let mut wide = vec![0.0; t.dims.iter().product()];
        let dtype = if t.dtype() == safetensors::Dtype::BF16 { DType::BF16 } else { DType::F32 };
        widen_into(&t.bytes, dtype, &mut wide);
        RawTensor::f32(&t.dims, &wide)
    };
    let mut all: Stored = read_raw(&folder).unwrap().into_iter().map(|(name, t)| (name, widened(t))).collect();
    let fused: Vec<String> = all.keys().filter(|name| name.contains(".experts.")).cloned().collect();
    for name in fused {
        let t = all.remove(&name).unwrap();
        let &[experts, a, b] = t.dims.as_slice() else { panic!("{name}: of all experts") };
        // Qwen3-VL's are stored `[in, out]`.
        let turned = family == "qwen3_vl_moe";
        let (out, inner) = if turned { (b, a) } else { (a, b) };
        let values = t.values();
        let at = |e: usize, o: usize, i: usize| values[e * a * b + if turned { i * b + o } else { o * b + i }];
        let (layer, part) = name.split_once(".experts.").unwrap();
        let parts: &[(&str, std::ops::Range<usize>)] = match part {
            "gate_up_proj" => &[("gate_proj", 0..out / 2), ("up_proj", out / 2..out)],
            _ => &[("down_proj", 0..out)],
        };
        for (e, (part, rows)) in (0..experts).flat_map(|e| parts.iter().map(move |p| (e, p))) {
            let own: Vec<f32> =
                rows.clone().flat_map(|o| (0..inner).map(move |i| (o, i))).map(|(o, i)| at(e, o, i)).collect();
            all.insert(format!("{layer}.experts.{e}.{part}.weight"), RawTensor::f32(&[rows.len(), inner], &own));
        }
    }
    all
}

fn config_of(family: &str) -> Value {
    let path = fixtures().join(family).join("checkpoint/config.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// What is asked: ids, with the image's own in its place, and its patches.
fn write_inputs(folder: &Path) {
    let layout = Layout::new(&PARTS, 12);
    let id = |row: &turbospark_models::Row| match row.source {
        turbospark_models::Source::Token(id) => i64::from(id),
        _ => -1,
    };
    let ids: Vec<u8> = layout.rows.iter().map(id).chain([5]).flat_map(i64::to_le_bytes).collect();
    let patches = &layout.patches[0];
    let all = BTreeMap::from([
        ("ids".to_owned(), RawTensor::new(safetensors::Dtype::I64, &[layout.rows.len() + 1], ids)),
        ("patches".to_owned(), RawTensor::f32(&[patches.len() / 1536, 1536], patches)),
    ]);
    std::fs::write(folder.join("inputs.safetensors"), pack(&all)).unwrap();
}

fn write(folder: &Path, config: &Value, tensors: &Stored) {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), pack(tensors)).unwrap();
}

fn recorded() -> BTreeMap<String, Vec<f32>> {
    serde_json::from_str(include_str!("data/formats.json")).unwrap()
}

/// The logits that are kept.
fn kept(logits: &[f32]) -> Vec<f32> {
    logits.iter().step_by(STEP).copied().collect()
}

fn check(name: &str, model: &Model, device: &dyn Device, most: f32) {
    let all = recorded();
    let expected = all.get(name).unwrap_or_else(|| panic!("{name} is not recorded"));
    let off = furthest(&kept(&prompt_and_row(model, device, 3)), expected);
    println!("{name}: {off:.1e}");
    assert!(off <= most, "{name}: {off}");
}

/// A quarter to a half of the fixtures' own tolerance for logits after an image, which is ten times what the reference
/// differs from itself by in f64: less than any wrong reading costs.
fn tolerance(family: &str) -> f32 {
    if family.starts_with("qwen3_5") { 6e-4 } else { 1e-4 }
}

fn folders(device: &dyn Device) {
    let out = std::env::var_os("TURBOSPARK_FORMATS").map(PathBuf::from);
    if let Some(out) = &out {
        std::fs::create_dir_all(out).unwrap();
        write_inputs(out);
    }
    for family in FAMILIES {
        let source = stored(family);
        for format in formats().iter().filter(|f| FORMATS.contains(&f.name)) {
            let mut config = config_of(family);
            config[format.config.0] = format.config.1.clone();
            let (tensors, _) = quantised(&source, format);
            let name = format!("{family} {}", format.name);
            if let Some(out) = &out {
                write(&out.join(&name), &config, &tensors);
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            write(folder.path(), &config, &tensors);
            let checkpoint = Checkpoint::open(folder.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
            let model = Model::load(Config::parse(&config.to_string()).unwrap(), &checkpoint, device);
            check(&name, &model.unwrap_or_else(|e| panic!("{name}: {e}")), device, tolerance(family));
        }
    }
}

fn files(device: &dyn Device) {
    let Some(folder) = shared("models/gguf") else {
        println!("skipped: the GGUF files are not part of the project");
        return;
    };
    for name in FILES {
        let folder = Folder::open_with(folder.join(name), &Mmproj::Beside).unwrap();
        let config = Config::parse(&folder.require(Sidecar::Config).unwrap()).unwrap();
        let model = Model::load(config, &folder.checkpoint().unwrap(), device).unwrap();
        check(name, &model, device, tolerance(name));
    }
}

#[test]
fn folders_give_the_logits_of_the_reference() {
    folders(&ReferenceDevice);
}

#[test]
fn files_give_the_logits_of_the_reference() {
    files(&ReferenceDevice);
}

#[test]
#[cfg(feature = "device-cpu")]
fn on_the_processor_too() {
    let options = turbospark_device_cpu::CpuOptions {
        precision: turbospark_device::Precision::F32,
        threads: Some(2),
        ..Default::default()
    };
    let device = turbospark_device_cpu::CpuDevice::new(options).unwrap();
    folders(&device);
    files(&device);
}
