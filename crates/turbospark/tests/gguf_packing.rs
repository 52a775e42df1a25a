//! GGUF files that are quantised, written from other formats, refused or interrupted.

mod support;

use std::path::Path;

use serde_json::{Value, json};
use support::packers;
use support::shapes::{dense, hybrid, mixture};
use support::written::*;
use support::*;
use turbospark::pack::{PackOptions, pack};
use turbospark::{Cancel, Error};
use turbospark_device::ReferenceDevice;
use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Model, Quant, plan};
use turbospark_testkit::{ExpertLayout, RawTensor, random_checkpoint};
use turbospark_weights::gguf;
use turbospark_weights::{Checkpoint, Entry, Folder};

#[test]
fn blocks_are_those_that_are_planned() {
    for config in [with_vocabulary(dense()), experts_everywhere(), with_vocabulary(hybrid())] {
        let source = folder(&config, &random_checkpoint(&config, ExpertLayout::FusedTransposed, true, 3));
        for quant in [Quant::Q8_0, Quant::Q4_K] {
            let target = tempfile::tempdir().unwrap();
            let report = written(source.path(), target.path(), Some(quant));
            assert_eq!(report.files.len(), 2);
            let checkpoint = Folder::open(target.path()).unwrap().checkpoint().unwrap();
            let how = LoadAs { quant: Some(quant), ..LoadAs::default() };
            let parsed = Config::parse(&config.to_string()).unwrap();
            let own = Checkpoint::open(source.path()).unwrap();
            let mut blocks = 0;
            for planned in plan(parsed, &own, &how).unwrap() {
                let fused = planned.name.strip_suffix(".gate_up_proj").map(|n| format!("{n}.gate_proj.weight"));
                let name = fused.unwrap_or_else(|| match planned.name.ends_with("experts.down_proj") {
                    true => format!("{}.weight", planned.name),
                    false => planned.name.clone(),
                });
                let Some(Entry::Place(place)) = checkpoint.entry(&name) else { continue };
                if let Some(target) = planned.target {
                    assert_eq!(place.dtype, target, "{quant} {name}");
                    blocks += 1;
                } else {
                    assert!(place.dtype.is_float(), "{quant} {name}: {}", place.dtype);
                }
            }
            assert!(blocks > 20, "{blocks}");
            logits(&opened(target.path()));
        }
    }
}

#[test]
fn quantised_files_are_the_quantised_model() {
    let config = with_vocabulary(dense());
    let source = folder(&config, &random_checkpoint(&config, ExpertLayout::Split, false, 8));
    let target = tempfile::tempdir().unwrap();
    written(source.path(), target.path(), Some(Quant::Q4_K));
    let checkpoint = Checkpoint::open(source.path()).unwrap();
    let how = LoadAs { quant: Some(Quant::Q4_K), ..LoadAs::default() };
    let parsed = Config::parse(&config.to_string()).unwrap();
    let quantised = Model::load_as(parsed, &checkpoint, &ReferenceDevice, &how).unwrap();
    assert_eq!(bits(&logits(&opened(target.path()))), bits(&logits(&quantised)));
}

#[test]
fn a_file_of_a_file_is_the_same_file() {
    for config in [with_vocabulary(dense()), with_vocabulary(hybrid())] {
        let source = folder(&config, &random_checkpoint(&config, ExpertLayout::Split, false, 8));
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let first = written(source.path(), first.path(), Some(Quant::Q8_0));
        let second = written(&first.model, second.path(), None);
        for (a, b) in first.files.iter().zip(&second.files) {
            assert_eq!(a.file_name(), b.file_name());
            let [a, b] = [a, b].map(|path| gguf::open(path).unwrap());
            assert_eq!(keys(&a), keys(&b));
            assert_same_tensors("again", &b, &a);
        }
    }
    let (config, tensors) = text_only("llama", 4);
    let source = folder(&config, &tensors);
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let first = written(source.path(), first.path(), None);
    let second = written(&first.model, second.path(), None);
    assert_same_tensors("llama", &gguf::open(&second.model).unwrap(), &gguf::open(&first.model).unwrap());
}

#[test]
fn weights_with_scales_are_widened_and_quantised() {
    let config = with_vocabulary(hybrid());
    let packer = packers::fp8([128, 128], "weight_scale_inv");
    let (mut scaled, mut plain) = (Stored::new(), Stored::new());
    for (name, t) in random_checkpoint(&config, ExpertLayout::Split, false, 5) {
        let linear = t.dims.len() == 2 && !name.contains("visual") && name.ends_with("_proj.weight");
        let packed = linear.then(|| packer(name.trim_end_matches(".weight"), &t.values(), t.dims[0], t.dims[1]));
        match packed.flatten() {
            Some(packed) => {
                plain.insert(name, RawTensor::f32(&t.dims, &packed.meaning));
                scaled.extend(packed.tensors);
            }
            None => {
                plain.insert(name.clone(), t.clone());
                scaled.insert(name, t);
            }
        }
    }
    let mut quantised = config.clone();
    quantised["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    let (scaled, plain) = (folder(&quantised, &scaled), folder(&config, &plain));
    let [a, b, c] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let reports =
        [written(scaled.path(), a.path(), Some(Quant::Q8_0)), written(plain.path(), b.path(), Some(Quant::Q8_0))];
    assert_eq!((reports[0].widened, reports[0].kept_quantised), (0, 0));
    for (a, b) in reports[0].files.iter().zip(&reports[1].files) {
        assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{}", a.display());
    }
    let kept = written(scaled.path(), c.path(), None);
    assert!(kept.widened > 10, "{}", kept.widened);
    let furthest = furthest(&logits(&opened(c.path())), &logits(&opened(plain.path())));
    assert!(furthest < 0.02, "{furthest}");
}

fn refused(config: &Value, tensors: &Stored, change: impl Fn(&Path)) -> String {
    let source = folder(config, tensors);
    change(source.path());
    let target = tempfile::tempdir().unwrap();
    let error = pack(source.path(), target.path(), &options(None), &Cancel::new(), &mut |_| {}).unwrap_err();
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 0);
    error.to_string()
}

#[test]
fn what_gguf_has_no_words_for_is_refused() {
    let mixed = with_vocabulary(mixture(64));
    let said = refused(&mixed, &random_checkpoint(&mixed, ExpertLayout::Split, false, 1), |_| {});
    assert!(said.contains("layer 2") && said.contains("qwen3_vl_moe"), "{said}");

    // Blocks of a packed folder hold two value heads each, in the published order.
    let config = with_vocabulary(hybrid());
    let source = folder(&config, &random_checkpoint(&config, ExpertLayout::Split, false, 1));
    let [blocks, target] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let as_folder = PackOptions { quant: Some(Quant::Q8_0), ..PackOptions::default() };
    pack(source.path(), blocks.path(), &as_folder, &Cancel::new(), &mut |_| {}).unwrap();
    let said = pack(blocks.path(), target.path(), &options(None), &Cancel::new(), &mut |_| {}).unwrap_err().to_string();
    assert!(["out_proj", "Q8_0", "value heads of 16"].iter().all(|part| said.contains(part)), "{said}");

    let (config, tensors) = text_only("qwen3", 1);
    let edit = |path: &Path, from: &str, to: &str| {
        let path = path.join("tokenizer.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let edited = text.replacen(from, to, 1);
        assert_ne!(text, edited);
        std::fs::write(path, edited).unwrap();
    };
    for (from, to, parts) in [
        ("\\\\p{N}|", "\\\\p{N}+|", ["pre-tokenizer", "qwen2"]),
        ("\"NFC\"", "\"NFKC\"", ["normalizer", "NFKC"]),
        ("\"lstrip\":false", "\"lstrip\":true", ["<|endoftext|>", "lstrip"]),
        ("\"ByteLevel\",\"add_prefix_space\":true", "\"WordPiece\",\"x\":true", ["decoder", "WordPiece"]),
    ] {
        let said = refused(&config, &tensors, |folder| edit(folder, from, to));
        assert!(parts.iter().all(|part| said.contains(part)) && said.contains("GGUF can't say"), "{said}");
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn nothing_is_written_over_and_nothing_is_named_before_it_is_whole() {
    let config = with_vocabulary(dense());
    let source = folder(&config, &random_checkpoint(&config, ExpertLayout::Split, false, 1));
    let [target, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let cancel = Cancel::new();
    let mut calls = 0;
    let error = pack(source.path(), target.path(), &options(None), &cancel, &mut |_| {
        calls += 1;
        if calls == 40 {
            cancel.cancel();
        }
    });
    assert!(matches!(error, Err(Error::Cancelled)), "{error:?}");
    assert_eq!(names(target.path()), ["m-F32.gguf.partial", "m-F32.gguf.partial.json"]);
    let report = written(source.path(), target.path(), None);
    assert!(report.resumed > 0 && report.resumed < report.bytes, "{} of {}", report.resumed, report.bytes);
    assert_eq!(names(target.path()), ["m-F32.gguf", "mmproj-m-F32.gguf"]);
    let again = pack(source.path(), target.path(), &options(None), &Cancel::new(), &mut |_| {}).unwrap_err();
    assert!(again.to_string().contains("m-F32.gguf") && again.to_string().contains("already"), "{again}");
    assert_eq!(names(target.path()).len(), 2);

    // In two runs as in one.
    for (a, b) in report.files.iter().zip(&written(source.path(), other.path(), None).files) {
        assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{}", a.display());
    }

    // A weight that can't be written: no run could go on.
    let mut tensors = random_checkpoint(&config, ExpertLayout::Split, false, 1);
    let last = "model.language_model.layers.3.mlp.down_proj.weight";
    tensors.insert(last.to_owned(), RawTensor::f32(&[256, 256], &vec![f32::NAN; 256 * 256]));
    let (source, target) = (folder(&config, &tensors), tempfile::tempdir().unwrap());
    let said = pack(source.path(), target.path(), &options(Some(Quant::Q8_0)), &Cancel::new(), &mut |_| {});
    assert!(said.unwrap_err().to_string().contains(last));
    assert_eq!(names(target.path()), Vec::<String>::new());
}

/// The run that is killed: this test itself, in a process of its own.
const KILLED: &str = "TURBOSPARK_TEST_PACK_INTO";

#[test]
fn a_killed_run_goes_on() {
    if let Some(target) = std::env::var_os(KILLED) {
        let mut at = 0;
        let mut progress = |p: turbospark::pack::PackProgress| {
            at = p.bytes;
            if 2 * at > p.of {
                std::process::exit(9);
            }
        };
        let paths = target.into_string().unwrap();
        let (source, target) = paths.split_once('\n').unwrap();
        let _ = pack(source, target, &options(Some(Quant::Q8_0)), &Cancel::new(), &mut progress);
        unreachable!("killed at {at} bytes");
    }
    let config = with_vocabulary(hybrid());
    let source = folder(&config, &random_checkpoint(&config, ExpertLayout::Split, true, 6));
    let [target, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let paths = format!("{}\n{}", source.path().display(), target.path().display());
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_run_goes_on"])
        .env(KILLED, paths)
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(9), "{run:?}");
    assert!(names(target.path()).iter().all(|name| name.contains(".partial")), "{:?}", names(target.path()));
    let report = written(source.path(), target.path(), Some(Quant::Q8_0));
    assert!(report.resumed > report.bytes / 4, "{} of {}", report.resumed, report.bytes);
    for (a, b) in report.files.iter().zip(&written(source.path(), other.path(), Some(Quant::Q8_0)).files) {
        assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{}", a.display());
    }
    assert_eq!(names(target.path()).len(), 2);
}
