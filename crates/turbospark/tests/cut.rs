//! A mapped file that is cut while a model runs: an error that names it, and the process lives.
#![cfg(all(unix, feature = "device-cpu"))]

use turbospark::{GenerateOptions, LoadOptions, Model};
use turbospark_testkit::fixtures;

#[test]
fn a_mapped_file_that_is_cut_is_an_error_and_not_the_end() {
    turbospark::weights::guard_mappings();
    let folder = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(fixtures().join("qwen3_vl/checkpoint")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let model = Model::open(folder.path(), &LoadOptions::default()).unwrap();
    let prompt = model.prompt_from_ids((1..40).collect(), vec![], vec![]).unwrap();
    let options = GenerateOptions { max_tokens: Some(3), ..GenerateOptions::default() };
    model.session().answer(&prompt, &options).unwrap();
    let weights = std::fs::File::options().write(true).open(folder.path().join("model.safetensors")).unwrap();
    let length = weights.metadata().unwrap().len();
    weights.set_len(8192).unwrap();
    let said = model.session().answer(&prompt, &options).unwrap_err().to_string();
    assert!(said.contains("model.safetensors") && said.contains(&format!("{length} bytes became 8192")), "{said}");
    // And again: what was lost stays lost.
    assert!(model.session().answer(&prompt, &options).is_err());
}
