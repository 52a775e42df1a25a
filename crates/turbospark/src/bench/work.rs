//! How much work a run is, from the shapes alone.
//!
//! A product of `[m, k]` and `[k, n]` counts `2 m k n`; norms, activations and rotations count nothing. What an
//! implementation computes beyond this (a masked half of a tile, a chunked scan) is its own loss, so that speeds
//! of different programs compare.

use crate::config::{Config, LayerKind, MlpKind, TextConfig, VisionConfig};

/// Floating-point operations of one image in the tower.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EncodeFlops {
    /// `2 n p d` for `n` patches of `p` values and width `d`.
    pub patch_embedding: f64,
    /// `2 n (4 d^2 + 2 d i)` a block, with the MLP's inner width `i`.
    pub linear: f64,
    /// `4 n^2 d` a block, for the patches of each frame.
    pub attention: f64,
    /// `2 (n / 4) (w^2 + w o)` a merger, with `w = 4 d` and the trunk's width `o`.
    pub mergers: f64,
}

impl EncodeFlops {
    /// Of a grid of patches along time, height and width.
    pub fn of(c: &VisionConfig, [t, h, w]: [usize; 3]) -> Self {
        let [n, frame] = [t * h * w, h * w].map(|x| x as f64);
        let (d, inner) = (c.hidden_size as f64, c.intermediate_size as f64);
        let wide = c.merge_unit() as f64 * d;
        let mergers = (1 + c.deepstack_visual_indexes.len()) as f64;
        EncodeFlops {
            patch_embedding: 2.0 * n * c.patch_dim() as f64 * d,
            linear: c.depth as f64 * 2.0 * n * (4.0 * d * d + 2.0 * d * inner),
            attention: c.depth as f64 * 4.0 * n * frame * d,
            mergers: mergers * 2.0 * n / c.merge_unit() as f64 * (wide * wide + wide * c.out_hidden_size as f64),
        }
    }

    /// All together.
    pub fn total(&self) -> f64 {
        self.patch_embedding + self.linear + self.attention + self.mergers
    }
}

/// Floating-point operations of tokens in the trunk.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TokenFlops {
    /// `2` a weight and token, of the experts those that see it.
    pub linear: f64,
    /// `4 q` a layer, token and key that it sees, with `q` the width of all query heads.
    pub attention: f64,
    /// Convolution, `2` a tap, and delta rule, `7` an element of the state: a decay and three products.
    pub delta: f64,
    /// `2 v d` a row of logits.
    pub head: f64,
}

impl TokenFlops {
    /// Of `tokens` tokens after `before` others in the cache, with logits of `logits` rows.
    pub fn of(config: &Config, before: usize, tokens: usize, logits: usize) -> Self {
        let c = &config.text;
        let n = tokens as f64;
        let keys = n * before as f64 + n * (n + 1.0) / 2.0; // summed over the tokens
        let attention = c.layer_kinds.iter().filter(|k| **k == LayerKind::FullAttention).count() as f64;
        let queries = (c.num_attention_heads * c.head_dim) as f64;
        let delta = c.delta.as_ref().map_or(0.0, |d| {
            let layers = c.num_hidden_layers as f64 - attention;
            let state = (d.num_value_heads * d.key_head_dim * d.value_head_dim) as f64;
            layers * n * (2.0 * (d.conv_channels() * d.conv_kernel) as f64 + 7.0 * state)
        });
        TokenFlops {
            linear: 2.0 * n * weights_of_a_token(c),
            attention: attention * 4.0 * queries * keys,
            delta,
            head: 2.0 * logits as f64 * (c.vocab_size * c.hidden_size) as f64,
        }
    }

    /// All together.
    pub fn total(&self) -> f64 {
        self.linear + self.attention + self.delta + self.head
    }
}

/// Weights that multiply one token, without embedding and head.
fn weights_of_a_token(c: &TextConfig) -> f64 {
    let h = c.hidden_size;
    let (queries, keys) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
    let attention = h * (queries * (1 + usize::from(c.attention_output_gate)) + 2 * keys + queries);
    let delta = c.delta.as_ref().map_or(0, |d| h * (d.conv_channels() + 2 * d.num_value_heads + 2 * d.value_dim()));
    let dense = 3 * h * c.intermediate_size;
    let moe = c.moe.as_ref().map_or(0, |m| {
        let shared = m.shared_expert_intermediate_size.map_or(0, |width| 3 * h * width + h);
        h * m.num_experts + 3 * h * m.moe_intermediate_size * m.num_experts_per_tok + shared
    });
    let mixers = c.layer_kinds.iter().map(|k| if *k == LayerKind::FullAttention { attention } else { delta });
    let mlps = c.mlp_kinds.iter().map(|k| if *k == MlpKind::Dense { dense } else { moe });
    mixers.chain(mlps).map(|n| n as f64).sum()
}
