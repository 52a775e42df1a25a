//! The fixtures open whole, places hold what was written, and claims refuse what doesn't fit.

mod common;

use std::sync::Arc;

use common::{assets, file, folder, honest, open};
use safetensors::{SafeTensors, tensor::TensorView};
use turbospark_tensor::{DType, Shape};
use turbospark_weights::{Checkpoint, Entry, Folder, Sidecar};

#[test]
fn the_fixtures_have_the_tensors_that_their_index_states() {
    let index = std::fs::read_to_string(assets().join("fixtures/INDEX.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    for (family, files) in [("qwen3_vl", 1), ("qwen3_vl_moe", 1), ("qwen3_5", 1), ("qwen3_5_moe", 2)] {
        let about = index["files"][format!("{family}/checkpoint")]["description"].as_str().unwrap();
        let checkpoint = Checkpoint::open(assets().join("fixtures").join(family).join("checkpoint")).unwrap();
        assert!(about.contains(&format!(" {} tensors", checkpoint.len())), "{family}: {about}");
        assert_eq!(checkpoint.files().len(), files);
        assert!(checkpoint.entries().all(|(_, entry)| matches!(entry, Entry::Place(p) if p.dtype.is_float())));
    }
    let tiny = Checkpoint::open(assets().join("tiny-ocr-qwen3_vl")).unwrap();
    assert!(tiny.contains("model.visual.patch_embed.proj.weight"));
}

#[test]
fn places_are_those_of_the_safetensors_crate() {
    let path = assets().join("fixtures/qwen3_5/checkpoint/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let theirs = SafeTensors::deserialize(&bytes).unwrap();
    let ours = Checkpoint::open(&path).unwrap();
    assert_eq!(ours.len(), theirs.len());
    for (name, view) in theirs.iter() {
        let place = ours.place(name).unwrap().unwrap();
        assert_eq!((place.shape.dims(), place.dtype.to_string()), (view.shape(), view.dtype().to_string()));
        let mapping = ours.map(place.file).unwrap();
        assert_eq!(mapping.slice(place.offset, place.length).unwrap(), view.data());
        let mut loaded = vec![0; place.length as usize];
        ours.read(&place, &mut loaded).unwrap();
        assert_eq!(loaded, view.data());
    }
    // Read at own type: the state's decay is stored wider than its neighbours.
    let dtype = |name: &str| ours.place(name).unwrap().unwrap().dtype;
    assert_eq!(dtype("model.language_model.layers.0.linear_attn.A_log"), DType::F32);
    assert_eq!(dtype("model.language_model.layers.0.linear_attn.in_proj_a.weight"), DType::BF16);
}

#[test]
fn what_the_safetensors_crate_writes_reads_back() {
    let data: Vec<u8> = (0..24).collect();
    let views = [
        ("half", TensorView::new(safetensors::Dtype::F16, vec![2, 3], &data[..12]).unwrap()),
        ("scalar", TensorView::new(safetensors::Dtype::F32, vec![], &data[12..16]).unwrap()),
        ("none", TensorView::new(safetensors::Dtype::BF16, vec![0, 7], &[]).unwrap()),
    ];
    let checkpoint = open(safetensors::serialize(views, None).unwrap()).unwrap();
    assert_eq!(checkpoint.entries().map(|(name, _)| name).collect::<Vec<_>>(), ["half", "none", "scalar"]);
    assert_eq!((checkpoint.total_bytes(), checkpoint.is_empty()), (16, false));
    let half = checkpoint.place("half").unwrap().unwrap();
    assert_eq!((half.dtype, half.shape, half.length), (DType::F16, Shape::from([2, 3]), 12));
    let mut bytes = [0; 12];
    checkpoint.read(&half, &mut bytes).unwrap();
    assert_eq!(bytes, data[..12]);
    assert_eq!(checkpoint.place("other").unwrap(), None);
}

#[test]
fn an_embedded_model_is_a_folder() {
    let bytes: &'static [u8] = Vec::leak(honest(&[("a", "F32", &[2], 4)]));
    let files: Vec<(&str, &[u8])> = vec![("config.json", b"{}"), ("model.safetensors", bytes)];
    let model = Folder::embedded(Vec::leak(files));
    assert_eq!(model.require(Sidecar::Config).unwrap(), "{}");
    let checkpoint = model.checkpoint().unwrap();
    let place = checkpoint.place("a").unwrap().unwrap();
    let mapping = checkpoint.map(place.file).unwrap();
    assert!(!mapping.is_file_backed());
    // The program's own bytes, not a copy.
    assert_eq!(mapping.bytes().as_ptr(), bytes.as_ptr());
    assert!(model.require(Sidecar::Tokenizer).unwrap_err().to_string().contains("embedded model: tokenizer.json"));
}

#[test]
fn a_mapping_is_shared_and_goes_with_its_last_user() {
    let dir = folder(&[("model.safetensors", &honest(&[("a", "F32", &[2], 4)]))]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let file = checkpoint.place("a").unwrap().unwrap().file;
    let (one, two) = (checkpoint.map(file).unwrap(), checkpoint.map(file).unwrap());
    assert!(Arc::ptr_eq(&one, &two) && one.is_file_backed());
    let gone = Arc::downgrade(&one);
    drop((one, two));
    assert!(gone.upgrade().is_none());
    assert_eq!(checkpoint.map(file).unwrap().slice(u64::MAX, 2), None);
}

/// The names of a small layer and what else a published file has.
fn layer() -> Checkpoint {
    let tensors: &[(&str, &str, &[u64], u64)] = &[
        ("model.layers.0.q_proj.weight", "BF16", &[8, 4], 2),
        ("model.layers.0.experts.down_proj", "F32", &[2, 3, 4], 4),
        ("model.layers.0.position_ids", "I64", &[4], 8),
        ("model.layers.0.k_proj.weight", "F8_E5M2", &[8, 4], 1),
        ("model.layers.1.q_proj.weight", "BF16", &[8, 4], 2),
        ("model.layers.1.six", "F32", &[1, 1, 1, 1, 1, 1], 4),
        ("mtp.fc.weight", "F64", &[4, 8], 8),
    ];
    open(honest(tensors)).unwrap()
}

#[test]
fn a_claim_names_both_shapes() {
    let checkpoint = layer();
    let mut claims = checkpoint.claims();
    let place = claims.take("model.layers.0.q_proj.weight", [8, 4]).unwrap();
    assert_eq!((place.dtype(), place.length()), (DType::BF16, 64));
    assert_eq!(claims.take("model.layers.0.q_proj.weight", [8, 4]).unwrap(), place);
    let refusals = [
        (
            claims.take("model.layers.0.q_proj.weight", [4, 8]).unwrap_err(),
            r#"tensor "model.layers.0.q_proj.weight": shape [8, 4], expected [4, 8] from config.json"#,
        ),
        (
            claims.take("model.language_model.layers.1.q_proj.weight", [8, 4]).unwrap_err(),
            r#"missing, expected [8, 4] from config.json; the nearest name is "model.layers.1.q_proj.weight""#,
        ),
        (claims.take("model.layers.7.q_proj.weight", [8, 4]).unwrap_err(), "expected [8, 4] from config.json"),
        (claims.take("model.layers.0.position_ids", [4]).unwrap_err(), "element type I64, expected F32, F16 or BF16"),
        (claims.take("model.layers.0.k_proj.weight", [8, 4]).unwrap_err(), "element type F8_E5M2 with shape [8, 4]"),
        (claims.take("model.layers.1.six", [1]).unwrap_err(), "F32 with shape [1, 1, 1, 1, 1, 1]"),
    ];
    for (error, part) in refusals {
        assert!(error.to_string().contains(part), "{error}");
    }
    // Layer 7 is absent: another layer's tensor would be a misleading hint.
    assert!(!claims.take("model.layers.7.q_proj.weight", [8, 4]).unwrap_err().to_string().contains("nearest"));
}

#[test]
fn alternatives_are_told_apart_by_name_and_shape() {
    let checkpoint = layer();
    let mut claims = checkpoint.claims();
    let (fused, split) = ("model.layers.0.experts.down_proj", "model.layers.0.experts.0.down_proj.weight");
    let shapes = |a, b| [(split, Shape::from([4, 3])), (fused, Shape::from(a)), (fused, Shape::from(b))];
    let (which, place) = claims.take_any(&shapes([2, 4, 3], [2, 3, 4])).unwrap();
    assert_eq!((which, place.shape()), (2, Shape::from([2, 3, 4])));
    let wrong = claims.take_any(&shapes([2, 4, 5], [2, 5, 4])).unwrap_err().to_string();
    assert!(wrong.contains("shape [2, 3, 4], expected [2, 4, 5] or [2, 5, 4] from config.json"), "{wrong}");
    let absent = claims.take_any(&[("a", Shape::from([1])), ("b", Shape::from([2]))]).unwrap_err().to_string();
    assert!(absent.contains("a or b") && absent.contains("[1] or [2]"), "{absent}");
}

#[test]
fn a_tensor_that_nobody_claims_is_refused() {
    let checkpoint = layer();
    let mut claims = checkpoint.claims();
    claims.take("model.layers.0.q_proj.weight", [8, 4]).unwrap();
    let rest = claims.finish(&["mtp."]).unwrap_err().to_string();
    assert!(rest.starts_with("5 tensor(s) are not part of this model: "), "{rest}");
    for part in ["\"model.layers.0.k_proj.weight\" F8_E5M2 [8, 4]", "\"model.layers.0.position_ids\" I64 [4]"] {
        assert!(rest.contains(part), "{rest}");
    }
    assert!(!rest.contains("mtp.") && !rest.contains("0.q_proj"), "{rest}");
    assert_eq!(checkpoint.claims().finish(&["mtp.", "model."]).unwrap(), 7);
    // A prefix, not a part: what merely contains it is refused.
    assert!(checkpoint.claims().finish(&["layers.", "mtp."]).is_err());
}

#[test]
fn a_type_that_nobody_knows_is_refused_only_when_asked_for() {
    let header = r#"{"new":{"dtype":"F1_X","shape":[3],"data_offsets":[0,5]},
        "w":{"dtype":"F32","shape":[1],"data_offsets":[5,9]}}"#;
    let checkpoint = open(file(header, 9)).unwrap();
    let mut claims = checkpoint.claims();
    claims.take("w", [1]).unwrap();
    assert!(claims.take("new", [3]).unwrap_err().to_string().contains("F1_X"));
    assert!(checkpoint.place("new").is_err() && checkpoint.contains("new"));
}
