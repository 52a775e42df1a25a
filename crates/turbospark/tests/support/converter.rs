//! A checkpoint as GGUF files, by the published rules of the converter, written plainly.

use std::collections::BTreeMap;

use serde_json::Value;
use turbospark_tensor::quant::quantise;
use turbospark_tensor::{DType, e4m3_to_f32};
use turbospark_testkit::{GgufWriter, RawTensor};

type Stored = BTreeMap<String, RawTensor>;

/// The number of a type in a file.
fn kind(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q4_K => 12,
        DType::Q5_K => 13,
        DType::Q6_K => 14,
        other => panic!("{other} is not written here"),
    }
}

/// How a trunk is written.
#[derive(Clone, Copy)]
pub enum As {
    /// Its matrices in a type.
    Blocks(DType),
    /// Matrices of rows of whole blocks in NVFP4 with a scale for each, the others in F32.
    Nvfp4,
    /// In F32, with the names and keys of files that have both halves of a model.
    OneFile,
}

impl As {
    fn dtype(self) -> DType {
        match self {
            As::Blocks(dtype) => dtype,
            As::Nvfp4 | As::OneFile => DType::F32,
        }
    }
}

struct Trunk<'a> {
    arch: &'a str,
    text: &'a Value,
    how: As,
    writer: GgufWriter,
    /// The weights as the file has them, under the published names.
    meaning: Stored,
}

impl Trunk<'_> {
    fn size(&self, key: &str) -> usize {
        self.text[key].as_u64().unwrap() as usize
    }

    /// Key and value heads of DeltaNet, and the width of a value head.
    fn heads(&self) -> [usize; 3] {
        ["linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim"].map(|key| self.size(key))
    }

    /// Blocks of `each` rows, one a value head, from grouped to tiled.
    fn tiled(&self, x: &[f32], row: usize, each: usize) -> Vec<f32> {
        let [keys, values, _] = self.heads();
        let shared = values / keys;
        let block = each * row;
        // Tiled head j * K + k is grouped head k * r + j.
        let from = (0..values).map(|h| (h % keys) * shared + h / keys);
        from.flat_map(|g| x[g * block..(g + 1) * block].to_vec()).collect()
    }

    fn put(&mut self, name: &str, dims: &[usize], x: &[f32], dtype: DType) {
        let sides: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        let writer = std::mem::take(&mut self.writer);
        let bytes = encode(x, dtype);
        self.writer = writer.tensor(name, kind(dtype), &sides, &bytes);
    }

    /// A matrix in the file's block type, where its rows are whole blocks.
    fn matrix(&mut self, name: &str, published: &str, dims: &[usize], x: &[f32]) {
        let row = *dims.last().unwrap();
        if matches!(self.how, As::Nvfp4) && row.is_multiple_of(64) {
            let back = self.nvfp4(name, dims, x, 1);
            if let Some(t) = self.meaning.get_mut(published) {
                *t = RawTensor::f32(&t.dims.clone(), &back);
            }
            return;
        }
        let all = self.how.dtype();
        let dtype = if row.is_multiple_of(all.block().elements) { all } else { DType::F32 };
        let blocks = encode(x, dtype);
        let mut back = vec![0f32; x.len()];
        turbospark_tensor::widen_into(&blocks, dtype, &mut back);
        if let Some(t) = self.meaning.get_mut(published) {
            *t = RawTensor::f32(&t.dims.clone(), &back);
        }
        self.put(name, dims, x, dtype);
    }

    /// `count` matrices in NVFP4, each with a scale, and what they then stand for.
    fn nvfp4(&mut self, name: &str, dims: &[usize], x: &[f32], count: usize) -> Vec<f32> {
        const SIZES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        let wholes: Vec<f32> = (0..count).map(|m| 0.01 + 0.003 * m as f32).collect();
        let (mut blocks, mut back) = (Vec::new(), Vec::new());
        for (i, x) in x.chunks_exact(64).enumerate() {
            let whole = wholes[i * 64 * count / (dims.iter().product::<usize>())];
            let (mut scales, mut codes) = ([0u8; 4], [[0u8; 8]; 4]);
            for (g, x) in x.chunks_exact(16).enumerate() {
                let most = x.iter().fold(0f32, |m, v| m.max(v.abs())) / (6.0 * whole);
                // The least scale that holds all of them.
                scales[g] = (0..0x7e).find(|&b| e4m3_to_f32(b) >= most).unwrap_or(0x7e);
                let scale = e4m3_to_f32(scales[g]) * whole;
                for (i, v) in x.iter().enumerate() {
                    let off = |k: usize| (SIZES[k] * scale - v.abs()).abs();
                    let size = (0..8).min_by(|&a, &b| off(a).total_cmp(&off(b))).unwrap();
                    let code = size as u8 | if *v < 0.0 { 8 } else { 0 };
                    codes[g][i % 8] |= code << (i / 8 * 4);
                    back.push(if *v < 0.0 { -SIZES[size] } else { SIZES[size] } * scale);
                }
            }
            blocks.extend(scales);
            blocks.extend(codes.as_flattened());
        }
        let sides: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        let stem = name.trim_end_matches(".weight");
        let whole: Vec<u8> = wholes.iter().flat_map(|v| v.to_le_bytes()).collect();
        let writer = std::mem::take(&mut self.writer);
        let writer = writer.tensor(name, 40, &sides, &blocks);
        let writer = writer.tensor(&format!("{stem}.scale"), 0, &[count as u64], &whole);
        self.writer = writer.tensor(&format!("{stem}.input_scale"), 0, &[1], &[0; 4]);
        back
    }
}

fn encode(x: &[f32], dtype: DType) -> Vec<u8> {
    let mut out = vec![0; dtype.bytes(x.len()).unwrap()];
    match dtype {
        DType::F32 => out.copy_from_slice(&x.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()),
        block => quantise(x, block, &mut out).unwrap(),
    }
    out
}

/// The trunk of a checkpoint with one tensor an expert, its matrices in `dtype`, and the weights that they stand for.
///
/// The order of value heads only matters to matrices that are left in F32: a test of block types takes equal numbers
/// of key and value heads.
pub fn trunk(config: &Value, tensors: &Stored, arch: &str, how: As) -> (Vec<u8>, Stored) {
    let (writer, meaning) = written(config, tensors, arch, how);
    (writer.bytes(), meaning)
}

pub(super) fn written(config: &Value, tensors: &Stored, arch: &str, how: As) -> (GgufWriter, Stored) {
    let text = &config["text_config"];
    let writer = metadata(GgufWriter::new(), config, text, arch, matches!(how, As::OneFile));
    let mut t = Trunk { arch, text, how, writer, meaning: tensors.clone() };
    let qwen35 = arch.starts_with("qwen35");
    let layers = t.size("num_hidden_layers");
    for (name, tensor) in tensors.iter().filter(|(name, _)| !name.contains("visual") && !name.contains(".experts.")) {
        let x = tensor.values();
        let dims = tensor.dims.clone();
        let short = name.trim_start_matches("model.language_model.").trim_start_matches("model.");
        if let Some(renamed) = [("embed_tokens.weight", "token_embd.weight"), ("lm_head.weight", "output.weight")]
            .iter()
            .find_map(|(from, to)| (*from == short).then_some(*to))
        {
            t.matrix(renamed, name, &dims, &x);
            continue;
        }
        let one = |x: &[f32]| x.iter().map(|w| if qwen35 { 1.0 + w } else { *w }).collect::<Vec<_>>();
        if short == "norm.weight" {
            t.put("output_norm.weight", &dims, &one(&x), DType::F32);
            continue;
        }
        let (layer, part) = short.trim_start_matches("layers.").split_once('.').unwrap();
        let b = format!("blk.{layer}");
        match part {
            "input_layernorm.weight" => t.put(&format!("{b}.attn_norm.weight"), &dims, &one(&x), DType::F32),
            "post_attention_layernorm.weight" => {
                let to = if qwen35 { "post_attention_norm" } else { "ffn_norm" };
                t.put(&format!("{b}.{to}.weight"), &dims, &one(&x), DType::F32);
            }
            "self_attn.q_norm.weight" => t.put(&format!("{b}.attn_q_norm.weight"), &dims, &one(&x), DType::F32),
            "self_attn.k_norm.weight" => t.put(&format!("{b}.attn_k_norm.weight"), &dims, &one(&x), DType::F32),
            "self_attn.q_proj.weight" | "self_attn.k_proj.weight" => {
                let (to, heads) = match part.contains("q_proj") {
                    true => ("attn_q", t.size("num_attention_heads")),
                    false => ("attn_k", t.size("num_key_value_heads")),
                };
                if t.arch == "llama" {
                    // Halves of a head to pairs.
                    let dim = dims[0] / heads;
                    let row = dims[1];
                    let from = |r: usize| r / dim * dim + r % 2 * (dim / 2) + r % dim / 2;
                    let pairs: Vec<f32> = (0..dims[0]).flat_map(|r| x[from(r) * row..][..row].to_vec()).collect();
                    let to = format!("{b}.{to}.weight");
                    if matches!(t.how, As::Nvfp4) && row.is_multiple_of(64) {
                        let back = t.nvfp4(&to, &dims, &pairs, 1);
                        let mut halves = vec![0f32; back.len()];
                        for (r, line) in back.chunks_exact(row).enumerate() {
                            halves[from(r) * row..][..row].copy_from_slice(line);
                        }
                        t.meaning.insert(name.clone(), RawTensor::f32(&dims, &halves));
                    } else {
                        t.put(&to, &dims, &pairs, DType::F32);
                    }
                } else {
                    t.matrix(&format!("{b}.{to}.weight"), name, &dims, &x);
                }
            }
            "self_attn.v_proj.weight" => t.matrix(&format!("{b}.attn_v.weight"), name, &dims, &x),
            "self_attn.o_proj.weight" => t.matrix(&format!("{b}.attn_output.weight"), name, &dims, &x),
            "mlp.gate_proj.weight" => t.matrix(&format!("{b}.ffn_gate.weight"), name, &dims, &x),
            "mlp.up_proj.weight" => t.matrix(&format!("{b}.ffn_up.weight"), name, &dims, &x),
            "mlp.down_proj.weight" => t.matrix(&format!("{b}.ffn_down.weight"), name, &dims, &x),
            "mlp.gate.weight" => t.put(&format!("{b}.ffn_gate_inp.weight"), &dims, &x, DType::F32),
            "mlp.shared_expert_gate.weight" => {
                t.put(&format!("{b}.ffn_gate_inp_shexp.weight"), &dims[1..], &x, DType::F32);
            }
            "mlp.shared_expert.gate_proj.weight" => t.matrix(&format!("{b}.ffn_gate_shexp.weight"), name, &dims, &x),
            "mlp.shared_expert.up_proj.weight" => t.matrix(&format!("{b}.ffn_up_shexp.weight"), name, &dims, &x),
            "mlp.shared_expert.down_proj.weight" => t.matrix(&format!("{b}.ffn_down_shexp.weight"), name, &dims, &x),
            _ => delta(&mut t, &b, part, &dims, &x),
        }
    }
    if text["num_experts"].is_u64() {
        for i in 0..layers {
            experts(&mut t, tensors, i);
        }
    }
    (t.writer, t.meaning)
}

fn delta(t: &mut Trunk<'_>, b: &str, part: &str, dims: &[usize], x: &[f32]) {
    let [_, _, width] = t.heads();
    let row = dims.last().copied().unwrap_or(1);
    let keys = 2 * t.size("linear_num_key_heads") * t.size("linear_key_head_dim");
    // Rows of q and k stay, those of v are ordered anew.
    let mixed = |t: &Trunk<'_>, row: usize| [&x[..keys * row], &t.tiled(&x[keys * row..], row, width)].concat();
    let f32 = DType::F32;
    match part {
        "linear_attn.in_proj_qkv.weight" => t.put(&format!("{b}.attn_qkv.weight"), dims, &mixed(t, row), f32),
        "linear_attn.conv1d.weight" => {
            t.put(&format!("{b}.ssm_conv1d.weight"), &[dims[0], dims[2]], &mixed(t, row), f32);
        }
        "linear_attn.in_proj_z.weight" => t.put(&format!("{b}.attn_gate.weight"), dims, &t.tiled(x, row, width), f32),
        "linear_attn.in_proj_a.weight" => t.put(&format!("{b}.ssm_alpha.weight"), dims, &t.tiled(x, row, 1), f32),
        "linear_attn.in_proj_b.weight" => t.put(&format!("{b}.ssm_beta.weight"), dims, &t.tiled(x, row, 1), f32),
        "linear_attn.A_log" => {
            let rate: Vec<f32> = t.tiled(x, 1, 1).iter().map(|a| -a.exp()).collect();
            t.put(&format!("{b}.ssm_a"), dims, &rate, f32);
        }
        "linear_attn.dt_bias" => {
            let name = if matches!(t.how, As::OneFile) { "ssm_dt" } else { "ssm_dt.bias" };
            t.put(&format!("{b}.{name}"), dims, &t.tiled(x, 1, 1), f32);
        }
        "linear_attn.norm.weight" => t.put(&format!("{b}.ssm_norm.weight"), dims, x, f32),
        "linear_attn.out_proj.weight" => {
            let rows = x.chunks_exact(row).flat_map(|line| t.tiled(line, 1, width)).collect::<Vec<_>>();
            t.put(&format!("{b}.ssm_out.weight"), dims, &rows, f32);
        }
        other => panic!("{other} has no name in a GGUF file"),
    }
}

fn experts(t: &mut Trunk<'_>, tensors: &Stored, layer: usize) {
    let count = t.size("num_experts");
    for (part, to) in [("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")] {
        let name = |e: usize| format!("model.language_model.layers.{layer}.mlp.experts.{e}.{part}.weight");
        let Some(first) = tensors.get(&name(0)) else { return };
        let all: Vec<f32> = (0..count).flat_map(|e| tensors[&name(e)].values()).collect();
        let dims = [&[count], first.dims.as_slice()].concat();
        let to = format!("blk.{layer}.{to}.weight");
        if !matches!(t.how, As::Nvfp4) || !dims[2].is_multiple_of(64) {
            t.put(&to, &dims, &all, DType::F32);
            continue;
        }
        let back = t.nvfp4(&to, &dims, &all, count);
        for (e, back) in back.chunks_exact(all.len() / count).enumerate() {
            t.meaning.insert(name(e), RawTensor::f32(&first.dims, back));
        }
    }
}

fn metadata(w: GgufWriter, config: &Value, text: &Value, arch: &str, one_file: bool) -> GgufWriter {
    let n = |key: &str| text[key].as_u64().unwrap_or(0) as u32;
    let key = |k: &str| format!("{arch}.{k}");
    let rope = &text["rope_parameters"];
    let mut w = w
        .text("general.architecture", arch)
        .u32(&key("block_count"), n("num_hidden_layers"))
        .u32(&key("context_length"), n("max_position_embeddings"))
        .u32(&key("embedding_length"), n("hidden_size"))
        .u32(&key("feed_forward_length"), n("intermediate_size"))
        .u32(&key("attention.head_count"), n("num_attention_heads"))
        .u32(&key("attention.key_length"), n("head_dim"))
        .u32(&key("attention.value_length"), n("head_dim"))
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-6)
        .f32(&key("rope.freq_base"), rope["rope_theta"].as_f64().unwrap() as f32);
    let kinds = text["layer_types"].as_array();
    w = match kinds {
        // Layers without attention have none.
        Some(kinds) if one_file => {
            let heads = kinds.iter().map(|kind| u32::from(kind == "full_attention") * n("num_key_value_heads"));
            let heads: Vec<u8> = heads.flat_map(u32::to_le_bytes).collect();
            w.raw_array(&key("attention.head_count_kv"), 4, kinds.len() as u64, &heads)
        }
        _ => w.u32(&key("attention.head_count_kv"), n("num_key_value_heads")),
    };
    if let Some(sections) = rope["mrope_section"].as_array() {
        let sections: Vec<i32> = sections.iter().map(|s| s.as_i64().unwrap() as i32).collect();
        w = match one_file {
            true => w.i32s(&key("rope.mrope_section"), &sections),
            false => w.i32s(&key("rope.dimension_sections"), &[&sections[..], &[0]].concat()),
        };
    }
    if let Some(share) = rope["partial_rotary_factor"].as_f64() {
        w = w.u32(&key("rope.dimension_count"), (share * f64::from(n("head_dim"))) as u32);
    }
    if text["num_experts"].is_u64() {
        w = w.u32(&key("expert_count"), n("num_experts")).u32(&key("expert_used_count"), n("num_experts_per_tok"));
        if !one_file {
            w = w.u32(&key("expert_feed_forward_length"), n("moe_intermediate_size"));
        }
        if n("shared_expert_intermediate_size") > 0 {
            w = w.u32(&key("expert_shared_feed_forward_length"), n("shared_expert_intermediate_size"));
        }
    }
    if text["linear_num_value_heads"].is_u64() {
        let linear = text["layer_types"].as_array().unwrap().iter().map(|kind| u8::from(kind == "linear_attention"));
        w = w
            .u32(&key("ssm.conv_kernel"), n("linear_conv_kernel_dim"))
            .u32(&key("ssm.state_size"), n("linear_key_head_dim"))
            .u32(&key("ssm.group_count"), n("linear_num_key_heads"))
            .u32(&key("ssm.time_step_rank"), n("linear_num_value_heads"))
            .u32(&key("ssm.inner_size"), n("linear_num_value_heads") * n("linear_value_head_dim"))
            .raw_array(&key("attention.recurrent_layers"), 7, linear.len() as u64, &linear.collect::<Vec<_>>());
    }
    let mut tokens: Vec<String> = (0..n("vocab_size")).map(|i| format!("t{i}")).collect();
    for (id, token) in [
        ("image_token_id", "<|image_pad|>"),
        ("video_token_id", "<|video_pad|>"),
        ("vision_start_token_id", "<|vision_start|>"),
        ("vision_end_token_id", "<|vision_end|>"),
    ] {
        if let Some(id) = config[id].as_u64() {
            tokens[id as usize] = token.to_owned();
        }
    }
    tokens[2] = "t0t1".to_owned();
    let types: Vec<i32> = tokens.iter().map(|t| if t.starts_with('<') { 3 } else { 1 }).collect();
    w.text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "qwen2")
        .texts("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .texts("tokenizer.ggml.merges", &["t0 t1"])
        .u32("tokenizer.ggml.eos_token_id", 0)
}

/// The vision tower of a checkpoint.
pub fn tower(config: &Value, tensors: &Stored) -> Vec<u8> {
    let c = &config["vision_config"];
    let n = |key: &str| c[key].as_u64().unwrap() as u32;
    let depth = n("depth") as usize;
    let deepstack: Vec<usize> =
        c["deepstack_visual_indexes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as usize).collect();
    let flags: Vec<u8> = (0..depth).map(|b| u8::from(deepstack.contains(&b))).collect();
    let mut w = GgufWriter::new()
        .text("general.architecture", "clip")
        .text("clip.projector_type", "qwen3vl_merger")
        .flag("clip.use_gelu", true)
        .u32("clip.vision.patch_size", n("patch_size"))
        .u32("clip.vision.embedding_length", n("hidden_size"))
        .u32("clip.vision.feed_forward_length", n("intermediate_size"))
        .u32("clip.vision.block_count", n("depth"))
        .u32("clip.vision.attention.head_count", n("num_heads"))
        .u32("clip.vision.projection_dim", n("out_hidden_size"))
        .u32("clip.vision.spatial_merge_size", n("spatial_merge_size"))
        .f32("clip.vision.attention.layer_norm_epsilon", 1e-6)
        .f32s("clip.vision.image_mean", &[0.5; 3])
        .f32s("clip.vision.image_std", &[0.5; 3])
        .raw_array("clip.vision.is_deepstack_layers", 7, flags.len() as u64, &flags);
    for (name, tensor) in tensors {
        let Some(part) = name.strip_prefix("model.visual.") else { continue };
        let (x, dims) = (tensor.values(), tensor.dims.clone());
        if part == "patch_embed.proj.weight" {
            let &[out, channels, frames, h, side] = dims.as_slice() else { panic!("five sides") };
            for f in 0..frames {
                let at = (0..out * channels).flat_map(|i| (0..h * side).map(move |p| (i * frames + f) * h * side + p));
                let one: Vec<f32> = at.map(|i| x[i]).collect();
                let name = if f == 0 { "v.patch_embd.weight" } else { "v.patch_embd.weight.1" };
                let sides = [out, channels, h, side].map(|n| n as u64);
                w = w.tensor(name, 0, &sides, &encode(&one, DType::F32));
            }
            continue;
        }
        let (module, kind) = part.rsplit_once('.').unwrap();
        let module = match module {
            "patch_embed.proj" => "v.patch_embd".to_owned(),
            "pos_embed" => "v.position_embd".to_owned(),
            "merger.norm" => "v.post_ln".to_owned(),
            "merger.linear_fc1" => "mm.0".to_owned(),
            "merger.linear_fc2" => "mm.2".to_owned(),
            _ => match module.strip_prefix("deepstack_merger_list.") {
                Some(rest) => {
                    let (i, part) = rest.split_once('.').unwrap();
                    format!("v.deepstack.{}.{}", deepstack[i.parse::<usize>().unwrap()], part.replace("linear_", ""))
                }
                None => module
                    .replace("blocks.", "v.blk.")
                    .replace("norm1", "ln1")
                    .replace("norm2", "ln2")
                    .replace("attn.qkv", "attn_qkv")
                    .replace("attn.proj", "attn_out")
                    .replace("mlp.linear_fc1", "ffn_up")
                    .replace("mlp.linear_fc2", "ffn_down"),
            },
        };
        let sides: Vec<u64> = dims.iter().map(|&d| d as u64).collect();
        w = w.tensor(&format!("{module}.{kind}"), 0, &sides, &encode(&x, DType::F32));
    }
    w.bytes()
}
