//! `config.json`: which family a checkpoint belongs to, and its sizes.
//!
//! Every number is checked here once, so that the loader and the models multiply sizes without overflow and
//! index without doubt. A setting that changes what is computed and is not implemented is refused by name:
//! read past, it would give a fluent wrong model.
//!
//! ```
//! # let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"),
//! #     "/../../assets/fixtures/qwen3_5/checkpoint/config.json")).unwrap();
//! use turbospark_models::config::{Config, Family, LayerKind};
//!
//! let config = Config::parse(&text).unwrap();
//! assert_eq!(config.family, Family::Qwen35);
//! assert_eq!(config.text.layer_kinds[3], LayerKind::FullAttention);
//! ```

mod error;
mod node;
mod rope;
mod text;
mod vision;

pub use error::ConfigError;
pub use rope::{RopeConfig, RopeScaling};
pub use text::{DeltaConfig, LayerKind, MlpKind, MoeConfig, TextConfig};
pub use vision::VisionConfig;

use node::Node;
use serde_json::Value;

type Result<T> = std::result::Result<T, ConfigError>;

/// Largest hidden or intermediate size. With the other limits no product of sizes reaches 2^60.
const MAX_WIDTH: usize = 1 << 20;
/// Largest number of decoder layers or vision blocks.
const MAX_DEPTH: usize = 1 << 12;
/// Largest number of heads or experts.
const MAX_HEADS: usize = 1 << 12;
/// Largest head size.
const MAX_HEAD_DIM: usize = 1 << 14;
/// Largest vocabulary and longest context.
const MAX_TOKENS: usize = 1 << 24;

/// A model family, named after `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `qwen3_vl`: attention in every layer, deepstack, dense MLPs.
    Qwen3Vl,
    /// `qwen3_vl_moe`: as [`Family::Qwen3Vl`] with routed experts.
    Qwen3VlMoe,
    /// `qwen3_5`: gated DeltaNet and gated attention layers, dense MLPs.
    Qwen35,
    /// `qwen3_5_moe`: as [`Family::Qwen35`] with routed experts and a shared one.
    Qwen35Moe,
    /// `qwen3`: the trunk of [`Family::Qwen3Vl`] with positions of one axis; text alone, as are the two below.
    Qwen3,
    /// `qwen3_moe`: the same with routed experts.
    Qwen3Moe,
    /// `llama`, `mistral`: attention without head norms.
    Llama,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 7] = [
        Family::Qwen3Vl,
        Family::Qwen3VlMoe,
        Family::Qwen35,
        Family::Qwen35Moe,
        Family::Qwen3,
        Family::Qwen3Moe,
        Family::Llama,
    ];

    /// Those that see.
    pub const VISION: [Family; 4] = [Family::Qwen3Vl, Family::Qwen3VlMoe, Family::Qwen35, Family::Qwen35Moe];

    /// The `model_type` of the whole model.
    pub const fn model_type(self) -> &'static str {
        match self {
            Family::Qwen3Vl => "qwen3_vl",
            Family::Qwen3VlMoe => "qwen3_vl_moe",
            Family::Qwen35 => "qwen3_5",
            Family::Qwen35Moe => "qwen3_5_moe",
            Family::Qwen3 => "qwen3",
            Family::Qwen3Moe => "qwen3_moe",
            Family::Llama => "llama",
        }
    }

    /// The `model_type` of its text half, and of a text-only export.
    pub const fn text_model_type(self) -> &'static str {
        match self {
            Family::Qwen3Vl => "qwen3_vl_text",
            Family::Qwen3VlMoe => "qwen3_vl_moe_text",
            Family::Qwen35 => "qwen3_5_text",
            Family::Qwen35Moe => "qwen3_5_moe_text",
            _ => self.model_type(),
        }
    }

    /// Whether layers may route tokens to experts.
    pub const fn is_moe(self) -> bool {
        matches!(self, Family::Qwen3VlMoe | Family::Qwen35Moe | Family::Qwen3Moe)
    }

    /// Whether no checkpoint of it has a vision tower.
    pub const fn is_text_only(self) -> bool {
        matches!(self, Family::Qwen3 | Family::Qwen3Moe | Family::Llama)
    }

    /// Whether queries and keys are normalised head by head.
    pub const fn has_head_norms(self) -> bool {
        !matches!(self, Family::Llama)
    }

    /// Whether the trunk is that of Qwen3.5: gated DeltaNet layers, gated attention, `1 + w` norms.
    pub const fn is_qwen35(self) -> bool {
        matches!(self, Family::Qwen35 | Family::Qwen35Moe)
    }
}

/// A checked `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which order of operations.
    pub family: Family,
    /// The text trunk.
    pub text: TextConfig,
    /// The vision tower; `None` for a text-only export.
    pub vision: Option<VisionConfig>,
    /// `<|image_pad|>`; present where `vision` is, as are the three below.
    pub image_token_id: Option<u32>,
    /// `<|video_pad|>`.
    pub video_token_id: Option<u32>,
    /// `<|vision_start|>`.
    pub vision_start_token_id: Option<u32>,
    /// `<|vision_end|>`.
    pub vision_end_token_id: Option<u32>,
    /// Whether the head is the embedding. The top-level flag decides; the text one may disagree.
    pub tie_word_embeddings: bool,
    /// `eos_token_id` as a list; empty where the file has none. `generation_config.json` goes before it.
    pub eos_token_ids: Vec<u32>,
    /// `dtype` or `torch_dtype` as written. Each tensor's own type counts, not this.
    pub dtype: Option<String>,
}

impl Config {
    /// Reads and checks the text of a `config.json`.
    pub fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)?;
        let root = Node::root(&value)?;
        let (family, text_only) = family(&root)?;
        let text_node = match root.child("text_config")? {
            Some(node) => node,
            None if text_only => root.clone(),
            None => return Err(root.missing("text_config", "an object")),
        };
        let text = TextConfig::read(&text_node, family)?;
        let vision = if text_only {
            None
        } else {
            let node = root.child("vision_config")?.ok_or_else(|| root.missing("vision_config", "an object"))?;
            Some(VisionConfig::read(&node, family, &text)?)
        };
        let ids = if vision.is_some() { vision_ids(&root, text.vocab_size)?.map(Some) } else { [None; 4] };
        let own_tie = root.flag("tie_word_embeddings")?;
        // The text half's own default is true for qwen3_vl_moe alone; it decides only where it is the whole model.
        let text_tie = text_node.flag("tie_word_embeddings")?.unwrap_or(family == Family::Qwen3VlMoe);
        let mut dtype = None;
        for (node, key) in [(&root, "dtype"), (&root, "torch_dtype"), (&text_node, "dtype")] {
            dtype = dtype.or(node.text(key)?.map(str::to_owned));
        }
        Ok(Config {
            family,
            vision,
            image_token_id: ids[0],
            video_token_id: ids[1],
            vision_start_token_id: ids[2],
            vision_end_token_id: ids[3],
            tie_word_embeddings: own_tie.unwrap_or(text_only && text_tie),
            eos_token_ids: eos_ids(&root, &text_node, text.vocab_size)?,
            dtype,
            text,
        })
    }

    /// The longest sequence that the model was made for.
    pub fn max_context(&self) -> usize {
        self.text.max_position_embeddings
    }

    /// Whether the checkpoint has a vision tower.
    pub fn has_vision(&self) -> bool {
        self.vision.is_some()
    }
}

/// The family, and whether the file describes its text half alone.
fn family(root: &Node) -> Result<(Family, bool)> {
    let supported = || Family::ALL.map(Family::model_type).join(", ");
    let name =
        root.text("model_type")?.ok_or_else(|| root.missing("model_type", &format!("one of {}", supported())))?;
    let causal = root.strings("architectures")?.unwrap_or_default().iter().any(|a| a.ends_with("ForCausalLM"));
    if name == "mistral" {
        return Ok((Family::Llama, true));
    }
    for family in Family::ALL {
        if name == family.model_type() {
            return Ok((family, causal || family.is_text_only()));
        }
        if name == family.text_model_type() {
            return Ok((family, true));
        }
    }
    Err(root.unsupported("model_type", &name.into(), &format!("supported are {}, and their _text forms", supported())))
}

fn token_id(node: &Node, key: &str, value: &Value, vocab_size: usize) -> Result<u32> {
    match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
        Some(id) if (id as usize) < vocab_size => Ok(id),
        _ => Err(node.wrong(key, &format!("a token id below vocab_size {vocab_size}"), value)),
    }
}

/// Image, video, start and end markers, which must differ: placeholders are found by id alone.
fn vision_ids(root: &Node, vocab_size: usize) -> Result<[u32; 4]> {
    const KEYS: [&str; 4] = ["image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"];
    let mut ids = [0; 4];
    for (i, key) in KEYS.into_iter().enumerate() {
        let value = root.get(key).ok_or_else(|| root.missing(key, "a token id"))?;
        ids[i] = token_id(root, key, value, vocab_size)?;
        if let Some(j) = ids[..i].iter().position(|&id| id == ids[i]) {
            return Err(root.contradiction(key, format!("{} is also {}", ids[i], KEYS[j])));
        }
    }
    Ok(ids)
}

fn eos_ids(root: &Node, text: &Node, vocab_size: usize) -> Result<Vec<u32>> {
    const KEY: &str = "eos_token_id";
    let node = if root.get(KEY).is_some() { root } else { text };
    match node.get(KEY) {
        None => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(|id| token_id(node, KEY, id, vocab_size)).collect(),
        Some(id) => Ok(vec![token_id(node, KEY, id, vocab_size)?]),
    }
}
