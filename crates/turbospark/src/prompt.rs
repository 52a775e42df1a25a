//! A prompt as a value: validated whole when it is built, never changed.
//!
//! Nothing about a request's images lives anywhere else: no runner holds "the current image" and nothing has
//! to be cleared. Building a prompt encodes nothing; embeddings are attached to a session when one of their
//! rows is first needed, and checked against the prompt then.

use std::ops::Range;
use std::sync::Arc;

use turbospark_vision::{Grid, Picture};

/// Where an image's patches come from.
#[derive(Clone, Debug)]
pub enum Pixels {
    /// A sized picture that makes its patches when asked.
    Picture(Arc<Picture>),
    /// Patches as they are, `[patches, patch_len]`.
    Patches(Arc<[f32]>),
}

/// An image, or a clip's frames, of a prompt.
#[derive(Clone, Debug)]
pub struct Visual {
    /// Patches along time, height and width.
    pub grid: Grid,
    /// Names the pixels and the preprocessing: equal digests, equal embeddings.
    pub digest: [u8; 32],
    /// The pixels.
    pub pixels: Pixels,
}

impl From<Picture> for Visual {
    fn from(picture: Picture) -> Self {
        Visual { grid: picture.grid, digest: picture.digest, pixels: Pixels::Picture(Arc::new(picture)) }
    }
}

/// A run of tokens that are rows of one visual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisualSpan {
    /// Which visual of the prompt.
    pub visual: usize,
    /// Its first row here: not 0 for the later frames of a clip.
    pub first_row: usize,
    /// The tokens.
    pub range: Range<usize>,
}

/// What a prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct PromptParts {
    /// Token ids, pads expanded.
    pub ids: Vec<u32>,
    /// Images and clips.
    pub visuals: Vec<Visual>,
    /// Which tokens are rows of which visual, in ascending order.
    pub spans: Vec<VisualSpan>,
    /// Rotary position (t, h, w) of each token.
    pub positions: Vec<[u32; 3]>,
    /// What a later token's index is moved by to give its position.
    pub rope_delta: i64,
}

/// What a prompt has to fit.
#[derive(Clone, Debug)]
pub struct PromptLimits {
    /// Ids are smaller than this.
    pub vocab_size: usize,
    /// Ids that stand for rows of a visual.
    pub pads: Vec<u32>,
    /// Patches along a side that become one token.
    pub merge_size: usize,
}

/// Why parts make no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// Nothing to run.
    #[error("the prompt is empty")]
    Empty,
    /// An id that the model has no row for.
    #[error("token {at} of the prompt has id {id}, the vocabulary ends at {vocab_size}")]
    Vocabulary {
        /// Which token.
        at: usize,
        /// Its id.
        id: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// One position a token is needed.
    #[error("{positions} position triples for {tokens} tokens")]
    Positions {
        /// Triples given.
        positions: usize,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// Images without a place, or places without an image.
    #[error("{visuals} images for {placeholders} placeholders in the prompt")]
    VisualCount {
        /// Images given.
        visuals: usize,
        /// Placeholders found.
        placeholders: usize,
    },
    /// A pad that no image claims: control text that became a token.
    #[error("token {at} is an image placeholder that belongs to no image; the prompt has {visuals} images")]
    StrayPad {
        /// Which token.
        at: usize,
        /// Images given.
        visuals: usize,
    },
    /// The image and its place differ in length.
    #[error("image {visual}: its span has {span} tokens and its grid {grid} merges to {merged}")]
    SpanLength {
        /// Which image.
        visual: usize,
        /// Tokens of its spans.
        span: usize,
        /// Its grid.
        grid: String,
        /// Tokens that the grid gives.
        merged: usize,
    },
    /// A span past the end of the prompt.
    #[error("image {visual}: span {start}..{end} leaves a prompt of {tokens} tokens")]
    SpanOutOfRange {
        /// Which image.
        visual: usize,
        /// First token.
        start: usize,
        /// One past its last token.
        end: usize,
        /// Tokens of the prompt.
        tokens: usize,
    },
    /// Spans that share tokens, or are out of order.
    #[error("image {visual}: span begins at token {start}, the span before it ends at {previous_end}")]
    SpanOverlap {
        /// Which image.
        visual: usize,
        /// First token.
        start: usize,
        /// End of the span before.
        previous_end: usize,
    },
    /// The first decoded token would come before the beginning.
    #[error("rope_delta {rope_delta} puts the first token after a prompt of {tokens} at position {position}")]
    RopeDelta {
        /// The offset.
        rope_delta: i64,
        /// Tokens of the prompt.
        tokens: usize,
        /// Where decoding would begin.
        position: i64,
    },
    /// Embedding rows as wide as another trunk.
    #[error("image {visual}: rows are {got} wide, the trunk's hidden size is {hidden}")]
    RowWidth {
        /// Which image.
        visual: usize,
        /// Width given.
        got: usize,
        /// Width wanted.
        hidden: usize,
    },
    /// More or fewer rows than the span has tokens.
    #[error("image {visual}: {got} merged rows for a span of {tokens} tokens")]
    RowCount {
        /// Which image.
        visual: usize,
        /// Rows given.
        got: usize,
        /// Tokens of the span.
        tokens: usize,
    },
    /// Data that is no whole number of rows.
    #[error("image {visual}: {got} values, expected {expected} ({tokens} rows of {width})")]
    RowData {
        /// Which image.
        visual: usize,
        /// Values given.
        got: usize,
        /// Values wanted.
        expected: usize,
        /// Rows.
        tokens: usize,
        /// Width of a row.
        width: usize,
    },
    /// Deepstack sets that differ in number between images, or from the model.
    #[error("image {visual}: {got} deepstack sets, expected {expected}")]
    DeepstackSets {
        /// Which image.
        visual: usize,
        /// Sets given.
        got: usize,
        /// Sets wanted.
        expected: usize,
    },
    /// A deepstack set of another length than the merged rows.
    #[error("image {visual}: deepstack set {set} has {got} values, expected {expected}")]
    DeepstackLength {
        /// Which image.
        visual: usize,
        /// Which set.
        set: usize,
        /// Values given.
        got: usize,
        /// Values wanted.
        expected: usize,
    },
}

/// A validated prompt. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Prompt {
    parts: Arc<PromptParts>,
    merge_size: usize,
}

impl Prompt {
    /// Checks that the parts fit each other and the model.
    ///
    /// # Errors
    /// The first thing that does not fit, naming the image and both numbers.
    pub fn new(parts: PromptParts, limits: &PromptLimits) -> Result<Self, PromptError> {
        let tokens = parts.ids.len();
        if tokens == 0 {
            return Err(PromptError::Empty);
        }
        let vocab_size = limits.vocab_size;
        if let Some((at, &id)) = parts.ids.iter().enumerate().find(|&(_, &id)| id as usize >= vocab_size) {
            return Err(PromptError::Vocabulary { at, id, vocab_size });
        }
        if parts.positions.len() != tokens {
            return Err(PromptError::Positions { positions: parts.positions.len(), tokens });
        }
        check_spans(&parts, limits)?;
        let position = tokens as i64 + parts.rope_delta;
        if position < 0 {
            return Err(PromptError::RopeDelta { rope_delta: parts.rope_delta, tokens, position });
        }
        Ok(Prompt { parts: Arc::new(parts), merge_size: limits.merge_size })
    }

    /// Token ids, pads expanded.
    pub fn ids(&self) -> &[u32] {
        &self.parts.ids
    }

    /// Number of tokens, images included.
    pub fn len(&self) -> usize {
        self.parts.ids.len()
    }

    /// Never: an empty prompt is refused.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Images and clips, in order.
    pub fn visuals(&self) -> &[Visual] {
        &self.parts.visuals
    }

    /// Which tokens are rows of which visual.
    pub fn spans(&self) -> &[VisualSpan] {
        &self.parts.spans
    }

    /// Rotary position of each token.
    pub fn positions(&self) -> &[[u32; 3]] {
        &self.parts.positions
    }

    /// What a later token's index is moved by to give its position.
    pub fn rope_delta(&self) -> i64 {
        self.parts.rope_delta
    }

    /// Tokens of visual `i`.
    pub fn visual_tokens(&self, i: usize) -> usize {
        self.parts.visuals[i].grid.tokens(self.merge_size)
    }

    /// Checks embeddings that the caller made against this prompt and a trunk of width `hidden` with
    /// `deepstack_sets` deepstack sets.
    ///
    /// # Errors
    /// What does not fit, naming the image and both numbers.
    pub fn check_rows(
        &self,
        visual: usize,
        rows: &VisualRows,
        hidden: usize,
        deepstack_sets: usize,
    ) -> Result<(), PromptError> {
        if visual >= self.parts.visuals.len() {
            let placeholders = self.parts.visuals.len();
            return Err(PromptError::VisualCount { visuals: visual + 1, placeholders });
        }
        let (width, got) = (rows.width, rows.merged.len());
        if width != hidden {
            return Err(PromptError::RowWidth { visual, got: width, hidden });
        }
        let tokens = self.visual_tokens(visual);
        let expected = tokens * width;
        if !got.is_multiple_of(width) {
            return Err(PromptError::RowData { visual, got, expected, tokens, width });
        }
        if got != expected {
            return Err(PromptError::RowCount { visual, got: got / width, tokens });
        }
        if rows.deepstack.len() != deepstack_sets {
            let got = rows.deepstack.len();
            return Err(PromptError::DeepstackSets { visual, got, expected: deepstack_sets });
        }
        match rows.deepstack.iter().enumerate().find(|(_, s)| s.len() != expected) {
            Some((set, s)) => Err(PromptError::DeepstackLength { visual, set, got: s.len(), expected }),
            None => Ok(()),
        }
    }
}

/// Embeddings made elsewhere, to be attached instead of running the tower.
#[derive(Clone, Debug, PartialEq)]
pub struct VisualRows {
    /// Width of a row.
    pub width: usize,
    /// `[tokens, width]`.
    pub merged: Vec<f32>,
    /// One `[tokens, width]` a deepstack set.
    pub deepstack: Vec<Vec<f32>>,
}

fn check_spans(parts: &PromptParts, limits: &PromptLimits) -> Result<(), PromptError> {
    let (tokens, visuals) = (parts.ids.len(), parts.visuals.len());
    let mut previous_end = 0;
    let mut rows = vec![0; visuals];
    for VisualSpan { visual, first_row, range } in &parts.spans {
        let (visual, Range { start, end }) = (*visual, range.clone());
        if visual >= visuals {
            let placeholders = parts.spans.iter().map(|s| s.visual + 1).max().unwrap_or(0);
            return Err(PromptError::VisualCount { visuals, placeholders });
        }
        if start >= end || end > tokens {
            return Err(PromptError::SpanOutOfRange { visual, start, end, tokens });
        }
        if start < previous_end {
            return Err(PromptError::SpanOverlap { visual, start, previous_end });
        }
        if rows[visual] != *first_row {
            let (grid, merged) = described(parts, visual, limits);
            return Err(PromptError::SpanLength { visual, span: *first_row + range.len(), grid, merged });
        }
        rows[visual] += range.len();
        previous_end = end;
    }
    let placed = rows.iter().filter(|&&n| n > 0).count();
    if placed != visuals {
        return Err(PromptError::VisualCount { visuals, placeholders: placed });
    }
    for (visual, &span) in rows.iter().enumerate() {
        let (grid, merged) = described(parts, visual, limits);
        if span != merged {
            return Err(PromptError::SpanLength { visual, span, grid, merged });
        }
    }
    let mut spans = parts.spans.iter().peekable();
    for (at, id) in parts.ids.iter().enumerate() {
        while spans.peek().is_some_and(|s| s.range.end <= at) {
            spans.next();
        }
        if limits.pads.contains(id) && spans.peek().is_none_or(|s| !s.range.contains(&at)) {
            return Err(PromptError::StrayPad { at, visuals });
        }
    }
    Ok(())
}

fn described(parts: &PromptParts, visual: usize, limits: &PromptLimits) -> (String, usize) {
    let grid = parts.visuals[visual].grid;
    (grid.to_string(), grid.tokens(limits.merge_size))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAD: u32 = 9;

    fn visual(h: usize, w: usize) -> Visual {
        Visual { grid: Grid { t: 1, h, w }, digest: [0; 32], pixels: Pixels::Patches(Arc::new([])) }
    }

    /// text, four tokens of an image, text, two of another.
    fn good() -> PromptParts {
        let span = |visual, range| VisualSpan { visual, first_row: 0, range };
        PromptParts {
            ids: vec![1, PAD, PAD, PAD, PAD, 2, PAD, PAD],
            visuals: vec![visual(4, 4), visual(2, 4)],
            spans: vec![span(0, 1..5), span(1, 6..8)],
            positions: vec![[0; 3]; 8],
            rope_delta: -3,
        }
    }

    fn refusal(change: impl FnOnce(&mut PromptParts)) -> String {
        let mut parts = good();
        change(&mut parts);
        let limits = PromptLimits { vocab_size: 10, pads: vec![PAD], merge_size: 2 };
        Prompt::new(parts, &limits).unwrap_err().to_string()
    }

    fn prompt() -> Prompt {
        Prompt::new(good(), &PromptLimits { vocab_size: 10, pads: vec![PAD], merge_size: 2 }).unwrap()
    }

    fn rows_refusal(change: impl FnOnce(&mut VisualRows)) -> String {
        let mut rows = VisualRows { width: 3, merged: vec![0.0; 12], deepstack: vec![vec![0.0; 12]; 2] };
        assert_eq!(prompt().check_rows(0, &rows, 3, 2), Ok(()));
        change(&mut rows);
        prompt().check_rows(0, &rows, 3, 2).unwrap_err().to_string()
    }

    #[test]
    fn positions_that_do_not_cover_the_prompt_are_refused() {
        assert_eq!(refusal(|p| p.positions.truncate(7)), "7 position triples for 8 tokens");
    }

    #[test]
    fn images_and_placeholders_must_agree_in_number() {
        assert_eq!(refusal(|p| p.visuals.push(visual(2, 2))), "3 images for 2 placeholders in the prompt");
        assert_eq!(refusal(|p| p.visuals.truncate(1)), "1 images for 2 placeholders in the prompt");
        let stray = "token 5 is an image placeholder that belongs to no image; the prompt has 2 images";
        assert_eq!(refusal(|p| p.ids[5] = PAD), stray);
    }

    #[test]
    fn a_span_is_as_long_as_its_image() {
        let message = "image 1: its span has 2 tokens and its grid 1x4x4 merges to 4";
        assert_eq!(refusal(|p| p.visuals[1] = visual(4, 4)), message);
    }

    #[test]
    fn spans_lie_in_the_prompt_and_apart() {
        assert_eq!(refusal(|p| p.spans[1].range = 6..9), "image 1: span 6..9 leaves a prompt of 8 tokens");
        let message = "image 1: span begins at token 4, the span before it ends at 5";
        assert_eq!(refusal(|p| p.spans[1].range = 4..6), message);
    }

    #[test]
    fn decoding_does_not_begin_before_zero() {
        let message = "rope_delta -9 puts the first token after a prompt of 8 at position -1";
        assert_eq!(refusal(|p| p.rope_delta = -9), message);
    }

    #[test]
    fn ids_lie_in_the_vocabulary() {
        assert_eq!(refusal(|p| p.ids[0] = 10), "token 0 of the prompt has id 10, the vocabulary ends at 10");
        assert_eq!(refusal(|p| *p = PromptParts::default()), "the prompt is empty");
    }

    #[test]
    fn rows_are_as_wide_as_the_trunk() {
        assert_eq!(rows_refusal(|r| r.width = 4), "image 0: rows are 4 wide, the trunk's hidden size is 3");
    }

    #[test]
    fn rows_are_as_many_as_tokens() {
        assert_eq!(rows_refusal(|r| r.merged.truncate(9)), "image 0: 3 merged rows for a span of 4 tokens");
        let message = "image 0: 11 values, expected 12 (4 rows of 3)";
        assert_eq!(rows_refusal(|r| r.merged.truncate(11)), message);
    }

    #[test]
    fn deepstack_sets_agree_in_number_and_length() {
        assert_eq!(rows_refusal(|r| r.deepstack.truncate(1)), "image 0: 1 deepstack sets, expected 2");
        let message = "image 0: deepstack set 1 has 9 values, expected 12";
        assert_eq!(rows_refusal(|r| r.deepstack[1].truncate(9)), message);
    }
}
