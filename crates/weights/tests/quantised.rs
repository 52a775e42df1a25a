//! Quantised folders with sides, types and settings that don't fit each other: each is refused or read, and nothing
//! panics, whether tensors are only listed or put together as well.

use std::collections::BTreeMap;

use proptest::prelude::*;
use safetensors::Dtype;
use serde_json::{Value, json};
use turbospark_testkit::{RawTensor, pack};
use turbospark_weights::{Checkpoint, Entry, Piece};

/// A tensor's name, type and sides.
type Part = (&'static str, Dtype, Vec<usize>);

/// Names that a method stores for a module, with the sides of an honest one of 32 x 64.
fn module(method: usize) -> (&'static str, Value, Vec<Part>) {
    let (i32, f16, u32, u8) = (Dtype::I32, Dtype::F16, Dtype::U32, Dtype::U8);
    match method {
        0 => (
            "quantization",
            json!({"bits": 4, "group_size": 32}),
            vec![("weight", u32, vec![32, 8]), ("scales", f16, vec![32, 2]), ("biases", f16, vec![32, 2])],
        ),
        1 => (
            "quantization",
            json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}),
            vec![("weight", u32, vec![32, 8]), ("scales", u8, vec![32, 2])],
        ),
        2 => (
            "quantization_config",
            json!({"quant_method": "fp8", "weight_block_size": [16, 16]}),
            vec![("weight", Dtype::F8_E4M3, vec![32, 64]), ("weight_scale_inv", Dtype::F32, vec![2, 4])],
        ),
        3 => (
            "quantization_config",
            json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
            vec![("qweight", i32, vec![64, 4]), ("qzeros", i32, vec![2, 4]), ("scales", f16, vec![2, 32])],
        ),
        4 => (
            "quantization_config",
            json!({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}),
            vec![("qweight", i32, vec![32, 8]), ("qzeros", i32, vec![32, 4]), ("scales", f16, vec![32, 32])],
        ),
        5 => (
            "quantization_config",
            json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true}),
            vec![
                ("qweight", i32, vec![8, 32]),
                ("qzeros", i32, vec![2, 4]),
                ("scales", f16, vec![2, 32]),
                ("g_idx", i32, vec![64]),
            ],
        ),
        _ => (
            "quantization_config",
            json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "symmetric": false}}}}),
            vec![
                ("weight_packed", i32, vec![32, 8]),
                ("weight_scale", f16, vec![32, 2]),
                ("weight_zero_point", i32, vec![4, 2]),
                ("weight_shape", Dtype::I64, vec![2]),
            ],
        ),
    }
}

fn size(dtype: Dtype) -> usize {
    match dtype {
        Dtype::I64 => 8,
        Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
        Dtype::F16 | Dtype::BF16 => 2,
        _ => 1,
    }
}

/// Opens a folder of one module and puts everything together that can be.
fn run(key: &str, config: &Value, tensors: &BTreeMap<String, RawTensor>) -> Result<usize, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), json!({key: config}).to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), pack(tensors)).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).map_err(|e| e.to_string())?;
    let mut made = 0;
    for (name, entry) in checkpoint.entries() {
        let pieces: Vec<&Piece> = match entry {
            Entry::Scaled(scaled) => scaled.pieces().collect(),
            _ => continue,
        };
        let Entry::Scaled(scaled) = entry else { continue };
        for piece in pieces {
            let mut out = vec![0; piece.length() as usize];
            checkpoint.fill(piece, &mut out).map_err(|e| e.to_string())?;
            made += 1;
        }
        // Widened too, as a model that needs floats would have it.
        let piece = checkpoint.claims().take(name, scaled.shape).map_err(|e| e.to_string())?;
        checkpoint.fill(&piece, &mut vec![0; piece.length() as usize]).map_err(|e| e.to_string())?;
    }
    Ok(made)
}

fn tensors(parts: &[Part], fill: u8) -> BTreeMap<String, RawTensor> {
    let one = |(name, dtype, dims): &Part| {
        let bytes = match *name {
            "weight_shape" => [32u64, 64].iter().flat_map(|n| n.to_le_bytes()).collect(),
            "g_idx" => (0..dims.iter().product::<usize>()).flat_map(|i| ((i / 32) as u32).to_le_bytes()).collect(),
            _ => vec![fill; dims.iter().product::<usize>() * size(*dtype)],
        };
        let fits = bytes.len() == dims.iter().product::<usize>() * size(*dtype);
        let bytes = if fits { bytes } else { vec![fill; dims.iter().product::<usize>() * size(*dtype)] };
        (format!("m.{name}"), RawTensor::new(*dtype, dims, bytes))
    };
    parts.iter().map(one).collect()
}

#[test]
fn honest_modules_are_read() {
    for method in 0..7 {
        let (key, config, parts) = module(method);
        let made = run(key, &config, &tensors(&parts, 0)).unwrap_or_else(|e| panic!("{config}: {e}"));
        assert!(made >= 2, "{config}: {made} pieces");
    }
}

/// Before `config.json` said it, GPTQ and AWQ had files of their own.
#[test]
fn older_folders_say_it_beside_the_configuration() {
    let gptq = json!({"bits": 4, "group_size": 32, "desc_act": false, "sym": true});
    let awq = json!({"w_bit": 4, "q_group_size": 32, "zero_point": true, "version": "GEMM"});
    for (method, file, text) in [(5, "quantize_config.json", gptq), (3, "quant_config.json", awq)] {
        let folder = tempfile::tempdir().unwrap();
        let (_, _, parts) = module(method);
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        std::fs::write(folder.path().join("model.safetensors"), pack(&tensors(&parts, 0))).unwrap();
        std::fs::write(folder.path().join(file), text.to_string()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert!(matches!(checkpoint.entry("m.weight"), Some(Entry::Scaled(_))), "{file}");
    }
}

fn opened(config: &Value, beside: &[(&str, Value)], tensors: &BTreeMap<String, RawTensor>) -> Checkpoint {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), pack(tensors)).unwrap();
    for (name, text) in beside {
        std::fs::write(folder.path().join(name), text.to_string()).unwrap();
    }
    Checkpoint::open(folder.path()).unwrap_or_else(|e| panic!("{config}: {e}"))
}

/// The module of a method under another name.
fn named(method: usize, stem: &str) -> BTreeMap<String, RawTensor> {
    let (_, _, parts) = module(method);
    tensors(&parts, 0).into_iter().map(|(name, t)| (name.replacen('m', stem, 1), t)).collect()
}

/// Converters of others write names as they were before the conversion, and leave the old settings beside MLX's own.
#[test]
fn settings_of_mlx_are_found_by_either_name_and_go_before_others() {
    let stored = named(0, "language_model.model.layers.0.mlp.up_proj");
    for name in ["language_model.model.layers.0.mlp.up_proj", "model.language_model.layers.0.mlp.up_proj"] {
        let config = json!({
            "quantization": {"bits": 8, "group_size": 128, name: {"bits": 4, "group_size": 32}},
            "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
        });
        let checkpoint = opened(&config, &[], &stored);
        let entry = checkpoint.entry("model.language_model.layers.0.mlp.up_proj.weight");
        let Some(Entry::Scaled(scaled)) = entry else { panic!("{name}: {entry:?}") };
        assert_eq!((scaled.shape.dims(), scaled.form.group()), (&[32, 64][..], 32), "{name}");
    }
}

#[test]
fn folders_of_auto_round_are_those_whose_packing_they_name() {
    let gptq = json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 8,
        "group_size": 64, "sym": true, "extra_config": {
            "m": {"bits": 4, "group_size": 32}, "lm_head": {"bits": 16, "data_type": "float"}}});
    let awq = json!({"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4,
        "group_size": 32, "sym": false});
    for (method, config) in [(5, gptq), (3, awq)] {
        let checkpoint = opened(&json!({"quantization_config": config}), &[], &named(method, "m"));
        let Some(Entry::Scaled(scaled)) = checkpoint.entry("m.weight") else { panic!("{config}") };
        assert_eq!((scaled.shape.dims(), scaled.form.group()), (&[32, 64][..], 32), "{config}");
    }
    let other = json!({"quant_method": "auto-round", "packing_format": "auto_round:gguf", "bits": 4});
    let refusal = run("quantization_config", &other, &named(5, "m")).unwrap_err();
    assert!(refusal.contains("auto_round:gguf") && refusal.contains("auto_round:auto_gptq"), "{refusal}");
}

#[test]
fn an_older_folder_of_modelopt_says_it_in_a_file_of_its_own() {
    let about = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}});
    let weight = RawTensor::new(Dtype::F8_E4M3, &[32, 64], vec![56; 2048]);
    let stored = BTreeMap::from([
        ("m.weight".to_owned(), weight),
        ("m.weight_scale".to_owned(), RawTensor::f32(&[], &[0.5])),
        ("m.input_scale".to_owned(), RawTensor::f32(&[], &[1.0])),
    ]);
    let checkpoint = opened(&json!({}), &[("hf_quant_config.json", about)], &stored);
    assert!(matches!(checkpoint.entry("m.weight"), Some(Entry::Scaled(_))));
    assert_eq!(checkpoint.len(), 1);
}

#[test]
fn a_tower_may_lack_the_first_part_of_its_names() {
    let stored = BTreeMap::from([("visual.a.weight".to_owned(), RawTensor::f32(&[2], &[1.0, 2.0]))]);
    assert!(opened(&json!({}), &[], &stored).contains("model.visual.a.weight"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn dishonest_ones_are_refused_or_read_without_a_panic(
        method in 0usize..7,
        which in 0usize..4,
        axis in 0usize..2,
        side in prop_oneof![Just(0usize), 1usize..70],
        dtype in prop_oneof![Just(None), Just(Some(Dtype::U8)), Just(Some(Dtype::I32)), Just(Some(Dtype::F32))],
        drop in 0usize..8,
        setting in prop_oneof![Just(None), (0usize..300).prop_map(Some)],
        fill in any::<u8>(),
    ) {
        let (key, mut config, mut parts) = module(method);
        let at = which % parts.len();
        let sides = parts[at].2.len();
        parts[at].2[axis % sides] = side;
        if let Some(dtype) = dtype {
            parts[at].1 = dtype;
        }
        if drop < parts.len() && drop != at {
            parts.remove(drop);
        }
        if let Some(n) = setting {
            config[if n % 2 == 0 { "group_size" } else { "bits" }] = (n / 2).into();
        }
        let _ = run(key, &config, &tensors(&parts, fill));
    }
}
