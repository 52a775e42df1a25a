//! A ragged batch of rows: what one forward pass runs over.
//!
//! A row is one token of one sequence. Prefill in chunks, decode, several sequences at once, an image that
//! lies across a chunk's border: all are rows. Nothing about images is a mode.

use turbospark_device::Snapshot;

use crate::vision_tower::ImageRows;

/// What a row starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A row of the embedding table.
    Token(u32),
    /// A row of an image's embedding.
    Image {
        /// Which of the sequence's [`Sequence::images`].
        image: usize,
        /// Which row of it.
        row: usize,
    },
}

/// One token of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it starts from.
    pub source: Source,
    /// Rotary position (t, h, w).
    pub position: [u32; 3],
    /// Whether its logits are wanted.
    pub logits: bool,
}

/// Rows of one sequence, in order.
#[derive(Clone)]
pub struct Sequence<'b> {
    /// The rows.
    pub rows: &'b [Row],
    /// Index in the sequence of the first row: that many tokens are in the cache.
    pub start: usize,
    /// Decode rows (drafts too) take the row kernels, prompt rows the matrix kernels.
    pub decode: bool,
    /// The sequence's pages, in order.
    pub pages: &'b [u32],
    /// The sequence's state slot.
    pub state: usize,
    /// Copies of the state to leave behind.
    pub snapshots: Vec<Snapshot>,
    /// Embeddings that rows refer to.
    pub images: &'b [&'b ImageRows],
}
