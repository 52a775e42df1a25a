//! One sequence: what is in the cache for it, and how it grows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use turbospark_device::Snapshot;
use turbospark_models::{ImageRows, Row, Sequence, Source};
use turbospark_tensor::DType;

use crate::encode::{Digest, HeldImage};
use crate::model::Engine;
use crate::prompt::VisualRows;
use crate::{Error, Model, Prompt, Result};

/// Set from another thread or a signal handler to end work at the next step.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// A switch that is off.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends whatever holds a clone of this switch.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The switch itself, for those below who know only that.
    pub(crate) fn switch(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether it was set.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How far the work before the first token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Images through the tower.
    Encode {
        /// Done.
        images: usize,
        /// To do.
        of: usize,
    },
    /// Tokens of the prompt through the trunk.
    Prefill {
        /// Done.
        tokens: usize,
        /// To do.
        of: usize,
    },
}

/// What a prefill did.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Prefill {
    /// Logits after the last token, `[vocab_size]`.
    pub logits: Vec<f32>,
    /// Tokens of the prompt that were in the cache already.
    pub reused_tokens: usize,
    /// Time in the tower.
    pub encode: Duration,
    /// Time in the trunk.
    pub prefill: Duration,
}

/// What stands at one index of the cache: equal keys in front, equal cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Token(u32),
    /// A visual by digest, and which of its rows.
    Visual([u8; 32], u32),
}

/// One sequence. It holds pages of the cache until it is dropped.
pub struct Session {
    model: Model,
    pages: Vec<u32>,
    /// Live state and snapshot; models without DeltaNet need none.
    states: Option<[u32; 2]>,
    keys: Vec<Key>,
    /// Leading keys that went in as prompt rows: what a later prompt may take over without changing a bit.
    prompt_keys: usize,
    /// How many keys the snapshot has seen.
    snapshot: usize,
    rope_delta: i64,
    pub(crate) visuals: HashMap<Digest, HeldImage>,
    /// Time that was spent on images before their prompt came.
    pub(crate) encoded_ahead: HashMap<Digest, Duration>,
}

impl Session {
    /// Cached rows are taken over up to a multiple of this, where splits and scans begin.
    const REUSE: usize = 64;

    pub(crate) fn new(model: Model) -> Self {
        Session {
            model,
            pages: Vec::new(),
            states: None,
            keys: Vec::new(),
            prompt_keys: 0,
            snapshot: 0,
            rope_delta: 0,
            visuals: HashMap::new(),
            encoded_ahead: HashMap::new(),
        }
    }

    /// The model it runs on.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Tokens in the cache, images included.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether nothing is in the cache.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Gives all pages back.
    pub fn clear(&mut self) {
        let mut engine = self.model.engine();
        engine.pages.give_back(self.pages.drain(..));
        engine.states.give_back(self.states.take().into_iter().flatten());
        drop(engine);
        self.keys.clear();
        self.visuals.clear();
        (self.prompt_keys, self.snapshot, self.rope_delta) = (0, 0, 0);
    }

    /// Attaches embeddings made elsewhere to an image of `prompt`, so that the tower doesn't run for it.
    ///
    /// # Errors
    /// [`PromptError`](crate::PromptError) where they don't fit the prompt or the trunk.
    pub fn attach(&mut self, prompt: &Prompt, visual: usize, rows: &VisualRows) -> Result<()> {
        let config = self.model.config();
        let sets = config.vision.as_ref().map_or(0, |v| v.deepstack_visual_indexes.len());
        let hidden = config.text.hidden_size;
        prompt.check_rows(visual, rows, hidden, sets)?;
        let tokens = prompt.visual_tokens(visual);
        let bytes = 4 * (1 + sets) * tokens * hidden;
        self.model.make_room(&mut self.model.engine());
        let device = self.model.device();
        let buffer = device.alloc("image embeddings", bytes)?;
        for (i, set) in std::iter::once(&rows.merged).chain(&rows.deepstack).enumerate() {
            device.write_f32(buffer.view(4 * i * tokens * hidden, DType::F32, [tokens, hidden]), set)?;
        }
        let rows = ImageRows::new(Arc::new(buffer), [1 + sets, tokens, hidden], 0, tokens)?;
        let held = HeldImage::new(rows, self.model.hold_rows(bytes as u64));
        self.visuals.insert(prompt.visuals()[visual].digest, held);
        Ok(())
    }

    /// Puts `prompt` into the cache in place of what is there, taking over the part that is equal, and gives
    /// the logits after its last token.
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::CacheFull`] with the numbers; [`Error::Cancelled`]; the device's.
    pub fn prefill(&mut self, prompt: &Prompt, cancel: &Cancel, progress: &mut dyn FnMut(Progress)) -> Result<Prefill> {
        let (tokens, context) = (prompt.len(), self.model.context());
        if tokens >= context {
            let advice = if prompt.visuals().is_empty() {
                "shorten the text or raise --context"
            } else {
                "lower --max-pixels, shorten the text or raise --context"
            };
            return Err(Error::ContextFull { tokens, context, advice });
        }
        let keys = keys(prompt);
        let start = self.take_over(&keys)?;
        let result = self.run_prompt(prompt, &keys, start, cancel, progress);
        if result.is_err() {
            self.clear(); // a part of a prompt must not pass for a whole one
        }
        result
    }

    /// Cuts the cache to the part that `keys` shares with it; the number of keys that stay.
    fn take_over(&mut self, keys: &[Key]) -> Result<usize> {
        let equal = self.keys.iter().zip(keys).take_while(|(a, b)| a == b).count();
        let usable = equal.min(self.prompt_keys).min(keys.len() - 1);
        let mut start = usable / Self::REUSE * Self::REUSE;
        if let Some([live, snapshot]) = self.states {
            start = if self.snapshot > 0 && self.snapshot <= usable { self.snapshot } else { 0 };
            if start > 0 {
                let engine = self.model.engine();
                engine.cache.copy_state(self.model.device(), snapshot as usize, live as usize)?;
            }
        }
        self.keys.truncate(start);
        self.prompt_keys = start;
        if start < self.snapshot {
            self.snapshot = 0;
        }
        Ok(start)
    }

    fn run_prompt(
        &mut self,
        prompt: &Prompt,
        keys: &[Key],
        start: usize,
        cancel: &Cancel,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Prefill> {
        let mut done = Prefill { reused_tokens: start, ..Prefill::default() };
        let began = Instant::now();
        let encoded = self.encode(prompt, start, cancel, progress);
        // Kept from image to image, given back before the trunk runs and after a failure.
        self.model.engine().vision_scratch.clear();
        let ahead = encoded?;
        done.encode = began.elapsed() + ahead;
        let began = Instant::now();
        let (digests, images): (Vec<_>, Vec<ImageRows>) =
            self.visuals.iter().map(|(d, i)| (*d, i.rows.clone())).unzip();
        let images: Vec<&ImageRows> = images.iter().collect();
        let mut rows = rows(prompt, &digests);
        if let Some(last) = rows.last_mut() {
            last.logits = true;
        }
        // The last multiple of 64 that leaves a row to run: where a later prompt can take over.
        let keep = (rows.len() - 1) / Self::REUSE * Self::REUSE;
        let model = self.model.clone();
        let mut at = start;
        let chunk = model.device().prompt_rows();
        while at < rows.len() {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            let end = rows.len().min((at / chunk + 1) * chunk);
            let mut engine = model.engine();
            self.hold(&mut engine, end)?;
            let snapshots = match self.states {
                Some([_, slot]) if keep > at && keep <= end => {
                    vec![Snapshot { after: keep - at, slot: slot as usize }]
                }
                _ => Vec::new(),
            };
            let sequence = Sequence {
                rows: &rows[at..end],
                start: at,
                decode: false,
                pages: &self.pages,
                state: self.states.map_or(0, |s| s[0] as usize),
                snapshots,
                images: &images,
            };
            let span = tracing::debug_span!("prefill", from = at, to = end).entered();
            done.logits = model.forward(&mut engine, &[sequence], cancel)?;
            drop(span);
            drop(engine);
            if self.states.is_some() && keep > at && keep <= end {
                self.snapshot = keep;
            }
            at = end;
            progress(Progress::Prefill { tokens: at, of: rows.len() });
        }
        self.keys = keys.to_vec();
        self.prompt_keys = keys.len();
        self.rope_delta = prompt.rope_delta();
        done.prefill = began.elapsed();
        Ok(done)
    }

    /// Adds one generated token and gives the logits after it.
    ///
    /// # Errors
    /// [`Error::ContextFull`], [`Error::CacheFull`], the device's.
    pub fn decode(&mut self, token: u32) -> Result<Vec<f32>> {
        self.decode_until(token, &Cancel::new())
    }

    /// As [`Session::decode`]; where weights are read from the disk, `cancel` ends it within the pass.
    ///
    /// # Errors
    /// As there, and [`Error::Cancelled`].
    pub fn decode_until(&mut self, token: u32, cancel: &Cancel) -> Result<Vec<f32>> {
        let mut logits = Self::decode_together_until(&mut [(self, token)], cancel)?;
        Ok(logits.pop().unwrap_or_default())
    }

    /// One token each for several sequences of one model in one pass: the weights are read once. The logits are
    /// those that each sequence would give alone, bit for bit.
    ///
    /// # Errors
    /// As [`Session::decode`]; also when the sequences are not of one model.
    pub fn decode_together(steps: &mut [(&mut Session, u32)]) -> Result<Vec<Vec<f32>>> {
        Self::decode_together_until(steps, &Cancel::new())
    }

    fn decode_together_until(steps: &mut [(&mut Session, u32)], cancel: &Cancel) -> Result<Vec<Vec<f32>>> {
        let logits = Self::decode_steps(steps, cancel);
        if logits.is_err() {
            // A pass that ended early leaves DeltaNet states between two tokens.
            let scanned = steps.iter_mut().filter(|(session, _)| session.states.is_some());
            scanned.for_each(|(session, _)| session.clear());
        }
        logits
    }

    fn decode_steps(steps: &mut [(&mut Session, u32)], cancel: &Cancel) -> Result<Vec<Vec<f32>>> {
        let Some(model) = steps.first().map(|(s, _)| s.model.clone()) else { return Ok(Vec::new()) };
        let mut engine = model.engine();
        let mut rows = Vec::with_capacity(steps.len());
        for (session, token) in steps.iter_mut() {
            if !Arc::ptr_eq(&session.model.inner, &model.inner) {
                return Err(Error::Options("sequences of different models cannot share a pass".into()));
            }
            let (tokens, context) = (session.len(), model.context());
            if tokens >= context {
                return Err(Error::ContextFull { tokens, context, advice: "raise --context" });
            }
            session.hold(&mut engine, tokens + 1)?;
            let position = u32::try_from(tokens as i64 + session.rope_delta).unwrap_or(0);
            rows.push(Row { source: Source::Token(*token), position: [position; 3], logits: true });
        }
        let batch: Vec<Sequence<'_>> = steps
            .iter()
            .zip(&rows)
            .map(|((session, _), row)| Sequence {
                rows: std::slice::from_ref(row),
                start: session.len(),
                decode: true,
                pages: &session.pages,
                state: session.states.map_or(0, |s| s[0] as usize),
                snapshots: Vec::new(),
                images: &[],
            })
            .collect();
        model.take_room(&mut engine);
        let logits = model.forward(&mut engine, &batch, cancel)?;
        if std::mem::take(&mut engine.tower_ran) {
            model.rest_tower();
        }
        for (session, token) in steps.iter_mut() {
            session.keys.push(Key::Token(*token));
        }
        if steps.len() == 1 {
            // A copy would be of half a megabyte, into memory that the system has to find first.
            return Ok(vec![logits]);
        }
        let vocab = model.config().text.vocab_size;
        Ok(logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect())
    }

    /// Pages and states for `tokens` tokens.
    fn hold(&mut self, engine: &mut Engine, tokens: usize) -> Result<()> {
        let needed = tokens.div_ceil(engine.cache.shape().page_len).saturating_sub(self.pages.len());
        let (free, all) = (engine.pages.free(), engine.pages.all());
        if needed > free {
            return Err(Error::CacheFull { needed, free, all });
        }
        self.pages.extend((0..needed).filter_map(|_| engine.pages.take()));
        if self.states.is_none() && engine.states.all() > 0 {
            let (free, all) = (engine.states.free(), engine.states.all());
            if free < 2 {
                return Err(Error::CacheFull { needed: 2, free, all });
            }
            self.states = engine.states.take().zip(engine.states.take()).map(|(a, b)| [a, b]);
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.clear();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({} tokens of {})", self.len(), self.model.name())
    }
}

/// What stands at each index of a prompt.
fn keys(prompt: &Prompt) -> Vec<Key> {
    let mut keys: Vec<Key> = prompt.ids().iter().map(|&id| Key::Token(id)).collect();
    for span in prompt.spans() {
        let digest = prompt.visuals()[span.visual].digest;
        for (i, key) in keys[span.range.clone()].iter_mut().enumerate() {
            *key = Key::Visual(digest, (span.first_row + i) as u32);
        }
    }
    keys
}

/// The prompt's rows; `digests` are those of the embeddings at hand, in their order. An image without one lies
/// in a part of the prompt that is not run.
pub(crate) fn rows(prompt: &Prompt, digests: &[[u8; 32]]) -> Vec<Row> {
    let ids = prompt.ids().iter().zip(prompt.positions());
    let mut rows: Vec<Row> =
        ids.map(|(&id, &position)| Row { source: Source::Token(id), position, logits: false }).collect();
    for span in prompt.spans() {
        let digest = &prompt.visuals()[span.visual].digest;
        let image = digests.iter().position(|d| d == digest).unwrap_or(usize::MAX);
        for (i, row) in rows[span.range.clone()].iter_mut().enumerate() {
            row.source = Source::Image { image, row: span.first_row + i };
        }
    }
    rows
}
