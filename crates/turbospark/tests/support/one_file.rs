//! A checkpoint as one GGUF file with trunk and tower, as Ollama keeps models.

use std::collections::BTreeMap;

use serde_json::Value;
use turbospark_testkit::{GgufWriter, RawTensor};

use super::converter::{As, written};

type Stored = BTreeMap<String, RawTensor>;

/// Writes it. Queries and keys of the tower are F32 and values F16, to which the checkpoint's should be rounded.
pub fn one_file(config: &Value, tensors: &Stored, arch: &str) -> Vec<u8> {
    let c = &config["vision_config"];
    let n = |key: &str| c[key].as_u64().unwrap() as u32;
    let key = |k: &str| format!("{arch}.vision.{k}");
    let deepstack: Vec<i32> =
        c["deepstack_visual_indexes"].as_array().unwrap().iter().map(|b| b.as_i64().unwrap() as i32).collect();
    let (writer, _) = written(config, tensors, arch, As::OneFile);
    let mut w = writer
        .u32(&key("block_count"), n("depth"))
        .u32(&key("embedding_length"), n("hidden_size"))
        .u32(&key("attention.head_count"), n("num_heads"))
        .u32(&key("num_channels"), 3)
        .u32(&key("patch_size"), n("patch_size"))
        .u32(&key("spatial_merge_size"), n("spatial_merge_size"))
        .f32(&key("attention.layer_norm_epsilon"), 1e-6)
        .u32(&key("shortest_edge"), 4096)
        .u32(&key("longest_edge"), 0)
        .i32s(&key("deepstack_visual_indexes"), &deepstack);
    for (name, tensor) in tensors {
        let Some(part) = name.strip_prefix("model.visual.") else { continue };
        let (module, kind) = part.rsplit_once('.').unwrap();
        let module = match module {
            "patch_embed.proj" => "patch_embed".to_owned(),
            "pos_embed" | "merger.norm" | "merger.linear_fc1" | "merger.linear_fc2" => module.to_owned(),
            _ => module
                .replace("deepstack_merger_list.", "deepstack_merger.")
                .replace("blocks.", "blk.")
                .replace("attn.qkv", "attn_qkv")
                .replace("attn.proj", "attn_out"),
        };
        w = put(w, &format!("v.{module}.{kind}"), tensor);
    }
    w.bytes()
}

fn put(w: GgufWriter, name: &str, tensor: &RawTensor) -> GgufWriter {
    let mut dims: Vec<u64> = tensor.dims.iter().map(|&d| d as u64).collect();
    let x = tensor.values();
    let f32s = |x: &[f32]| x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    if name == "v.patch_embed.weight" {
        // Its two outer sides are one.
        dims.splice(..2, [dims[0] * dims[1]]);
    }
    if !name.contains("attn_qkv") {
        return w.tensor(name, 0, &dims, &f32s(&x));
    }
    let third = x.len() / 3;
    dims[0] /= 3;
    let halves =
        |x: &[f32]| x.iter().flat_map(|&v| turbospark_tensor::f32_to_f16(v).to_le_bytes()).collect::<Vec<u8>>();
    w.tensor(&name.replace("qkv", "q"), 0, &dims, &f32s(&x[..third]))
        .tensor(&name.replace("qkv", "k"), 0, &dims, &f32s(&x[third..2 * third]))
        .tensor(&name.replace("qkv", "v"), 1, &dims, &halves(&x[2 * third..]))
}
