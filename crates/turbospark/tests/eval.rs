//! The tiny trained models read the evaluation pages as the reference read them.
#![cfg(feature = "device-cpu")]

use serde_json::Value;
use turbospark::device::Precision;
use turbospark::{GenerateOptions, LoadOptions, Model, Sampling};
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

fn check(model: &Model, name: &str) {
    let folder = assets().join("eval");
    let predictions = std::fs::read_to_string(folder.join(format!("predictions-{name}.jsonl"))).unwrap();
    let (mut ours, mut theirs, mut characters, mut different) = (0, 0, 0, Vec::new());
    let options = GenerateOptions { sampling: Some(Sampling::default()), max_tokens: Some(400), ..Default::default() };
    let mut session = model.session();
    for line in predictions.lines() {
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
    println!("{name}: character error rate {:.2} %, the reference {:.2} %", rate(ours), rate(theirs));
    assert!(different.is_empty(), "{name}: {} answers differ:\n{}", different.len(), different.join("\n"));
    assert!((rate(ours) - rate(theirs)).abs() < 0.1);
}

fn options(precision: Precision) -> LoadOptions {
    LoadOptions { precision, ..LoadOptions::default() }
}

#[test]
#[cfg(feature = "embedded-model")]
fn the_embedded_model_reads_as_the_reference_does_in_f32() {
    check(&Model::embedded(&options(Precision::F32)).unwrap(), "tiny-ocr-qwen3_vl");
}

#[test]
#[cfg(feature = "embedded-model")]
fn the_embedded_model_reads_as_the_reference_does_by_default() {
    check(&Model::embedded(&options(Precision::Auto)).unwrap(), "tiny-ocr-qwen3_vl");
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
