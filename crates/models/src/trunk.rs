//! The decoder: one forward pass over a ragged batch.

use std::collections::HashMap;
use std::sync::Arc;

use turbospark_device::op::{Acquire, Copy, Gather, Matmul, Release, Zero};
use turbospark_device::{Device, Pass, Span, TapSink, View};
use turbospark_tensor::mutant::{Mutant, active};

use crate::batch::{Row, Sequence, Source};
use crate::blocks::attention::AttentionWeights;
use crate::blocks::delta::DeltaWeights;
use crate::blocks::mlp::{self, Mlp};
use crate::cache::Cache;
use crate::config::{Family, TextConfig};
use crate::layout::Layout;
use crate::rope::TextRope;
use crate::scratch::Scratch;
use crate::stream::{Ring, Seen, StreamedTable};
use crate::weight::{Matrix, Weight};
use crate::{ModelError, Result, qwen3_5, qwen3_vl};

/// A root mean square norm.
#[derive(Clone, Debug)]
pub(crate) struct Norm {
    pub weight: Weight,
    pub one_plus: bool,
    pub eps: f32,
}

/// What mixes rows in a layer.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a layer, and never moved")]
pub(crate) enum Mixer {
    Attention(AttentionWeights),
    Delta(DeltaWeights),
}

/// One decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    pub input_norm: Norm,
    pub mixer: Mixer,
    pub post_attention_norm: Norm,
    pub mlp: Mlp,
}

/// Where the rows of tokens come from.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a model, and never moved")]
pub(crate) enum Embedding {
    /// A table on the device.
    Table(Matrix),
    /// A table on the disk.
    Streamed(StreamedTable),
}

/// The weights that make logits.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a model, and never moved")]
pub(crate) enum Head {
    /// `[vocab_size, hidden]`.
    Whole(Matrix),
    /// Ranges of its rows, each a unit of the ring: first row, weights and unit.
    Shards(Vec<(usize, Matrix, usize)>),
}

/// The decoder of any family.
#[derive(Debug)]
pub struct Trunk {
    pub(crate) family: Family,
    pub(crate) config: TextConfig,
    pub(crate) embed: Embedding,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: Norm,
    pub(crate) lm_head: Head,
    pub(crate) rope: TextRope,
    /// Of the tower; only the mutants that misplace deepstack rows ask.
    pub(crate) deepstack_blocks: Vec<usize>,
    /// Where streamed layers come from, and their units.
    pub(crate) ring: Option<Arc<Ring>>,
    pub(crate) units: HashMap<usize, usize>,
}

/// What every layer of one pass sees.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    /// The residual stream, `[rows, hidden]`.
    pub x: View<'a>,
    /// `[rows, hidden]`.
    pub normed: View<'a>,
    /// `[rows, rotary / 2]` each.
    pub cos: View<'a>,
    pub sin: View<'a>,
    /// i32 `[rows]`.
    pub slots: View<'a>,
    /// i32 `[sequences, pages]`.
    pub pages: View<'a>,
    pub spans: &'a [Span],
    pub prompt_rows: usize,
    /// The layer after this one, if it stays in memory.
    pub next: Option<&'a Layer>,
}

/// Rows of an image that are rows of this batch.
pub(crate) struct Piece<'a> {
    first_row: usize,
    rows: usize,
    /// `[sets, tokens, hidden]`, narrowed to the piece's tokens: the merged rows, then each deepstack set.
    embedding: View<'a>,
}

/// Host-side copies of what a step uploads.
#[derive(Default)]
struct Inputs {
    ids: Vec<i32>,
    slots: Vec<i32>,
    pages: Vec<i32>,
    wanted: Vec<i32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    spans: Vec<Span>,
    prompt_rows: usize,
    wanted_prompt_rows: usize,
}

impl Trunk {
    /// Bytes of work space for a pass over `rows` rows of a sequence of up to `context` tokens, of which one row's
    /// logits are wanted.
    pub fn work_bytes(config: &TextConfig, rows: usize, context: usize) -> usize {
        let pages = context.div_ceil(crate::CacheShape::PAGE_LEN).max(1);
        Layout::plan(config, config.rope.rotary_dim() / 2, rows, [1, pages], 1).bytes
    }

    /// The configuration it was built from.
    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// Runs `batch` (prompt sequences before decode sequences) and returns the logits of the rows that want
    /// them, `[wanted, vocab_size]`, in batch order. Keys, values and states are left in `cache`.
    ///
    /// # Errors
    /// [`ModelError::Batch`] where the batch does not fit the model or the cache; the device's.
    pub fn forward(
        &self,
        device: &dyn Device,
        batch: &[Sequence<'_>],
        cache: &Cache,
        scratch: &mut Scratch,
        taps: Option<&mut dyn TapSink>,
    ) -> Result<Vec<f32>> {
        let inputs = self.inputs(batch, cache)?;
        let rows = inputs.ids.len();
        if rows == 0 {
            return Ok(Vec::new());
        }
        let tables = [batch.len(), inputs.pages.len() / batch.len()];
        let wanted = inputs.wanted.len();
        let layout = Layout::plan(&self.config, self.rope.half(), rows, tables, wanted);
        let buffer = scratch.hold(device, "decoder scratch", layout.bytes)?;
        device.write_i32(layout.ids.of(buffer), &inputs.ids)?;
        device.write_i32(layout.slots.of(buffer), &inputs.slots)?;
        device.write_i32(layout.pages.of(buffer), &inputs.pages)?;
        device.write_i32(layout.wanted.of(buffer), &inputs.wanted)?;
        device.write_f32(layout.cos.of(buffer), &inputs.cos)?;
        device.write_f32(layout.sin.of(buffer), &inputs.sin)?;
        if let Embedding::Streamed(table) = &self.embed {
            device.write_f32(layout.x.of(buffer), &table.rows(&inputs.ids)?)?;
        }
        let pieces = self.pieces(batch)?;
        if !pieces.is_empty() {
            device.write_i32(layout.iota.of(buffer), &(0..rows as i32).collect::<Vec<_>>())?;
        }

        let step = Step {
            x: layout.x.of(buffer),
            normed: layout.normed.of(buffer),
            cos: layout.cos.of(buffer),
            sin: layout.sin.of(buffer),
            slots: layout.slots.of(buffer),
            pages: layout.pages.of(buffer),
            spans: &inputs.spans,
            prompt_rows: inputs.prompt_rows,
            next: None,
        };
        let mut pass = Pass::new(device).keep_taps(taps.is_some());
        self.record_start(&mut pass, batch, cache, layout.ids.of(buffer), &pieces, &step);
        for (i, layer) in self.layers.iter().enumerate() {
            pass.scope("decoder layer", i);
            let streamed = self.ring.as_ref().zip(self.units.get(&i));
            if let Some((source, &unit)) = streamed {
                pass.acquire(Acquire { source: &**source, unit });
            }
            pass.tap("hidden", i, step.x);
            let s = layout.layers(buffer, &self.config, i);
            // One that is streamed has no router yet.
            let there = |i: usize| self.layers.get(i).filter(|_| !self.units.contains_key(&i));
            let next = there(i + 1);
            let step = Step { next, ..step };
            // A prompt asks for nearly all of a layer's experts: once is enough for that.
            let decodes = step.prompt_rows == 0;
            if i == 0 && decodes {
                mlp::guess(&mut pass, there(0), Seen::Layer, &s.mlp, &step);
            }
            if self.family.is_qwen35() {
                qwen3_5::decoder_layer(&mut pass, layer, i, &s, cache, &step);
            } else {
                qwen3_vl::decoder_layer(&mut pass, layer, i, &s, cache, &step);
                self.add_deepstack(&mut pass, i, &pieces, layout.iota.of(buffer), &step);
            }
            if decodes {
                mlp::guess(&mut pass, next, Seen::Layer, &s.mlp, &step);
            }
            if let Some((source, &unit)) = streamed {
                pass.release(Release { source: &**source, unit });
            }
        }
        pass.scope("output head", None);
        pass.tap("hidden", self.layers.len(), step.x);
        let (head, logits) = (layout.head.of(buffer), layout.logits.of(buffer));
        if wanted > 0 {
            let index = layout.wanted.of(buffer);
            pass.gather(Gather { table: step.x.into(), index, weights: None, out: head, accumulate: false });
            self.norm.apply(&mut pass, head, head);
            pass.tap("final_norm", None, head);
            let prompt_rows = inputs.wanted_prompt_rows;
            match &self.lm_head {
                Head::Whole(weight) => {
                    pass.matmul(Matmul { prompt_rows, ..Matmul::new(head, weight.view(), logits) });
                }
                Head::Shards(shards) => {
                    let source = self.ring.as_ref().expect("shards come through a ring");
                    for (first, weight, unit) in shards {
                        let out = logits.narrow(1, *first..first + weight.shape().dims()[0]);
                        pass.acquire(Acquire { source: &**source, unit: *unit });
                        pass.matmul(Matmul { prompt_rows, ..Matmul::new(head, weight.view(), out) });
                        pass.release(Release { source: &**source, unit: *unit });
                    }
                }
            }
        }
        pass.submit_to(taps)?;
        Ok(device.read_f32(logits)?)
    }

    /// States of sequences that begin, token embeddings, and image rows in their places.
    fn record_start<'a>(
        &'a self,
        pass: &mut Pass<'a>,
        batch: &[Sequence<'_>],
        cache: &'a Cache,
        ids: View<'a>,
        pieces: &[Piece<'a>],
        step: &Step<'a>,
    ) {
        pass.scope("start of sequences", None);
        for s in batch.iter().filter(|s| s.start == 0) {
            for state in (0..self.layers.len()).filter_map(|i| cache.state(i)) {
                for all in [state.conv, state.delta] {
                    pass.zero(Zero { out: all.rows(s.state..s.state + 1) });
                }
            }
        }
        pass.scope("embedding", None);
        if let Embedding::Table(table) = &self.embed {
            let table = table.view();
            pass.gather(Gather { table, index: ids, weights: None, out: step.x, accumulate: false });
        }
        for p in pieces {
            let to = step.x.rows(p.first_row..p.first_row + p.rows);
            pass.copy(Copy { from: set(p.embedding, 0), to });
        }
    }

    /// After layer `k`, set `k` is added to the image rows only, so that layer `k + 1` sees it in its keys.
    fn add_deepstack<'a>(
        &self,
        pass: &mut Pass<'a>,
        layer: usize,
        pieces: &[Piece<'a>],
        iota: View<'a>,
        step: &Step<'a>,
    ) {
        for p in pieces {
            let sets = p.embedding.dim(0) - 1;
            let which = if active(Mutant::DeepstackLate) {
                layer.checked_sub(1)
            } else if active(Mutant::DeepstackAtBlockNumbers) {
                self.deepstack_blocks.iter().position(|&b| b == layer)
            } else if active(Mutant::DeepstackReversed) {
                sets.checked_sub(layer + 1)
            } else {
                Some(layer)
            };
            let Some(k) = which.filter(|&k| k < sets) else { continue };
            let out = step.x.rows(p.first_row..p.first_row + p.rows);
            let index = iota.rows(0..p.rows);
            pass.gather(Gather { table: set(p.embedding, 1 + k).into(), index, weights: None, out, accumulate: true });
        }
    }

    /// Checks the batch and lays out what the step uploads.
    fn inputs(&self, batch: &[Sequence<'_>], cache: &Cache) -> Result<Inputs> {
        if !cache.fits(&self.config) {
            return Err(ModelError::Batch("the cache was made for another model".into()));
        }
        let shape = cache.shape();
        let mut inputs = Inputs::default();
        let longest = batch.iter().map(|s| s.pages.len()).max().unwrap_or(0);
        for (table, s) in batch.iter().enumerate() {
            if !s.decode && inputs.prompt_rows < inputs.ids.len() {
                return Err(ModelError::Batch("a prompt sequence comes after a decode sequence".into()));
            }
            let end = s.start + s.rows.len();
            if end > s.pages.len() * shape.page_len || s.pages.iter().any(|&p| p as usize >= shape.pages) {
                let (pages, len, all) = (s.pages.len(), shape.page_len, shape.pages);
                return Err(ModelError::Batch(format!("{end} tokens in {pages} pages of {len}, from a pool of {all}")));
            }
            inputs.spans.push(Span {
                first_row: inputs.ids.len(),
                rows: s.rows.len(),
                start: s.start,
                decode: s.decode,
                table,
                state: s.state,
                snapshots: s.snapshots.clone(),
            });
            inputs.pages.extend(s.pages.iter().map(|&p| p as i32));
            inputs.pages.resize((table + 1) * longest, 0);
            for (i, row) in s.rows.iter().enumerate() {
                let at = s.start + i;
                let page = s.pages[at / shape.page_len] as usize;
                inputs.slots.push((page * shape.page_len + at % shape.page_len) as i32);
                self.add_row(row, &mut inputs)?;
                inputs.wanted_prompt_rows += (row.logits && !s.decode) as usize;
            }
            if !s.decode {
                inputs.prompt_rows = inputs.ids.len();
            }
        }
        Ok(inputs)
    }

    fn add_row(&self, row: &Row, inputs: &mut Inputs) -> Result<()> {
        let id = match row.source {
            Source::Token(id) if (id as usize) < self.config.vocab_size => id as i32,
            Source::Token(id) => {
                let vocab = self.config.vocab_size;
                return Err(ModelError::Batch(format!("token id {id} lies outside a vocabulary of {vocab}")));
            }
            Source::Image { .. } => -1,
        };
        if row.logits {
            inputs.wanted.push(inputs.ids.len() as i32);
        }
        inputs.ids.push(id);
        self.rope.extend(row.position, &mut inputs.cos, &mut inputs.sin);
        Ok(())
    }

    /// Runs of rows that are consecutive rows of one image.
    fn pieces<'b>(&self, batch: &[Sequence<'b>]) -> Result<Vec<Piece<'b>>> {
        let mut pieces: Vec<Piece<'b>> = Vec::new();
        let mut first = 0;
        for s in batch {
            let mut open: Option<(usize, usize, usize)> = None; // image, its first row, length
            for (i, row) in
                s.rows.iter().chain([&Row { source: Source::Token(0), position: [0; 3], logits: false }]).enumerate()
            {
                match (row.source, &mut open) {
                    (Source::Image { image, row }, Some((same, from, n))) if *same == image && *from + *n == row => {
                        *n += 1;
                        continue;
                    }
                    _ => {}
                }
                if let Some((image, from, n)) = open.take() {
                    pieces.push(self.piece(s, first + i - n, image, from, n)?);
                }
                if let Source::Image { image, row } = row.source {
                    open = Some((image, row, 1));
                }
            }
            first += s.rows.len();
        }
        Ok(pieces)
    }

    fn piece<'b>(
        &self,
        s: &Sequence<'b>,
        first_row: usize,
        image: usize,
        from: usize,
        rows: usize,
    ) -> Result<Piece<'b>> {
        let hidden = self.config.hidden_size;
        let (image, given) = (image, s.images.len());
        let Some(embedding) = s.images.get(image) else {
            return Err(ModelError::Batch(format!("row {first_row} asks for image {image} of {given}")));
        };
        let all = embedding.view(); // [sets, tokens, hidden]
        if all.dim(2) != hidden || from + rows > all.dim(1) {
            let (tokens, width) = (all.dim(1), all.dim(2));
            return Err(ModelError::Batch(format!(
                "image {image}: rows {from}..{} of {tokens}, {width} wide for a trunk of {hidden}",
                from + rows
            )));
        }
        Ok(Piece { first_row, rows, embedding: all.narrow(1, from..from + rows) })
    }
}

/// Set `i` of `[sets, rows, hidden]`, as `[rows, hidden]`.
fn set<'a>(embedding: View<'a>, i: usize) -> View<'a> {
    let (rows, hidden) = (embedding.dim(1), embedding.dim(2));
    let one = embedding.narrow(0, i..i + 1);
    one.buffer().view(one.offset_bytes(), one.dtype(), [rows, hidden])
}
