//! Every stage of one request, as named tensors.
//!
//! The names are those of the fixture sets, so that a trace made here can be held against a reference's: the
//! tower's `patch_embed`, `block.N`, `deepstack.K`, `merged`; the trunk's `hidden.N` (before layer N; the last is
//! what the final norm sees), `mixer.N`, `mlp.N`, `final_norm` and `logits_last`.

use turbospark_models::probe::{Tapped, Taps};
use turbospark_models::{
    Cache, CacheShape, ImageRows, ModelError, Patches, Row, Scratch, Sequence, Source, VisionInput,
};

use crate::sampler::argmax;
use crate::session::rows;
use crate::{Error, Model, Pixels, Prompt, Result};

/// A tensor of a traced request.
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// Such as `hidden.3`.
    pub name: String,
    /// The sides, outermost first.
    pub dims: Vec<usize>,
    /// The elements, dense.
    pub values: TracedValues,
}

/// Elements of a [`Traced`].
#[derive(Clone, Debug, PartialEq)]
pub enum TracedValues {
    /// Activations.
    F32(Vec<f32>),
    /// Ids, positions, grids.
    I64(Vec<i64>),
}

/// What was traced so far.
#[derive(Default)]
struct Trace(Vec<Traced>);

impl Trace {
    fn f32(&mut self, name: impl Into<String>, dims: &[usize], values: Vec<f32>) {
        self.0.push(Traced { name: name.into(), dims: dims.to_vec(), values: TracedValues::F32(values) });
    }

    fn i64(&mut self, name: impl Into<String>, dims: &[usize], values: Vec<i64>) {
        self.0.push(Traced { name: name.into(), dims: dims.to_vec(), values: TracedValues::I64(values) });
    }

    /// The difference of two tapped values: what a part added to the residual stream.
    fn difference(&mut self, name: String, after: &Tapped, before: Option<&Tapped>) {
        if let Some(before) = before {
            let values = after.values.iter().zip(&before.values).map(|(a, b)| a - b).collect();
            self.f32(name, &after.dims, values);
        }
    }
}

impl Model {
    /// Runs `prompt` in one piece with every stage kept, then takes the likeliest token up to `max_tokens` times
    /// or until the checkpoint's end. Needs memory for all of it, and a cache of its own.
    ///
    /// # Errors
    /// [`Error::ContextFull`]; what the model or the device refuses.
    pub fn trace(&self, prompt: &Prompt, max_tokens: usize) -> Result<Vec<Traced>> {
        let (tokens, context) = (prompt.len(), self.context());
        if tokens >= context {
            return Err(Error::ContextFull { tokens, context, advice: "shorten the prompt or raise --context" });
        }
        let max_tokens = max_tokens.min(context - tokens);
        let mut trace = Trace::default();
        let ids: Vec<i64> = prompt.ids().iter().map(|&id| id.into()).collect();
        trace.i64("ids", &[tokens], ids);
        let axis = |i: usize| prompt.positions().iter().map(move |p| i64::from(p[i]));
        trace.i64("position_ids", &[3, tokens], (0..3).flat_map(axis).collect());
        trace.i64("rope_delta", &[1], vec![prompt.rope_delta()]);
        let images = self.trace_tower(prompt, &mut trace)?;
        self.trace_trunk(prompt, &images, max_tokens, &mut trace)?;
        Ok(trace.0)
    }

    /// The logits of every row of a prompt, `[tokens, vocab_size]`, in one pass: for perplexity and for comparing models.
    ///
    /// # Errors
    /// As [`Model::trace`].
    pub fn prompt_logits(&self, prompt: &Prompt) -> Result<Vec<f32>> {
        let images = self.trace_tower(prompt, &mut Trace::default())?;
        let images: Vec<&ImageRows> = images.iter().collect();
        let digests: Vec<[u8; 32]> = prompt.visuals().iter().map(|v| v.digest).collect();
        let mut rows = rows(prompt, &digests);
        rows.iter_mut().for_each(|row| row.logits = true);
        let device = &*self.inner.device;
        let shape = CacheShape::for_sequences(1, prompt.len(), self.kv_dtype());
        let cache = Cache::new(device, &self.config().text, shape)?;
        let pages: Vec<u32> = (0..shape.pages as u32).collect();
        let sequence = Sequence {
            rows: &rows,
            start: 0,
            decode: false,
            pages: &pages,
            state: 0,
            snapshots: Vec::new(),
            images: &images,
        };
        Ok(self.inner.model.trunk.forward(device, &[sequence], &cache, &mut Scratch::default(), None)?)
    }

    /// All images in one call of the tower.
    fn trace_tower(&self, prompt: &Prompt, trace: &mut Trace) -> Result<Vec<ImageRows>> {
        if prompt.visuals().is_empty() {
            return Ok(Vec::new());
        }
        let tower = self.inner.model.vision.as_ref().ok_or(ModelError::NoVision)?;
        let patches: Vec<Vec<f32>> = prompt
            .visuals()
            .iter()
            .map(|v| match &v.pixels {
                Pixels::Picture(picture) => picture.patches(),
                Pixels::Patches(patches) => patches.to_vec(),
            })
            .collect();
        let grids = prompt.visuals().iter().map(|v| [v.grid.t, v.grid.h, v.grid.w]);
        let inputs = grids
            .clone()
            .zip(&patches)
            .map(|(grid_thw, patches)| VisionInput { grid_thw, patches: Patches::Whole(patches) });
        let inputs: Vec<VisionInput<'_>> = inputs.collect();
        let mut taps = Taps::default();
        let rows = tower.encode(&*self.inner.device, &inputs, &mut Scratch::default(), Some(&mut taps))?;

        let width = tower.config().patch_dim();
        let all = patches.concat();
        trace.i64("grid_thw", &[inputs.len(), 3], grids.flatten().map(|n| n as i64).collect());
        trace.f32("pixel_values", &[all.len() / width, width], all);
        for t in taps.iter() {
            match (t.name, t.index) {
                ("block" | "deepstack", Some(i)) => trace.f32(format!("{}.{i}", t.name), &t.dims, t.values.clone()),
                ("patch_embed" | "block_in" | "merged", None) => trace.f32(t.name, &t.dims, t.values.clone()),
                _ => {}
            }
            if t.name == "block_in" {
                trace.difference("pos_embed".into(), t, taps.get("patch_embed", None));
            }
        }
        Ok(rows)
    }

    fn trace_trunk(&self, prompt: &Prompt, images: &[ImageRows], max_tokens: usize, trace: &mut Trace) -> Result<()> {
        let (device, config) = (&*self.inner.device, &self.config().text);
        let shape = CacheShape::for_sequences(1, prompt.len() + max_tokens, self.kv_dtype());
        let cache = Cache::new(device, config, shape)?;
        let pages: Vec<u32> = (0..shape.pages as u32).collect();
        let mut scratch = Scratch::default();
        let digests: Vec<[u8; 32]> = prompt.visuals().iter().map(|v| v.digest).collect();
        let mut rows = rows(prompt, &digests);
        if let Some(last) = rows.last_mut() {
            last.logits = true;
        }
        let images: Vec<&ImageRows> = images.iter().collect();
        let mut step = |rows: &[Row], start: usize, taps: Option<&mut Taps>| {
            let decode = start > 0;
            let sequence =
                Sequence { rows, start, decode, pages: &pages, state: 0, snapshots: Vec::new(), images: &images };
            let taps = taps.map(|t| t as &mut dyn turbospark_device::TapSink);
            self.inner.model.trunk.forward(device, &[sequence], &cache, &mut scratch, taps)
        };
        let mut taps = Taps::default();
        let mut logits = step(&rows, 0, Some(&mut taps))?;
        for t in taps.iter() {
            match (t.name, t.index) {
                ("mid", Some(i)) => trace.difference(format!("mixer.{i}"), t, taps.get("hidden", i)),
                ("out", Some(i)) => trace.difference(format!("mlp.{i}"), t, taps.get("mid", i)),
                ("hidden" | "router_logits" | "router_weights", Some(i)) => {
                    trace.f32(format!("{}.{i}", t.name), &t.dims, t.values.clone());
                }
                ("router_experts", Some(i)) => {
                    trace.i64(format!("router_experts.{i}"), &t.dims, t.values.iter().map(|&e| e as i64).collect());
                }
                ("final_norm", None) => trace.f32(t.name, &t.dims, t.values.clone()),
                _ => {}
            }
        }
        trace.f32("logits_last", &[logits.len()], logits.clone());

        let mut generated = Vec::new();
        while generated.len() < max_tokens {
            let id = argmax(&logits);
            generated.push(i64::from(id));
            if generated.len() == max_tokens || self.generation_config().eos_token_ids.contains(&id) {
                break;
            }
            let at = prompt.len() + generated.len() - 1;
            let position = u32::try_from(at as i64 + prompt.rope_delta()).unwrap_or(0);
            let row = Row { source: Source::Token(id), position: [position; 3], logits: true };
            logits = step(&[row], at, None)?;
        }
        trace.i64("generated_ids", &[generated.len()], generated);
        Ok(())
    }
}
