use super::{Family, MAX_DEPTH, MAX_HEADS, MAX_TOKENS, MAX_WIDTH, Result, TextConfig, node::Node};

/// The vision tower.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisionConfig {
    /// Number of blocks.
    pub depth: usize,
    /// Width of the tower, a multiple of `4 * num_heads`.
    pub hidden_size: usize,
    /// Inner width of a block's MLP.
    pub intermediate_size: usize,
    /// Number of heads.
    pub num_heads: usize,
    /// Rows of the position table, a square number.
    pub num_position_embeddings: usize,
    /// Width of a merged row: the trunk's hidden size.
    pub out_hidden_size: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Side, in patches, of what becomes one merged row.
    pub spatial_merge_size: usize,
    /// Frames in a patch.
    pub temporal_patch_size: usize,
    /// Colours of a pixel.
    pub in_channels: usize,
    /// Blocks whose output also goes to the first trunk layers, ascending; empty for Qwen3.5.
    pub deepstack_visual_indexes: Vec<usize>,
}

impl VisionConfig {
    /// Epsilon of every LayerNorm of the tower: a constant of the reference, not a setting.
    pub const NORM_EPS: f32 = 1e-6;
    /// Base of the rotary frequencies.
    pub const ROPE_THETA: f32 = 10_000.0;

    /// Size of a head, a multiple of 4.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Values in a patch: channels, frames, rows, columns.
    pub fn patch_dim(&self) -> usize {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Patches in a merged row.
    pub fn merge_unit(&self) -> usize {
        self.spatial_merge_size * self.spatial_merge_size
    }

    /// Side of the square position table.
    pub fn position_side(&self) -> usize {
        self.num_position_embeddings.isqrt()
    }

    pub(super) fn read(node: &Node, family: Family, text: &TextConfig) -> Result<Self> {
        node.only("hidden_act", "gelu_pytorch_tanh")?;
        let depth = node.size("depth", MAX_DEPTH)?;
        let hidden_size = node.size("hidden_size", MAX_WIDTH)?;
        let num_heads = node.size("num_heads", MAX_HEADS)?;
        if !hidden_size.is_multiple_of(4 * num_heads) {
            // Each head is rotated in halves, by row and by column.
            let problem = format!("{hidden_size} is no multiple of 4 x num_heads {num_heads}");
            return Err(node.contradiction("hidden_size", problem));
        }
        let num_position_embeddings = node.size("num_position_embeddings", MAX_TOKENS)?;
        if num_position_embeddings.isqrt().pow(2) != num_position_embeddings {
            return Err(node.wrong("num_position_embeddings", "a square number", &num_position_embeddings.into()));
        }
        let out_hidden_size = node.size("out_hidden_size", MAX_WIDTH)?;
        if out_hidden_size != text.hidden_size {
            let problem = format!("{out_hidden_size} differs from the trunk's hidden_size {}", text.hidden_size);
            return Err(node.contradiction("out_hidden_size", problem));
        }
        let in_channels = node.size_if_any("in_channels", 16)?.unwrap_or(3);
        if in_channels != 3 {
            return Err(node.unsupported("in_channels", &in_channels.into(), "images are RGB (3)"));
        }
        Ok(VisionConfig {
            depth,
            hidden_size,
            intermediate_size: node.size("intermediate_size", MAX_WIDTH)?,
            num_heads,
            num_position_embeddings,
            out_hidden_size,
            patch_size: node.size_if_any("patch_size", 256)?.unwrap_or(16),
            spatial_merge_size: node.size_if_any("spatial_merge_size", 16)?.unwrap_or(2),
            temporal_patch_size: node.size_if_any("temporal_patch_size", 16)?.unwrap_or(2),
            in_channels,
            deepstack_visual_indexes: deepstack(node, family, depth, text.num_hidden_layers)?,
        })
    }
}

fn deepstack(node: &Node, family: Family, depth: usize, layers: usize) -> Result<Vec<usize>> {
    const KEY: &str = "deepstack_visual_indexes";
    let indexes = node.indexes(KEY, depth)?;
    if family.is_qwen35() {
        return match indexes {
            Some(list) if !list.is_empty() => Err(node.unsupported(KEY, &list.into(), "this family has no deepstack")),
            _ => Ok(Vec::new()),
        };
    }
    let indexes = indexes.ok_or_else(|| node.missing(KEY, "a list of block indexes"))?;
    if !indexes.is_sorted_by(|a, b| a < b) {
        return Err(node.wrong(KEY, "ascending block indexes without repeats", &indexes.into()));
    }
    if indexes.len() > layers {
        let problem = format!("{} of them, but the trunk has {layers} layers to add them after", indexes.len());
        return Err(node.contradiction(KEY, problem));
    }
    Ok(indexes)
}
