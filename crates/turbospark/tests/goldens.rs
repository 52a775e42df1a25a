//! Every golden of the reference, on every device in its full f32 mode.
//!
//! One test a folder of the set and device, so that a failure names both.

#[cfg(feature = "device-wgpu")]
mod support;

use std::path::Path;

use serde_json::Value;
use turbospark::KvFormat;
use turbospark::trace::trace_matching;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_testkit::{Class, Compared, Index, fixtures};

/// Whose transparency is laid on white here and dropped by the reference: what follows from it is not written.
const TRANSPARENT: [&str; 3] = ["tiny_rgba_70x90", "tiny_la_66x66", "tiny_palette_trns_72x88"];

/// Goldens that hold another reading than the one that this project has.
fn is_another_reading(absent: &str) -> bool {
    if TRANSPARENT.iter().any(|name| absent.contains(name)) {
        return !absent.ends_with("decoded_rgb_pil_object");
    }
    absent.starts_with("preprocess/") && absent.contains("decoded_rgb_pil_")
}

/// Reruns the cases of a folder and holds them against the goldens.
fn folder_meets_its_goldens(device: &dyn Device, folder: &str) {
    let out = tempfile::tempdir().unwrap();
    let within = |path: &str| path.split_once('/').map_or("", |(f, _)| f) == folder;
    let report = trace_matching(&fixtures(), out.path(), device, KvFormat::Auto, &within, &mut |_| {}).unwrap();
    let index = Index::load(&fixtures()).unwrap();
    let mut all = Compared::default();
    for file in index.files().filter(|f| within(f)) {
        all.add(index.compare(out.path(), file, Class::F32).unwrap());
    }
    let (worst, at) = &all.worst;
    println!("{}: {folder}: {} tensors, worst {worst:.2} x tolerance ({at})", device.name(), all.compared);
    assert!(all.failures.is_empty(), "{} of {} fail:\n{}", all.failures.len(), all.compared, all.report());
    all.absent.retain(|a| !is_another_reading(a));
    assert!(all.absent.is_empty(), "not written: {:?}", all.absent);
    assert!(report.left_out.is_empty(), "{:?}", report.left_out);
    assert!(!report.files.is_empty());
    for file in report.files.iter().filter(|f| f.ends_with(".json")) {
        let json = |root: &Path| -> Value { serde_json::from_slice(&std::fs::read(root.join(file)).unwrap()).unwrap() };
        agrees(file, &json(&fixtures()), &json(out.path()));
    }
    if folder == "qwen3_5_moe" {
        experts_stored_one_by_one_give_the_same_bits(out.path());
    }
}

/// Folders that the tests below rerun.
const FOLDERS: [&str; 8] = ["", "preprocess", "video", "ops", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"];

#[test]
fn every_folder_of_the_set_is_rerun_but_the_inputs() {
    let index: Value = serde_json::from_slice(&std::fs::read(fixtures().join("INDEX.json")).unwrap()).unwrap();
    for path in index["files"].as_object().unwrap().keys() {
        let folder = path.split_once('/').map_or("", |(folder, _)| folder);
        assert!(FOLDERS.contains(&folder) || folder == "prompts", "{path} is rerun by no test");
    }
}

/// Everything in `got` is in the golden.
fn agrees(at: &str, golden: &Value, got: &Value) {
    match (golden, got) {
        (Value::Object(golden), Value::Object(got)) => {
            let image = got.get("image").and_then(Value::as_str).unwrap_or_default();
            let transparent = TRANSPARENT.iter().any(|name| image.contains(name.trim_start_matches("tiny_")));
            for (key, value) in got {
                let golden = golden.get(key).unwrap_or_else(|| panic!("{at} {key}: not in the golden"));
                let same_words = key == "error";
                // A JPEG decoder may differ by a level or two, so the checksums of what follows are its own.
                let same_bytes = key.contains("sha256") && (transparent || image.ends_with(".jpg"));
                if !same_words && !same_bytes {
                    agrees(&format!("{at} {key}"), golden, value);
                }
            }
        }
        (Value::Array(golden), Value::Array(got)) => {
            assert_eq!(golden.len(), got.len(), "{at}: length");
            golden.iter().zip(got).enumerate().for_each(|(i, (g, x))| agrees(&format!("{at}[{i}]"), g, x));
        }
        (Value::Number(golden), Value::Number(got)) if golden.is_f64() || got.is_f64() => {
            let (golden, got) = (golden.as_f64().unwrap(), got.as_f64().unwrap());
            assert!((golden - got).abs() <= 1e-6, "{at}: {got}, expected {golden}");
        }
        _ => assert_eq!(golden, got, "{at}"),
    }
}

fn experts_stored_one_by_one_give_the_same_bits(out: &Path) {
    let file = turbospark_testkit::read(&out.join("qwen3_5_moe/alt_experts_split.safetensors")).unwrap();
    let [split, fused] = ["out.split", "out.fused"].map(|name| file[name].as_f32().unwrap());
    assert!(split.iter().any(|&x| x != 0.0) && split.len() == fused.len());
    assert!(split.iter().zip(fused).all(|(a, b)| a.to_bits() == b.to_bits()));
}

macro_rules! goldens {
    ($device:expr; $($name:ident: $folder:literal,)*) => {
        $(#[test]
        fn $name() {
            folder_meets_its_goldens(&$device, $folder);
        })*
    };
}

// What the host alone computes; the device is not asked.
mod host {
    use super::*;

    goldens! { ReferenceDevice;
        positions_of_prompts: "",
        images: "preprocess",
        clips: "video",
    }
}

mod reference {
    use super::*;

    goldens! { ReferenceDevice;
        single_ops: "ops",
        qwen3_vl: "qwen3_vl",
        qwen3_vl_moe: "qwen3_vl_moe",
        qwen3_5: "qwen3_5",
        qwen3_5_moe: "qwen3_5_moe",
    }
}

/// A test of each folder of goldens, by the `meets_its_goldens` that stands beside it.
macro_rules! every_folder {
    () => {
        #[test]
        fn single_ops() {
            meets_its_goldens("ops");
        }

        #[test]
        fn qwen3_vl() {
            meets_its_goldens("qwen3_vl");
        }

        #[test]
        fn qwen3_vl_moe() {
            meets_its_goldens("qwen3_vl_moe");
        }

        #[test]
        fn qwen3_5() {
            meets_its_goldens("qwen3_5");
        }

        #[test]
        fn qwen3_5_moe() {
            meets_its_goldens("qwen3_5_moe");
        }
    };
}

#[cfg(feature = "device-cpu")]
mod cpu {
    use turbospark::trace::trace_fixtures;
    use turbospark_device::Precision;
    use turbospark_device_cpu::{CpuDevice, CpuOptions, Isa};

    use super::*;

    /// On every instruction set that this machine has.
    fn meets_its_goldens(folder: &str) {
        for isa in Isa::available() {
            let options = CpuOptions { threads: Some(2), precision: Precision::F32, isa: Some(isa) };
            folder_meets_its_goldens(&CpuDevice::new(options).unwrap(), folder);
        }
    }

    #[test]
    fn a_whole_trace_reruns_all_but_the_inputs() {
        let out = tempfile::tempdir().unwrap();
        let options = CpuOptions { threads: Some(2), precision: Precision::F32, isa: None };
        let device = CpuDevice::new(options).unwrap();
        let report = trace_fixtures(&fixtures(), out.path(), &device, KvFormat::Auto, &mut |_| {}).unwrap();
        assert!(report.left_out.iter().all(|(path, _)| path.starts_with("prompts/")), "{:?}", report.left_out);
        let index = Index::load(&fixtures()).unwrap();
        let written = |file: &&str| report.files.iter().any(|f| f == file);
        let missed: Vec<&str> = index.files().filter(|f| !f.starts_with("prompts/")).filter(|f| !written(f)).collect();
        assert!(missed.is_empty(), "{missed:?}");
    }

    every_folder!();
}

#[cfg(feature = "device-wgpu")]
mod gpu {
    use turbospark_device::Precision;

    use super::*;

    fn meets_its_goldens(folder: &str) {
        if let Some(device) = support::gpu(Precision::F32) {
            folder_meets_its_goldens(&device, folder);
        }
    }

    every_folder!();
}
