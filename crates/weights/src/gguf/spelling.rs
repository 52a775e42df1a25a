//! Each tensor's name in GGUF beside its published one, for both ways.

use super::names::Arch;

/// Where the published names of the trunk begin.
const TRUNK: &str = "model.language_model";
pub(super) const TOWER: &str = "model.visual";

/// Outside the layers.
const OUTER: [(&str, &str); 3] = [
    ("token_embd.weight", "model.language_model.embed_tokens.weight"),
    ("output_norm.weight", "model.language_model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Of layer `N`, after `blk.N.` and `model.language_model.layers.N.`.
const LAYER: [(&str, &str); 30] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("ffn_norm.weight", "post_attention_layernorm.weight"),
    // Qwen3.5's name for the same.
    ("post_attention_norm.weight", "post_attention_layernorm.weight"),
    ("attn_q.weight", "self_attn.q_proj.weight"),
    ("attn_k.weight", "self_attn.k_proj.weight"),
    ("attn_v.weight", "self_attn.v_proj.weight"),
    ("attn_output.weight", "self_attn.o_proj.weight"),
    ("attn_q_norm.weight", "self_attn.q_norm.weight"),
    ("attn_k_norm.weight", "self_attn.k_norm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("ffn_gate_inp.weight", "mlp.gate.weight"),
    ("ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"),
    ("ffn_up_exps.weight", "mlp.experts.up_proj.weight"),
    ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
    ("ffn_down_exps.weight", "mlp.experts.down_proj.weight"),
    ("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"),
    ("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"),
    ("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"),
    ("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"),
    ("attn_qkv.weight", "linear_attn.in_proj_qkv.weight"),
    ("attn_gate.weight", "linear_attn.in_proj_z.weight"),
    ("ssm_alpha.weight", "linear_attn.in_proj_a.weight"),
    ("ssm_beta.weight", "linear_attn.in_proj_b.weight"),
    ("ssm_conv1d.weight", "linear_attn.conv1d.weight"),
    ("ssm_a", "linear_attn.A_log"),
    ("ssm_dt.bias", "linear_attn.dt_bias"),
    ("ssm_norm.weight", "linear_attn.norm.weight"),
    ("ssm_out.weight", "linear_attn.out_proj.weight"),
];

/// Of the tower outside its blocks, without `weight` or `bias`.
const TOWER_OUTER: [(&str, &str); 5] = [
    ("v.patch_embd", "patch_embed.proj"),
    ("v.position_embd", "pos_embed"),
    ("v.post_ln", "merger.norm"),
    ("mm.0", "merger.linear_fc1"),
    ("mm.2", "merger.linear_fc2"),
];

const BLOCK: [(&str, &str); 6] = [
    ("ln1", "norm1"),
    ("ln2", "norm2"),
    ("attn_qkv", "attn.qkv"),
    ("attn_out", "attn.proj"),
    ("ffn_up", "mlp.linear_fc1"),
    ("ffn_down", "mlp.linear_fc2"),
];

const DEEPSTACK: [(&str, &str); 3] = [("norm", "norm"), ("fc1", "linear_fc1"), ("fc2", "linear_fc2")];

fn published(pairs: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    pairs.iter().find(|(gguf, _)| *gguf == name).map(|(_, published)| *published)
}

fn gguf(pairs: &[(&'static str, &str)], name: &str) -> Option<&'static str> {
    pairs.iter().find(|(_, published)| *published == name).map(|(gguf, _)| *gguf)
}

/// The published name of a trunk's tensor. `fused`: gate and up of the experts are one tensor.
pub(super) fn trunk_name(name: &str, layers: usize, fused: bool) -> Option<String> {
    if let Some(outer) = published(&OUTER, name) {
        return Some(outer.to_owned());
    }
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    if layer.parse::<usize>().ok()? >= layers {
        return Some(format!("mtp.layers.{layer}.{part}"));
    }
    let part = match part {
        // As in published files, where fused experts are no modules with a `weight`.
        "ffn_down_exps.weight" if fused => "mlp.experts.down_proj",
        part if expert(part).is_some() => {
            let (part, number) = expert(part)?;
            return Some(format!("{TRUNK}.layers.{layer}.mlp.experts.{number}.{part}.weight"));
        }
        // Some writers leave the `bias` out.
        "ssm_dt" => "linear_attn.dt_bias",
        part => published(&LAYER, part)?,
    };
    Some(format!("{TRUNK}.layers.{layer}.{part}"))
}

/// The published part and the number of an expert that was taken from a stack, as in `ffn_up_exps.3.weight`.
fn expert(part: &str) -> Option<(&'static str, usize)> {
    let (stack, number) = part.strip_suffix(".weight")?.split_once("_exps.")?;
    let part = match stack {
        "ffn_gate" => "gate_proj",
        "ffn_up" => "up_proj",
        "ffn_down" => "down_proj",
        _ => return None,
    };
    Some((part, number.parse().ok()?))
}

/// The published name of a tower's tensor; `deepstack` are the blocks that a deepstack merger follows.
pub(super) fn tower_name(name: &str, deepstack: &[usize]) -> Option<String> {
    let (part, kind) = name.rsplit_once('.')?;
    if let Some(part) = published(&TOWER_OUTER, part) {
        return Some(format!("{TOWER}.{part}.{kind}"));
    }
    let (place, part) = part.strip_prefix("v.")?.rsplit_once('.')?;
    let (list, number) = place.split_once('.')?;
    let number: usize = number.parse().ok()?;
    match list {
        "blk" => Some(format!("{TOWER}.blocks.{number}.{}.{kind}", published(&BLOCK, part)?)),
        "deepstack" => {
            let at = deepstack.iter().position(|&block| block == number)?;
            Some(format!("{TOWER}.deepstack_merger_list.{at}.{}.{kind}", published(&DEEPSTACK, part)?))
        }
        _ => None,
    }
}

/// The name of an architecture in GGUF, by the published `model_type` of the whole model.
pub fn architecture(model_type: &str) -> Option<&'static str> {
    Arch::ALL.into_iter().find(|arch| arch.model_type() == model_type).map(Arch::name)
}

/// The name in GGUF of a tensor by its published one; of stacked experts that is `mlp.experts.gate_proj.weight`.
///
/// `model_type` is the whole model's, `deepstack` its `deepstack_visual_indexes`.
pub fn gguf_name(name: &str, model_type: &str, deepstack: &[usize]) -> Option<String> {
    if let Some(part) = name.strip_prefix(TOWER).and_then(|rest| rest.strip_prefix('.')) {
        return gguf_tower_name(part, deepstack);
    }
    // Text-only exports leave `language_model` out.
    let part = name.strip_prefix("model.").map(|rest| rest.strip_prefix("language_model.").unwrap_or(rest));
    let full = part.map_or_else(|| name.to_owned(), |part| format!("{TRUNK}.{part}"));
    if let Some(outer) = gguf(&OUTER, &full) {
        return Some(outer.to_owned());
    }
    let (layer, part) = part?.strip_prefix("layers.")?.split_once('.')?;
    layer.parse::<usize>().ok()?;
    let qwen35 = Arch::ALL.into_iter().any(|arch| arch.model_type() == model_type && arch.is_qwen35());
    let part = match part {
        "post_attention_layernorm.weight" if qwen35 => "post_attention_norm.weight",
        part => gguf(&LAYER, part)?,
    };
    Some(format!("blk.{layer}.{part}"))
}

fn gguf_tower_name(name: &str, deepstack: &[usize]) -> Option<String> {
    let (part, kind) = name.rsplit_once('.')?;
    if let Some(part) = gguf(&TOWER_OUTER, part) {
        return Some(format!("{part}.{kind}"));
    }
    let (list, rest) = part.split_once('.')?;
    let (number, part) = rest.split_once('.')?;
    let number: usize = number.parse().ok()?;
    match list {
        "blocks" => Some(format!("v.blk.{number}.{}.{kind}", gguf(&BLOCK, part)?)),
        "deepstack_merger_list" => {
            Some(format!("v.deepstack.{}.{}.{kind}", deepstack.get(number)?, gguf(&DEEPSTACK, part)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_the_published_ones() {
        for (name, expected) in [
            ("token_embd.weight", "model.language_model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            ("blk.3.ssm_a", "model.language_model.layers.3.linear_attn.A_log"),
            ("blk.4.attn_q.weight", "mtp.layers.4.attn_q.weight"),
            ("blk.0.ffn_down_exps.weight", "model.language_model.layers.0.mlp.experts.down_proj.weight"),
        ] {
            assert_eq!(trunk_name(name, 4, false).as_deref(), Some(expected));
        }
        assert_eq!(trunk_name("blk.0.attn_q.bias", 4, false), None);
        for (name, expected) in [
            ("v.deepstack.5.fc2.bias", "model.visual.deepstack_merger_list.1.linear_fc2.bias"),
            ("v.blk.7.ln2.weight", "model.visual.blocks.7.norm2.weight"),
            ("mm.2.weight", "model.visual.merger.linear_fc2.weight"),
            ("v.post_ln.bias", "model.visual.merger.norm.bias"),
        ] {
            assert_eq!(tower_name(name, &[2, 5]).as_deref(), Some(expected));
        }
        assert_eq!(tower_name("v.deepstack.3.fc2.bias", &[2, 5]), None);
    }

    #[test]
    fn names_go_there_and_back() {
        for (model_type, others) in [("qwen3_vl_moe", "post_attention_norm.weight"), ("qwen3_5", "ffn_norm.weight")] {
            assert!(architecture(model_type).is_some());
            let layer = LAYER.iter().filter(|(gguf, _)| *gguf != others).map(|(gguf, _)| format!("blk.7.{gguf}"));
            for name in layer.chain(OUTER.iter().map(|(gguf, _)| (*gguf).to_owned())) {
                let published = trunk_name(&name, 8, false).unwrap();
                assert_eq!(gguf_name(&published, model_type, &[]), Some(name), "{model_type}");
            }
        }
        let outer = TOWER_OUTER.iter().map(|(gguf, _)| (*gguf).to_owned());
        let inner = BLOCK.iter().map(|(gguf, _)| format!("v.blk.3.{gguf}"));
        let deepstack = DEEPSTACK.iter().map(|(gguf, _)| format!("v.deepstack.5.{gguf}"));
        for name in outer.chain(inner).chain(deepstack).map(|name| name + ".bias") {
            assert_eq!(gguf_name(&tower_name(&name, &[2, 5]).unwrap(), "qwen3_vl", &[2, 5]), Some(name));
        }
        assert_eq!(
            gguf_name("model.layers.3.self_attn.q_proj.weight", "llama", &[]).as_deref(),
            Some("blk.3.attn_q.weight")
        );
        assert_eq!(gguf_name("model.layers.3.self_attn.q_proj.bias", "llama", &[]), None);
    }
}
