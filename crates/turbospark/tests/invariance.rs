//! What must not matter: how a prompt is cut, how image rows are handed over, what runs beside a sequence,
//! tiles, and whether a prefix was reused.
//!
//! Counting positions or deepstack rows anew in each piece is the most repeated fault of programs of this
//! kind, and it shows only in long prompts with images (case S08).

mod support;

use serde_json::Value;
use support::*;
use turbospark_device::{Device, ReferenceDevice, Snapshot};
use turbospark_models::config::Config;
use turbospark_models::{Model, Scratch};
use turbospark_tensor::DType;
use turbospark_testkit::{assets, fixtures, pack, read_raw};
use turbospark_vision::Grid;
use turbospark_weights::Checkpoint;

/// How keys and values are kept.
const KEPT: [DType; 2] = [DType::F32, DType::Q8_0];

fn s08() -> Value {
    serde_json::from_slice(&std::fs::read(assets().join("cases/expect/S08.json")).unwrap()).unwrap()
}

fn s08_layout(case: &Value) -> Layout {
    let parts = case["layouts"][0].as_array().unwrap().iter().map(|part| match part["text"].as_u64() {
        Some(n) => Part::Text(n as usize),
        None => {
            let side = |i: usize| part["image"][i].as_u64().unwrap() as usize;
            Part::Image(Grid { t: side(0), h: side(1), w: side(2) })
        }
    });
    Layout::new(&parts.collect::<Vec<_>>(), 8)
}

/// Numbers, and a large one for "whole".
fn sizes(list: &Value) -> Vec<usize> {
    list.as_array().unwrap().iter().map(|v| v.as_u64().map_or(100_000, |n| n as usize)).collect()
}

fn cutting_a_prompt_into_pieces_changes_nothing(device: &dyn Device) {
    let case = s08();
    let layout = s08_layout(&case);
    let limit = case["expect"]["logit_max_abs_diff_f32"].as_f64().unwrap() as f32;
    assert_eq!(case["expect"]["greedy_tokens_equal"], GREEDY);
    for family in FAMILIES {
        let model = load(family, device);
        let images = layout.encode(&model, device);
        let mut room = Room::new(&model, device, 1, layout.rows.len() + GREEDY);
        let whole = room.prefill(&layout, &images, 0, usize::MAX);
        let (ids, _) = room.greedy(&layout, whole.clone());
        let mut worst = 0f32;
        for batch in sizes(&case["image_embedding_batches"]) {
            let (layout, images) = layout.in_batches(device, &images, batch);
            for chunk in sizes(&case["prefill_chunks"]) {
                let mut room = Room::new(&model, device, 1, layout.rows.len() + GREEDY);
                let logits = room.prefill(&layout, &images, 0, chunk);
                worst = worst.max(furthest(&logits, &whole));
                assert!(worst <= limit, "{family}, chunks of {chunk}, image rows by {batch}: logits off by {worst}");
                let (got, _) = room.greedy(&layout, logits);
                assert_eq!(got, ids, "{family}, chunks of {chunk}, image rows by {batch}");
            }
        }
        println!("{}: {family}: logits within {worst:.1e}", device.name());
    }
}

/// Steps of two sequences, each alone or both in one batch: prompts of unlike length in two chunks, then one
/// decodes while the other is still at its prompt, then both decode.
fn a_sequence_has_the_same_bits_alone_and_in_company(device: &dyn Device) {
    let grid = |h, w| Part::Image(Grid { t: 1, h, w });
    let a = Layout::new(&[Part::Text(5), grid(4, 6), Part::Text(60)], 1);
    let b = Layout::new(&[Part::Text(70), grid(6, 4), Part::Text(40)], 2);
    for (family, kv) in FAMILIES.into_iter().flat_map(|family| KEPT.map(|kv| (family, kv))) {
        let model = load(family, device);
        let images = [a.encode(&model, device), b.encode(&model, device)];
        let prompt = |which: usize, from: usize, to: usize| {
            let layout = [&a, &b][which];
            let mut rows = layout.rows[from..to.min(layout.rows.len())].to_vec();
            rows.iter_mut().for_each(|r| r.logits = true);
            (which, from, rows)
        };
        let token = |which: usize, id: u32, at: usize| (which, at, vec![decoded([&a, &b][which], id, at)]);
        let (na, nb) = (a.rows.len(), b.rows.len());
        // Prompts come before decode rows in a batch.
        let steps = [
            vec![prompt(0, 0, 64), prompt(1, 0, 64)],
            vec![prompt(0, 64, na), prompt(1, 64, 100)],
            vec![prompt(1, 100, nb), token(0, 17, na)],
            vec![token(0, 18, na + 1), token(1, 19, nb)],
            vec![token(1, 20, nb + 1), token(0, 21, na + 2)],
        ];
        let run = |wanted: &[usize]| -> Vec<(usize, Vec<u32>)> {
            let mut room = Room::keeping(kv, &model, device, 2, 192);
            let mut out = Vec::new();
            for step in &steps {
                let parts: Vec<_> = step.iter().filter(|(which, ..)| wanted.contains(which)).collect();
                let pieces: Vec<_> = parts
                    .iter()
                    .map(|(which, start, rows)| {
                        let decode = *start >= [na, nb][*which];
                        let images = &images[*which];
                        (*which, Piece { rows, start: *start, decode, images, snapshots: vec![] })
                    })
                    .collect();
                let logits = bits(&room.forward(&pieces));
                let vocab = model.config.text.vocab_size;
                let mut rest = logits.as_slice();
                for (which, _, rows) in parts {
                    let (own, after) = rest.split_at(rows.len() * vocab);
                    out.push((*which, own.to_vec()));
                    rest = after;
                }
            }
            out
        };
        let together = run(&[0, 1]);
        for which in [0, 1] {
            let own: Vec<_> = together.iter().filter(|(w, _)| *w == which).cloned().collect();
            assert!(own == run(&[which]), "{family}, {kv}: sequence {which} differs in company");
        }
    }
}

/// The checkpoint without its tower, as text-only exports are.
fn text_only(family: &str, device: &dyn Device) -> Model {
    let folder = fixtures().join(family).join("checkpoint");
    let mut tensors = read_raw(&folder).unwrap();
    tensors.retain(|name, _| !name.starts_with("model.visual."));
    let mut config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let name = config["architectures"][0].as_str().unwrap().replace("ForConditionalGeneration", "ForCausalLM");
    config["architectures"][0] = name.into();
    let config = Config::parse(&config.to_string()).unwrap();
    let bytes: std::sync::Arc<[u8]> = pack(&tensors).into();
    let model = Model::load(config, &Checkpoint::from_bytes("text only", bytes).unwrap(), device).unwrap();
    assert!(model.vision.is_none());
    model
}

fn a_text_prompt_has_the_same_bits_with_and_without_a_tower(device: &dyn Device) {
    let layout = Layout::new(&[Part::Text(75)], 3);
    for family in FAMILIES {
        let run = |model: &Model| {
            let mut room = Room::new(model, device, 1, 75 + GREEDY);
            let logits = room.prefill(&layout, &[], 0, usize::MAX);
            let (ids, all) = room.greedy(&layout, logits);
            (ids, bits(&all))
        };
        assert!(run(&load(family, device)) == run(&text_only(family, device)), "{family}");
    }
}

fn tiles_and_company_change_no_bit_of_an_image(device: &dyn Device) {
    let (grid, gap) = (|h, w| Part::Image(Grid { t: 1, h, w }), Part::Text(1));
    let layout = Layout::new(&[grid(4, 4), gap, grid(2, 22), gap, grid(10, 6), gap, grid(2, 2)], 4);
    for family in FAMILIES {
        let model = load(family, device);
        let tower = model.vision.as_ref().unwrap();
        let read = |rows: Vec<_>| rows.iter().map(|r| bits(&values(device, r))).collect::<Vec<_>>();
        let inputs = layout.inputs();
        let together = read(tower.encode(device, &inputs, &mut Scratch::default(), None).unwrap());
        for (i, input) in inputs.iter().enumerate() {
            let alone = read(tower.encode(device, &[*input], &mut Scratch::default(), None).unwrap());
            assert!(alone[0] == together[i], "{family}: image {i} differs in company");
        }
        for tile in [1, 3, 7, 64] {
            let tiled = tower.encode_tiled(device, &inputs, &mut Scratch::default(), tile, None).unwrap();
            assert!(read(tiled) == together, "{family}: tiles of {tile} differ");
        }
    }
}

/// A prompt is run to `cut` and on, or run whole with a copy of the state left at `cut`, decoded, taken back
/// to the copy and run on from there: the answer is the same.
fn a_restored_state_goes_on_as_a_fresh_one(device: &dyn Device) {
    let image = Part::Image(Grid { t: 1, h: 8, w: 10 });
    let layout = Layout::new(&[Part::Text(55), image, Part::Text(60)], 5);
    let n = layout.rows.len();
    for (family, kv) in ["qwen3_5", "qwen3_5_moe"].into_iter().flat_map(|family| KEPT.map(|kv| (family, kv))) {
        let model = load(family, device);
        let images = layout.encode(&model, device);
        // 64 is where chunks of the scan begin, so the same sums are made; 70 lies inside a chunk and the image.
        // There, sums in another order may move a key to the next of its 8-bit codes.
        let within = (70, device.name() == ReferenceDevice.name());
        for (cut, exact) in [(64, true), within].into_iter().filter(|(_, exact)| *exact || !kv.is_block()) {
            let mut fresh = Room::keeping(kv, &model, device, 1, n + GREEDY);
            let head =
                |snapshots, to| Piece { rows: &layout.rows[..to], start: 0, decode: false, images: &images, snapshots };
            fresh.forward(&[(0, head(vec![], cut))]);
            let logits = fresh.prefill(&layout, &images, cut, usize::MAX);
            let (ids, all) = fresh.greedy(&layout, logits);

            let mut reused = Room::keeping(kv, &model, device, 1, n + GREEDY);
            reused.forward(&[(0, head(vec![Snapshot { after: cut, slot: 1 }], n))]);
            // Other tokens go on from the whole prompt, with a copy left in the middle of decoding.
            for (i, id) in [3u32, 99, 200].into_iter().enumerate() {
                let row = decoded(&layout, id, n + i);
                let piece = Piece { rows: &[row], start: n + i, decode: true, images: &[], snapshots: vec![] };
                reused.forward(&[(0, piece)]);
            }
            reused.cache.copy_state(device, 1, 0).unwrap();
            let logits = reused.prefill(&layout, &images, cut, usize::MAX);
            reused.cache.copy_state(device, 0, 2).unwrap();
            for _ in 0..2 {
                let (got, values) = reused.greedy(&layout, logits.clone());
                assert_eq!(got, ids, "{family}, {kv}: restored at {cut}");
                let off = furthest(&values, &all);
                assert!(
                    if exact { bits(&values) == bits(&all) } else { off <= 1e-3 },
                    "{family}, {kv} at {cut}: {off}"
                );
                // Once more from the end of the prompt.
                reused.cache.copy_state(device, 2, 0).unwrap();
            }
        }
    }
}

macro_rules! on {
    ($device:expr) => {
        #[test]
        fn cutting_a_prompt_into_pieces_changes_nothing() {
            super::cutting_a_prompt_into_pieces_changes_nothing(&$device);
        }

        #[test]
        fn a_sequence_has_the_same_bits_alone_and_in_company() {
            super::a_sequence_has_the_same_bits_alone_and_in_company(&$device);
        }

        #[test]
        fn a_text_prompt_has_the_same_bits_with_and_without_a_tower() {
            super::a_text_prompt_has_the_same_bits_with_and_without_a_tower(&$device);
        }

        #[test]
        fn tiles_and_company_change_no_bit_of_an_image() {
            super::tiles_and_company_change_no_bit_of_an_image(&$device);
        }

        #[test]
        fn a_restored_state_goes_on_as_a_fresh_one() {
            super::a_restored_state_goes_on_as_a_fresh_one(&$device);
        }
    };
}

mod reference {
    on!(super::ReferenceDevice);
}

#[cfg(feature = "device-cpu")]
mod cpu {
    use turbospark_device::Precision;
    use turbospark_device_cpu::{CpuDevice, CpuOptions};

    fn device() -> CpuDevice {
        CpuDevice::new(CpuOptions { threads: Some(2), precision: Precision::F32, isa: None }).unwrap()
    }

    on!(super::cpu::device());

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        use super::*;
        let layout = s08_layout(&s08());
        for (family, kv) in FAMILIES.into_iter().flat_map(|family| KEPT.map(|kv| (family, kv))) {
            let run = |threads| {
                let options = CpuOptions { threads: Some(threads), precision: Precision::F32, isa: None };
                let device = CpuDevice::new(options).unwrap();
                let model = load(family, &device);
                let images = layout.encode(&model, &device);
                let mut room = Room::keeping(kv, &model, &device, 1, layout.rows.len() + GREEDY);
                let logits = room.prefill(&layout, &images, 0, 64);
                bits(&room.greedy(&layout, logits).1)
            };
            let one = run(1);
            assert!(one == run(2) && one == run(3), "{family}, {kv}");
        }
    }
}

#[cfg(feature = "device-wgpu")]
mod gpu {
    use turbospark_device::Precision;

    use crate::support::gpu;

    macro_rules! on_gpu {
        ($($name:ident,)*) => {
            $(#[test]
            fn $name() {
                if let Some(device) = gpu(Precision::F32) {
                    super::$name(&device);
                }
            })*
        };
    }

    on_gpu! {
        cutting_a_prompt_into_pieces_changes_nothing,
        a_sequence_has_the_same_bits_alone_and_in_company,
        a_text_prompt_has_the_same_bits_with_and_without_a_tower,
        tiles_and_company_change_no_bit_of_an_image,
        a_restored_state_goes_on_as_a_fresh_one,
    }
}
