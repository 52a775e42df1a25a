use super::{Family, MAX_DEPTH, MAX_HEAD_DIM, MAX_HEADS, MAX_TOKENS, MAX_WIDTH, Result, RopeConfig, node::Node};

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Softmax attention over all earlier tokens.
    FullAttention,
    /// Gated DeltaNet.
    LinearAttention,
}

/// What a layer does to each token alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MlpKind {
    /// One SwiGLU MLP of `intermediate_size`.
    Dense,
    /// Routed experts of `moe_intermediate_size`.
    Moe,
}

/// Sizes of the gated DeltaNet layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
    /// Size of a query or key head.
    pub key_head_dim: usize,
    /// Number of query and key heads.
    pub num_key_heads: usize,
    /// Number of value heads, a multiple of `num_key_heads`.
    pub num_value_heads: usize,
    /// Size of a value head.
    pub value_head_dim: usize,
}

impl DeltaConfig {
    /// Width of all keys, and of all queries.
    pub fn key_dim(&self) -> usize {
        self.num_key_heads * self.key_head_dim
    }

    /// Width of all values, and of the gate `z`.
    pub fn value_dim(&self) -> usize {
        self.num_value_heads * self.value_head_dim
    }

    /// Channels of the convolution: q, k and v.
    pub fn conv_channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

/// Sizes of the routed experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts per layer.
    pub num_experts: usize,
    /// Experts that see a token, at most `num_experts`.
    pub num_experts_per_tok: usize,
    /// Inner width of an expert.
    pub moe_intermediate_size: usize,
    /// Inner width of the expert that sees every token, where the family has one.
    pub shared_expert_intermediate_size: Option<usize>,
    /// Whether the weights of a token's experts are divided by their sum.
    pub norm_topk_prob: bool,
}

/// The text trunk.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub num_hidden_layers: usize,
    /// Number of query heads, a multiple of `num_key_value_heads`.
    pub num_attention_heads: usize,
    /// Number of key and value heads.
    pub num_key_value_heads: usize,
    /// Size of a head, even; not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Inner width of a dense MLP; 0 where no layer has one.
    pub intermediate_size: usize,
    /// Rows of the embedding and of the head.
    pub vocab_size: usize,
    /// Epsilon of every RMSNorm of the trunk.
    pub rms_norm_eps: f32,
    /// The longest sequence that the model was made for.
    pub max_position_embeddings: usize,
    /// Rotary positions.
    pub rope: RopeConfig,
    /// What each layer mixes tokens with; `num_hidden_layers` of them.
    pub layer_kinds: Vec<LayerKind>,
    /// What each layer's MLP is; `num_hidden_layers` of them.
    pub mlp_kinds: Vec<MlpKind>,
    /// Whether queries and keys are normalised head by head.
    pub head_norms: bool,
    /// Whether `q_proj` also gives a gate for the attention's output.
    pub attention_output_gate: bool,
    /// Present for Qwen3.5.
    pub delta: Option<DeltaConfig>,
    /// Present for the MoE families.
    pub moe: Option<MoeConfig>,
}

impl TextConfig {
    pub(super) fn read(node: &Node, family: Family) -> Result<Self> {
        refuse_what_is_not_implemented(node, family)?;
        let num_hidden_layers = node.size("num_hidden_layers", MAX_DEPTH)?;
        let num_attention_heads = node.size("num_attention_heads", MAX_HEADS)?;
        let num_key_value_heads = node.size("num_key_value_heads", MAX_HEADS)?;
        if !num_attention_heads.is_multiple_of(num_key_value_heads) {
            let problem = format!("{num_key_value_heads} does not divide num_attention_heads {num_attention_heads}");
            return Err(node.contradiction("num_key_value_heads", problem));
        }
        let default_head_dim = match family {
            Family::Qwen35 | Family::Qwen35Moe => 256,
            Family::Llama => node.size("hidden_size", MAX_WIDTH)? / num_attention_heads,
            _ => 128,
        };
        let head_dim = node.size_if_any("head_dim", MAX_HEAD_DIM)?.unwrap_or(default_head_dim);
        if !head_dim.is_multiple_of(2) {
            return Err(node.wrong("head_dim", "an even integer", &head_dim.into()));
        }
        let mlp_kinds = mlp_kinds(node, family, num_hidden_layers)?;
        let intermediate_size =
            if mlp_kinds.contains(&MlpKind::Dense) { node.size("intermediate_size", MAX_WIDTH)? } else { 0 };
        Ok(TextConfig {
            hidden_size: node.size("hidden_size", MAX_WIDTH)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            intermediate_size,
            vocab_size: node.size("vocab_size", MAX_TOKENS)?,
            rms_norm_eps: rms_norm_eps(node)?,
            max_position_embeddings: max_positions(node, family)?,
            rope: RopeConfig::read(node, family, head_dim)?,
            layer_kinds: layer_kinds(node, family, num_hidden_layers)?,
            mlp_kinds,
            head_norms: family.has_head_norms(),
            attention_output_gate: family.is_qwen35(),
            delta: if family.is_qwen35() { Some(DeltaConfig::read(node)?) } else { None },
            moe: if family.is_moe() { Some(MoeConfig::read(node, family)?) } else { None },
        })
    }
}

impl DeltaConfig {
    fn read(node: &Node) -> Result<Self> {
        let or = |key, max, default| -> Result<usize> { Ok(node.size_if_any(key, max)?.unwrap_or(default)) };
        let delta = DeltaConfig {
            conv_kernel: or("linear_conv_kernel_dim", 64, 4)?,
            key_head_dim: or("linear_key_head_dim", MAX_HEAD_DIM, 128)?,
            num_key_heads: or("linear_num_key_heads", MAX_HEADS, 16)?,
            num_value_heads: or("linear_num_value_heads", MAX_HEADS, 32)?,
            value_head_dim: or("linear_value_head_dim", MAX_HEAD_DIM, 128)?,
        };
        if !delta.num_value_heads.is_multiple_of(delta.num_key_heads) {
            let problem =
                format!("{} is no multiple of linear_num_key_heads {}", delta.num_value_heads, delta.num_key_heads);
            return Err(node.contradiction("linear_num_value_heads", problem));
        }
        Ok(delta)
    }
}

impl MoeConfig {
    fn read(node: &Node, family: Family) -> Result<Self> {
        let own = node.size_if_any("num_experts", MAX_HEADS)?;
        let local = node.size_if_any("num_local_experts", MAX_HEADS)?;
        let num_experts = match (own, local) {
            (Some(a), Some(b)) if a != b => {
                return Err(node.contradiction("num_local_experts", format!("{b} disagrees with num_experts {a}")));
            }
            (a, b) => a.or(b).ok_or_else(|| node.missing("num_experts", "a positive integer"))?,
        };
        let num_experts_per_tok = node.size("num_experts_per_tok", MAX_HEADS)?;
        if num_experts_per_tok > num_experts {
            let problem = format!("{num_experts_per_tok} experts per token, but num_experts is {num_experts}");
            return Err(node.contradiction("num_experts_per_tok", problem));
        }
        let shared = "shared_expert_intermediate_size";
        let shared_expert_intermediate_size = match family {
            Family::Qwen35Moe => Some(node.size(shared, MAX_WIDTH)?),
            _ => match node.get(shared) {
                Some(size) if size.as_u64() != Some(0) => {
                    return Err(node.unsupported(shared, size, "this family has no shared expert"));
                }
                _ => None,
            },
        };
        Ok(MoeConfig {
            num_experts,
            num_experts_per_tok,
            moe_intermediate_size: node.size("moe_intermediate_size", MAX_WIDTH)?,
            shared_expert_intermediate_size,
            // The other families always do.
            norm_topk_prob: family != Family::Qwen3Moe || node.flag("norm_topk_prob")?.unwrap_or(false),
        })
    }
}

/// Where attention sees a window only, a context within the window is the same as without it.
fn max_positions(node: &Node, family: Family) -> Result<usize> {
    let positions = node.size("max_position_embeddings", MAX_TOKENS)?;
    match family {
        Family::Llama => Ok(node.size_if_any("sliding_window", MAX_TOKENS)?.map_or(positions, |w| w.min(positions))),
        _ => Ok(positions),
    }
}

fn refuse_what_is_not_implemented(node: &Node, family: Family) -> Result<()> {
    if let Some(name) = node.text("model_type")?
        && name != family.text_model_type()
        && name != family.model_type()
        && !(family == Family::Llama && name == "mistral")
    {
        let supported = format!("with {} it is {:?}", family.model_type(), family.text_model_type());
        return Err(node.unsupported("model_type", &name.into(), &supported));
    }
    node.only("hidden_act", "silu")?;
    node.only_flag("attention_bias", false)?;
    node.only_flag("mlp_bias", false)?;
    node.only_flag("attn_output_gate", family.is_qwen35())?;
    node.only_flag("use_sliding_window", false)?;
    if let Some(window) = node.get("sliding_window")
        && family != Family::Llama
        && node.flag("use_sliding_window")?.is_none()
    {
        return Err(node.unsupported("sliding_window", window, "attention sees the whole sequence"));
    }
    Ok(())
}

fn rms_norm_eps(node: &Node) -> Result<f32> {
    const KEY: &str = "rms_norm_eps";
    let eps = node.real(KEY)?.unwrap_or(1e-6);
    if !(1e-12..1.0).contains(&eps) {
        return Err(node.wrong(KEY, "a number from 1e-12 to 1", &eps.into()));
    }
    Ok(eps as f32)
}

/// `layer_types` goes before `full_attention_interval`, as in the reference.
fn layer_kinds(node: &Node, family: Family, layers: usize) -> Result<Vec<LayerKind>> {
    const KEY: &str = "layer_types";
    if let Some(names) = node.strings(KEY)? {
        if names.len() != layers {
            let problem = format!("{} entries, expected num_hidden_layers {layers}", names.len());
            return Err(node.contradiction(KEY, problem));
        }
        return names
            .into_iter()
            .map(|name| match name {
                "full_attention" => Ok(LayerKind::FullAttention),
                "linear_attention" if family.is_qwen35() => Ok(LayerKind::LinearAttention),
                other if family.is_qwen35() => {
                    Err(node.unsupported(KEY, &other.into(), "layers are full_attention or linear_attention"))
                }
                other => Err(node.unsupported(KEY, &other.into(), "this family's layers are full_attention")),
            })
            .collect();
    }
    if !family.is_qwen35() {
        return Ok(vec![LayerKind::FullAttention; layers]);
    }
    let interval = node.size_if_any("full_attention_interval", MAX_DEPTH)?.unwrap_or(4);
    let kind = |i: usize| match (i + 1).is_multiple_of(interval) {
        true => LayerKind::FullAttention,
        false => LayerKind::LinearAttention,
    };
    Ok((0..layers).map(kind).collect())
}

fn mlp_kinds(node: &Node, family: Family, layers: usize) -> Result<Vec<MlpKind>> {
    if !family.is_moe() {
        return Ok(vec![MlpKind::Dense; layers]);
    }
    let dense = node.indexes("mlp_only_layers", layers)?.unwrap_or_default();
    let step = node.size_if_any("decoder_sparse_step", MAX_DEPTH)?.unwrap_or(1);
    if family == Family::Qwen35Moe {
        // The reference routes every layer and reads neither key.
        if !dense.is_empty() {
            return Err(node.unsupported("mlp_only_layers", &dense.into(), "every layer of this family is routed"));
        }
        if step != 1 {
            return Err(node.unsupported("decoder_sparse_step", &step.into(), "every layer of this family is routed"));
        }
    }
    let mut kinds: Vec<_> =
        (1..=layers).map(|i| if i.is_multiple_of(step) { MlpKind::Moe } else { MlpKind::Dense }).collect();
    for i in dense {
        kinds[i] = MlpKind::Dense;
    }
    Ok(kinds)
}
