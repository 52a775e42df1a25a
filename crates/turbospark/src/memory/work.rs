//! What a process holds beside weights and cache: buffers of images, of passes and of kernels.

use turbospark_models::config::{Config, TextConfig, VisionConfig};
use turbospark_models::{READERS, Trunk, VisionTower};

/// Bytes of a patch as floats for each of its values, while it waits for the tower.
const FLOAT: u64 = 4;
/// Bytes of a pixel of an image file while it is decoded: as stored (up to four samples), as three, turned upright.
/// Files of 16 bits a sample take more and are bound by [`decode_bytes`] instead.
const DECODED: u64 = 10;
/// What kernels pack operands into at once, at least (`device-cpu`: 4 Mi words of attention, the larger of the two).
const PACKED: u64 = 16 << 20;
/// Of each worker: its stack and its blocks of activations.
const THREAD: u64 = 2 << 20;
/// Pages of the program that are not touched before a pass runs, and what the allocator keeps between sizes.
const SLACK: u64 = 12 << 20;

/// Rows and sequences of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pass {
    /// Rows of a chunk of a prompt.
    pub rows: usize,
    /// Sequences that are decoded together.
    pub sequences: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
    pub threads: usize,
    /// Whether a graphics adapter runs the kernels.
    pub on_adapter: bool,
}

/// Scratch of the trunk, and the logits of all sequences where they are made, read and sampled.
pub(super) fn trunk_bytes(c: &TextConfig, pass: Pass) -> u64 {
    let rows = pass.rows.max(pass.sequences);
    let logits = 4 * c.vocab_size * pass.sequences * 3;
    (Trunk::work_bytes(c, rows, pass.context) + logits) as u64
}

/// What kernels hold: packed operands, and partial results of attention and experts.
pub(super) fn kernel_bytes(c: &Config, pass: Pass, patches: usize) -> u64 {
    let text = &c.text;
    // Attention packs the keys and values of one head at least, whatever its length.
    let head = |rows: usize, width: usize| 2 * 4 * (rows * width.next_multiple_of(16)) as u64;
    let vision = c.vision.as_ref().map_or(0, |v| match pass.on_adapter {
        // Matrix units take those of all heads in f16.
        true => head(patches, v.head_dim()) / 2 * v.num_heads as u64,
        false => head(patches, v.head_dim()),
    });
    // An adapter norms the rows of a delta rule before it begins.
    let normed = text.delta.as_ref().filter(|_| pass.on_adapter).map_or(0, |d| 2 * 4 * pass.rows * d.key_dim());
    let packed = PACKED.max(head(pass.context, text.head_dim)).max(vision);
    let splits = pass.context.div_ceil(64) * pass.sequences;
    let attention = 4 * splits * text.num_attention_heads * (text.head_dim + 16);
    let experts = text.moe.as_ref().map_or(0, |m| {
        // What decoded rows get of each of their experts is kept until all are there.
        let decoded = pass.sequences * m.num_experts_per_tok * (m.moe_intermediate_size + text.hidden_size);
        4 * decoded.max(pass.rows * m.moe_intermediate_size)
    });
    packed.max(normed as u64) + (attention.max(experts)) as u64 + pass.threads as u64 * THREAD + SLACK
}

/// What images of `patches` together take: sized, in the tower, and as rows of the trunk for each of `sequences`, on a
/// device that takes so many `rows` at a time; of that, decoding one file may take [`decode_bytes`].
pub(super) fn image_bytes(v: Option<&VisionConfig>, patches: usize, sequences: usize, rows: usize) -> u64 {
    let Some(v) = v else { return 0 };
    // The tower's own output is the rows of one sequence.
    let others = (sequences - 1) as u64 * row_bytes(v, patches);
    sized_bytes(v, patches) * sequences as u64 + decode_bytes(Some(v), patches, rows) + others
}

/// Of [`image_bytes`], what is free while no image is in work: all but the pictures, of which nobody says when they go.
pub(super) fn lent_bytes(v: Option<&VisionConfig>, patches: usize, sequences: usize, rows: usize) -> u64 {
    v.map_or(0, |v| image_bytes(Some(v), patches, sequences, rows) - sized_bytes(v, patches) * sequences as u64)
}

/// Of [`image_bytes`], what lies in a graphics adapter's memory: the tower's work space, and rows of the trunk.
pub(super) fn tower_work_bytes(v: Option<&VisionConfig>, patches: usize, sequences: usize, rows: usize) -> u64 {
    let others = (sequences - 1) as u64;
    v.map_or(0, |v| VisionTower::work_bytes(v, patches, rows) as u64 + others * row_bytes(v, patches))
}

/// What the machine holds of what is on its way to a graphics adapter, and for its driver: tensors as they are brought,
/// `largest` bytes at a time, or the units and experts that are being read; and what was handed over and isn't copied yet.
pub(super) fn staging_bytes(largest: u64, unit: u64, expert: u64) -> u64 {
    DRIVER + HANDED_OVER + largest.max(unit + READERS as u64 * expert)
}

/// What a driver holds of its own, compiled kernels and queues.
const DRIVER: u64 = 64 << 20;
/// Pieces that were handed over (`device-wgpu`: 32 MiB at most before it waits, and one more on its way).
const HANDED_OVER: u64 = 64 << 20;

/// Bytes that are free for decoding a file, since the tower doesn't run yet for it.
pub(super) fn decode_bytes(v: Option<&VisionConfig>, patches: usize, rows: usize) -> u64 {
    v.map_or(0, |v| tower_bytes(v, patches, rows).max(LEAST_DECODE))
}

/// Room for decoding a photo of 2 megapixels, however small the images are that the tower sees.
const LEAST_DECODE: u64 = (2 << 20) * DECODED;

fn tower_bytes(v: &VisionConfig, patches: usize, rows: usize) -> u64 {
    // Patches are made a tile at a time.
    VisionTower::work_bytes(v, patches, rows) as u64 + (patches.min(rows) * v.patch_dim()) as u64 * FLOAT
}

/// Three samples of a byte for each pixel of an image.
fn sized_bytes(v: &VisionConfig, patches: usize) -> u64 {
    (patches * v.patch_dim() / v.temporal_patch_size.max(1)) as u64
}

fn row_bytes(v: &VisionConfig, patches: usize) -> u64 {
    let sets = 1 + v.deepstack_visual_indexes.len();
    (4 * sets * (patches / v.merge_unit()) * v.out_hidden_size) as u64
}
