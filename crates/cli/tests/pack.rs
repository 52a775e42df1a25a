//! `turbospark pack`: what it writes is read like its source, and `--check` says what it cost.

mod common;

use common::{RECEIPT_TEXT, root, run};

/// Packs the embedded model's folder to `target` and gives the report.
fn pack(target: &str, options: &[&str]) -> serde_json::Value {
    let source = root().join("assets/tiny-ocr-qwen3_vl");
    let arguments = ["pack", source.to_str().unwrap(), target, "--json"];
    run(arguments.iter().chain(options)).ends_with_code(0).objects().remove(0)
}

fn reads_the_receipt(model: &str) {
    let receipt = root().join("examples/receipt.png");
    let ran = run(["read", "--model", model, receipt.to_str().unwrap()]).ends_with_code(0);
    assert_eq!(ran.out.trim(), RECEIPT_TEXT);
}

#[test]
fn a_packed_model_is_held_against_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("packed");
    let target = target.to_str().unwrap();
    let report = pack(target, &["--quant", "q8_0", "--check"]);
    let check = &report["check"];
    assert!(check["rows"].as_u64().unwrap() > 500, "{report}");
    let kl = check["kl_divergence"].as_f64().unwrap();
    assert!(kl > 0.0 && kl < 0.002 && check["top1"].as_f64().unwrap() > 0.95, "{report}");
    let group = |part: &str| {
        let groups = report["groups"].as_array().unwrap();
        groups.iter().filter(|g| g["part"] == part).map(|g| g["format"].as_str().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!((group("vision tower"), group("mlp")), (vec!["BF16"], vec!["Q8_0"]));
    reads_the_receipt(target);
    let source = root().join("assets/tiny-ocr-qwen3_vl");
    let again = run(["pack", source.to_str().unwrap(), target, "--quant", "q8_0"]).ends_with_code(1);
    again.says(&[target, "an empty or new one"]);
}

#[test]
fn what_is_only_laid_out_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("packed");
    let report = pack(target.to_str().unwrap(), &["--check"]);
    assert_eq!(report["check"]["kl_divergence"], 0.0, "{report}");
    assert_eq!(report["check"]["top1"], 1.0);
    reads_the_receipt(target.to_str().unwrap());
}

#[test]
fn gguf_files_are_read_with_their_tower() {
    let folder = tempfile::tempdir().unwrap();
    pack(folder.path().to_str().unwrap(), &["--format", "gguf", "--quant", "q8_0"]);
    let trunk = folder.path().join("tiny-ocr-qwen3_vl-Q8_0.gguf");
    assert!(folder.path().join("mmproj-tiny-ocr-qwen3_vl-BF16.gguf").exists());
    reads_the_receipt(trunk.to_str().unwrap());
}
