//! What a trace says of a fixture set that it can't rerun whole.

use std::path::Path;

use turbospark::KvFormat;
use turbospark::trace::{TraceError, TraceReport, trace_fixtures, trace_matching};
use turbospark_device::ReferenceDevice;
use turbospark_testkit::fixtures;

fn trace(set: &[(&str, &[u8])]) -> Result<TraceReport, TraceError> {
    let (fixtures, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (path, bytes) in set {
        let path = fixtures.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    trace_fixtures(fixtures.path(), out.path(), &ReferenceDevice, KvFormat::Auto, &mut |_| {})
}

#[test]
fn a_case_of_an_unknown_kind_is_reported_and_the_rest_is_rerun() {
    let sizes = std::fs::read(fixtures().join("preprocess/smart_resize.json")).unwrap();
    let index = br#"{"files": {"ops/new.safetensors": {}, "else/where.json": {}, "preprocess/smart_resize.json": {}}}"#;
    let report = trace(&[("INDEX.json", index), ("preprocess/smart_resize.json", &sizes)]).unwrap_or_else(|e| {
        panic!("{e}");
    });
    assert_eq!(report.files, ["preprocess/smart_resize.json"]);
    let left_out: Vec<&str> = report.left_out.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(left_out, ["else/where.json", "ops/new.safetensors"]);
}

#[test]
fn what_is_wrong_with_a_set_is_said_with_its_path() {
    let message = |set: &[(&str, &[u8])]| trace(set).unwrap_err().to_string();
    assert!(message(&[]).contains("INDEX.json"));
    assert!(message(&[("INDEX.json", b"[]")]).contains("it has no \"files\""));
    let index = br#"{"files": {"ops/norms.safetensors": {}}}"#;
    assert!(message(&[("INDEX.json", index)]).contains("norms.safetensors"));
    let cut = message(&[("INDEX.json", index), ("ops/norms.safetensors", b"\x08\0\0\0\0\0\0\0{}")]);
    assert!(cut.contains("norms.safetensors"), "{cut}");
    let other = std::fs::read(fixtures().join("ops/activations.safetensors")).unwrap();
    let other = message(&[("INDEX.json", index), ("ops/norms.safetensors", &other)]);
    assert!(other.contains("\"weight\" is missing") || other.contains("two sides"), "{other}");
}

#[test]
fn only_the_wanted_cases_are_rerun() {
    let out = tempfile::tempdir().unwrap();
    let mut said = Vec::new();
    let wanted = |path: &str| path == "qwen3_5/gdn_3.safetensors";
    let progress = &mut |line: &str| said.push(line.to_owned());
    let report = trace_matching(&fixtures(), out.path(), &ReferenceDevice, KvFormat::Auto, &wanted, progress).unwrap();
    assert_eq!(report.files, ["qwen3_5/gdn_3.safetensors"]);
    assert_eq!(said, ["qwen3_5: loading", "qwen3_5/gdn_3.safetensors"]);
    assert!(out.path().join(Path::new("qwen3_5/gdn_3.safetensors")).exists());
}
