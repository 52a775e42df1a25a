//! Checkpoints of random weights for any configuration: shapes that no published model has, with odd tails.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::{Random, RawTensor};

/// How a layer's experts are stored; the values are the same in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `gate_up_proj [E, 2I, H]` and `down_proj [E, H, I]`.
    Fused,
    /// Both transposed.
    FusedTransposed,
    /// Three tensors an expert.
    Split,
}

/// Tensors under their published names, each with random values that keep activations near 1.
struct Writer {
    tensors: BTreeMap<String, RawTensor>,
    random: Random,
    bf16: bool,
}

impl Writer {
    fn put(&mut self, name: String, dims: &[usize], value: impl Fn(f32) -> f32) {
        let n = dims.iter().product();
        let values: Vec<f32> = (0..n).map(|_| value(self.random.signed())).collect();
        self.store(name, dims, &values);
    }

    fn store(&mut self, name: String, dims: &[usize], values: &[f32]) {
        let tensor = if self.bf16 { RawTensor::bf16(dims, values) } else { RawTensor::f32(dims, values) };
        self.tensors.insert(name, tensor);
    }

    /// A linear weight: uniform, with the variance that keeps a sum of `inner` terms near 1.
    fn linear(&mut self, name: String, dims: &[usize], inner: usize) {
        let spread = (3.0 / inner as f32).sqrt();
        self.put(name, dims, |x| x * spread);
    }

    fn norm(&mut self, name: String, n: usize, centre: f32) {
        self.put(name, &[n], |x| centre + 0.4 * x);
    }

    fn affine(&mut self, name: &str, out: usize, inner: usize) {
        self.linear(format!("{name}.weight"), &[out, inner], inner);
        self.put(format!("{name}.bias"), &[out], |x| 0.3 * x);
    }

    fn layer_norm(&mut self, name: &str, n: usize) {
        self.norm(format!("{name}.weight"), n, 1.0);
        self.put(format!("{name}.bias"), &[n], |x| 0.3 * x);
    }

    fn swiglu(&mut self, name: &str, hidden: usize, width: usize) {
        self.linear(format!("{name}.gate_proj.weight"), &[width, hidden], hidden);
        self.linear(format!("{name}.up_proj.weight"), &[width, hidden], hidden);
        self.linear(format!("{name}.down_proj.weight"), &[hidden, width], width);
    }
}

/// Random weights for the model that `config`, the text of a whole `config.json`, describes; bf16, or f32.
///
/// Routed layers are those that the configuration gives; a configuration without `vision_config` gets no tower.
///
/// # Panics
/// When the configuration lacks a size.
pub fn random_checkpoint(config: &Value, experts: ExpertLayout, bf16: bool, seed: u64) -> BTreeMap<String, RawTensor> {
    let mut w = Writer { tensors: BTreeMap::new(), random: Random::new(seed), bf16 };
    let text = &config["text_config"];
    let qwen35 = config["model_type"].as_str().is_some_and(|t| t.starts_with("qwen3_5"));
    if config["vision_config"].is_object() {
        tower(&mut w, &config["vision_config"]);
    }
    let (hidden, vocab) = (size(text, "hidden_size"), size(text, "vocab_size"));
    let centre = if qwen35 { 0.0 } else { 1.0 };
    w.put("model.language_model.embed_tokens.weight".into(), &[vocab, hidden], |x| 0.6 * x);
    w.norm("model.language_model.norm.weight".into(), hidden, centre);
    if config["tie_word_embeddings"] != true {
        w.linear("lm_head.weight".into(), &[vocab, hidden], hidden);
    }
    for i in 0..size(text, "num_hidden_layers") {
        let l = format!("model.language_model.layers.{i}");
        w.norm(format!("{l}.input_layernorm.weight"), hidden, centre);
        w.norm(format!("{l}.post_attention_layernorm.weight"), hidden, centre);
        let linear = match text["layer_types"][i].as_str() {
            Some(kind) => kind == "linear_attention",
            None => qwen35 && !(i + 1).is_multiple_of(4),
        };
        if linear {
            delta_net(&mut w, &format!("{l}.linear_attn"), text);
        } else {
            attention(&mut w, &format!("{l}.self_attn"), text, qwen35, centre);
        }
        let step = text["decoder_sparse_step"].as_u64().unwrap_or(1) as usize;
        let dense = text["mlp_only_layers"].as_array().is_some_and(|list| list.contains(&i.into()));
        if text["num_experts"].is_u64() && (i + 1).is_multiple_of(step) && !dense {
            mixture(&mut w, &format!("{l}.mlp"), text, experts);
        } else {
            w.swiglu(&format!("{l}.mlp"), hidden, size(text, "intermediate_size"));
        }
    }
    w.tensors
}

fn size(node: &Value, key: &str) -> usize {
    node[key].as_u64().unwrap_or_else(|| panic!("the configuration has no {key}")) as usize
}

fn attention(w: &mut Writer, name: &str, text: &Value, gated: bool, centre: f32) {
    let (hidden, head) = (size(text, "hidden_size"), size(text, "head_dim"));
    let queries = size(text, "num_attention_heads") * head;
    let keys = size(text, "num_key_value_heads") * head;
    w.linear(format!("{name}.q_proj.weight"), &[queries * (1 + usize::from(gated)), hidden], hidden);
    w.linear(format!("{name}.k_proj.weight"), &[keys, hidden], hidden);
    w.linear(format!("{name}.v_proj.weight"), &[keys, hidden], hidden);
    w.linear(format!("{name}.o_proj.weight"), &[hidden, queries], queries);
    w.norm(format!("{name}.q_norm.weight"), head, centre);
    w.norm(format!("{name}.k_norm.weight"), head, centre);
}

fn delta_net(w: &mut Writer, name: &str, text: &Value) {
    let hidden = size(text, "hidden_size");
    let heads = size(text, "linear_num_value_heads");
    let values = heads * size(text, "linear_value_head_dim");
    let channels = 2 * size(text, "linear_num_key_heads") * size(text, "linear_key_head_dim") + values;
    let kernel = size(text, "linear_conv_kernel_dim");
    w.linear(format!("{name}.in_proj_qkv.weight"), &[channels, hidden], hidden);
    w.linear(format!("{name}.in_proj_z.weight"), &[values, hidden], hidden);
    w.linear(format!("{name}.in_proj_b.weight"), &[heads, hidden], hidden);
    w.linear(format!("{name}.in_proj_a.weight"), &[heads, hidden], hidden);
    w.linear(format!("{name}.conv1d.weight"), &[channels, 1, kernel], 3);
    w.put(format!("{name}.A_log"), &[heads], |x| (4.0 + 3.5 * x).ln());
    // A long memory, so that an error in the state shows: softplus of these lies between 0.002 and 0.15.
    w.put(format!("{name}.dt_bias"), &[heads], |x| -4.0 + 2.0 * x);
    w.norm(format!("{name}.norm.weight"), size(text, "linear_value_head_dim"), 1.0);
    w.linear(format!("{name}.out_proj.weight"), &[hidden, values], values);
}

fn mixture(w: &mut Writer, name: &str, text: &Value, layout: ExpertLayout) {
    let (hidden, experts) = (size(text, "hidden_size"), size(text, "num_experts"));
    let width = size(text, "moe_intermediate_size");
    w.linear(format!("{name}.gate.weight"), &[experts, hidden], hidden);
    // The values are the same in all layouts.
    let mut part = |rows: usize, columns: usize| -> Vec<f32> {
        let spread = (3.0 / columns as f32).sqrt();
        (0..rows * columns).map(|_| w.random.signed() * spread).collect()
    };
    let all: Vec<[Vec<f32>; 3]> =
        (0..experts).map(|_| [part(width, hidden), part(width, hidden), part(hidden, width)]).collect();
    let fused = format!("{name}.experts");
    match layout {
        ExpertLayout::Split => {
            for (e, [gate, up, down]) in all.iter().enumerate() {
                w.store(format!("{fused}.{e}.gate_proj.weight"), &[width, hidden], gate);
                w.store(format!("{fused}.{e}.up_proj.weight"), &[width, hidden], up);
                w.store(format!("{fused}.{e}.down_proj.weight"), &[hidden, width], down);
            }
        }
        ExpertLayout::Fused => {
            let gate_up: Vec<f32> = all.iter().flat_map(|[gate, up, _]| [gate.as_slice(), up].concat()).collect();
            let down: Vec<f32> = all.iter().flat_map(|[.., down]| down.clone()).collect();
            w.store(format!("{fused}.gate_up_proj"), &[experts, 2 * width, hidden], &gate_up);
            w.store(format!("{fused}.down_proj"), &[experts, hidden, width], &down);
        }
        ExpertLayout::FusedTransposed => {
            let both = |[gate, up, _]: &[Vec<f32>; 3]| transposed(&[gate.as_slice(), up].concat(), hidden);
            let gate_up: Vec<f32> = all.iter().flat_map(both).collect();
            let down: Vec<f32> = all.iter().flat_map(|[.., down]| transposed(down, width)).collect();
            w.store(format!("{fused}.gate_up_proj"), &[experts, hidden, 2 * width], &gate_up);
            w.store(format!("{fused}.down_proj"), &[experts, width, hidden], &down);
        }
    }
    if let Some(shared) = text["shared_expert_intermediate_size"].as_u64() {
        w.swiglu(&format!("{name}.shared_expert"), hidden, shared as usize);
        w.linear(format!("{name}.shared_expert_gate.weight"), &[1, hidden], hidden);
    }
}

/// Rows of `columns` values as columns.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| values.iter().skip(c).step_by(columns).copied()).collect()
}

fn tower(w: &mut Writer, c: &Value) {
    let (d, patch, frames) = (size(c, "hidden_size"), size(c, "patch_size"), size(c, "temporal_patch_size"));
    let wide = d * size(c, "spatial_merge_size").pow(2);
    let v = "model.visual";
    w.linear(format!("{v}.patch_embed.proj.weight"), &[d, 3, frames, patch, patch], 3 * frames * patch * patch);
    w.put(format!("{v}.patch_embed.proj.bias"), &[d], |x| 0.1 * x);
    w.put(format!("{v}.pos_embed.weight"), &[size(c, "num_position_embeddings"), d], |x| 0.3 * x);
    for j in 0..size(c, "depth") {
        let b = format!("{v}.blocks.{j}");
        w.layer_norm(&format!("{b}.norm1"), d);
        w.layer_norm(&format!("{b}.norm2"), d);
        w.affine(&format!("{b}.attn.qkv"), 3 * d, d);
        w.affine(&format!("{b}.attn.proj"), d, d);
        let inner = size(c, "intermediate_size");
        w.affine(&format!("{b}.mlp.linear_fc1"), inner, d);
        w.affine(&format!("{b}.mlp.linear_fc2"), d, inner);
    }
    let deepstack = c["deepstack_visual_indexes"].as_array().map_or(0, Vec::len);
    let mergers = (0..deepstack).map(|k| (format!("{v}.deepstack_merger_list.{k}"), wide));
    for (m, norm) in mergers.chain([(format!("{v}.merger"), d)]) {
        w.layer_norm(&format!("{m}.norm"), norm);
        w.affine(&format!("{m}.linear_fc1"), wide, wide);
        w.affine(&format!("{m}.linear_fc2"), size(c, "out_hidden_size"), wide);
    }
}
