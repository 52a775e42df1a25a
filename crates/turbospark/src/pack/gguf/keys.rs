//! The keys of a GGUF file.

use serde_json::Value as Json;
use turbospark_models::config::{Config, Family, LayerKind, MlpKind, RopeScaling, VisionConfig};
use turbospark_text::ChatTemplate;
use turbospark_weights::Sidecar;
use turbospark_weights::gguf::{Array, Metadata, TokenizerTexts, Value, architecture, tokenizer_keys};

use super::super::Source;
use crate::{Error, Result};

/// In the order in which they are written.
type Keys = Vec<(String, Value)>;

/// The version of the block formats.
const QUANTISATION: u32 = 2;

/// The keys of the trunk's file.
pub(super) fn trunk(source: &Source<'_>, name: &str, file_type: u32) -> Result<Keys> {
    let config = &source.config;
    let arch = architecture(config.family.model_type()).expect("every family has one");
    if let Some(metadata) = source.folder.gguf() {
        return Ok(copied(metadata, arch, config, file_type));
    }
    expressible(config)?;
    let mut keys = general(arch, "model", name, file_type);
    let raw: Json = serde_json::from_str(&source.config_text).expect("it was read as a configuration");
    architecture_keys(&mut keys, arch, config, &raw);
    keys.extend(tokenizer(source)?);
    Ok(keys)
}

fn general(arch: &str, kind: &str, name: &str, file_type: u32) -> Keys {
    let text = |key: &str, value: &str| (format!("general.{key}"), Value::String(value.to_owned()));
    vec![
        text("architecture", arch),
        text("type", kind),
        text("name", name),
        ("general.file_type".to_owned(), Value::U32(file_type)),
        ("general.quantization_version".to_owned(), Value::U32(QUANTISATION)),
    ]
}

/// What this program runs and GGUF's architectures have no words for.
fn expressible(config: &Config) -> Result<()> {
    let (text, family) = (&config.text, config.family.model_type());
    let refuse = |problem: String| Err(Error::Unsupported(format!("{problem}, which GGUF can't say of {family}")));
    if text.moe.is_some() && text.mlp_kinds.contains(&MlpKind::Dense) {
        let layer = text.mlp_kinds.iter().position(|kind| *kind == MlpKind::Dense).unwrap_or_default();
        return refuse(format!("layer {layer} has one MLP among layers with experts"));
    }
    if text.moe.is_some_and(|moe| !moe.norm_topk_prob) {
        return refuse("the weights of a token's experts are not normalised (norm_topk_prob)".to_owned());
    }
    Ok(())
}

fn architecture_keys(keys: &mut Keys, arch: &str, config: &Config, raw: &Json) {
    let text = &config.text;
    let mut put = |key: &str, value: Value| keys.push((format!("{arch}.{key}"), value));
    let count = |n: usize| Value::U32(u32::try_from(n).expect("the configuration's limits are below it"));
    put("block_count", count(text.num_hidden_layers));
    put("context_length", count(text.max_position_embeddings));
    put("embedding_length", count(text.hidden_size));
    // Also of a model that has experts alone and so doesn't use it.
    let nested = raw.get("text_config").unwrap_or(raw).get("intermediate_size").and_then(Json::as_u64);
    if let Some(width) = nested.and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0) {
        put("feed_forward_length", Value::U32(width));
    }
    put("attention.head_count", count(text.num_attention_heads));
    put("attention.head_count_kv", count(text.num_key_value_heads));
    if !config.family.is_text_only() {
        let [t, h, w] = text.rope.mrope_section.map(|n| n as i32);
        put("rope.dimension_sections", Value::Array(Array::I32(vec![t, h, w, 0])));
    }
    put("rope.freq_base", Value::F32(text.rope.theta as f32));
    if let RopeScaling::Linear(factor) = text.rope.scaling {
        put("rope.scaling.type", Value::String("linear".to_owned()));
        put("rope.scaling.factor", Value::F32(factor as f32));
    }
    put("attention.layer_norm_rms_epsilon", Value::F32(text.rms_norm_eps));
    if let Some(moe) = &text.moe {
        put("expert_count", count(moe.num_experts));
        put("expert_used_count", count(moe.num_experts_per_tok));
        put("expert_feed_forward_length", count(moe.moe_intermediate_size));
        if let Some(width) = moe.shared_expert_intermediate_size {
            put("expert_shared_feed_forward_length", count(width));
        }
    }
    put("attention.key_length", count(text.head_dim));
    put("attention.value_length", count(text.head_dim));
    if matches!(config.family, Family::Qwen3Vl | Family::Qwen3VlMoe) {
        let levels = config.vision.as_ref().map_or(0, |v| v.deepstack_visual_indexes.len());
        put("n_deepstack_layers", count(levels));
    }
    if config.family == Family::Llama {
        put("vocab_size", count(text.vocab_size));
    }
    if config.family == Family::Llama || config.family.is_qwen35() {
        put("rope.dimension_count", count(text.rope.rotary_dim()));
    }
    if let Some(d) = &text.delta {
        put("ssm.conv_kernel", count(d.conv_kernel));
        put("ssm.state_size", count(d.key_head_dim));
        put("ssm.group_count", count(d.num_key_heads));
        put("ssm.time_step_rank", count(d.num_value_heads));
        put("ssm.inner_size", count(d.value_dim()));
        let recurrent: Vec<bool> = text.layer_kinds.iter().map(|kind| *kind == LayerKind::LinearAttention).collect();
        let first = recurrent.iter().position(|recurrent| !recurrent);
        put("attention.recurrent_layers", Value::Array(Array::Bool(recurrent)));
        put("full_attention_interval", count(first.map_or(text.num_hidden_layers, |i| i + 1)));
    }
}

/// The keys of another GGUF file: what its writer said is kept, but for what is no longer so.
fn copied(metadata: &Metadata, arch: &str, config: &Config, file_type: u32) -> Keys {
    let layers = config.text.num_hidden_layers;
    let dropped = |key: &str| {
        ["split.", "quantize."].iter().any(|prefix| key.starts_with(prefix))
            || ["general.alignment", "general.file_type", "general.quantization_version"].contains(&key)
            || key.strip_prefix(arch) == Some(".nextn_predict_layers")
    };
    let mut keys = Keys::new();
    for (key, value) in metadata.iter().filter(|(key, _)| !dropped(key)) {
        let value = match (key.strip_prefix(arch), value) {
            (Some(".block_count"), _) => Value::U32(layers as u32),
            // Blocks that predict further tokens are left out.
            (Some(_), Value::Array(Array::Bool(flags))) => {
                Value::Array(Array::Bool(flags.iter().take(layers).copied().collect()))
            }
            (_, value) => value.clone(),
        };
        keys.push((key.to_owned(), value));
    }
    keys.push(("general.file_type".to_owned(), Value::U32(file_type)));
    keys.push(("general.quantization_version".to_owned(), Value::U32(QUANTISATION)));
    keys
}

fn tokenizer(source: &Source<'_>) -> Result<Keys> {
    let folder = &source.folder;
    let tokenizer = folder.require(Sidecar::Tokenizer)?;
    let (tokenizer_config, generation_config) =
        (folder.text(Sidecar::TokenizerConfig)?, folder.text(Sidecar::GenerationConfig)?);
    let templates = crate::model::own_templates(folder)?;
    templates.iter().try_for_each(|(_, template)| ChatTemplate::new(template).map(|_| ()))?;
    let (own, named): (Vec<_>, Vec<_>) = templates.iter().partition(|(name, _)| *name == "default");
    let texts = TokenizerTexts {
        tokenizer: &tokenizer,
        tokenizer_config: tokenizer_config.as_deref(),
        generation_config: generation_config.as_deref(),
        config: &source.config_text,
        chat_template: own.first().map(|(_, template)| *template),
        named_templates: &named,
        vocab_size: source.config.text.vocab_size,
    };
    Ok(tokenizer_keys(&texts)?)
}

/// The keys of the tower's file.
pub(super) fn tower(source: &Source<'_>, name: &str, file_type: u32) -> Result<Keys> {
    let vision = source.config.vision.as_ref().expect("a tower has a configuration");
    let image = crate::model::own_image_config(&source.folder)?;
    if !image.scale.normalize || image.scale.rescale != Some(1.0 / 255.0) {
        let problem = "pictures are not scaled to 0..1 and normalised, which GGUF can't say";
        return Err(Error::Unsupported(problem.to_owned()));
    }
    let mut keys = general("clip", "mmproj", name, file_type);
    let mut put = |key: &str, value: Value| keys.push((format!("clip.{key}"), value));
    let count = |n: usize| Value::U32(u32::try_from(n).unwrap_or(u32::MAX));
    put("has_vision_encoder", Value::Bool(true));
    put("vision.projection_dim", count(vision.out_hidden_size));
    put("vision.image_size", count(vision.position_side() * vision.patch_size));
    put("vision.patch_size", count(vision.patch_size));
    put("vision.embedding_length", count(vision.hidden_size));
    put("vision.feed_forward_length", count(vision.intermediate_size));
    put("vision.block_count", count(vision.depth));
    put("vision.attention.head_count", count(vision.num_heads));
    put("vision.image_mean", Value::Array(Array::F32(image.scale.mean.to_vec())));
    put("vision.image_std", Value::Array(Array::F32(image.scale.std.to_vec())));
    // Not the converter's: other programs have limits of their own, and this one would take the family's.
    put("vision.image_min_pixels", count(image.min_pixels));
    put("vision.image_max_pixels", count(image.max_pixels));
    put("projector_type", Value::String("qwen3vl_merger".to_owned()));
    put("use_gelu", Value::Bool(true));
    put("vision.spatial_merge_size", count(vision.spatial_merge_size));
    put("vision.attention.layer_norm_epsilon", Value::F32(VisionConfig::NORM_EPS));
    let deepstack = (0..vision.depth).map(|block| vision.deepstack_visual_indexes.contains(&block)).collect();
    put("vision.is_deepstack_layers", Value::Array(Array::Bool(deepstack)));
    Ok(keys)
}
