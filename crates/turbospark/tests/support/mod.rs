//! Prompts of made-up ids and patches, run on the four small checkpoints.
#![allow(dead_code)]

pub mod converter;
pub mod formats;
pub mod one_file;
pub mod packers;
pub mod shapes;
pub mod written;

use std::sync::Arc;

use turbospark_device::{Device, Snapshot};
use turbospark_models::config::Config;
use turbospark_models::{Cache, CacheShape, ImageRows, Model, Patches, Row, Scratch, Sequence, Source, VisionInput};
use turbospark_tensor::DType;
use turbospark_testkit::{Random, fixtures};
use turbospark_vision::{Grid, Modality, rope_index};
use turbospark_weights::Checkpoint;

pub const FAMILIES: [&str; 4] = ["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"];
pub const GREEDY: usize = 32;
/// Ids below this are plain text in the fixture vocabulary.
const TEXT_IDS: usize = 256;

pub fn config(family: &str) -> Config {
    let path = fixtures().join(family).join("checkpoint/config.json");
    Config::parse(&std::fs::read_to_string(path).unwrap()).unwrap()
}

pub fn load(family: &str, device: &dyn Device) -> Model {
    let checkpoint = Checkpoint::open(fixtures().join(family).join("checkpoint")).unwrap();
    Model::load(config(family), &checkpoint, device).unwrap()
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Text(usize),
    Image(Grid),
}

/// A prompt of parts: rows, images and where decoding goes on.
#[derive(Clone, Debug)]
pub struct Layout {
    pub rows: Vec<Row>,
    pub grids: Vec<Grid>,
    pub patches: Vec<Vec<f32>>,
    pub rope_delta: i64,
}

impl Layout {
    pub fn new(parts: &[Part], seed: u64) -> Self {
        const PATCH: usize = 1536;
        let mut random = Random::new(seed);
        let (mut sources, mut kinds, mut grids, mut patches) = (vec![], vec![], vec![], vec![]);
        for part in parts {
            match *part {
                Part::Text(n) => {
                    kinds.extend(vec![Modality::Text; n]);
                    sources.extend((0..n).map(|_| Source::Token(random.below(TEXT_IDS) as u32)));
                }
                Part::Image(grid) => {
                    let tokens = grid.tokens(2);
                    kinds.extend(vec![Modality::Image; tokens]);
                    sources.extend((0..tokens).map(|row| Source::Image { image: grids.len(), row }));
                    patches.push((0..grid.patches() * PATCH).map(|_| random.signed()).collect());
                    grids.push(grid);
                }
            }
        }
        let positions = rope_index(&kinds, &grids, &[], 2).unwrap();
        let place = |(source, position)| Row { source, position, logits: false };
        let rows = sources.into_iter().zip(positions.thw).map(place).collect();
        Layout { rows, grids, patches, rope_delta: positions.rope_delta }
    }

    pub fn inputs(&self) -> Vec<VisionInput<'_>> {
        self.grids
            .iter()
            .zip(&self.patches)
            .map(|(g, patches)| VisionInput { grid_thw: [g.t, g.h, g.w], patches: Patches::Whole(patches) })
            .collect()
    }

    pub fn encode(&self, model: &Model, device: &dyn Device) -> Vec<ImageRows> {
        if self.grids.is_empty() {
            return Vec::new();
        }
        let tower = model.vision.as_ref().unwrap();
        tower.encode(device, &self.inputs(), &mut Scratch::default(), None).unwrap()
    }

    /// The same prompt with every image handed over in batches of at most `batch` rows.
    pub fn in_batches(&self, device: &dyn Device, images: &[ImageRows], batch: usize) -> (Self, Vec<ImageRows>) {
        let (mut firsts, mut parts) = (Vec::new(), Vec::new());
        for rows in images {
            firsts.push(parts.len());
            let sets = 1 + rows.deepstack_sets();
            let all = values(device, rows); // [sets, tokens, hidden]
            let (tokens, hidden) = (rows.tokens(), rows.hidden());
            for first in (0..tokens).step_by(batch) {
                let n = batch.min(tokens - first);
                let part = |set: usize| &all[(set * tokens + first) * hidden..(set * tokens + first + n) * hidden];
                let part: Vec<f32> = (0..sets).flat_map(|s| part(s).to_vec()).collect();
                let buffer = device.alloc("image rows", 4 * part.len()).unwrap();
                device.write_f32(buffer.view(0, DType::F32, [part.len()]), &part).unwrap();
                parts.push(ImageRows::new(Arc::new(buffer), [sets, n, hidden], 0, n).unwrap());
            }
        }
        let mut layout = self.clone();
        for row in &mut layout.rows {
            if let Source::Image { image, row } = &mut row.source {
                (*image, *row) = (firsts[*image] + *row / batch, *row % batch);
            }
        }
        (layout, parts)
    }
}

/// All values of an image's rows, `[sets, tokens, hidden]`.
pub fn values(device: &dyn Device, rows: &ImageRows) -> Vec<f32> {
    let view = rows.view();
    let set = |i: usize| {
        let one = view.narrow(0, i..i + 1);
        device.read_f32(one.buffer().view(one.offset_bytes(), DType::F32, [rows.tokens() * rows.hidden()])).unwrap()
    };
    (0..=rows.deepstack_sets()).flat_map(set).collect()
}

/// Room for several sequences, each with its pages and its state, and spare states for snapshots.
pub struct Room<'a> {
    pub model: &'a Model,
    pub device: &'a dyn Device,
    pub cache: Cache,
    pub scratch: Scratch,
    pages_each: usize,
}

/// One sequence's rows of a batch.
pub struct Piece<'a> {
    pub rows: &'a [Row],
    pub start: usize,
    pub decode: bool,
    pub images: &'a [ImageRows],
    pub snapshots: Vec<Snapshot>,
}

impl<'a> Room<'a> {
    pub fn new(model: &'a Model, device: &'a dyn Device, sequences: usize, tokens: usize) -> Self {
        Room::keeping(DType::F32, model, device, sequences, tokens)
    }

    /// With keys and values of another type.
    pub fn keeping(kv_dtype: DType, model: &'a Model, device: &'a dyn Device, sequences: usize, tokens: usize) -> Self {
        let mut shape = CacheShape::for_sequences(sequences, tokens, kv_dtype);
        shape.states += 2;
        let cache = Cache::new(device, &model.config.text, shape).unwrap();
        Room { model, device, cache, scratch: Scratch::default(), pages_each: shape.pages / sequences }
    }

    /// Runs a batch; `pieces` are of sequence 0, 1 and so on. Pages of a sequence are handed out backwards.
    pub fn forward(&mut self, pieces: &[(usize, Piece<'_>)]) -> Vec<f32> {
        let n = self.pages_each as u32;
        let pages: Vec<Vec<u32>> =
            pieces.iter().map(|(s, _)| (0..n).rev().map(|p| *s as u32 * n + p).collect()).collect();
        let images: Vec<Vec<&ImageRows>> = pieces.iter().map(|(_, p)| p.images.iter().collect()).collect();
        let batch: Vec<Sequence<'_>> = pieces
            .iter()
            .zip(&pages)
            .zip(&images)
            .map(|(((state, p), pages), images)| Sequence {
                rows: p.rows,
                start: p.start,
                decode: p.decode,
                pages,
                state: *state,
                snapshots: p.snapshots.clone(),
                images,
            })
            .collect();
        self.model.trunk.forward(self.device, &batch, &self.cache, &mut self.scratch, None).unwrap()
    }

    /// Prefills sequence 0 in chunks from row `start` on; gives the last row's logits.
    pub fn prefill(&mut self, layout: &Layout, images: &[ImageRows], start: usize, chunk: usize) -> Vec<f32> {
        let mut rows = layout.rows.clone();
        rows.last_mut().unwrap().logits = true;
        let mut logits = Vec::new();
        for first in (start..rows.len()).step_by(chunk) {
            let rows = &rows[first..rows.len().min(first.saturating_add(chunk))];
            let piece = Piece { rows, start: first, decode: false, images, snapshots: vec![] };
            logits = self.forward(&[(0, piece)]);
        }
        logits
    }

    /// Decodes sequence 0 greedily from the last row's logits on; gives ids and all logits.
    pub fn greedy(&mut self, layout: &Layout, mut logits: Vec<f32>) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut all) = (Vec::new(), Vec::new());
        for at in layout.rows.len()..layout.rows.len() + GREEDY {
            let id = argmax(&logits);
            ids.push(id);
            all.extend_from_slice(&logits);
            let row = decoded(layout, id, at);
            logits =
                self.forward(&[(0, Piece { rows: &[row], start: at, decode: true, images: &[], snapshots: vec![] })]);
        }
        (ids, all)
    }
}

/// Logits of a prompt of `text` tokens after an image, where the model sees, and of one decoded row.
pub fn prompt_and_row(model: &Model, device: &dyn Device, text: usize) -> Vec<f32> {
    let parts = [Part::Text(3), Part::Image(Grid { t: 1, h: 4, w: 2 }), Part::Text(text)];
    let parts = if model.vision.is_some() { &parts[..] } else { &parts[2..] };
    let layout = Layout::new(parts, 12);
    let images = layout.encode(model, device);
    let n = layout.rows.len();
    let mut room = Room::new(model, device, 1, n + 1);
    let mut all = room.prefill(&layout, &images, 0, 50);
    let row = decoded(&layout, 5, n);
    all.extend(room.forward(&[(0, Piece { rows: &[row], start: n, decode: true, images: &[], snapshots: vec![] })]));
    assert!(all.iter().all(|l| l.is_finite()) && all.iter().any(|l| l.abs() > 0.05));
    all
}

/// The row of a decoded token.
pub fn decoded(layout: &Layout, id: u32, at: usize) -> Row {
    let position = (at as i64 + layout.rope_delta) as u32;
    Row { source: Source::Token(id), position: [position; 3], logits: true }
}

pub fn argmax(logits: &[f32]) -> u32 {
    let best = |a: usize, b: usize| if logits[b] > logits[a] { b } else { a };
    (0..logits.len()).reduce(best).unwrap() as u32
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

pub fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}

/// The first graphics adapter, software where there is no other; without one the test says that it was skipped.
#[cfg(feature = "device-wgpu")]
pub fn gpu(precision: turbospark_device::Precision) -> Option<turbospark_device_wgpu::WgpuDevice> {
    use turbospark_device_wgpu::{Adapter, WgpuDevice, WgpuOptions};
    let adapters = Adapter::all();
    let Some(adapter) = adapters.first() else {
        eprintln!("skipped: no Vulkan adapter");
        return None;
    };
    Some(WgpuDevice::new(adapter, WgpuOptions { precision, ..WgpuOptions::default() }).unwrap())
}
