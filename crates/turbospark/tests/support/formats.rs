//! The formats of quantising programs, as folders.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use turbospark_testkit::RawTensor;

use super::packers::{self, Packer};

pub type Stored = BTreeMap<String, RawTensor>;

/// How a format writes a folder.
pub struct Format {
    pub name: &'static str,
    pub packer: Packer,
    /// The key of `config.json` and its value.
    pub config: (&'static str, Value),
    /// Whether embedding, head and router are quantised and experts stacked, as MLX does.
    pub mlx: bool,
}

pub fn formats() -> Vec<Format> {
    let mut all = Vec::new();
    let mut add = |name, packer, config, mlx| all.push(Format { name, packer, config, mlx });
    for (name, bits, group) in [
        ("mlx 2-bit g32", 2, 32),
        ("mlx 3-bit g64", 3, 64),
        ("mlx 4-bit g32", 4, 32),
        ("mlx 4-bit g128", 4, 128),
        ("mlx 5-bit g32", 5, 32),
        ("mlx 6-bit g64", 6, 64),
        ("mlx 8-bit g64", 8, 64),
    ] {
        let config = ("quantization", json!({"bits": bits, "group_size": group}));
        add(name, packers::mlx(bits, group), config, true);
    }
    for mode in ["mxfp4", "mxfp8", "nvfp4"] {
        let bits = if mode == "mxfp8" { 8 } else { 4 };
        let group = if mode == "nvfp4" { 16 } else { 32 };
        let config = ("quantization", json!({"bits": bits, "group_size": group, "mode": mode}));
        add(mode, packers::mlx_floats(mode), config, true);
    }
    let quant = |value| ("quantization_config", value);
    let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]});
    add("fp8 128x128", packers::fp8([128, 128], "weight_scale_inv"), quant(fp8), false);
    let whole = json!({"quant_method": "fp8", "weight_block_size": null});
    add("fp8 per tensor", packers::fp8([0, 0], "weight_scale_inv"), quant(whole), false);
    for (name, group) in [("awq gemm", 32), ("awq gemm g64", 64), ("awq gemm g128", 128)] {
        let awq = json!({"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"});
        add(name, packers::awq(group), quant(awq), false);
    }
    let gemv = json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"});
    add("awq gemv", packers::awq_gemv(64), quant(gemv), false);
    for (name, bits, less_one, symmetric, act_order) in [
        ("gptq 4-bit", 4, true, true, false),
        ("gptq 4-bit with zeros", 4, true, false, false),
        ("gptq 4-bit v2", 4, false, false, false),
        ("gptq 4-bit activation order", 4, true, false, true),
        ("gptq 2-bit", 2, true, false, false),
        ("gptq 3-bit", 3, true, false, false),
        ("gptq 8-bit", 8, true, false, false),
        ("gptq 3-bit activation order", 3, true, false, true),
        ("gptq 3-bit in planes", 3, false, false, false),
        ("gptq 5-bit in planes", 5, false, false, false),
        ("gptq 6-bit in planes, less one", 6, true, false, true),
        ("gptq 7-bit in planes", 7, false, false, true),
    ] {
        let planes = name.contains("planes");
        let format = match less_one {
            true => "gptq",
            false if planes => "gptq_p",
            false => "gptq_v2",
        };
        let config = json!({"quant_method": "gptq", "bits": bits, "group_size": 32, "sym": symmetric,
            "desc_act": act_order, "checkpoint_format": format});
        let of = packers::Gptq { bits, group: 32, less_one, symmetric, act_order, planes };
        add(name, packers::gptq(of), quant(config), false);
    }
    let dynamic = json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false, "dynamic": {
        "-:.*\\.o_proj": {}, "+:.*\\.down_proj": {"bits": 8, "desc_act": true}, ".*v_proj": {"bits": 2, "group_size": 16}}});
    add("gptq dynamic", packers::gptq_dynamic(), quant(dynamic), false);
    for (name, bits, group, symmetric, dense) in [
        ("compressed 4-bit", 4, 32, true, true),
        ("compressed 4-bit with zeros", 4, 32, false, true),
        ("compressed 4-bit by row", 4, 0, true, true),
        ("compressed 8-bit", 8, 64, true, true),
        ("compressed 3-bit", 3, 32, false, true),
        ("compressed 3-bit, older", 3, 32, false, false),
        ("compressed 6-bit, older", 6, 64, false, false),
        ("compressed 7-bit", 7, 32, false, true),
        ("compressed 4-bit activation order", 4, 32, false, true),
    ] {
        let config = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
            "group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int", "symmetric": symmetric}}}});
        add(name, packers::compressed(bits, group, symmetric, dense, name.contains("order")), quant(config), false);
    }
    let other = |format: &str| json!({"quant_method": "compressed-tensors", "format": format});
    let plain = json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": 32, "symmetric": false}}}});
    add("compressed 4-bit, zeros as bytes", packers::compressed_plain_zeros(32), quant(plain), false);
    add("compressed int8", packers::int8(), quant(other("int-quantized")), false);
    add("compressed int8 with zeros", packers::int8_zeros(), quant(other("int-quantized")), false);
    add("compressed fp8 by row", packers::fp8([1, 0], "weight_scale"), quant(other("float-quantized")), false);
    add("compressed nvfp4", packers::nvfp4(), quant(other("nvfp4-pack-quantized")), false);
    add("compressed mxfp4", packers::compressed_floats("mxfp4"), quant(other("mxfp4-pack-quantized")), false);
    add("compressed mxfp8", packers::compressed_floats("mxfp8"), quant(other("mxfp8-quantized")), false);
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    add("modelopt nvfp4", packers::modelopt(), quant(modelopt), false);
    let modelopt = json!({"quant_method": "modelopt", "quant_algo": "FP8"});
    add("modelopt fp8", packers::fp8([0, 0], "weight_scale"), quant(modelopt), false);
    all
}

/// Whether a format quantises the tensor.
fn is_quantised(name: &str, t: &RawTensor, mlx: bool) -> bool {
    let module = name.trim_end_matches(".weight").rsplit('.').next().unwrap();
    let outer = ["embed_tokens", "lm_head", "gate", "shared_expert_gate", "in_proj_a", "in_proj_b"];
    let inner = ["in_proj_qkv", "in_proj_z", "out_proj"];
    !name.contains("visual")
        && t.dims.len() == 2
        && (module.ends_with("_proj") || inner.contains(&module) || (mlx && outer.contains(&module)))
}

/// A folder's tensors in a format, and the same weights as F32 under the published names.
pub fn quantised(source: &Stored, format: &Format) -> (Stored, Stored) {
    quantised_where(source, format, &|name, t| is_quantised(name, t, format.mlx))
}

/// As [`quantised`], every matrix that the format has room for, whatever it is for: embedding, head, router, gates, and
/// the tower's.
pub fn quantised_whole(source: &Stored, format: &Format) -> (Stored, Stored) {
    quantised_where(source, format, &|name, t| t.dims.len() == 2 && name.ends_with(".weight"))
}

fn quantised_where(source: &Stored, format: &Format, chosen: &dyn Fn(&str, &RawTensor) -> bool) -> (Stored, Stored) {
    let (mut folder, mut plain) = (Stored::new(), Stored::new());
    let mut experts: BTreeMap<String, Vec<RawTensor>> = BTreeMap::new();
    for (name, t) in source {
        let stem = name.trim_end_matches(".weight");
        let packed = match chosen(name, t) {
            true => (format.packer)(stem, &t.values(), t.dims[0], t.dims[1]),
            false => None,
        };
        let meaning = packed.as_ref().map(|p| RawTensor::f32(&t.dims, &p.meaning));
        plain.insert(name.clone(), meaning.unwrap_or_else(|| t.clone()));
        let tensors = packed.map_or_else(|| vec![(name.clone(), t.clone())], |p| p.tensors);
        for (name, t) in tensors {
            let expert = name.split_once(".experts.").filter(|_| format.mlx);
            match expert.and_then(|(layer, rest)| Some((layer, rest.split_once('.')?.1))) {
                // Experts come in the order of their names; there are fewer than ten.
                Some((layer, rest)) => experts.entry(format!("{layer}.switch_mlp.{rest}")).or_default().push(t),
                None => _ = folder.insert(name, t),
            }
        }
    }
    for (name, each) in experts {
        let dims = [&[each.len()], each[0].dims.as_slice()].concat();
        folder
            .insert(name, RawTensor::new(each[0].dtype(), &dims, each.iter().flat_map(|t| t.bytes.clone()).collect()));
    }
    if format.mlx {
        folder = folder.into_iter().map(|(name, t)| as_mlx(name, t)).collect();
    }
    (folder, plain)
}

/// What the tool changes besides: names, channels last, convolutions turned, norms of Qwen3.5 with their one.
fn as_mlx(name: String, t: RawTensor) -> (String, RawTensor) {
    let t = if name.ends_with("patch_embed.proj.weight") {
        let &[out, c, f, h, w] = t.dims.as_slice() else { panic!("five sides") };
        let x = t.values();
        let at = |o: usize, i: usize, ch: usize| x[(o * c + ch) * f * h * w + i];
        let all = (0..out).flat_map(|o| (0..f * h * w).flat_map(move |i| (0..c).map(move |ch| (o, i, ch))));
        RawTensor::f32(&[out, f, h, w, c], &all.map(|(o, i, ch)| at(o, i, ch)).collect::<Vec<_>>())
    } else if name.ends_with("conv1d.weight") {
        RawTensor::new(t.dtype(), &[t.dims[0], t.dims[2], 1], t.bytes)
    } else {
        t
    };
    let name = match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("language_model.model.{rest}"),
        None if name.starts_with("lm_head") => format!("language_model.{name}"),
        None => name.replace("model.visual.", "vision_tower."),
    };
    (name, t)
}

/// Norms as the tool stores them, where the convolution shows that it did.
pub fn with_one(folder: &mut Stored) {
    if !folder.keys().any(|name| name.ends_with("conv1d.weight")) {
        return;
    }
    for (name, t) in folder.iter_mut() {
        if name.contains("norm") && !name.contains("linear_attn") && !name.contains("vision_tower") {
            let x: Vec<f32> = t.values().iter().map(|w| 1.0 + w).collect();
            *t = RawTensor::f32(&t.dims, &x);
        }
    }
}
