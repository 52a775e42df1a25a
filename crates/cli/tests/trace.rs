//! `turbospark trace --request`: names, shapes, and that two devices agree.

mod common;

use std::path::Path;

use common::{case_input, run};
use safetensors::SafeTensors;

fn trace(out: &Path, more: &[&str]) -> Vec<u8> {
    let request = case_input("s10_literal.request.json");
    let args = ["trace".as_ref(), "--request".as_ref(), request.as_os_str(), "--out".as_ref(), out.as_os_str()];
    run(args.into_iter().chain(more.iter().map(|m| m.as_ref()))).ends_with_code(0);
    std::fs::read(out).unwrap()
}

fn floats(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = tensors.tensor(name).unwrap();
    data.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn every_stage_of_a_request_is_written_and_devices_agree() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = trace(&folder.path().join("cpu.safetensors"), &["--max-tokens", "3"]);
    let cpu = SafeTensors::deserialize(&cpu).unwrap();
    let shape = |name: &str| cpu.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec();
    assert_eq!(shape("pixel_values"), [256, 1536]);
    assert_eq!(shape("grid_thw"), [1, 3]);
    assert_eq!(shape("patch_embed"), [256, 192]);
    assert_eq!(shape("block.7"), [256, 192]);
    assert_eq!(shape("deepstack.1"), [64, 256]);
    assert_eq!(shape("merged"), [64, 256]);
    let tokens = shape("ids")[0];
    assert_eq!(shape("position_ids"), [3, tokens]);
    assert_eq!(shape("rope_delta"), [1]);
    for name in ["hidden.0", "hidden.8", "mixer.0", "mlp.7"] {
        assert_eq!(shape(name), [tokens, 256], "{name}");
    }
    assert_eq!(shape("final_norm"), [1, 256]);
    assert_eq!(shape("logits_last"), [2048]);
    assert!((1..=3).contains(&shape("generated_ids")[0]));

    let plain = trace(&folder.path().join("plain.safetensors"), &["--max-tokens", "3", "--device", "reference"]);
    let plain = SafeTensors::deserialize(&plain).unwrap();
    assert_eq!(cpu.tensor("generated_ids").unwrap().data(), plain.tensor("generated_ids").unwrap().data());
    for name in ["pixel_values", "merged", "hidden.4", "final_norm", "logits_last"] {
        let (a, b) = (floats(&cpu, name), floats(&plain, name));
        let largest = b.iter().fold(0f32, |m, x| m.max(x.abs()));
        let apart = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(apart <= 1e-4 * largest, "{name}: {apart} apart, largest {largest}");
    }
}
