//! Weights quantised while loading are those of a checkpoint that holds their dequantised values.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use support::shapes::{LAYERS, dense, hybrid, mixture};
use support::*;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::config::Config;
use turbospark_models::{LoadAs, Model, ModelError, Quant, Role};
use turbospark_tensor::{DType, quant::quantise, widen_into};
use turbospark_testkit::{ExpertLayout, RawTensor, pack, random_checkpoint};
use turbospark_weights::Checkpoint;

type Stored = BTreeMap<String, RawTensor>;

fn load(config: &Value, tensors: &Stored, quant: Option<Quant>, device: &dyn Device) -> Result<Model, ModelError> {
    let bytes: Arc<[u8]> = pack(tensors).into();
    let checkpoint = Checkpoint::from_bytes("random", bytes).unwrap();
    let how = LoadAs { quant, threads: Some(2), ..LoadAs::default() };
    Model::load_as(Config::parse(&config.to_string()).unwrap(), &checkpoint, device, &how)
}

fn logits(model: &Model, device: &dyn Device) -> Vec<Vec<u32>> {
    vec![bits(&prompt_and_row(model, device, 3))]
}

/// What a tensor is for, by its name.
fn role(name: &str, tied: bool) -> Option<Role> {
    let layer = || name.split('.').find_map(|part| part.parse().ok()).unwrap();
    let part = name.trim_end_matches(".weight").rsplit('.').next().unwrap();
    match part {
        _ if name.contains("visual") => None,
        "lm_head" => Some(Role::Head),
        "embed_tokens" => Some(if tied { Role::Head } else { Role::Linear }),
        "q_proj" | "k_proj" | "o_proj" | "gate_proj" | "up_proj" | "gate_up_proj" | "in_proj_z" | "out_proj" => {
            Some(Role::Linear)
        }
        "v_proj" | "down_proj" | "in_proj_qkv" => Some(Role::Sensitive { layer: layer(), layers: LAYERS }),
        _ => None,
    }
}

/// The tensors with the values that quantising leaves of them, and how many have each type.
fn dequantised(tensors: &Stored, quant: Quant, tied: bool) -> (Stored, BTreeMap<DType, usize>) {
    let mut types = BTreeMap::new();
    let one = |(name, t): (&String, &RawTensor)| {
        let row = *t.dims.last().unwrap();
        let Some(dtype) = role(name, tied).and_then(|r| quant.of(r, row)) else { return (name.clone(), t.clone()) };
        *types.entry(dtype).or_insert(0) += 1;
        let mut x: Vec<f32> = t.bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let mut blocks = vec![0; dtype.bytes(x.len()).unwrap()];
        quantise(&x, dtype, &mut blocks).unwrap();
        widen_into(&blocks, dtype, &mut x);
        (name.clone(), RawTensor::f32(&t.dims, &x))
    };
    (tensors.iter().map(one).collect(), types)
}

#[test]
fn quantising_while_loading_gives_the_bits_of_the_dequantised_checkpoint() {
    let device = &ReferenceDevice;
    for (config, tied, quants) in [
        (dense(), true, &Quant::ALL[..]),
        (mixture(256), false, &[Quant::Q4_K, Quant::Q4_0]),
        (hybrid(), false, &[Quant::Q5_K, Quant::Q8_0]),
    ] {
        let tensors = random_checkpoint(&config, ExpertLayout::Fused, false, 11);
        let plain = logits(&load(&config, &tensors, None, device).unwrap(), device);
        for &quant in quants {
            let (expected, types) = dequantised(&tensors, quant, tied);
            let expected = logits(&load(&config, &expected, None, device).unwrap(), device);
            let family = &config["model_type"];
            println!("{family} {quant}: {types:?}");
            assert!(
                types.len() > 1 || quant.dtype() == DType::Q8_0 || tied,
                "{quant}: the mix is not tested: {types:?}"
            );
            assert!(plain != expected, "{family} {quant}: quantising changed nothing");
            let layouts = match family.as_str().unwrap().ends_with("moe") {
                true => &[ExpertLayout::Fused, ExpertLayout::FusedTransposed, ExpertLayout::Split][..],
                false => &[ExpertLayout::Fused],
            };
            for &layout in layouts {
                let tensors = random_checkpoint(&config, layout, false, 11);
                let got = logits(&load(&config, &tensors, Some(quant), device).unwrap(), device);
                assert!(got == expected, "{family} {quant}: bits differ");
            }
        }
    }
}

#[test]
fn experts_that_are_no_whole_blocks_stay_as_they_are_stored() {
    // Of transposed experts both tensors stay where one has to; else each goes its way.
    let device = &ReferenceDevice;
    let config = mixture(20);
    for layout in [ExpertLayout::FusedTransposed, ExpertLayout::Fused] {
        let tensors = random_checkpoint(&config, layout, false, 11);
        logits(&load(&config, &tensors, Some(Quant::Q4_K), device).unwrap(), device);
    }
}

#[test]
fn a_weight_that_is_not_finite_is_refused_by_name() {
    let config = dense();
    let mut tensors = random_checkpoint(&config, ExpertLayout::Fused, false, 11);
    let name = "model.language_model.layers.1.mlp.up_proj.weight";
    let up = tensors.get_mut(name).unwrap();
    up.bytes[4 * 700..4 * 700 + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let said = load(&config, &tensors, Some(Quant::Q8_0), &ReferenceDevice).unwrap_err().to_string();
    assert_eq!(said, format!("tensor {name:?}: element 700 is NaN; only finite weights are quantised"));
}
