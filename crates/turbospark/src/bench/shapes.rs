//! Shapes of published models, by name.

use serde_json::{Value, json};

/// A model's sizes without its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// The name that [`Shape::named`] takes.
    pub name: &'static str,
    /// The text of its `config.json`, as a value.
    pub config: Value,
}

/// Makes a `config.json`.
type MakeConfig = fn() -> Value;

/// Names and configurations; `tiny` is no published model and takes a moment.
const SHAPES: &[(&str, MakeConfig)] = &[
    ("tiny", || qwen3_vl(Trunk { hidden: 128, layers: 2, heads: 2, kv: 1, inner: 256, tied: true }, TINY)),
    ("qwen3-vl-2b", || qwen3_vl(Trunk { hidden: 2048, layers: 28, heads: 16, kv: 8, inner: 6144, tied: true }, MEDIUM)),
    ("qwen3-vl-4b", || qwen3_vl(Trunk { hidden: 2560, layers: 36, heads: 32, kv: 8, inner: 9728, tied: true }, MEDIUM)),
    ("qwen3-vl-8b", || {
        qwen3_vl(Trunk { hidden: 4096, layers: 36, heads: 32, kv: 8, inner: 12_288, tied: false }, LARGE)
    }),
    ("qwen3-vl-32b", || {
        qwen3_vl(Trunk { hidden: 5120, layers: 64, heads: 64, kv: 8, inner: 25_600, tied: false }, LARGE)
    }),
    ("qwen3-vl-30b-a3b", || {
        let trunk = Trunk { hidden: 2048, layers: 48, heads: 32, kv: 4, inner: 6144, tied: false };
        routed(
            qwen3_vl(trunk, LARGE),
            json!({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}),
        )
    }),
    ("qwen3-vl-235b-a22b", || {
        let trunk = Trunk { hidden: 4096, layers: 94, heads: 64, kv: 4, inner: 12_288, tied: false };
        routed(
            qwen3_vl(trunk, LARGE),
            json!({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536}),
        )
    }),
    // Six of the 48 layers of qwen3-vl-30b-a3b, and as small a part of its vocabulary, so that the head takes its usual
    // part of a token's time: 8.6 GB, for measuring what doesn't fit on a small disk.
    ("qwen3-vl-30b-a3b-eighth", || {
        let trunk = Trunk { hidden: 2048, layers: 6, heads: 32, kv: 4, inner: 6144, tied: false };
        let mut config = routed(
            qwen3_vl(trunk, LARGE),
            json!({"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}),
        );
        let vocabulary = 151_936 / 8;
        config["text_config"]["vocab_size"] = vocabulary.into();
        let special = ["vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id"];
        special.iter().enumerate().for_each(|(i, key)| config[key] = (vocabulary - 8 + i).into());
        for (i, key) in ["bos_token_id", "eos_token_id"].iter().enumerate() {
            config["text_config"][key] = (vocabulary - 4 + i).into();
        }
        config
    }),
    ("qwen3.5-0.8b", || {
        qwen3_5(Trunk { hidden: 1024, layers: 24, heads: 8, kv: 2, inner: 3584, tied: true }, 16, SMALL)
    }),
    ("qwen3.5-9b", || {
        qwen3_5(Trunk { hidden: 4096, layers: 32, heads: 16, kv: 4, inner: 12_288, tied: false }, 32, LARGE)
    }),
    ("qwen3.5-27b", || {
        qwen3_5(Trunk { hidden: 5120, layers: 64, heads: 24, kv: 4, inner: 17_408, tied: false }, 48, LARGE)
    }),
    ("qwen3.5-35b-a3b", || {
        let trunk = Trunk { hidden: 2048, layers: 40, heads: 16, kv: 2, inner: 0, tied: false };
        routed(
            qwen3_5(trunk, 32, LARGE),
            json!({"num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
                "shared_expert_intermediate_size": 512}),
        )
    }),
];

impl Shape {
    /// The shape of this name.
    pub fn named(name: &str) -> Option<Shape> {
        SHAPES.iter().find(|(n, _)| *n == name).map(|&(name, config)| Shape { name, config: config() })
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHAPES.iter().map(|&(name, _)| name)
    }
}

struct Trunk {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv: usize,
    inner: usize,
    tied: bool,
}

struct Tower {
    depth: usize,
    hidden: usize,
    inner: usize,
    heads: usize,
    deepstack: &'static [usize],
}

const TINY: Tower = Tower { depth: 4, hidden: 64, inner: 128, heads: 2, deepstack: &[1, 2] };
const SMALL: Tower = Tower { depth: 12, hidden: 768, inner: 3072, heads: 12, deepstack: &[] };
const MEDIUM: Tower = Tower { depth: 24, hidden: 1024, inner: 4096, heads: 16, deepstack: &[5, 11, 17] };
const LARGE: Tower = Tower { depth: 27, hidden: 1152, inner: 4304, heads: 16, deepstack: &[8, 16, 24] };

fn tower(v: &Tower, family: &str, out: usize) -> Value {
    json!({
        "deepstack_visual_indexes": v.deepstack, "depth": v.depth, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": v.hidden, "in_channels": 3, "intermediate_size": v.inner, "model_type": family,
        "num_heads": v.heads, "num_position_embeddings": 2304, "out_hidden_size": out, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    })
}

fn qwen3_vl(t: Trunk, v: Tower) -> Value {
    json!({
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl",
        "image_token_id": 151_655, "video_token_id": 151_656,
        "vision_start_token_id": 151_652, "vision_end_token_id": 151_653, "tie_word_embeddings": t.tied,
        "text_config": {
            "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151_643, "dtype": "bfloat16",
            "eos_token_id": 151_645, "head_dim": 128, "hidden_act": "silu", "hidden_size": t.hidden,
            "intermediate_size": t.inner, "max_position_embeddings": 262_144, "model_type": "qwen3_vl_text",
            "num_attention_heads": t.heads, "num_hidden_layers": t.layers, "num_key_value_heads": t.kv,
            "rms_norm_eps": 1e-6,
            "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
            "rope_theta": 5_000_000, "tie_word_embeddings": t.tied, "use_cache": true, "vocab_size": 151_936,
        },
        "vision_config": tower(&v, "qwen3_vl", t.hidden),
    })
}

fn qwen3_5(t: Trunk, value_heads: usize, v: Tower) -> Value {
    let kind = |i: usize| if (i + 1).is_multiple_of(4) { "full_attention" } else { "linear_attention" };
    json!({
        "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
        "image_token_id": 248_056, "video_token_id": 248_057,
        "vision_start_token_id": 248_053, "vision_end_token_id": 248_054, "tie_word_embeddings": t.tied,
        "text_config": {
            "attention_bias": false, "attention_dropout": 0.0, "attn_output_gate": true, "dtype": "bfloat16",
            "eos_token_id": 248_044, "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu",
            "hidden_size": t.hidden, "intermediate_size": t.inner,
            "layer_types": (0..t.layers).map(kind).collect::<Vec<_>>(),
            "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": value_heads, "linear_value_head_dim": 128, "mamba_ssm_dtype": "float32",
            "max_position_embeddings": 262_144, "model_type": "qwen3_5_text", "num_attention_heads": t.heads,
            "num_hidden_layers": t.layers, "num_key_value_heads": t.kv, "partial_rotary_factor": 0.25,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
                "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
            "tie_word_embeddings": t.tied, "use_cache": true, "vocab_size": 248_320,
        },
        "vision_config": tower(&Tower { deepstack: &[], ..v }, "qwen3_5", t.hidden),
    })
}

/// The family's form with experts in every layer.
fn routed(mut config: Value, experts: Value) -> Value {
    let family = format!("{}_moe", config["model_type"].as_str().unwrap_or_default());
    let architecture = if family == "qwen3_vl_moe" { "Qwen3VLMoe" } else { "Qwen3_5Moe" };
    config["architectures"] = json!([format!("{architecture}ForConditionalGeneration")]);
    config["text_config"]["model_type"] = format!("{family}_text").into();
    config["vision_config"]["model_type"] = family.as_str().into();
    config["model_type"] = family.into();
    if let (Some(text), Value::Object(experts)) = (config["text_config"].as_object_mut(), experts) {
        text.extend(experts);
        if text["intermediate_size"] == 0 {
            text.remove("intermediate_size");
        }
    }
    config
}
