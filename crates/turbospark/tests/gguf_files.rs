//! GGUF files written from checkpoints: read again they are the same model, and they are the converter's own files.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use support::shapes::{dense, hybrid};
use support::written::*;
use support::*;
use turbospark_tensor::{DType, widen_into};
use turbospark_testkit::{ExpertLayout, fixtures, random_checkpoint, shared};
use turbospark_weights::gguf::{self, Set};
use turbospark_weights::{Checkpoint, Entry, Folder, Piece};

/// Every tensor of a checkpoint as F32.
fn values(checkpoint: &Checkpoint) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let one = |(name, entry): (&str, &Entry)| {
        let piece = match entry {
            Entry::Place(place) => Piece::Place(*place),
            Entry::Made(made) => Piece::Made(made.clone()),
            other => panic!("{name}: {}", other.describe()),
        };
        let mut bytes = vec![0; piece.length() as usize];
        checkpoint.fill(&piece, &mut bytes).unwrap();
        let mut wide = vec![0.0; piece.shape().elements()];
        widen_into(&bytes, piece.dtype(), &mut wide);
        (name.to_owned(), (piece.shape().dims().to_vec(), wide))
    };
    checkpoint.entries().map(one).collect()
}

/// What the format's conventions make of the tensors of a checkpoint with experts one by one, by plain loops.
fn converted(config: &Value, tensors: &Stored) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let text = config.get("text_config").unwrap_or(config);
    let size = |key: &str| text[key].as_u64().unwrap_or(0) as usize;
    let (keys, values, width) =
        (size("linear_num_key_heads"), size("linear_num_value_heads"), size("linear_value_head_dim"));
    let qwen35 = config["model_type"].as_str().unwrap().starts_with("qwen3_5");
    // Head j * K + k of the file is head k * r + j.
    let tiled = |rows: Vec<Vec<f32>>, width: usize| -> Vec<f32> {
        let each = values / keys;
        let heads: Vec<_> = rows.chunks(width).collect();
        let order = (0..each).flat_map(|j| (0..keys).map(move |k| k * each + j));
        order.flat_map(|head| heads[head].concat()).collect()
    };
    let rows = |x: &[f32], n: usize| x.chunks(n).map(<[f32]>::to_vec).collect::<Vec<_>>();
    let mut out: BTreeMap<String, (Vec<usize>, Vec<f32>)> = BTreeMap::new();
    for (name, t) in tensors {
        let whole = ["model.language_model.", "model.visual.", "lm_head."].iter().any(|root| name.starts_with(root));
        let name = if whole { name.clone() } else { name.replacen("model.", "model.language_model.", 1) };
        let (mut x, inner) = (t.values(), *t.dims.last().unwrap());
        let part = name.split_once("linear_attn.").map_or("", |(_, part)| part);
        match part {
            "in_proj_qkv.weight" | "conv1d.weight" => {
                let first = 2 * keys * size("linear_key_head_dim") * inner;
                let tail = tiled(rows(&x[first..], inner), width);
                x.truncate(first);
                x.extend(tail);
            }
            "in_proj_z.weight" => x = tiled(rows(&x, inner), width),
            "in_proj_a.weight" | "in_proj_b.weight" => x = tiled(rows(&x, inner), 1),
            "dt_bias" => x = tiled(rows(&x, 1), 1),
            "A_log" => x = tiled(rows(&x, 1), 1).iter().map(|a| -a.exp()).collect(),
            "out_proj.weight" => x = x.chunks(inner).flat_map(|row| tiled(rows(row, 1), width)).collect(),
            _ if qwen35 && name.ends_with("norm.weight") && part.is_empty() && !name.contains("visual") => {
                x.iter_mut().for_each(|w| *w += 1.0);
            }
            _ => {}
        }
        match name.split_once(".experts.") {
            // One after the other, in the order of their numbers: there are fewer than ten.
            Some((layer, rest)) => {
                let stack = format!("{layer}.experts.{}", rest.split_once('.').unwrap().1);
                let (dims, all) = out.entry(stack).or_insert((vec![0, t.dims[0], t.dims[1]], Vec::new()));
                dims[0] += 1;
                all.extend(x);
            }
            None => _ = out.insert(name, (t.dims.clone(), x)),
        }
    }
    out
}

fn assert_same_model(case: &str, config: &Value, canonical: &Stored, source: &Path) {
    let target = tempfile::tempdir().unwrap();
    let report = written(source, target.path(), None);
    assert_eq!((report.kept_quantised, report.widened), (0, 0), "{case}");
    assert!(report.groups.iter().all(|g| g.relative_error < 1e-7), "{case}: {:?}", report.groups);
    let again = Folder::open(target.path()).unwrap_or_else(|e| panic!("{case}: {e}"));
    let (got, expected) = (values(&again.checkpoint().unwrap()), converted(config, canonical));
    let names = |map: &BTreeMap<String, _>| map.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&got), names(&expected), "{case}");
    for (name, (dims, x)) in &expected {
        let (got_dims, got_x) = &got[name];
        assert_eq!((dims, bits(x)), (got_dims, bits(got_x)), "{case}: {name}");
    }
    let furthest = furthest(&logits(&opened(target.path())), &logits(&opened(source)));
    println!("{case}: {furthest:.1e}");
    assert!(furthest <= 1e-5, "{case}: {furthest}");
}

#[test]
fn files_of_the_four_families_are_read_as_the_same_model() {
    use ExpertLayout::{Fused, FusedTransposed, Split};
    let cases: [(&str, Value, &[ExpertLayout]); 5] = [
        ("qwen3_vl", with_vocabulary(dense()), &[Split]),
        ("qwen3_vl_moe", experts_everywhere(), &[Split, Fused, FusedTransposed]),
        ("qwen3_vl_moe, square", square_experts(), &[Fused, FusedTransposed]),
        ("qwen3_5", dense_hybrid(), &[Split]),
        ("qwen3_5_moe", with_vocabulary(hybrid()), &[Split, Fused]),
    ];
    for (case, config, layouts) in cases {
        let canonical = random_checkpoint(&config, Split, false, 21);
        for layout in layouts {
            let source = folder(&config, &random_checkpoint(&config, *layout, false, 21));
            assert_same_model(&format!("{case} {layout:?}"), &config, &canonical, source.path());
        }
    }
}

#[test]
fn files_of_text_models_are_read_as_the_same_model() {
    for model_type in ["qwen3", "qwen3_moe", "llama"] {
        let (config, tensors) = text_only(model_type, 4);
        let source = folder(&config, &tensors);
        if model_type != "llama" {
            assert_same_model(model_type, &config, &tensors, source.path());
            continue;
        }
        // Rows of queries and keys are turned into pairs in the file and back by the reader.
        assert_same_model(model_type, &config, &tensors, source.path());
        let target = tempfile::tempdir().unwrap();
        let report = written(source.path(), target.path(), None);
        let set = gguf::open(&report.model).unwrap();
        let q = bytes(&set, "blk.1.attn_q.weight");
        let original = &tensors["model.layers.1.self_attn.q_proj.weight"].bytes;
        let row = 4 * 256;
        // Head 1, pair 3 lies at rows 38 and 39; its halves were rows 35 and 51.
        assert_eq!(q[38 * row..39 * row], original[35 * row..36 * row]);
        assert_eq!(q[39 * row..40 * row], original[51 * row..52 * row]);
        assert!(set.tensors.iter().any(|(_, t)| t.name == "rope_freqs.weight"));
    }
}

#[test]
fn files_are_those_of_the_converter() {
    let Some(converter) = shared("models/gguf") else {
        println!("skipped: no ../shared/models/gguf");
        return;
    };
    for (family, theirs, ours) in [
        ("qwen3_vl", "fixture-qwen3_vl-bf16", "m-BF16"),
        ("qwen3_vl", "fixture-qwen3_vl-mmproj-f32", ""),
        ("qwen3_vl_moe", "fixture-qwen3_vl_moe-f32", "m-F32"),
        ("qwen3_vl_moe", "fixture-qwen3_vl_moe-mmproj-f32", ""),
    ] {
        let target = tempfile::tempdir().unwrap();
        let report = written(&fixtures().join(family).join("checkpoint"), target.path(), None);
        let theirs = gguf::open(converter.join(format!("{theirs}.gguf"))).unwrap();
        let ours = match ours {
            "" => report.files[1].clone(),
            name => target.path().join(format!("{name}.gguf")),
        };
        let ours = gguf::open(ours).unwrap();
        if keys(&ours).get("general.file_type") == keys(&theirs).get("general.file_type") {
            assert_eq!(keys(&ours), keys(&theirs), "{family}");
            assert_same_tensors(family, &ours, &theirs);
            continue;
        }
        // The fixture's tower is BF16 and theirs was written as F32: the values are the same.
        assert_eq!((family, &theirs.metadata.count("general.file_type").unwrap()), ("qwen3_vl", &Some(0)));
        let mut expected = keys(&theirs);
        expected.insert("general.file_type".to_owned(), gguf::Value::U32(32));
        assert_eq!(keys(&ours), expected, "{family}");
        for (_, tensor) in &theirs.tensors {
            let (_, own) = ours.tensors.iter().find(|(_, t)| t.name == tensor.name).unwrap();
            assert_eq!(own.dims, tensor.dims, "{}", tensor.name);
            let wide = |set: &Set, dtype: DType| {
                let mut out = vec![0.0; tensor.dims.iter().product::<u64>() as usize];
                widen_into(&bytes(set, &tensor.name), dtype, &mut out);
                bits(&out)
            };
            assert_eq!(wide(&ours, own.dtype.unwrap()), wide(&theirs, DType::F32), "{}", tensor.name);
        }
    }
}
