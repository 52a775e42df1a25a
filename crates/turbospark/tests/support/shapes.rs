//! Configurations of models with rows of 256, for random weights.

use serde_json::{Value, json};

pub const LAYERS: usize = 4;

fn config(model_type: &str, mut text: Value, tied: bool) -> Value {
    let moe = model_type.ends_with("moe");
    let more = json!({
        "vocab_size": 301, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_size": 256,
        "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "intermediate_size": if moe { 40 } else { 256 },
    });
    text.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let vision = json!({
        "depth": 1, "hidden_size": 24, "intermediate_size": 38, "num_heads": 2, "in_channels": 3, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 256, "num_position_embeddings": 49,
        "deepstack_visual_indexes": if model_type.starts_with("qwen3_vl") { vec![0] } else { vec![] },
    });
    json!({
        "model_type": model_type, "text_config": text, "vision_config": vision, "tie_word_embeddings": tied,
        "image_token_id": 297, "video_token_id": 298, "vision_start_token_id": 299, "vision_end_token_id": 300,
    })
}

fn rope() -> Value {
    json!({"rope_type": "default", "rope_theta": 1e4, "mrope_section": [8, 4, 4]})
}

pub fn dense() -> Value {
    config("qwen3_vl", json!({"rope_parameters": rope()}), true)
}

/// Experts of rows of 256 and, in `down`, of `width`.
pub fn mixture(width: usize) -> Value {
    let text = json!({
        "rope_parameters": rope(), "moe_intermediate_size": width, "num_experts": 3, "num_experts_per_tok": 2,
        "mlp_only_layers": [2], "decoder_sparse_step": 1,
    });
    config("qwen3_vl_moe", text, false)
}

pub fn hybrid() -> Value {
    let rope = json!({
        "rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25,
    });
    let text = json!({
        "rope_parameters": rope, "linear_conv_kernel_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 256,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
    });
    config("qwen3_5_moe", text, false)
}
