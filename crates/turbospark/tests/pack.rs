//! Packed folders: the same model, laid out for reading, whatever it came from and however often it was interrupted.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use support::shapes::{dense, hybrid, mixture};
use support::*;
use turbospark::pack::{PackOptions, PackProgress, pack};
use turbospark::{Cancel, Error, Quant};
use turbospark_device::ReferenceDevice;
use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Model};
use turbospark_testkit::{ExpertLayout, random_checkpoint};
use turbospark_vision::Grid;
use turbospark_weights::packed::{FILE_BYTES, MANIFEST_NAME, UNIT_ALIGNMENT};
use turbospark_weights::{Checkpoint, Entry, Folder, Sidecar};

fn source(config: &Value, experts: ExpertLayout) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let tensors = random_checkpoint(config, experts, true, 41);
    std::fs::write(folder.path().join("model.safetensors"), turbospark_testkit::pack(&tensors)).unwrap();
    folder
}

fn logits(path: &Path, quant: Option<Quant>) -> Vec<u32> {
    let device = &ReferenceDevice;
    let folder = Folder::open(path).unwrap();
    let config = Config::parse(&folder.require(Sidecar::Config).unwrap()).unwrap();
    let how = LoadAs { quant, ..LoadAs::default() };
    let model = Model::load_as(config, &folder.checkpoint().unwrap(), device, &how).unwrap();
    let layout = Layout::new(&[Part::Text(3), Part::Image(Grid { t: 1, h: 4, w: 2 }), Part::Text(3)], 12);
    let images = layout.encode(&model, device);
    let mut room = Room::new(&model, device, 1, layout.rows.len());
    bits(&room.prefill(&layout, &images, 0, 50))
}

fn packed(source: &Path, target: &Path, quant: Option<Quant>) -> turbospark::pack::PackReport {
    let options = PackOptions { quant, ..PackOptions::default() };
    pack(source, target, &options, &Cancel::new(), &mut |_| {}).unwrap()
}

#[test]
fn a_packed_model_gives_the_bits_of_its_source() {
    for (config, layouts) in [
        (dense(), &[ExpertLayout::Fused][..]),
        (mixture(64), &[ExpertLayout::FusedTransposed, ExpertLayout::Fused, ExpertLayout::Split]),
        (hybrid(), &[ExpertLayout::Fused]),
    ] {
        for &layout in layouts {
            let source = source(&config, layout);
            for quant in [None, Some(Quant::Q8_0), Some(Quant::Q4_K)] {
                let target = tempfile::tempdir().unwrap();
                let report = packed(source.path(), target.path(), quant);
                let rounded = report.groups.iter().any(|g| g.relative_error > 0.0);
                assert_eq!(rounded, quant.is_some());
                // Quantising while loading is the same rule on the same rows.
                let same = logits(target.path(), None) == logits(source.path(), quant);
                assert!(same, "{} {layout:?} {quant:?}", config["model_type"]);
            }
        }
    }
}

#[test]
fn units_and_tensors_are_aligned_and_experts_lie_together() {
    let source = source(&mixture(64), ExpertLayout::Fused);
    let target = tempfile::tempdir().unwrap();
    packed(source.path(), target.path(), Some(Quant::Q8_0));
    let manifest: Value = serde_json::from_slice(&std::fs::read(target.path().join(MANIFEST_NAME)).unwrap()).unwrap();
    let number = |v: &Value| v.as_u64().unwrap();
    let mut names = Vec::new();
    for unit in manifest["units"].as_array().unwrap() {
        assert_eq!(number(&unit["offset"]) % UNIT_ALIGNMENT, 0);
        for tensor in unit["tensors"].as_array().unwrap() {
            for part in tensor["parts"].as_array().unwrap() {
                assert_eq!(number(&part["offset"]) % 64, 0);
                assert!(
                    number(&part["offset"]) + number(&part["bytes"])
                        <= number(&unit["offset"]) + number(&unit["bytes"])
                );
            }
        }
        names.push(unit["name"].as_str().unwrap().to_owned());
    }
    assert!(["visual.blocks.0", "layers.0", "layers.3.experts.2", "head"].iter().all(|n| names.contains(&(*n).into())));
    let expert = manifest["units"].as_array().unwrap().iter().find(|u| u["name"] == "layers.0.experts.1").unwrap();
    assert_eq!(expert["tensors"].as_array().unwrap().len(), 3);
    for file in manifest["files"].as_array().unwrap() {
        let bytes = std::fs::read(target.path().join(file["name"].as_str().unwrap())).unwrap();
        use sha2::Digest;
        let hash: String = sha2::Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(file["sha256"], hash.as_str());
        assert!((bytes.len() as u64).is_multiple_of(UNIT_ALIGNMENT) && (bytes.len() as u64) < FILE_BYTES);
    }
}

#[test]
fn an_interrupted_run_leaves_no_model_and_the_next_one_finishes() {
    let source = source(&dense(), ExpertLayout::Fused);
    let target = tempfile::tempdir().unwrap();
    let cancel = Cancel::new();
    let stop = |progress: PackProgress| {
        if progress.bytes > progress.of / 2 {
            cancel.cancel();
        }
    };
    let result = pack(source.path(), target.path(), &PackOptions::default(), &cancel, &mut { stop });
    assert!(matches!(result, Err(Error::Cancelled)), "{result:?}");
    assert!(!target.path().join(MANIFEST_NAME).exists());
    let said = Checkpoint::open(target.path()).unwrap_err().to_string();
    assert!(said.contains("turbospark.partial.json") && said.contains("goes on from there"), "{said}");
    // What was whole is not written again, and nothing of the rest stays.
    let report = packed(source.path(), target.path(), None);
    assert!(report.resumed > 0 && report.resumed < report.bytes, "{} of {}", report.resumed, report.bytes);
    let straight = tempfile::tempdir().unwrap();
    packed(source.path(), straight.path(), None);
    for file in std::fs::read_dir(straight.path()).unwrap().map(|entry| entry.unwrap().file_name()) {
        let [one, other] = [&straight, &target].map(|folder| std::fs::read(folder.path().join(&file)).unwrap());
        assert!(one == other, "{file:?}");
    }
    assert_eq!(logits(target.path(), None), logits(source.path(), None));
    let left: Vec<_> = std::fs::read_dir(target.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("partial")), "{left:?}");
}

#[test]
fn a_folder_with_something_else_in_it_is_left_alone() {
    let source = source(&dense(), ExpertLayout::Fused);
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("thesis.txt"), "years of work").unwrap();
    let result = pack(source.path(), target.path(), &PackOptions::default(), &Cancel::new(), &mut |_| {});
    let said = result.unwrap_err().to_string();
    assert!(said.contains("something else in this folder"), "{said}");
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
    // A packed folder is something else too: packing into it again would destroy it.
    let whole = tempfile::tempdir().unwrap();
    packed(source.path(), whole.path(), None);
    assert!(pack(source.path(), whole.path(), &PackOptions::default(), &Cancel::new(), &mut |_| {}).is_err());
}

#[test]
fn what_is_packed_again_keeps_its_format_unless_asked() {
    let source = source(&dense(), ExpertLayout::Fused);
    let [small, same, smaller] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    packed(source.path(), small.path(), Some(Quant::Q8_0));
    let report = packed(small.path(), same.path(), Some(Quant::Q4_K));
    assert!(report.kept_quantised > 10);
    assert_eq!(logits(same.path(), None), logits(small.path(), None));
    let options = PackOptions { quant: Some(Quant::Q4_K), requantise: true, ..PackOptions::default() };
    let report = pack(small.path(), smaller.path(), &options, &Cancel::new(), &mut |_| {}).unwrap();
    assert_eq!(report.kept_quantised, 0);
    let formats = |path: &Path| -> BTreeMap<String, usize> {
        let checkpoint = Checkpoint::open(path).unwrap();
        checkpoint.entries().fold(BTreeMap::new(), |mut all, (_, entry)| {
            *all.entry(Entry::format(entry)).or_default() += 1;
            all
        })
    };
    assert!(formats(smaller.path()).contains_key("Q4_K") && !formats(same.path()).contains_key("Q4_K"));
}

#[test]
fn a_damaged_folder_is_refused_by_name() {
    let source = source(&dense(), ExpertLayout::Fused);
    let target = tempfile::tempdir().unwrap();
    packed(source.path(), target.path(), Some(Quant::Q8_0));
    let manifest = target.path().join(MANIFEST_NAME);
    let text = std::fs::read_to_string(&manifest).unwrap();
    let weights = target.path().join("weights-00001-of-00001.bin");
    let length = std::fs::metadata(&weights).unwrap().len();
    let refused = |wanted: &str| {
        let said = Checkpoint::open(target.path()).unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}, expected {wanted}");
    };
    for (from, to, wanted) in [
        ("\"version\": 1", "\"version\": 2", "pack the model again"),
        ("\"Q8_0\"", "\"Q9_0\"", "unknown type \"Q9_0\""),
        ("weights-00001-of-00001.bin", "../secret", "no plain name"),
        ("\"group\"", "\"gruop\"", ""),
    ] {
        if text.contains(from) {
            std::fs::write(&manifest, text.replacen(from, to, 1)).unwrap();
            refused(wanted);
        }
    }
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["units"][1]["tensors"][0]["parts"][0]["offset"] = length.into();
    std::fs::write(&manifest, value.to_string()).unwrap();
    refused("end past the file's");
    let mut value: Value = serde_json::from_str(&text).unwrap();
    value["units"][1]["tensors"][0]["shape"][0] = 7.into();
    std::fs::write(&manifest, value.to_string()).unwrap();
    refused("its parts are not the tensor");
    std::fs::write(&manifest, &text).unwrap();
    std::fs::File::options().write(true).open(&weights).unwrap().set_len(length - 4096).unwrap();
    refused("weights-00001-of-00001.bin has");
}
