//! The tiny trained models read the evaluation pages as the reference read them.
#![cfg(feature = "device-cpu")]

use std::path::Path;

use serde_json::Value;
use turbospark::device::Precision;
use turbospark::{GenerateOptions, KvFormat, LoadOptions, Model, Quant, Sampling};
use turbospark_testkit::{assets, shared};

/// Edits that turn one text into the other.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &y) in b.iter().enumerate() {
            let up = row[j + 1];
            row[j + 1] = (up + 1).min(row[j] + 1).min(diagonal + (x != y) as usize);
            diagonal = up;
        }
    }
    row[b.len()]
}

/// What a model made of the evaluation pages.
struct Score {
    /// Per cent of the characters.
    ours: f64,
    /// The reference's.
    theirs: f64,
    different: Vec<String>,
}

fn score(model: &Model, name: &str) -> Score {
    score_by(model, &assets().join(format!("eval/predictions-{name}.jsonl")))
}

/// As [`score`], against predictions that lie elsewhere.
fn score_by(model: &Model, predictions: &Path) -> Score {
    score_each(model, predictions, 1)
}

/// As [`score_by`], of every page whose number is a multiple of `step`.
fn score_each(model: &Model, predictions: &Path, step: usize) -> Score {
    let folder = assets().join("eval");
    let predictions = std::fs::read_to_string(predictions).unwrap();
    let (mut ours, mut theirs, mut characters, mut different) = (0, 0, 0, Vec::new());
    let options = GenerateOptions { sampling: Some(Sampling::default()), max_tokens: Some(400), ..Default::default() };
    let mut session = model.session();
    for line in predictions.lines().step_by(step) {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| row[key].as_str().unwrap();
        let prompt = model.prompt().image_file(folder.join(text("file"))).text(text("prompt")).build().unwrap();
        let answer = session.answer(&prompt, &options).unwrap().text;
        ours += edits(&answer, text("expected"));
        theirs += edits(text("predicted"), text("expected"));
        characters += text("expected").chars().count();
        if answer != text("predicted") {
            different.push(format!("{}: {answer:?}, the reference {:?}", text("file"), text("predicted")));
        }
    }
    let rate = |n: usize| 100.0 * n as f64 / characters as f64;
    Score { ours: rate(ours), theirs: rate(theirs), different }
}

fn check(model: &Model, name: &str) {
    let Score { ours, theirs, different } = score(model, name);
    println!("{name}: character error rate {ours:.2} %, the reference {theirs:.2} %");
    assert!(different.is_empty(), "{name}: {} answers differ:\n{}", different.len(), different.join("\n"));
    assert!((ours - theirs).abs() < 0.1);
}

/// Points of error rate that quantised weights may cost.
fn quantised(open: impl Fn(&LoadOptions) -> Model, name: &str, margins: [(Quant, f64); 5]) {
    for (quant, margin) in margins {
        let Score { ours, theirs, different } =
            score(&open(&LoadOptions { quant: Some(quant), ..options(Precision::Auto) }), name);
        let n = different.len();
        println!("{name} {quant}: character error rate {ours:.2} %, the reference {theirs:.2} %, {n} answers differ");
        assert!(ours <= theirs + margin, "{quant}: {ours:.2} %, {theirs:.2} % unquantised:\n{}", different.join("\n"));
    }
}

/// Keys and values in 8 bits, with the weights as they are stored.
fn with_8_bit_keys(open: impl Fn(&LoadOptions) -> Model, name: &str) {
    let [f16, q8] = [KvFormat::F16, KvFormat::Q8].map(|kv| {
        let Score { ours, theirs, different } = score(&open(&LoadOptions { kv, ..options(Precision::Auto) }), name);
        let n = different.len();
        println!("{name} {kv:?}: character error rate {ours:.2} %, the reference {theirs:.2} %, {n} answers differ");
        ours
    });
    // Measured: docs/quantisation.md, "Keys and values".
    assert!(q8 <= f16 + 1.5, "q8: {q8:.2} %, f16: {f16:.2} %");
}

fn options(precision: Precision) -> LoadOptions {
    LoadOptions { precision, ..LoadOptions::default() }
}

#[test]
#[cfg(feature = "embedded-model")]
fn the_embedded_model_reads_as_the_reference_does_in_f32() {
    check(&Model::embedded(&options(Precision::F32)).unwrap(), "tiny-ocr-qwen3_vl");
}

/// Fewer pages: where there is no other adapter, this one is software.
#[test]
#[cfg(all(feature = "embedded-model", feature = "device-wgpu"))]
fn a_graphics_adapter_reads_as_the_reference_does_in_f32() {
    use turbospark::DeviceChoice;
    let options = LoadOptions { device: DeviceChoice::Gpu, adapter: Some("0".into()), ..options(Precision::F32) };
    if turbospark::device_wgpu::Adapter::all().is_empty() {
        println!("skipped: no Vulkan adapter");
        return;
    }
    for name in ["tiny-ocr-qwen3_vl", "tiny-ocr-qwen3_5", "tiny-ocr-qwen3_5_moe"] {
        let model = match shared(&format!("models/{name}")) {
            _ if name == "tiny-ocr-qwen3_vl" => Model::embedded(&options).unwrap(),
            Some(folder) => Model::open(folder, &options).unwrap(),
            None => {
                println!("skipped: {name} is not part of the project");
                continue;
            }
        };
        let predictions = assets().join(format!("eval/predictions-{name}.jsonl"));
        let Score { different, .. } = score_each(&model, &predictions, 8);
        assert!(different.is_empty(), "{name}: {} answers differ:\n{}", different.len(), different.join("\n"));
    }
}

#[test]
#[cfg(feature = "embedded-model")]
fn the_embedded_model_reads_as_well_by_default() {
    // Where the CPU multiplies in bf16, a near tie may fall the other way; the error rate stays.
    let model = Model::embedded(&options(Precision::Auto)).unwrap();
    let device = model.device().name();
    let rounds = ["(amx", "(avx512bf16", "(neonbf16"].iter().any(|unit| device.contains(unit));
    let Score { ours, theirs, different } = score(&model, "tiny-ocr-qwen3_vl");
    println!("by default: character error rate {ours:.2} %, the reference {theirs:.2} %, {} differ", different.len());
    assert!(rounds || different.is_empty(), "{device}:\n{}", different.join("\n"));
    assert!((ours - theirs).abs() < 0.3, "{ours:.2} %, the reference {theirs:.2} %:\n{}", different.join("\n"));
}

#[test]
#[cfg(feature = "embedded-model")]
fn the_embedded_model_reads_nearly_as_well_quantised() {
    quantised(|o| Model::embedded(o).unwrap(), "tiny-ocr-qwen3_vl", MARGINS);
}

/// Measured, and one answer that runs on: docs/quantisation.md, "How near".
const MARGINS: [(Quant, f64); 5] =
    [(Quant::Q8_0, 1.5), (Quant::Q6_K, 2.5), (Quant::Q5_K, 2.5), (Quant::Q4_K, 4.5), (Quant::Q4_0, 4.0)];

#[test]
fn the_hybrid_model_reads_nearly_as_well_quantised() {
    match shared("models/tiny-ocr-qwen3_5") {
        Some(folder) => quantised(|o| Model::open(&folder, o).unwrap(), "tiny-ocr-qwen3_5", MARGINS),
        None => println!("skipped: tiny-ocr-qwen3_5 is not part of the project"),
    }
}

#[test]
#[cfg(feature = "embedded-model")]
fn the_embedded_model_reads_as_well_with_8_bit_keys() {
    with_8_bit_keys(|o| Model::embedded(o).unwrap(), "tiny-ocr-qwen3_vl");
}

#[test]
fn the_hybrid_models_read_as_well_with_8_bit_keys() {
    for name in ["tiny-ocr-qwen3_5", "tiny-ocr-qwen3_5_moe"] {
        match shared(&format!("models/{name}")) {
            Some(folder) => with_8_bit_keys(|o| Model::open(&folder, o).unwrap(), name),
            None => println!("skipped: {name} is not part of the project"),
        }
    }
}

#[test]
fn gguf_files_read_nearly_as_well() {
    for (file, margin) in [("tiny-ocr-qwen3_vl-q8_0", 1.5), ("tiny-ocr-qwen3_vl-q4_k_m", 4.5)] {
        let Some(path) = shared(&format!("models/gguf/{file}.gguf")) else {
            println!("skipped: {file} is not part of the project");
            continue;
        };
        let Score { ours, theirs, different } =
            score(&Model::open(path, &options(Precision::Auto)).unwrap(), "tiny-ocr-qwen3_vl");
        let n = different.len();
        println!("{file}: character error rate {ours:.2} %, unquantised {theirs:.2} %, {n} answers differ");
        assert!(ours <= theirs + margin, "{file}: {ours:.2} %, {theirs:.2} % unquantised:\n{}", different.join("\n"));
    }
}

#[test]
fn mlx_folders_read_as_the_reference_reads_their_weights() {
    const NAME: &str = "tiny-ocr-qwen3_vl-4bit-g64";
    let files = [format!("models/mlx/{NAME}"), format!("models/mlx/predictions-{NAME}.jsonl")].map(|f| shared(&f));
    let [Some(folder), Some(predictions)] = files else {
        println!("skipped: {NAME} is not part of the project");
        return;
    };
    let Score { ours, theirs, different } =
        score_by(&Model::open(folder, &options(Precision::F32)).unwrap(), &predictions);
    println!("{NAME}: character error rate {ours:.2} %, the reference {theirs:.2} %, {} differ", different.len());
    // Another order of summation flips one answer in eighty.
    assert!(different.len() <= 1, "{}", different.join("\n"));
}

#[test]
fn the_hybrid_model_reads_as_the_reference_does() {
    from_shared("tiny-ocr-qwen3_5");
}

#[test]
fn the_hybrid_mixture_reads_as_the_reference_does() {
    from_shared("tiny-ocr-qwen3_5_moe");
}

fn from_shared(name: &str) {
    match shared(&format!("models/{name}")) {
        Some(folder) => check(&Model::open(folder, &options(Precision::F32)).unwrap(), name),
        None => println!("skipped: {name} is not part of the project"),
    }
}
