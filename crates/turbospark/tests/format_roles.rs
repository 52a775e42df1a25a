//! Every weight that a model has may be quantised, in every format.
//!
//! Tools leave some alone by habit: the embedding, the router, the tower. A file in which they are not left alone has to
//! give what its dequantised weights give, on the device and from the disk; a pass that stops half-way because an
//! embedding has columns in an order of their own is what this is against.

mod support;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use support::formats::{Format, Stored, formats, quantised_whole, with_one};
use support::packers;
use support::shapes::{dense, hybrid, mixture};
use support::*;
use turbospark::Cancel;
use turbospark::pack::{PackOptions, pack as lay_out};
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Model, ModelError, Residency, UnitSizes, plan};
use turbospark_testkit::{ExpertLayout, RawTensor, pack, random_checkpoint};
use turbospark_weights::{Checkpoint, Entry};

/// With sides that every format has room for: a vocabulary, a tower and experts in whole words.
fn roomy(mut config: Value) -> Value {
    config["text_config"]["vocab_size"] = json!(320);
    for (key, value) in [("hidden_size", 64), ("intermediate_size", 96), ("num_position_embeddings", 64)] {
        config["vision_config"][key] = json!(value);
    }
    config
}

/// One of each way in which codes and scales lie; the others differ from one of them in their bits alone.
const FEW: [&str; 13] = [
    "mlx 3-bit g64",
    "mxfp4",
    "nvfp4",
    "fp8 128x128",
    "fp8 per tensor",
    "awq gemm",
    "awq gemv",
    "gptq 4-bit activation order",
    "gptq 7-bit in planes",
    "compressed 4-bit with zeros",
    "compressed 4-bit activation order",
    "compressed int8",
    "compressed nvfp4",
];

fn few() -> Vec<Format> {
    let few: Vec<Format> = formats().into_iter().filter(|format| FEW.contains(&format.name)).collect();
    assert_eq!(few.len(), FEW.len());
    few
}

struct Case {
    config: Value,
    stored: Stored,
    plain: Stored,
}

fn case(config: &Value, format: &Format) -> Case {
    let source = random_checkpoint(config, ExpertLayout::Split, false, 21);
    let (mut stored, plain) = quantised_whole(&source, format);
    if format.mlx {
        with_one(&mut stored);
    }
    let mut config = config.clone();
    config[format.config.0] = format.config.1.clone();
    Case { config, stored, plain }
}

fn write(folder: &Path, config: &Value, tensors: &Stored) {
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), pack(tensors)).unwrap();
}

fn open(path: &Path) -> (Config, Arc<Checkpoint>) {
    let config = Config::parse(&std::fs::read_to_string(path.join("config.json")).unwrap()).unwrap();
    (config, Arc::new(Checkpoint::open(path).unwrap_or_else(|e| panic!("{e}"))))
}

fn logits(path: &Path, device: &dyn Device) -> Vec<f32> {
    let (config, checkpoint) = open(path);
    let model = Model::load(config, &checkpoint, device).unwrap_or_else(|e| panic!("{e}"));
    prompt_and_row(&model, device, 3)
}

/// How many weights of a folder are quantised that tools leave alone, by the ends of their names.
fn unusual(path: &Path) -> usize {
    let ends = ["embed_tokens.weight", "lm_head.weight", "gate.weight", "linear_fc1.weight", "qkv.weight"];
    let (_, checkpoint) = open(path);
    let stays = |(name, entry): &(&str, &Entry)| match entry {
        Entry::Place(_) => false,
        _ => ends.iter().any(|end| name.ends_with(end)),
    };
    checkpoint.entries().filter(stays).count()
}

fn check(config: &Value, format: &Format, device: &dyn Device, most: f32) {
    let Case { config: quantised, stored, plain } = case(config, format);
    let [stored_at, plain_at] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write(stored_at.path(), &quantised, &stored);
    write(plain_at.path(), config, &plain);
    assert!(unusual(stored_at.path()) > 0, "{}: nothing unusual is quantised", format.name);
    let off = furthest(&logits(stored_at.path(), device), &logits(plain_at.path(), device));
    println!("{} {}: {off:.1e}", config["model_type"], format.name);
    assert!(off <= most, "{} {}: {off}", config["model_type"], format.name);
}

#[test]
fn any_weight_may_be_quantised() {
    for format in few() {
        check(&roomy(hybrid()), &format, &ReferenceDevice, 1e-5);
    }
}

#[cfg(feature = "device-cpu")]
fn processor() -> turbospark_device_cpu::CpuDevice {
    let options = turbospark_device_cpu::CpuOptions {
        precision: turbospark_device::Precision::F32,
        threads: Some(2),
        ..Default::default()
    };
    turbospark_device_cpu::CpuDevice::new(options).unwrap()
}

#[test]
#[cfg(feature = "device-cpu")]
fn on_the_processor_too() {
    let device = processor();
    for format in formats() {
        check(&roomy(dense()), &format, &device, 1e-4);
    }
    for format in few() {
        check(&roomy(mixture(64)), &format, &device, 1e-4);
        check(&roomy(hybrid()), &format, &device, 1e-4);
    }
}

/// On the software adapter a few of each family: the kernels differ by form and role, not by what the model makes of it.
#[test]
#[cfg(feature = "device-wgpu")]
fn on_the_gpu_too() {
    let Some(device) = gpu(turbospark_device::Precision::F32) else {
        println!("skipped: no Vulkan adapter");
        return;
    };
    for (i, format) in few().into_iter().enumerate() {
        let config = match i % 3 {
            0 => dense(),
            1 => mixture(64),
            _ => hybrid(),
        };
        check(&roomy(config), &format, &device, 1e-4);
    }
}

/// Experts in one tensor with FP8 scales: either way round, with blocks that end where gate does and blocks that do not.
#[test]
fn experts_that_are_stored_together_may_be_fp8() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
    for (layout, width, sides) in [
        (ExpertLayout::Fused, 64, [128, 128]),
        (ExpertLayout::Fused, 128, [128, 128]),
        (ExpertLayout::Fused, 64, [0, 0]),
        (ExpertLayout::Fused, 64, [1, 0]),
        (ExpertLayout::FusedTransposed, 64, [128, 128]),
        (ExpertLayout::FusedTransposed, 128, [128, 128]),
        (ExpertLayout::FusedTransposed, 64, [32, 16]),
        (ExpertLayout::FusedTransposed, 64, [0, 0]),
        (ExpertLayout::FusedTransposed, 64, [1, 0]),
    ] {
        let mut config = roomy(mixture(width));
        let packer = packers::fp8(sides, "weight_scale_inv");
        let (mut stored, mut plain) = (Stored::new(), Stored::new());
        for (name, t) in random_checkpoint(&config, layout, false, 21) {
            let &[experts, a, b] = t.dims.as_slice() else {
                stored.insert(name.clone(), t.clone());
                plain.insert(name, t);
                continue;
            };
            let each: Vec<_> = t.values().chunks_exact(a * b).map(|w| packer("x", w, a, b).unwrap()).collect();
            let meaning: Vec<f32> = each.iter().flat_map(|p| p.meaning.clone()).collect();
            plain.insert(name.clone(), RawTensor::f32(&t.dims, &meaning));
            for (i, name) in [(0, name.clone()), (1, format!("{name}_scale_inv"))] {
                let one = &each[0].tensors[i].1;
                let dims = [&[experts], one.dims.as_slice()].concat();
                let bytes = each.iter().flat_map(|p| p.tensors[i].1.bytes.clone()).collect();
                stored.insert(name, RawTensor::new(one.dtype(), &dims, bytes));
            }
        }
        let [stored_at, plain_at, packed_at] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        write(plain_at.path(), &config, &plain);
        let block = if sides[1] == 0 { Value::Null } else { json!(sides) };
        config["quantization_config"] = json!({"quant_method": "fp8", "weight_block_size": block});
        write(stored_at.path(), &config, &stored);
        let got = logits(stored_at.path(), &*device);
        let off = furthest(&got, &logits(plain_at.path(), &*device));
        println!("{layout:?} {width} {sides:?}: {off:.1e}");
        assert!(off <= 1e-5, "{layout:?} {width} {sides:?}: {off}");
        lay_out(stored_at.path(), packed_at.path(), &PackOptions::default(), &Cancel::new(), &mut |_| {}).unwrap();
        for path in [stored_at.path(), packed_at.path()] {
            let streamed = from_the_disk(path, &device).unwrap_or_else(|e| panic!("{layout:?} {width} {sides:?}: {e}"));
            assert!(prompt_and_row(&streamed, &*device, 3) == got, "{layout:?} {width} {sides:?} {}", path.display());
        }
    }
}

/// With all that can be streamed left on the disk.
fn from_the_disk(path: &Path, device: &Arc<dyn Device>) -> Result<Model, ModelError> {
    let (config, checkpoint) = open(path);
    let how = LoadAs::default();
    let planned = plan(config.clone(), &checkpoint, &how)?;
    let residency = Residency {
        layers: vec![0, 1, 2, 3],
        head: UnitSizes::of(&planned).cuts,
        vision: true,
        slots: 2,
        expert_slots: if config.text.moe.is_some() { 3 } else { 0 },
        loaded: true,
        ..Residency::default()
    };
    Model::load_streamed(config, &checkpoint, device, &how, &planned, &residency)
}

/// What is streamed, and what is packed and then streamed, are the bits of what is resident.
#[test]
#[cfg(feature = "device-cpu")]
fn from_the_disk_and_packed_too() {
    let device: Arc<dyn Device> = Arc::new(processor());
    for (i, config) in [dense(), mixture(64), hybrid()].map(roomy).into_iter().enumerate() {
        // Each form with one of the three: what is streamed are pieces, whatever the model makes of them.
        for format in few().into_iter().skip(i).step_by(3) {
            let case = case(&config, &format);
            let [folder, packed] = [(); 2].map(|()| tempfile::tempdir().unwrap());
            write(folder.path(), &case.config, &case.stored);
            lay_out(folder.path(), packed.path(), &PackOptions::default(), &Cancel::new(), &mut |_| {})
                .unwrap_or_else(|e| panic!("{}: {e}", format.name));
            let expected = logits(folder.path(), &*device);
            assert!(logits(packed.path(), &*device) == expected, "{} {} packed", config["model_type"], format.name);
            for path in [folder.path(), packed.path()] {
                let model = from_the_disk(path, &device);
                let model = model.unwrap_or_else(|e| panic!("{} {}: {e}", format.name, path.display()));
                assert!(prompt_and_row(&model, &*device, 3) == expected, "{} {}", format.name, path.display());
            }
        }
    }
}
