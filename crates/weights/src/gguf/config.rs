//! GGUF metadata as the text of a `config.json`.
//!
//! What a model computes is decided in one place, by the words of the published configuration. So a GGUF file's keys
//! are said in these words, and go through the same checks. What goes wrong unseen is a default: a key that is absent
//! here is left out there, unless the converter leaves it out because the architecture fixes it.

use serde_json::{Map, Value, json};

use super::names::{Arch, TrunkShape, deepstack_blocks};
use super::{Metadata, Set};
use crate::{Error, Result};

/// The keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    prefix: &'static str,
}

impl<'a> Keys<'a> {
    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    fn count(&self, key: &str) -> Result<Option<u64>> {
        // Some writers give a list with one value a layer.
        let path = self.path(key);
        let Some(list) = self.metadata.counts(&path)? else { return Ok(None) };
        match list.split_first() {
            Some((first, rest)) if rest.iter().all(|n| n == first) => Ok(Some(*first)),
            _ => Err(refuse(self.metadata, format!("{path} differs from layer to layer, which is not read"))),
        }
    }

    /// The sections of a file that has both halves of a model, which may have them under other names, or not at all:
    /// then they are those of the published models.
    fn other_sections(&self, head_dim: u64) -> Result<Option<Vec<u64>>> {
        for key in ["rope.mrope_section", "mrope_sections"] {
            if let Some(sections) = self.metadata.counts(&self.path(key))? {
                return Ok(Some(sections));
            }
        }
        let published = !Arch::of(self.metadata)?.is_qwen35() && head_dim == 128;
        Ok(published.then(|| vec![24, 20, 20]))
    }

    /// Heads for keys and values. A list may have zeros for layers without attention.
    fn kv_heads(&self) -> Result<Option<u64>> {
        const KEY: &str = "attention.head_count_kv";
        let path = self.path(KEY);
        let attending: Vec<u64> =
            self.metadata.counts(&path)?.unwrap_or_default().into_iter().filter(|&n| n > 0).collect();
        match attending.split_first() {
            Some((first, rest)) if rest.iter().all(|n| n == first) => Ok(Some(*first)),
            _ => self.count(KEY),
        }
    }

    fn need(&self, key: &str) -> Result<u64> {
        self.count(key)?.ok_or_else(|| self.metadata.missing(&self.path(key)))
    }

    fn size(&self, key: &str) -> Result<usize> {
        Ok(usize::try_from(self.need(key)?).unwrap_or(usize::MAX))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        // Stored as f32: the shortest decimal that is the same f32 is what was meant.
        let shortest = |x: f64| (x as f32).to_string().parse().unwrap_or(x);
        Ok(self.metadata.number(&self.path(key))?.map(shortest))
    }
}

fn refuse(metadata: &Metadata, problem: String) -> Error {
    Error::Gguf { file: metadata.file().to_owned(), problem }
}

/// What tensor names depend on.
pub(super) fn trunk_shape(set: &Set) -> Result<TrunkShape> {
    let metadata = &set.metadata;
    let arch = Arch::of(metadata)?;
    let keys = Keys { metadata, prefix: arch.name() };
    let blocks = keys.size("block_count")?;
    let extra = keys.count("nextn_predict_layers")?.unwrap_or(0);
    let layers = usize::try_from(extra).ok().and_then(|extra| blocks.checked_sub(extra)).filter(|n| *n > 0);
    let layers =
        layers.ok_or_else(|| refuse(metadata, format!("{extra} of {blocks} blocks predict further tokens")))?;
    let heads = keys.size("attention.head_count")?;
    let kv_heads = keys.kv_heads()?.map_or(heads, |n| n as usize);
    let delta_heads = match arch.is_qwen35() {
        true => Some([keys.size("ssm.group_count")?, keys.size("ssm.time_step_rank")?]),
        false => None,
    };
    let tiled = metadata.flag(&keys.path("ssm.v_head_reordered"))?.unwrap_or(true);
    Ok(TrunkShape { arch, layers, heads, kv_heads, delta_heads, tiled })
}

/// The text of a `config.json` for a trunk and, if there is one, its tower. `rope_factors` is the content of the
/// tensor `rope_freqs.weight`.
pub(super) fn config_json(trunk: &Set, tower: Option<&Set>, rope_factors: Option<Vec<f32>>) -> Result<String> {
    let shape = trunk_shape(trunk)?;
    let mut text = text_config(trunk, shape, rope_factors)?;
    let arch = shape.arch;
    let tied = !trunk.tensors.iter().any(|(_, t)| t.name == "output.weight");
    let Some(tower) = tower else {
        text["model_type"] = json!(arch.model_type());
        if arch.may_see() {
            text["model_type"] = json!(format!("{}_text", arch.model_type()));
        }
        text["tie_word_embeddings"] = json!(tied);
        return Ok(text.to_string());
    };
    if !arch.may_see() {
        let problem = format!("its architecture {:?} reads text only; leave out the mmproj file", arch.name());
        return Err(refuse(&trunk.metadata, problem));
    }
    text["model_type"] = json!(format!("{}_text", arch.model_type()));
    let mut config = json!({
        "model_type": arch.model_type(),
        "text_config": text,
        "vision_config": vision_config(trunk, tower)?,
        "tie_word_embeddings": tied,
    });
    let tokens = trunk.metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    for (key, token) in [
        ("image_token_id", "<|image_pad|>"),
        ("video_token_id", "<|video_pad|>"),
        ("vision_start_token_id", "<|vision_start|>"),
        ("vision_end_token_id", "<|vision_end|>"),
    ] {
        let id = tokens.iter().position(|t| t == token);
        let id =
            id.ok_or_else(|| refuse(&trunk.metadata, format!("its vocabulary has no {token}, so it can't see")))?;
        config[key] = json!(id);
    }
    Ok(config.to_string())
}

fn text_config(set: &Set, shape: TrunkShape, rope_factors: Option<Vec<f32>>) -> Result<Value> {
    let (metadata, arch) = (&set.metadata, shape.arch);
    let keys = Keys { metadata, prefix: arch.name() };
    let hidden = keys.size("embedding_length")?;
    let head_dim = keys.count("attention.key_length")?;
    let head_dim = head_dim.unwrap_or((hidden / shape.heads.max(1)) as u64);
    if let Some(value) = keys.count("attention.value_length")?
        && value != head_dim
    {
        return Err(refuse(metadata, format!("heads of {head_dim} for keys and {value} for values are not read")));
    }
    let table = set.tensors.iter().find(|(_, t)| t.name == "token_embd.weight");
    let Some(&[vocabulary, _]) = table.map(|(_, t)| t.dims.as_slice()) else {
        return Err(refuse(metadata, "tensor \"token_embd.weight\" is missing or no table".to_owned()));
    };
    let eps = keys.number("attention.layer_norm_rms_epsilon")?;
    let eps = eps.ok_or_else(|| metadata.missing(&keys.path("attention.layer_norm_rms_epsilon")))?;
    let mut text = json!({
        "hidden_size": hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocabulary,
        "rms_norm_eps": eps,
        "max_position_embeddings": keys.need("context_length")?,
        "rope_parameters": rope(&keys, arch, head_dim, rope_factors)?,
    });
    let dense = keys.count("feed_forward_length")?.filter(|n| *n > 0);
    if let Some(width) = dense {
        text["intermediate_size"] = json!(width);
    }
    if let Some(window) = keys.count("attention.sliding_window")?.filter(|n| *n > 0) {
        text["sliding_window"] = json!(window);
    }
    if arch.is_qwen35() {
        delta(&keys, shape, &mut text)?;
    }
    if arch.is_moe() {
        text["num_experts"] = json!(keys.need("expert_count")?);
        text["num_experts_per_tok"] = json!(keys.need("expert_used_count")?);
        text["moe_intermediate_size"] = match keys.count("expert_feed_forward_length")? {
            Some(width) => json!(width),
            // Where a writer left it out, the experts show it.
            None => json!(expert_width(set).ok_or_else(|| metadata.missing(&keys.path("expert_feed_forward_length")))?),
        };
        if arch == Arch::Qwen35Moe {
            text["shared_expert_intermediate_size"] = json!(keys.need("expert_shared_feed_forward_length")?);
        }
        // The architecture fixes it.
        text["norm_topk_prob"] = json!(true);
    } else if keys.count("expert_count")?.is_some_and(|n| n > 0) {
        return Err(refuse(metadata, format!("{:?} with experts is not read", arch.name())));
    }
    Ok(text)
}

/// Outputs of an expert's gate.
fn expert_width(set: &Set) -> Option<u64> {
    let gate = set.tensors.iter().find(|(_, t)| t.name.ends_with(".ffn_gate_exps.weight"));
    match gate?.1.dims[..] {
        [_, width, _] => Some(width),
        _ => None,
    }
}

fn delta(keys: &Keys<'_>, shape: TrunkShape, text: &mut Value) -> Result<()> {
    let [key_heads, value_heads] = shape.delta_heads.unwrap_or_default();
    let inner = keys.size("ssm.inner_size")?;
    if value_heads == 0 || !inner.is_multiple_of(value_heads) {
        return Err(refuse(keys.metadata, format!("{value_heads} value heads do not divide ssm.inner_size {inner}")));
    }
    text["linear_num_key_heads"] = json!(key_heads);
    text["linear_num_value_heads"] = json!(value_heads);
    text["linear_key_head_dim"] = json!(keys.need("ssm.state_size")?);
    text["linear_value_head_dim"] = json!(inner / value_heads);
    text["linear_conv_kernel_dim"] = json!(keys.need("ssm.conv_kernel")?);
    let path = keys.path("attention.recurrent_layers");
    if let Some(recurrent) = keys.metadata.get(&path) {
        let flags = match recurrent {
            super::Value::Array(super::Array::Bool(flags)) => flags.clone(),
            _ => keys.metadata.counts(&path)?.unwrap_or_default().into_iter().map(|n| n != 0).collect(),
        };
        let kinds = flags.into_iter().take(shape.layers);
        let kinds: Vec<_> = kinds.map(|linear| if linear { "linear_attention" } else { "full_attention" }).collect();
        text["layer_types"] = json!(kinds);
    } else {
        text["full_attention_interval"] = json!(keys.count("full_attention_interval")?.unwrap_or(4));
    }
    Ok(())
}

fn rope(keys: &Keys<'_>, arch: Arch, head_dim: u64, factors: Option<Vec<f32>>) -> Result<Value> {
    let mut rope = Map::new();
    let mut put = |key: &str, value: Value| rope.insert(key.to_owned(), value);
    put("rope_theta", json!(keys.number("rope.freq_base")?.unwrap_or(10_000.0)));
    let turned = keys.count("rope.dimension_count")?.unwrap_or(head_dim);
    if turned != head_dim {
        put("partial_rotary_factor", json!(turned as f64 / head_dim.max(1) as f64));
    }
    if arch.may_see() {
        let path = keys.path("rope.dimension_sections");
        let sections = match keys.metadata.counts(&path)? {
            Some(sections) => sections,
            None => keys.other_sections(head_dim)?.ok_or_else(|| keys.metadata.missing(&path))?,
        };
        match *sections {
            [t, h, w] | [t, h, w, 0] => put("mrope_section", json!([t, h, w])),
            _ => return Err(refuse(keys.metadata, format!("{path} {sections:?} is not three sections"))),
        };
    }
    let path = keys.path("rope.scaling.type");
    match keys.metadata.text(&path)? {
        None | Some("none") => {}
        Some("linear") => {
            put("rope_type", json!("linear"));
            put("factor", json!(keys.number("rope.scaling.factor")?.unwrap_or(1.0)));
        }
        Some(other) => return Err(refuse(keys.metadata, format!("{path} {other:?} is not read"))),
    }
    if let Some(factors) = factors {
        put("rope_type", json!("each"));
        put("factors", json!(factors));
    }
    Ok(Value::Object(rope))
}

fn vision_config(trunk: &Set, tower: &Set) -> Result<Value> {
    let metadata = &tower.metadata;
    let keys = Keys { metadata, prefix: "clip.vision" };
    const KIND: &str = "clip.projector_type";
    let kind = metadata.text(KIND)?.or(metadata.text("clip.vision.projector_type")?);
    match kind.ok_or_else(|| metadata.missing(KIND))? {
        "qwen3vl_merger" => {}
        other => {
            let problem = format!("{KIND} is {other:?}, this model's vision tower is a \"qwen3vl_merger\"");
            return Err(refuse(metadata, problem));
        }
    }
    if metadata.flag("clip.use_gelu")? == Some(false) {
        return Err(refuse(metadata, "clip.use_gelu is false, this family's towers use it".to_owned()));
    }
    if let Some(eps) = keys.number("attention.layer_norm_epsilon")?
        && eps != 1e-6
    {
        return Err(refuse(metadata, format!("clip.vision.attention.layer_norm_epsilon is {eps}, expected 1e-6")));
    }
    let hidden =
        Keys { metadata: &trunk.metadata, prefix: Arch::of(&trunk.metadata)?.name() }.need("embedding_length")?;
    let width = keys.need("projection_dim")?;
    if width != hidden {
        return Err(refuse(
            metadata,
            format!(
                "its rows are {width} wide, the model {} takes {hidden}: this vision tower belongs to another model; --mmproj FILE names the right one, --mmproj none reads text \
                 alone",
                trunk.metadata.file()
            ),
        ));
    }
    let table = tower.tensors.iter().find(|(_, t)| t.name == "v.position_embd.weight");
    let Some(&[positions, _]) = table.map(|(_, t)| t.dims.as_slice()) else {
        return Err(refuse(metadata, "tensor \"v.position_embd.weight\" is missing or no table".to_owned()));
    };
    let flags = metadata.flags("clip.vision.is_deepstack_layers")?.unwrap_or_default();
    let deepstack: Vec<usize> = (0..flags.len()).filter(|&i| flags[i]).collect();
    let stored = deepstack_blocks(tower);
    if deepstack != stored {
        let problem = format!("is_deepstack_layers names blocks {deepstack:?}, its tensors are of blocks {stored:?}");
        return Err(refuse(metadata, problem));
    }
    let trunk_keys = Keys { metadata: &trunk.metadata, prefix: Arch::of(&trunk.metadata)?.name() };
    if let Some(levels) = trunk_keys.count("n_deepstack_layers")?
        && levels != deepstack.len() as u64
    {
        return Err(refuse(
            metadata,
            format!(
                "it has {} deepstack levels, the model {} takes {levels}: this vision tower belongs to another model; --mmproj FILE names the right one, --mmproj none reads text \
                 alone",
                deepstack.len(),
                trunk.metadata.file()
            ),
        ));
    }
    Ok(json!({
        "depth": keys.need("block_count")?,
        "hidden_size": keys.need("embedding_length")?,
        "intermediate_size": keys.need("feed_forward_length")?,
        "num_heads": keys.need("attention.head_count")?,
        "num_position_embeddings": positions,
        "out_hidden_size": width,
        "patch_size": keys.need("patch_size")?,
        "spatial_merge_size": keys.count("spatial_merge_size")?.unwrap_or(2),
        "temporal_patch_size": frames(tower)?,
        "deepstack_visual_indexes": deepstack,
    }))
}

/// Frames of a patch: two tensors of a converted tower, or what its key says.
fn frames(tower: &Set) -> Result<u64> {
    let stored = tower.tensors.iter().filter(|(_, t)| t.name.starts_with("v.patch_embd.weight")).count() as u64;
    Ok(tower.metadata.count("clip.vision.temporal_patch_size")?.unwrap_or(stored))
}

/// The text of a `preprocessor_config.json` for a tower.
///
/// A GGUF file seldom has limits, so the family's own apply: 65,536 to 16,777,216 pixels with the published towers,
/// which have a table of 48 x 48 positions. Another table means a checkpoint that was not published; its limits are
/// not known, so nothing is enlarged beyond one token a side of two, and no picture takes more than half the context.
pub(super) fn preprocessor_json(trunk: &Set, tower: &Set) -> Result<String> {
    let metadata = &tower.metadata;
    let keys = Keys { metadata, prefix: "clip.vision" };
    let (patch, merge) = (keys.need("patch_size")?, keys.count("spatial_merge_size")?.unwrap_or(2));
    let token = patch.saturating_mul(merge).saturating_pow(2);
    let table = tower.tensors.iter().find(|(_, t)| t.name == "v.position_embd.weight").map(|(_, t)| t.dims[0]);
    let (least, most) = match table {
        Some(2304) => (65_536, 16_777_216),
        _ => {
            let context = Keys { metadata: &trunk.metadata, prefix: Arch::of(&trunk.metadata)?.name() };
            let tokens = (context.need("context_length")? / 2).clamp(4, 16_384);
            (token.saturating_mul(4), token.saturating_mul(tokens))
        }
    };
    let least = keys.count("image_min_pixels")?.unwrap_or(least);
    let most = keys.count("image_max_pixels")?.unwrap_or(most);
    let triple = |key: &str| -> Result<Vec<f64>> {
        let path = keys.path(key);
        // The family's own, where a writer had none.
        Ok(metadata.numbers(&path)?.unwrap_or_else(|| vec![0.5; 3]))
    };
    Ok(json!({
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": patch,
        "temporal_patch_size": frames(tower)?,
        "merge_size": merge,
        "image_mean": triple("image_mean")?,
        "image_std": triple("image_std")?,
        "size": {"shortest_edge": least, "longest_edge": most},
    })
    .to_string())
}
