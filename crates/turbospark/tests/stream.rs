//! Weights that stay on the disk give the bits of weights in memory.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::Value;
use support::shapes::{dense, hybrid, mixture};
use support::*;
use turbospark::Cancel;
use turbospark::pack::{PackOptions, pack};
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Model, ModelError, Residency, plan};
use turbospark_testkit::{ExpertLayout, random_checkpoint};
use turbospark_vision::Grid;
use turbospark_weights::{Folder, Sidecar};

fn source(config: &Value, experts: ExpertLayout) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let tensors = random_checkpoint(config, experts, true, 51);
    std::fs::write(folder.path().join("model.safetensors"), turbospark_testkit::pack(&tensors)).unwrap();
    folder
}

fn open(path: &Path, device: &Arc<dyn Device>, residency: &Residency) -> Result<Model, ModelError> {
    let folder = Folder::open(path).unwrap();
    let config = Config::parse(&folder.require(Sidecar::Config).unwrap()).unwrap();
    let checkpoint = Arc::new(folder.checkpoint().unwrap());
    let planned = plan(config.clone(), &checkpoint, &LoadAs::default())?;
    Model::load_streamed(config, &checkpoint, device, &LoadAs::default(), &planned, residency)
}

/// A prompt with two images in two chunks, and rows decoded after it: several passes.
fn logits(model: &Model, device: &dyn Device) -> Vec<u32> {
    let image = |h, w| Part::Image(Grid { t: 1, h, w });
    let layout = Layout::new(&[Part::Text(3), image(4, 2), Part::Text(3), image(2, 6), Part::Text(70)], 12);
    let images = layout.encode(model, device);
    let n = layout.rows.len();
    let mut room = Room::new(model, device, 1, n + 4);
    let mut all = room.prefill(&layout, &images, 0, 64);
    for i in 0..4 {
        let row = decoded(&layout, 5 + i, n + i as usize);
        let piece = Piece { rows: &[row], start: n + i as usize, decode: true, images: &[], snapshots: vec![] };
        all.extend(room.forward(&[(0, piece)]));
    }
    bits(&all)
}

fn residencies(moe: bool) -> Vec<Residency> {
    let streamed = |layers: &[usize], vision, slots, expert_slots| Residency {
        layers: layers.to_vec(),
        head: false,
        vision,
        slots,
        expert_slots,
        loaded: true,
        ..Residency::default()
    };
    let mut all = vec![
        streamed(&[], false, 3, 0),
        streamed(&[0, 1, 2, 3], true, 3, 0),
        streamed(&[0, 1, 2, 3], true, 2, 0),
        streamed(&[0, 1, 2, 3], false, 4, 0),
        streamed(&[1, 3], false, 2, 0),
        streamed(&[2], true, 2, 0),
    ];
    all.push(Residency { head: true, ..streamed(&[0, 1, 2, 3], true, 2, 0) });
    all.push(Residency { head: true, ..streamed(&[], false, 3, 0) });
    if moe {
        all.extend([streamed(&[], false, 3, 2), streamed(&[0, 1, 2, 3], true, 2, 3), streamed(&[1], false, 2, 100)]);
    }
    all
}

/// Every residency, or `few` of them on few models: a software adapter is slow.
fn check(device: Arc<dyn Device>, few: bool) {
    for (config, layouts) in [
        (dense(), &[ExpertLayout::Fused][..]),
        (mixture(64), &[ExpertLayout::FusedTransposed, ExpertLayout::Fused, ExpertLayout::Split]),
        (hybrid(), &[ExpertLayout::Fused]),
    ] {
        let moe = config["text_config"]["num_experts"].is_u64();
        for &layout in layouts {
            let folder = source(&config, layout);
            let packed = tempfile::tempdir().unwrap();
            pack(folder.path(), packed.path(), &PackOptions::default(), &Cancel::new(), &mut |_| {}).unwrap();
            let paths = [folder.path(), packed.path()];
            for path in if few { &paths[1..] } else { &paths[..] } {
                // Of its own form: packing turns experts that are stored the other way round, and sums go another way.
                let expected = logits(&open(path, &device, &Residency::default()).unwrap(), &*device);
                for residency in residencies(moe).into_iter().step_by(if few { 3 } else { 1 }) {
                    let model = open(path, &device, &residency).unwrap();
                    let same = logits(&model, &*device) == expected;
                    assert!(same, "{} {layout:?} {residency:?} {}", config["model_type"], path.display());
                    // Another picture of the same model after the first: the ring turns back.
                    assert!(logits(&model, &*device) == expected, "a second time");
                    let read = model.counters.as_ref().unwrap().bytes.load(Ordering::Relaxed);
                    let streams = !residency.layers.is_empty()
                        || residency.head
                        || residency.vision
                        || residency.expert_slots > 0;
                    assert_eq!(read > 0, streams, "{residency:?} read {read} bytes");
                }
            }
        }
    }
}

#[test]
fn streamed_weights_give_the_bits_of_resident_ones() {
    check(Arc::new(ReferenceDevice), false);
}

#[test]
#[cfg(feature = "device-cpu")]
fn on_the_processor_too() {
    let options = turbospark_device_cpu::CpuOptions { threads: Some(2), ..Default::default() };
    check(Arc::new(turbospark_device_cpu::CpuDevice::new(options).unwrap()), false);
}

/// Passes while more and less memory is lent, as images come and go: none changes a bit.
fn check_lent(device: &Arc<dyn Device>, configs: &[Value]) {
    for config in configs {
        let moe = config["text_config"]["num_experts"].is_u64();
        let folder = source(config, ExpertLayout::Fused);
        let expected = logits(&open(folder.path(), device, &Residency::default()).unwrap(), &**device);
        for (layers, slots, lent_layers) in [
            (vec![0, 1, 2, 3], 2, vec![2, 0]),
            (vec![0, 1, 2, 3], 3, vec![0, 1, 2, 3]),
            (vec![1, 3], 2, vec![3]),
            (vec![], 2, vec![]),
        ] {
            let residency = Residency {
                layers,
                slots,
                vision: true,
                lent_layers,
                expert_slots: if moe { 2 } else { 0 },
                lent_experts: if moe { 5 } else { 0 },
                loaded: true,
                ..Residency::default()
            };
            let model = open(folder.path(), device, &residency).unwrap();
            let read = || model.counters.as_ref().unwrap().bytes.load(Ordering::Relaxed);
            let mut bytes = Vec::new();
            for lent in [0, u64::MAX, u64::MAX, 1 << 16, u64::MAX, 0, 0] {
                model.lend(lent);
                let before = read();
                assert!(logits(&model, &**device) == expected, "{residency:?} with {lent} bytes lent");
                bytes.push(read() - before);
            }
            let lends = moe || !residency.lent_layers.is_empty();
            assert_eq!(bytes[2] < bytes[6], lends, "{residency:?} read {bytes:?}");
        }
    }
}

#[test]
fn memory_that_is_lent_to_weights_and_given_up_changes_no_bit() {
    check_lent(&(Arc::new(ReferenceDevice) as Arc<dyn Device>), &[mixture(64)]);
}

#[test]
#[cfg(feature = "device-cpu")]
fn memory_that_is_lent_on_the_processor_changes_no_bit() {
    let options = turbospark_device_cpu::CpuOptions { threads: Some(2), ..Default::default() };
    let device = turbospark_device_cpu::CpuDevice::new(options).unwrap();
    check_lent(&(Arc::new(device) as Arc<dyn Device>), &[dense(), mixture(64), hybrid()]);
}

/// Stacks of experts in blocks that are taken apart: each is read alone all the same.
#[test]
fn experts_of_nvfp4_blocks_are_read_one_by_one() {
    let mut config = mixture(64);
    config["text_config"]["mlp_only_layers"] = Value::Array(Vec::new());
    let tensors = random_checkpoint(&config, ExpertLayout::Split, false, 53);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let (trunk, _) = support::converter::trunk(&config, &tensors, "qwen3vlmoe", support::converter::As::Nvfp4);
    std::fs::write(&path, trunk).unwrap();
    std::fs::write(folder.path().join("mmproj.gguf"), support::converter::tower(&config, &tensors)).unwrap();
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
    let expected = logits(&open(&path, &device, &Residency::default()).unwrap(), &*device);
    // An embedding that is taken apart can't be read by rows.
    for residency in residencies(true).into_iter().filter(|residency| !residency.head) {
        assert!(logits(&open(&path, &device, &residency).unwrap(), &*device) == expected, "{residency:?}");
    }
}

/// Layers that add nothing: what the next router sees is what this one sees, so that every guess is right.
#[test]
#[cfg(feature = "device-cpu")]
fn experts_that_the_layer_before_makes_likely_are_read_early() {
    let mut config = mixture(64);
    config["text_config"]["num_experts"] = 12.into();
    config["text_config"]["mlp_only_layers"] = Value::Array(Vec::new());
    let mut tensors = random_checkpoint(&config, ExpertLayout::Fused, true, 52);
    let silent = tensors.iter_mut().filter(|(name, _)| name.ends_with("o_proj.weight") || name.contains("down_proj"));
    silent.for_each(|(_, tensor)| tensor.bytes.fill(0));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), turbospark_testkit::pack(&tensors)).unwrap();
    let device: Arc<dyn Device> = Arc::new(turbospark_device_cpu::CpuDevice::new(Default::default()).unwrap());
    let decode = |residency: &Residency| {
        let model = open(folder.path(), &device, residency).unwrap();
        let layout = Layout::new(&[Part::Text(3)], 3);
        let mut room = Room::new(&model, &*device, 1, 40);
        let mut all = room.prefill(&layout, &[], 0, 64);
        for i in 0..30 {
            let row = decoded(&layout, i as u32 * 7 % 60, 3 + i);
            let piece = Piece { rows: &[row], start: 3 + i, decode: true, images: &[], snapshots: vec![] };
            all.extend(room.forward(&[(0, piece)]));
        }
        let counters = model.counters.clone();
        (bits(&all), counters)
    };
    let (expected, _) = decode(&Residency::default());
    let pooled = |layers| Residency { layers, slots: 2, expert_slots: 5, loaded: true, ..Residency::default() };
    let (found, counters) = decode(&pooled(vec![]));
    assert!(found == expected);
    let read = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    let counters = counters.unwrap();
    let (all, right, vain) = (read(&counters.guesses), read(&counters.right_guesses), read(&counters.vain_bytes));
    assert!(all > 20 && right == all && vain == 0, "{right} of {all}, {vain} bytes in vain");
    // The routers of layers that are streamed are not there when they would be asked.
    let (found, counters) = decode(&pooled(vec![0, 1, 2, 3]));
    assert!(found == expected && read(&counters.unwrap().guesses) == 0);
}

#[test]
#[cfg(feature = "device-wgpu")]
fn on_a_graphics_adapter_too() {
    if let Some(device) = gpu(turbospark_device::Precision::F32) {
        check(Arc::new(device), true);
    }
}

#[test]
fn a_file_that_is_cut_while_running_is_an_error_that_names_it() {
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
    for (config, residency) in [
        (dense(), Residency { layers: vec![0, 1, 2, 3], slots: 2, loaded: true, ..Residency::default() }),
        (mixture(64), Residency { expert_slots: 2, loaded: true, ..Residency::default() }),
    ] {
        let folder = source(&config, ExpertLayout::Fused);
        let file = folder.path().join("model.safetensors");
        let whole = std::fs::read(&file).unwrap();
        let model = open(folder.path(), &device, &residency).unwrap();
        let layout = Layout::new(&[Part::Text(9)], 3);
        let mut room = Room::new(&model, &*device, 1, 20);
        let before = room.prefill(&layout, &[], 0, 64);
        std::fs::File::options().write(true).open(&file).unwrap().set_len(4096).unwrap();
        let cache = turbospark_models::Cache::new(
            &*device,
            &model.config.text,
            turbospark_models::CacheShape::for_sequences(1, 20, turbospark_tensor::DType::F32),
        );
        let mut rows = layout.rows.clone();
        rows.last_mut().unwrap().logits = true;
        let sequence = || turbospark_models::Sequence {
            rows: &rows,
            start: 0,
            decode: false,
            pages: &[0],
            state: 0,
            snapshots: vec![],
            images: &[],
        };
        let (cache, mut scratch) = (cache.unwrap(), turbospark_models::Scratch::default());
        let mut run = || model.trunk.forward(&*device, &[sequence()], &cache, &mut scratch, None);
        // What was read ahead may last for a layer; then the cut shows.
        let error = (0..3).find_map(|_| run().err()).expect("a cut file is noticed").to_string();
        assert!(error.contains("model.safetensors"), "{error}");
        // Whole again, the same model goes on, and says the same.
        use std::io::Write;
        let mut again = std::fs::File::options().write(true).open(&file).unwrap();
        again.write_all(&whole).unwrap();
        drop(again);
        assert!(bits(&run().unwrap()) == bits(&before));
    }
}

#[test]
fn a_weight_to_be_quantised_can_not_stay_on_the_disk() {
    let folder = source(&dense(), ExpertLayout::Fused);
    let device: Arc<dyn Device> = Arc::new(ReferenceDevice);
    let parts = Folder::open(folder.path()).unwrap();
    let config = Config::parse(&parts.require(Sidecar::Config).unwrap()).unwrap();
    let how = LoadAs { quant: Some(turbospark_models::Quant::Q8_0), ..LoadAs::default() };
    let residency = Residency { layers: vec![0], slots: 2, loaded: true, ..Residency::default() };
    let checkpoint = Arc::new(parts.checkpoint().unwrap());
    let planned = plan(config.clone(), &checkpoint, &how).unwrap();
    let said = Model::load_streamed(config, &checkpoint, &device, &how, &planned, &residency).unwrap_err().to_string();
    assert!(said.contains("pack the model first"), "{said}");
}
