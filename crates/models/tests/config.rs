//! `config.json`: what the fixtures say, what is refused, and that no text panics.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use turbospark_models::config::{Config, ConfigError, Family, LayerKind, MlpKind};

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets")
}

fn fixture(family: &str) -> Value {
    let path = assets().join("fixtures").join(family).join("checkpoint/config.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn parse(value: &Value) -> Result<Config, ConfigError> {
    Config::parse(&value.to_string())
}

/// The fixture with the value at a JSON pointer replaced; `Value::Null` counts as absent.
fn with(family: &str, pointer: &str, value: Value) -> Value {
    let mut config = fixture(family);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[key] = value;
    config
}

#[test]
fn the_fixtures_read_as_written() {
    let vl = parse(&fixture("qwen3_vl")).unwrap();
    assert_eq!(vl.family, Family::Qwen3Vl);
    assert!(vl.tie_word_embeddings);
    assert_eq!(vl.dtype.as_deref(), Some("bfloat16"));
    assert_eq!((vl.image_token_id, vl.vision_end_token_id), (Some(318), Some(316)));
    assert_eq!((vl.text.rope.theta, vl.text.rope.mrope_section, vl.text.rope.rotary_dim()), (1e4, [8, 4, 4], 32));
    assert_eq!(vl.text.layer_kinds, [LayerKind::FullAttention; 5]);
    assert_eq!((vl.text.delta, vl.text.moe, vl.text.attention_output_gate), (None, None, false));
    let tower = vl.vision.unwrap();
    assert_eq!(tower.deepstack_visual_indexes, [0, 2, 3]);
    assert_eq!((tower.head_dim(), tower.patch_dim(), tower.position_side()), (12, 1536, 12));

    let moe = parse(&fixture("qwen3_vl_moe")).unwrap();
    assert_eq!(moe.text.mlp_kinds, [MlpKind::Moe; 4]);
    let experts = moe.text.moe.unwrap();
    assert_eq!((experts.num_experts, experts.num_experts_per_tok, experts.moe_intermediate_size), (8, 3, 24));
    assert_eq!(experts.shared_expert_intermediate_size, None);

    let q35 = parse(&fixture("qwen3_5")).unwrap();
    assert_eq!((q35.text.rope.theta, q35.text.rope.mrope_section, q35.text.rope.rotary_dim()), (1e7, [3, 3, 2], 16));
    let delta = q35.text.delta.unwrap();
    assert_eq!((delta.conv_kernel, delta.key_dim(), delta.value_dim(), delta.conv_channels()), (4, 32, 144, 208));
    assert!(q35.text.attention_output_gate && !q35.tie_word_embeddings);
    assert!(q35.vision.unwrap().deepstack_visual_indexes.is_empty());

    let q35_moe = parse(&fixture("qwen3_5_moe")).unwrap();
    assert_eq!(q35_moe.text.moe.unwrap().shared_expert_intermediate_size, Some(40));
    assert_eq!(q35_moe.text.intermediate_size, 0);
}

#[test]
fn the_trained_models_read() {
    let mut folders = vec![assets().join("tiny-ocr-qwen3_vl")];
    match std::env::var_os("TURBOSPARK_MODELS") {
        Some(dir) => folders.extend(std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path())),
        None => eprintln!("skipped: TURBOSPARK_MODELS names no folder of further models"),
    }
    for folder in folders.into_iter().filter(|folder| folder.join("config.json").exists()) {
        let config = Config::parse(&std::fs::read_to_string(folder.join("config.json")).unwrap())
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        assert_eq!(config.text.layer_kinds.len(), config.text.num_hidden_layers);
    }
    let config = std::fs::read_to_string(assets().join("tiny-ocr-qwen3_vl/config.json")).unwrap();
    let config = Config::parse(&config).unwrap();
    assert_eq!((config.eos_token_ids.as_slice(), config.max_context()), ([2024].as_slice(), 4096));
}

#[test]
fn both_rope_spellings_give_the_same_config() {
    let parameters = parse(&fixture("qwen3_5")).unwrap();
    let mut legacy = fixture("qwen3_5");
    let text = legacy["text_config"].as_object_mut().unwrap();
    let mut rope = text.remove("rope_parameters").unwrap();
    text.insert("rope_theta".into(), rope.as_object_mut().unwrap().remove("rope_theta").unwrap());
    text.insert("rope_scaling".into(), rope);
    assert_eq!(parse(&legacy).unwrap(), parameters);
}

#[test]
fn an_absent_rope_is_the_librarys_own() {
    let mut config = with("qwen3_vl", "/text_config/rope_scaling", Value::Null);
    config["text_config"]["rope_theta"] = Value::Null;
    config["text_config"]["head_dim"] = Value::Null;
    let rope = parse(&config).unwrap().text.rope;
    assert_eq!((rope.theta, rope.mrope_section, rope.rotary_dim()), (5e5, [24, 20, 20], 128));

    let mut config = with("qwen3_5", "/text_config/rope_parameters", Value::Null);
    config["text_config"]["head_dim"] = Value::Null;
    let rope = parse(&config).unwrap().text.rope;
    assert_eq!((rope.theta, rope.mrope_section, rope.rotary_dim()), (1e4, [11, 11, 10], 64));
}

#[test]
fn layers_follow_the_interval_where_no_list_is_given() {
    let by_list = parse(&fixture("qwen3_5")).unwrap();
    let by_interval = parse(&with("qwen3_5", "/text_config/layer_types", Value::Null)).unwrap();
    assert_eq!(by_list, by_interval);
}

#[test]
fn dense_layers_of_a_routed_model_come_from_both_keys() {
    let mut config = with("qwen3_vl_moe", "/text_config/mlp_only_layers", json!([1]));
    config["text_config"]["decoder_sparse_step"] = json!(2);
    let text = parse(&config).unwrap().text;
    assert_eq!(text.mlp_kinds, [MlpKind::Dense, MlpKind::Dense, MlpKind::Dense, MlpKind::Moe]);
    assert_eq!(text.intermediate_size, 112);
}

#[test]
fn experts_have_two_spellings() {
    let mut config = with("qwen3_vl_moe", "/text_config/num_experts", Value::Null);
    config["text_config"]["num_local_experts"] = json!(8);
    assert_eq!(parse(&config).unwrap(), parse(&fixture("qwen3_vl_moe")).unwrap());
}

#[test]
fn the_top_level_tie_flag_decides() {
    assert!(
        !parse(&with("qwen3_vl_moe", "/text_config/tie_word_embeddings", json!(true))).unwrap().tie_word_embeddings
    );
    assert!(!parse(&with("qwen3_vl", "/tie_word_embeddings", Value::Null)).unwrap().tie_word_embeddings);
}

#[test]
fn a_text_only_export_has_flat_fields_and_no_tower() {
    for family in Family::VISION {
        let whole = parse(&fixture(family.model_type())).unwrap();
        let mut flat = fixture(family.model_type())["text_config"].clone();
        flat["tie_word_embeddings"] = json!(whole.tie_word_embeddings);
        let config = parse(&flat).unwrap();
        assert_eq!((config.family, &config.vision, config.image_token_id), (family, &None, None));
        assert_eq!((config.text, config.tie_word_embeddings), (whole.text, whole.tie_word_embeddings));
    }
    let mut causal = fixture("qwen3_5");
    causal["architectures"] = json!(["Qwen3_5ForCausalLM"]);
    assert!(!parse(&causal).unwrap().has_vision());
}

#[test]
fn end_of_text_ids_are_one_or_many() {
    let parsed = |value| parse(&with("qwen3_vl", "/text_config/eos_token_id", value));
    assert_eq!(parsed(json!(7)).unwrap().eos_token_ids, [7]);
    assert_eq!(parsed(json!([7, 9])).unwrap().eos_token_ids, [7, 9]);
    assert!(parsed(json!([7, 320])).is_err());
}

#[test]
fn refusals_name_the_key_and_both_sides() {
    let cases: Vec<(&str, &str, Value, &[&str])> = vec![
        ("qwen3_vl", "/model_type", json!("gemma3"), &["model_type", "\"gemma3\"", "qwen3_vl, qwen3_vl_moe, qwen3_5"]),
        ("qwen3_vl", "/model_type", Value::Null, &["model_type", "missing"]),
        ("qwen3_vl", "/text_config", Value::Null, &["text_config", "missing"]),
        ("qwen3_vl", "/text_config", json!([1]), &["text_config", "an object", "[1]"]),
        ("qwen3_vl", "/vision_config", Value::Null, &["vision_config", "missing"]),
        ("qwen3_vl", "/image_token_id", Value::Null, &["image_token_id", "missing"]),
        ("qwen3_vl", "/image_token_id", json!(320), &["image_token_id", "below vocab_size 320", "320"]),
        ("qwen3_vl", "/video_token_id", json!(318), &["video_token_id", "318 is also image_token_id"]),
        ("qwen3_vl", "/tie_word_embeddings", json!(1), &["tie_word_embeddings", "true or false", "1"]),
        ("qwen3_vl", "/text_config/model_type", json!("qwen3_5_text"), &["text_config.model_type", "qwen3_vl_text"]),
        (
            "qwen3_vl",
            "/text_config/head_dim",
            json!("x"),
            &["text_config.head_dim: expected a positive integer", "\"x\""],
        ),
        ("qwen3_vl", "/text_config/head_dim", json!(31), &["text_config.head_dim", "even", "31"]),
        ("qwen3_vl", "/text_config/hidden_size", json!(0), &["text_config.hidden_size", "positive", "got 0"]),
        ("qwen3_vl", "/text_config/hidden_size", json!(-4), &["text_config.hidden_size", "positive", "got -4"]),
        ("qwen3_vl", "/text_config/hidden_size", json!(96.5), &["text_config.hidden_size", "positive", "96.5"]),
        ("qwen3_vl", "/text_config/hidden_size", json!(1u64 << 40), &["text_config.hidden_size", "1 to 1048576"]),
        ("qwen3_vl", "/text_config/vocab_size", Value::Null, &["text_config.vocab_size", "missing"]),
        (
            "qwen3_vl",
            "/text_config/num_hidden_layers",
            json!(u64::MAX),
            &["text_config.num_hidden_layers", "1 to 4096"],
        ),
        ("qwen3_vl", "/text_config/num_key_value_heads", json!(3), &["num_key_value_heads", "3", "4"]),
        ("qwen3_vl", "/text_config/rms_norm_eps", json!(0), &["rms_norm_eps", "above zero"]),
        ("qwen3_vl", "/text_config/rms_norm_eps", json!(1e-60), &["rms_norm_eps", "1e-12"]),
        ("qwen3_vl", "/text_config/hidden_act", json!("gelu"), &["text_config.hidden_act", "\"gelu\"", "\"silu\""]),
        ("qwen3_vl", "/text_config/attention_bias", json!(true), &["text_config.attention_bias", "true"]),
        ("qwen3_vl", "/text_config/sliding_window", json!(4096), &["text_config.sliding_window", "4096"]),
        ("qwen3_vl", "/text_config/use_sliding_window", json!(true), &["text_config.use_sliding_window"]),
        (
            "qwen3_vl",
            "/text_config/layer_types",
            json!(vec!["linear_attention"; 5]),
            &["layer_types", "linear_attention"],
        ),
        ("qwen3_vl", "/text_config/rope_theta", json!(-1), &["text_config.rope_theta", "above zero"]),
        ("qwen3_vl", "/text_config/rope_scaling/rope_type", json!("yarn"), &["rope_scaling.rope_type", "\"yarn\""]),
        ("qwen3_vl", "/text_config/rope_scaling/type", json!("linear"), &["rope_scaling.type", "\"linear\""]),
        ("qwen3_vl", "/text_config/rope_scaling/mrope_interleaved", json!(false), &["mrope_interleaved", "false"]),
        ("qwen3_vl", "/text_config/rope_scaling/mrope_section", json!([8, 4]), &["mrope_section", "three", "[8,4]"]),
        ("qwen3_vl", "/text_config/rope_scaling/mrope_section", json!([8, 4, 5]), &["mrope_section", "17", "16"]),
        ("qwen3_vl", "/text_config/rope_scaling/mrope_section", json!([4, 8, 4]), &["mrope_section", "8", "to h"]),
        ("qwen3_vl", "/text_config/rope_parameters", json!({"rope_theta": 5}), &["rope_theta", "disagrees", "10000"]),
        ("qwen3_vl", "/text_config/partial_rotary_factor", json!(0.5), &["partial_rotary_factor", "0.5"]),
        ("qwen3_vl", "/vision_config/hidden_act", json!("quick_gelu"), &["vision_config.hidden_act", "\"quick_gelu\""]),
        ("qwen3_vl", "/vision_config/num_heads", json!(5), &["vision_config.hidden_size", "48", "5"]),
        (
            "qwen3_vl",
            "/vision_config/num_position_embeddings",
            json!(145),
            &["num_position_embeddings", "square", "145"],
        ),
        ("qwen3_vl", "/vision_config/out_hidden_size", json!(64), &["vision_config.out_hidden_size", "64", "96"]),
        ("qwen3_vl", "/vision_config/in_channels", json!(4), &["vision_config.in_channels", "4"]),
        ("qwen3_vl", "/vision_config/deepstack_visual_indexes", json!([0, 5]), &["deepstack", "below 5", "5"]),
        ("qwen3_vl", "/vision_config/deepstack_visual_indexes", json!([2, 1]), &["deepstack", "ascending", "[2,1]"]),
        ("qwen3_vl", "/vision_config/deepstack_visual_indexes", Value::Null, &["deepstack", "missing"]),
        ("qwen3_vl_moe", "/text_config/num_experts", Value::Null, &["text_config.num_experts", "missing"]),
        ("qwen3_vl_moe", "/text_config/num_local_experts", json!(4), &["num_local_experts", "4", "num_experts 8"]),
        ("qwen3_vl_moe", "/text_config/num_experts_per_tok", json!(9), &["num_experts_per_tok", "9", "8"]),
        ("qwen3_vl_moe", "/text_config/mlp_only_layers", json!([4]), &["mlp_only_layers", "below 4"]),
        ("qwen3_vl_moe", "/text_config/shared_expert_intermediate_size", json!(8), &["no shared expert"]),
        ("qwen3_5", "/text_config/attn_output_gate", json!(false), &["attn_output_gate", "false"]),
        ("qwen3_5", "/text_config/layer_types/3", json!("sliding_attention"), &["layer_types", "sliding_attention"]),
        ("qwen3_5", "/text_config/layer_types", json!(["full_attention"]), &["layer_types", "1 entries", "8"]),
        ("qwen3_5", "/text_config/linear_num_value_heads", json!(5), &["linear_num_value_heads", "5", "2"]),
        ("qwen3_5", "/text_config/partial_rotary_factor", json!(0.5), &["partial_rotary_factor", "0.5", "0.25"]),
        ("qwen3_5", "/vision_config/deepstack_visual_indexes", json!([1]), &["deepstack", "[1]"]),
        ("qwen3_5_moe", "/text_config/mlp_only_layers", json!([1]), &["mlp_only_layers", "[1]"]),
        ("qwen3_5_moe", "/text_config/shared_expert_intermediate_size", Value::Null, &["shared_expert", "missing"]),
    ];
    for (family, pointer, value, parts) in cases {
        let config = match pointer.strip_suffix("/3") {
            Some(list) => {
                let mut config = fixture(family);
                config.pointer_mut(list).unwrap()[3] = value.clone();
                config
            }
            None => with(family, pointer, value.clone()),
        };
        let message = match parse(&config) {
            Ok(_) => panic!("{family} {pointer} = {value} was taken"),
            Err(e) => e.to_string(),
        };
        assert!(message.starts_with("config.json: "), "{message}");
        for part in parts {
            assert!(message.contains(part), "{pointer} = {value}: {message:?} lacks {part:?}");
        }
    }
}

#[test]
fn settings_that_change_nothing_are_tolerated() {
    let mut config = fixture("qwen3_5");
    for (key, value) in [
        ("output_gate_type", json!("swish")),
        ("mamba_ssm_dtype", json!("float32")),
        ("mtp_num_hidden_layers", json!(1)),
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(false)),
        ("norm_topk_prob", json!(false)),
    ] {
        config["text_config"][key] = value;
    }
    assert_eq!(parse(&config).unwrap(), parse(&fixture("qwen3_5")).unwrap());
}

#[test]
fn no_text_panics() {
    for text in ["", "null", "[]", "{}", "\"qwen3_vl\"", "{\"model_type\": 3}", &"[".repeat(100_000)] {
        assert!(Config::parse(text).is_err());
    }
    // Every byte of every fixture cut there, or replaced by something that often keeps it JSON.
    for family in Family::VISION {
        let text = fixture(family.model_type()).to_string();
        for at in 0..text.len() {
            let _ = Config::parse(&text[..at]);
            for with in ["0", "-", "9", "e9", ",", "\"", "null", "99999999999", "[[]]", "}"] {
                let _ = Config::parse(&format!("{}{with}{}", &text[..at], &text[at + 1..]));
            }
        }
    }
    // Every leaf replaced by every kind of value.
    let odd =
        [json!(null), json!(-1), json!(u64::MAX), json!(1e308), json!(0), json!([]), json!({}), json!("\u{1f600}")];
    for family in Family::VISION {
        let whole = fixture(family.model_type());
        for section in ["", "/text_config", "/vision_config"] {
            for key in whole.pointer(section).unwrap().as_object().unwrap().keys() {
                for value in &odd {
                    let _ = parse(&with(family.model_type(), &format!("{section}/{key}"), value.clone()));
                }
            }
        }
    }
}
