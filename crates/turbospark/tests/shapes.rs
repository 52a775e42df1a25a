//! Models of shapes that no published checkpoint has: odd tails, one kv head, square experts, layers in
//! another order.

mod support;

use serde_json::{Value, json};
use support::*;
use turbospark_device::{Device, ReferenceDevice};
use turbospark_models::Model;
use turbospark_models::config::Config;
use turbospark_testkit::{ExpertLayout, pack, random_checkpoint};
use turbospark_vision::Grid;
use turbospark_weights::Checkpoint;

const LAYOUTS: [ExpertLayout; 3] = [ExpertLayout::Fused, ExpertLayout::FusedTransposed, ExpertLayout::Split];

fn whole(model_type: &str, text: Value, deepstack: &[usize], tied: bool) -> Value {
    let mut text = text;
    let base = json!({"vocab_size": 301, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6});
    text.as_object_mut().unwrap().extend(base.as_object().unwrap().clone());
    let vision = json!({
        "depth": 3, "hidden_size": 24, "intermediate_size": 38, "num_heads": 2, "in_channels": 3, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": text["hidden_size"],
        "num_position_embeddings": 49, "deepstack_visual_indexes": deepstack,
    });
    json!({
        "model_type": model_type, "text_config": text, "vision_config": vision, "tie_word_embeddings": tied,
        "image_token_id": 297, "video_token_id": 298, "vision_start_token_id": 299, "vision_end_token_id": 300,
    })
}

#[cfg(feature = "device-cpu")]
fn qwen3_vl() -> Value {
    let rope = json!({"rope_type": "default", "rope_theta": 1e4, "mrope_section": [3, 2, 2]});
    let text = json!({
        "hidden_size": 42, "intermediate_size": 53, "num_hidden_layers": 3, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 14, "rope_parameters": rope,
    });
    whole("qwen3_vl", text, &[0, 2], true)
}

/// `hidden` and the experts' `width` decide how alike the stored layouts look.
fn qwen3_vl_moe(hidden: usize, width: usize) -> Value {
    let rope = json!({"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 2, 1]});
    let text = json!({
        "hidden_size": hidden, "intermediate_size": 31, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 10, "rope_parameters": rope, "moe_intermediate_size": width,
        "num_experts": 5, "num_experts_per_tok": 2, "mlp_only_layers": [2], "decoder_sparse_step": 1,
    });
    whole("qwen3_vl_moe", text, &[1], false)
}

fn qwen3_5(moe: bool) -> Value {
    let rope = json!({
        "rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 1, 1], "partial_rotary_factor": 0.25,
    });
    let mut text = json!({
        "hidden_size": 44, "num_hidden_layers": 5, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24,
        "linear_conv_kernel_dim": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
        "linear_key_head_dim": 10, "linear_value_head_dim": 14, "rope_parameters": rope,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    });
    let rest = match moe {
        false => json!({"intermediate_size": 61}),
        true => json!({
            "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 22,
            "shared_expert_intermediate_size": 13,
        }),
    };
    text.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    whole(if moe { "qwen3_5_moe" } else { "qwen3_5" }, text, &[], false)
}

fn model(config: &Value, experts: ExpertLayout, bf16: bool, device: &dyn Device) -> Model {
    let bytes: std::sync::Arc<[u8]> = pack(&random_checkpoint(config, experts, bf16, 11)).into();
    let checkpoint = Checkpoint::from_bytes("random", bytes).unwrap();
    Model::load(Config::parse(&config.to_string()).unwrap(), &checkpoint, device).unwrap()
}

/// Logits of a prompt with an image, in chunks of 50, and of three tokens after it.
fn logits(model: &Model, device: &dyn Device) -> Vec<f32> {
    let image = Part::Image(Grid { t: 1, h: 6, w: 10 });
    let layout = Layout::new(&[Part::Text(41), image, Part::Text(23)], 12);
    let images = layout.encode(model, device);
    let n = layout.rows.len();
    let mut room = Room::new(model, device, 1, n + 3);
    let mut all = room.prefill(&layout, &images, 0, 50);
    for (i, id) in [5u32, 250, 77].into_iter().enumerate() {
        let row = decoded(&layout, id, n + i);
        all.extend(
            room.forward(&[(0, Piece { rows: &[row], start: n + i, decode: true, images: &[], snapshots: vec![] })]),
        );
    }
    assert!(all.iter().all(|l| l.is_finite()) && all.iter().any(|l| l.abs() > 0.05));
    all
}

#[test]
fn experts_in_every_stored_layout_give_the_same_bits() {
    // hidden = 2 width: both layouts of gate_up have one shape; hidden = width: those of down have.
    for config in [qwen3_vl_moe(40, 17), qwen3_vl_moe(40, 20), qwen3_vl_moe(20, 20), qwen3_5(true)] {
        let device = &ReferenceDevice;
        let [fused, transposed, split] =
            LAYOUTS.map(|layout| bits(&logits(&model(&config, layout, false, device), device)));
        let text = &config["text_config"];
        assert!(fused == split, "fused and split differ: {text}");
        assert!(fused == transposed, "fused and transposed differ: {text}");
    }
}

#[cfg(feature = "device-cpu")]
#[test]
fn the_cpu_computes_odd_shapes_as_the_reference_does() {
    use turbospark_device::Precision;
    use turbospark_device_cpu::{CpuDevice, CpuOptions, Isa};

    let mut worst = 0f32;
    for config in [qwen3_vl(), qwen3_vl_moe(40, 17), qwen3_vl_moe(20, 20), qwen3_5(false), qwen3_5(true)] {
        for (layout, bf16) in [(ExpertLayout::FusedTransposed, true), (ExpertLayout::Split, false)] {
            let golden = logits(&model(&config, layout, bf16, &ReferenceDevice), &ReferenceDevice);
            let top = golden.iter().fold(0f32, |m, l| m.max(l.abs()));
            for isa in Isa::available() {
                let options = CpuOptions { threads: Some(2), precision: Precision::F32, isa: Some(isa) };
                let cpu = CpuDevice::new(options).unwrap();
                let off = furthest(&logits(&model(&config, layout, bf16, &cpu), &cpu), &golden);
                worst = worst.max(off / top);
                // As the fixtures allow: 3e-5 of the largest value.
                assert!(off <= 3e-5 * top, "{isa}: {}: off by {off} of {top}", config["model_type"]);
            }
        }
    }
    println!("worst {worst:.1e} of the largest logit");
}
