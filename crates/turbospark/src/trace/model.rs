//! Cases of a model family: the tower, the trunk, greedy decoding.

use serde_json::{Value, json};
use turbospark_device::Device;
use turbospark_models::config::Config;
use turbospark_models::probe::{Tapped, Taps};
use turbospark_models::{
    Cache, CacheShape, ImageRows, KvFormat, Model, Patches, Row, Scratch, Sequence, Source, VisionInput, VisionTower,
};
use turbospark_vision::Grid;
use turbospark_weights::{Folder, Sidecar};

use super::file::{Files, Tensors};
use super::prompt::Prompt;
use super::{Case, Made, TraceError, blocks};

/// Tokens of a greedy continuation.
const GREEDY: usize = 32;

/// A family's checkpoint, loaded.
pub(super) struct Family<'a> {
    pub files: Files<'a>,
    pub device: &'a dyn Device,
    kv: KvFormat,
    pub folder: Folder,
    pub config: Config,
    pub model: Model,
    scratch: Scratch,
}

/// A prompt run through the model.
struct Run {
    prompt: Prompt,
    images: Vec<ImageRows>,
    pages: Vec<u32>,
    cache: Cache,
    taps: Taps,
    /// Of every row.
    logits: Vec<f32>,
}

impl<'a> Family<'a> {
    pub fn load(files: Files<'a>, device: &'a dyn Device, kv: KvFormat, name: &str) -> Result<Self, TraceError> {
        let folder = Folder::open(files.fixtures.join(name).join("checkpoint")).map_err(TraceError::of(name))?;
        let text = folder.require(Sidecar::Config).map_err(TraceError::of(name))?;
        let config = Config::parse(&text).map_err(TraceError::of(name))?;
        let checkpoint = folder.checkpoint().map_err(TraceError::of(name))?;
        let model = Model::load(config.clone(), &checkpoint, device).map_err(TraceError::of(name))?;
        Ok(Family { files, device, kv, folder, config, model, scratch: Scratch::default() })
    }

    pub fn run(&mut self, case: &Case<'_>) -> Result<Made, TraceError> {
        let stem = case.stem();
        if let Some(name) = stem.strip_prefix("vision_") {
            return self.vision(case, name).map(Made::Tensors);
        }
        if let Some(name) = stem.strip_prefix("text_") {
            return self.text(case, name).map(Made::Tensors);
        }
        if let Some(pieces) = stem.strip_prefix("gdn_") {
            return blocks::gdn(self, case, pieces).map(Made::Tensors);
        }
        if let Some(layer) = stem.strip_prefix("moe_layer") {
            return blocks::moe(self, case, layer).map(Made::Tensors);
        }
        match case.name {
            "alt_experts_split.safetensors" => blocks::split_experts(self, case).map(Made::Tensors),
            "generate.json" => self.generate(case).map(Made::Json),
            _ => Ok(Made::Unknown),
        }
    }

    fn merge(&self) -> usize {
        self.config.vision.as_ref().map_or(1, |v| v.spatial_merge_size)
    }

    fn tower(&self, case: &Case<'_>) -> Result<&VisionTower, TraceError> {
        self.model.vision.as_ref().ok_or_else(|| case.broken("the checkpoint has no vision tower"))
    }

    /// Patches of a prompt's images or videos.
    fn patches(&self, name: &str, tensor: &str) -> Result<Vec<f32>, TraceError> {
        Ok(self.files.golden(&format!("prompts/{name}.safetensors"))?.f32s(tensor)?.to_vec())
    }

    fn encode(
        &mut self,
        case: &Case<'_>,
        grids: &[Grid],
        patches: &[f32],
        taps: Option<&mut Taps>,
    ) -> Result<Vec<ImageRows>, TraceError> {
        let mut rest = patches;
        let dim = self.tower(case)?.config().patch_dim();
        let mut inputs = Vec::new();
        for g in grids {
            let (patches, after) = rest
                .split_at_checked(g.patches() * dim)
                .ok_or_else(|| case.broken("there are fewer patches than the grids have"))?;
            inputs.push(VisionInput { grid_thw: [g.t, g.h, g.w], patches: Patches::Whole(patches) });
            rest = after;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        let taps = taps.map(|t| t as &mut dyn turbospark_device::TapSink);
        let rows = self.tower(case)?.encode(self.device, &inputs, &mut scratch, taps);
        self.scratch = scratch;
        rows.map_err(TraceError::of(case.path))
    }

    fn vision(&mut self, case: &Case<'_>, name: &str) -> Result<Tensors, TraceError> {
        let golden = self.files.golden(case.path)?;
        let grids: Vec<Grid> = golden.triples("grid_thw")?.iter().map(|&[t, h, w]| Grid { t, h, w }).collect();
        let is_video = name.starts_with("video");
        let patches = self.patches(name, if is_video { "pixel_values_videos" } else { "pixel_values" })?;
        let mut taps = Taps::default();
        self.encode(case, &grids, &patches, Some(&mut taps))?;
        let mut out = Tensors::default();
        out.copy(&golden.tensors, "grid_thw");
        let tapped = |name: &str, index: Option<usize>| taps.get(name, index).cloned();
        for t in taps.iter() {
            match (t.name, t.index) {
                ("rope_cos" | "rope_sin", _) => {
                    let half = t.dims[1];
                    let twice = t.values.chunks_exact(half).flat_map(|row| [row, row].concat()).collect();
                    out.f32(t.name, &[t.dims[0], 2 * half], twice);
                }
                ("block" | "deepstack", Some(i)) => out.f32(format!("{}.{i}", t.name), &t.dims, t.values.clone()),
                ("patch_embed" | "block_in" | "merged", None) => out.f32(t.name, &t.dims, t.values.clone()),
                _ => {}
            }
        }
        let mut difference = |name: &str, after: Option<Tapped>, before: Option<Tapped>| {
            if let (Some(a), Some(b)) = (after, before) {
                out.f32(name, &a.dims, minus(&a.values, &b.values));
            }
        };
        difference("pos_embed", tapped("block_in", None), tapped("patch_embed", None));
        difference("block.0.attn", tapped("block_mid", None), tapped("block_in", None));
        difference("block.0.mlp", tapped("block", Some(0)), tapped("block_mid", None));
        Ok(out)
    }

    /// Runs a prompt in one piece, with logits of every row and every tap.
    fn prefill(&mut self, case: &Case<'_>, name: &str) -> Result<Run, TraceError> {
        let prompt = Prompt::read(self.files, name, self.config.family.is_qwen35(), self.merge())?;
        let [images, videos] = prompt.grids.clone();
        let mut rows = Vec::new();
        for (grids, tensor) in [(images, "pixel_values"), (videos, "pixel_values_videos")] {
            if !grids.is_empty() {
                let patches = self.patches(name, tensor)?;
                rows.extend(self.encode(case, &grids, &patches, None)?);
            }
        }
        let kv_dtype = self.kv.dtype(self.device.precision());
        let shape = CacheShape::for_sequences(1, prompt.rows.len() + GREEDY, kv_dtype);
        let cache = Cache::new(self.device, &self.config.text, shape).map_err(TraceError::of(case.path))?;
        let pages: Vec<u32> = (0..shape.pages as u32).collect();
        let mut run = Run { prompt, images: rows, pages, cache, taps: Taps::default(), logits: Vec::new() };
        let mut taps = Taps::default();
        run.logits = self.forward(case, &run, &run.prompt.rows, 0, Some(&mut taps))?;
        run.taps = taps;
        Ok(run)
    }

    fn forward(
        &mut self,
        case: &Case<'_>,
        run: &Run,
        rows: &[Row],
        start: usize,
        taps: Option<&mut Taps>,
    ) -> Result<Vec<f32>, TraceError> {
        let images: Vec<&ImageRows> = run.images.iter().collect();
        let sequence = Sequence {
            rows,
            start,
            decode: start > 0,
            pages: &run.pages,
            state: 0,
            snapshots: Vec::new(),
            images: &images,
        };
        let taps = taps.map(|t| t as &mut dyn turbospark_device::TapSink);
        let logits = self.model.trunk.forward(self.device, &[sequence], &run.cache, &mut self.scratch, taps);
        logits.map_err(TraceError::of(case.path))
    }

    /// The greedy continuation of a prompt that was run, ends of text ignored, and the logits that chose it.
    fn greedy(&mut self, case: &Case<'_>, run: &Run) -> Result<(Vec<i64>, Vec<f32>), TraceError> {
        let (vocab, length) = (self.config.text.vocab_size, run.prompt.rows.len());
        let mut last = run.logits[run.logits.len() - vocab..].to_vec();
        let (mut ids, mut all) = (Vec::new(), Vec::new());
        for at in length..length + GREEDY {
            let id = descending(&last)[0];
            ids.push(id as i64);
            all.extend_from_slice(&last);
            if ids.len() < GREEDY {
                let position = u32::try_from(at as i64 + run.prompt.positions.rope_delta)
                    .map_err(|_| case.broken("a decoded token would stand before the prompt"))?;
                let row = Row { source: Source::Token(id as u32), position: [position; 3], logits: true };
                last = self.forward(case, run, &[row], at, None)?;
            }
        }
        Ok((ids, all))
    }

    fn text(&mut self, case: &Case<'_>, name: &str) -> Result<Tensors, TraceError> {
        let golden = self.files.golden(case.path)?;
        let positions = golden.numbers("positions")?;
        let run = self.prefill(case, name)?;
        let (rows, vocab) = (run.prompt.rows.len(), self.config.text.vocab_size);
        if positions.iter().any(|&p| p >= rows) {
            return Err(case.broken("a position lies past the prompt"));
        }
        let mut out = Tensors::default();
        out.copy(&golden.tensors, "positions");
        let pick = |values: &[f32]| -> Vec<f32> {
            let width = values.len() / rows;
            positions.iter().flat_map(|&p| values[p * width..(p + 1) * width].to_vec()).collect()
        };
        let mut keep =
            |name: String, values: &[f32]| out.f32(name, &[positions.len(), values.len() / rows], pick(values));
        let tap = |name: &str, i: usize| run.taps.get(name, i).map(|t| t.values.as_slice());
        for t in run.taps.iter() {
            match (t.name, t.index) {
                ("hidden" | "router_logits" | "router_weights", Some(i)) => keep(format!("{}.{i}", t.name), &t.values),
                ("final_norm", None) => keep(t.name.into(), &t.values),
                ("mid", Some(i)) => tap("hidden", i).map_or((), |x| keep(format!("mixer.{i}"), &minus(&t.values, x))),
                ("out", Some(i)) => tap("mid", i).map_or((), |x| keep(format!("mlp.{i}"), &minus(&t.values, x))),
                _ => {}
            }
        }
        keep("logits_at".into(), &run.logits);
        for t in run.taps.iter().filter(|t| t.name == "router_experts") {
            let ids = pick(&t.values).iter().map(|&v| v as i64).collect();
            out.i64(format!("router_experts.{}", t.index.unwrap_or(0)), &[positions.len(), t.dims[1]], ids);
        }
        out.f32("logits_last", &[vocab], run.logits[(rows - 1) * vocab..].to_vec());
        let (mut ids, mut values) = (Vec::new(), Vec::new());
        for row in run.logits.chunks_exact(vocab) {
            for id in descending(row).into_iter().take(5) {
                ids.push(id as i32);
                values.push(row[id]);
            }
        }
        out.i32("top5_ids", &[rows, 5], ids);
        out.f32("top5_values", &[rows, 5], values);
        self.states(case, &run, &positions, &mut out)?;
        let (ids, logits) = self.greedy(case, &run)?;
        out.i64("generated_ids", &[GREEDY], ids);
        out.f32("generated_logits", &[GREEDY, vocab], logits);
        Ok(out)
    }

    /// What the prompt left in the cache.
    fn states(&self, case: &Case<'_>, run: &Run, positions: &[usize], out: &mut Tensors) -> Result<(), TraceError> {
        let (c, failed) = (&self.config.text, TraceError::of(case.path));
        for layer in 0..c.num_hidden_layers {
            if let Some([conv, state]) = run.cache.read_state(self.device, layer, 0).map_err(&failed)? {
                let Some(d) = &c.delta else { continue };
                out.f32(format!("conv_state.{layer}"), &[d.conv_channels(), d.conv_kernel], conv);
                let dims = [d.num_value_heads, d.key_head_dim, d.value_head_dim];
                out.f32(format!("recurrent_state.{layer}"), &dims, state);
                continue;
            }
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for &p in positions {
                // Pages lie in order, so a token's slot is its index.
                if let Some([k, v]) = run.cache.read_kv(self.device, layer, p).map_err(&failed)? {
                    keys.extend(k);
                    values.extend(v);
                }
            }
            let dims = [positions.len(), c.num_key_value_heads, c.head_dim];
            out.f32(format!("k_cache.{layer}"), &dims, keys);
            out.f32(format!("v_cache.{layer}"), &dims, values);
        }
        Ok(())
    }

    fn generate(&mut self, case: &Case<'_>) -> Result<Value, TraceError> {
        let golden = self.files.json(case.path)?;
        let names = golden.as_object().ok_or_else(|| case.broken("it is no table of prompts"))?;
        let mut out = serde_json::Map::new();
        for name in names.keys() {
            let run = self.prefill(case, name)?;
            out.insert(name.clone(), json!({ "generated": self.greedy(case, &run)?.0 }));
        }
        Ok(out.into())
    }
}

fn minus(a: &[f32], b: &[f32]) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a - b).collect()
}

/// Ids by descending value; the lower id first among equals.
fn descending(row: &[f32]) -> Vec<usize> {
    let mut ids: Vec<usize> = (0..row.len()).collect();
    ids.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    ids
}
