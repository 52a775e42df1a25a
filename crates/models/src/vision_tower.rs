//! The vision tower: patches to rows of the trunk's width.
//!
//! Same order of operations for all families; those with deepstack also hand out the merged state after
//! some blocks. Patches come in merge-block order (four neighbours in a row), and so do their positions:
//! raster order keeps every shape and scrambles the page.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use turbospark_device::op::{Acquire, Gather, Matmul, Release};
use turbospark_device::{Buffer, Device, Pass, TapSink, View};
use turbospark_tensor::DType;
use turbospark_tensor::mutant::{Mutant, active};

use crate::blocks::vision_block::{
    BlockScratch, BlockShape, BlockWeights, MergerScratch, MergerWeights, encode_block, merge,
};
use crate::config::VisionConfig;
use crate::rope::VisionRope;
use crate::scratch::{Plan, Region, Scratch};
use crate::stream::Ring;
use crate::weight::{Affine, Weight};
use crate::{ModelError, Result};

/// The tower of any family.
#[derive(Debug)]
pub struct VisionTower {
    pub(crate) config: VisionConfig,
    /// `[hidden, patch_dim]`.
    pub(crate) patch_embed: Affine,
    /// `[side * side, hidden]`.
    pub(crate) pos_embed: Weight,
    pub(crate) blocks: Vec<BlockWeights>,
    pub(crate) merger: MergerWeights,
    /// In the order of `deepstack_visual_indexes`.
    pub(crate) deepstack_mergers: Vec<MergerWeights>,
    /// Where streamed blocks come from, and their units.
    pub(crate) ring: Option<Arc<Ring>>,
    pub(crate) units: HashMap<usize, usize>,
}

/// An image, or a video's frames, for the tower.
#[derive(Clone, Copy, Debug)]
pub struct VisionInput<'a> {
    /// Patches along time, height and width.
    pub grid_thw: [usize; 3],
    /// `[t * h * w, patch_dim]` in merge-block order.
    pub patches: Patches<'a>,
}

/// Where an image's patches come from.
#[derive(Clone, Copy)]
pub enum Patches<'a> {
    /// All of them.
    Whole(&'a [f32]),
    /// Made some at a time: all as floats take eight times what the pixels do.
    Made {
        /// How many values all of them have.
        values: usize,
        /// Writes the patches of a range.
        write: &'a dyn Fn(Range<usize>, &mut [f32]),
    },
}

impl Patches<'_> {
    fn values(&self) -> usize {
        match self {
            Patches::Whole(values) => values.len(),
            Patches::Made { values, .. } => *values,
        }
    }
}

impl<'a> From<&'a [f32]> for Patches<'a> {
    fn from(patches: &'a [f32]) -> Self {
        Patches::Whole(patches)
    }
}

impl fmt::Debug for Patches<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values", self.values())
    }
}

/// What the tower made of one image; stays where it was written, on the device.
#[derive(Clone, Debug)]
pub struct ImageRows {
    buffer: Arc<Buffer>,
    /// `[sets, all tokens of the call, hidden]` is what the buffer holds.
    sides: [usize; 3],
    first: usize,
    tokens: usize,
}

impl ImageRows {
    /// Rows of a buffer that holds `[sets, all, hidden]` f32: those from `first`, `tokens` of them.
    ///
    /// # Errors
    /// When the rows leave the buffer.
    pub fn new(buffer: Arc<Buffer>, sides: [usize; 3], first: usize, tokens: usize) -> Result<Self> {
        let need = sides.iter().product::<usize>() * 4;
        if first + tokens > sides[1] || need > buffer.len() {
            return Err(ModelError::Batch(format!("image rows {first}..{} of {sides:?}", first + tokens)));
        }
        Ok(ImageRows { buffer, sides, first, tokens })
    }

    /// Rows in the prompt.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Width of a row.
    pub fn hidden(&self) -> usize {
        self.sides[2]
    }

    /// Deepstack sets beside the merged rows.
    pub fn deepstack_sets(&self) -> usize {
        self.sides[0] - 1
    }

    /// `[1 + deepstack sets, tokens, hidden]`.
    pub fn view(&self) -> View<'_> {
        self.buffer.view(0, DType::F32, self.sides).narrow(1, self.first..self.first + self.tokens)
    }
}

/// Where everything of one call lies in the scratch buffer.
struct Layout {
    x: Region,
    mixed: Region,
    normed: Region,
    qkv: [Region; 3],
    cos: Region,
    sin: Region,
    index: Region,
    weights: Region,
    patches: Region,
    inner: Region,
    merger_inner: Region,
    bytes: usize,
}

/// The host's part of a call.
struct Positions {
    index: Vec<i32>,
    weights: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    cu_seqlens: Vec<usize>,
}

impl VisionTower {
    /// Tiles of the device's [rows](Device::prompt_rows) that queries, keys and values of all heads may have; of more rows,
    /// some heads are done at a time.
    const WHOLE_TILES: usize = 8;

    /// The configuration it was built from.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// Bytes of work space and output for an image of `patches`, on a device that takes so many
    /// [`rows`](Device::prompt_rows) at a time.
    pub fn work_bytes(config: &VisionConfig, patches: usize, rows: usize) -> usize {
        let tokens = patches / config.merge_unit();
        let sets = 1 + config.deepstack_visual_indexes.len();
        Self::plan_for(config, patches.max(1), rows).bytes + 4 * sets * tokens * config.out_hidden_size
    }

    /// Whether its blocks are read anew for each call: then several images in one call share the reading.
    pub fn is_streamed(&self) -> bool {
        !self.units.is_empty()
    }

    fn plan(&self, n: usize, tile: usize) -> Layout {
        Self::plan_for(&self.config, n, tile)
    }

    fn plan_for(c: &VisionConfig, n: usize, tile: usize) -> Layout {
        let mut p = Plan::default();
        let (tile, half) = (tile.min(n), c.head_dim() / 2);
        // The fewest parts that the heads divide into.
        let least = n.div_ceil(Self::WHOLE_TILES * tile);
        let parts = (least..c.num_heads).find(|parts| c.num_heads.is_multiple_of(*parts)).unwrap_or(c.num_heads);
        let (x, mixed) = (p.f32(&[n, c.hidden_size]), p.f32(&[n, c.hidden_size]));
        // A tile of the mergers has four times its rows.
        let normed = if parts == 1 { mixed } else { p.f32(&[n.min(c.merge_unit() * tile), c.hidden_size]) };
        let (cos, sin) = (p.f32(&[n, half]), p.f32(&[n, half]));
        let mark = p.mark(); // embedding, blocks and mergers live one after the other
        let (index, weights) = (p.i32(&[n, 4]), p.f32(&[n, 4]));
        let patches = p.f32(&[tile, c.patch_dim()]);
        p.release(mark);
        let qkv = [0; 3].map(|_| p.f32(&[n, c.hidden_size / parts]));
        let inner = p.f32(&[tile, c.intermediate_size]);
        p.release(mark);
        let merged_rows = tile.min(n / c.merge_unit());
        let merger_inner = p.f32(&[merged_rows, c.merge_unit() * c.hidden_size]);
        Layout { x, mixed, normed, qkv, cos, sin, index, weights, patches, inner, merger_inner, bytes: p.bytes() }
    }

    /// Bytes of the rows that `tokens` merged tokens become.
    fn output_bytes(&self, tokens: usize) -> usize {
        4 * (1 + self.deepstack_mergers.len()) * tokens * self.config.out_hidden_size
    }

    /// Encodes several images of different sizes in one call; they don't see each other.
    ///
    /// # Errors
    /// [`ModelError::Batch`] when a grid does not fit its patches or the merge size; the device's.
    pub fn encode(
        &self,
        device: &dyn Device,
        images: &[VisionInput<'_>],
        scratch: &mut Scratch,
        taps: Option<&mut dyn TapSink>,
    ) -> Result<Vec<ImageRows>> {
        self.encode_tiled(device, images, scratch, device.prompt_rows(), taps)
    }

    /// [`encode`](Self::encode) with so many rows of the MLP, the mergers and the upload of patches at a time: as many
    /// as the device [takes](Device::prompt_rows) otherwise. The result is the same to the bit.
    pub fn encode_tiled(
        &self,
        device: &dyn Device,
        images: &[VisionInput<'_>],
        scratch: &mut Scratch,
        tile_rows: usize,
        taps: Option<&mut dyn TapSink>,
    ) -> Result<Vec<ImageRows>> {
        images.iter().enumerate().try_for_each(|(i, image)| self.check(i, image))?;
        let n: usize = images.iter().map(|i| i.grid_thw.iter().product::<usize>()).sum();
        if n == 0 {
            return Ok(Vec::new());
        }
        let tile = tile_rows.clamp(1, n);
        let positions = self.positions(images);
        let layout = self.plan(n, tile);
        let tokens = n / self.config.merge_unit();
        let sides = [1 + self.deepstack_mergers.len(), tokens, self.config.out_hidden_size];
        let out = device.alloc("image embeddings", self.output_bytes(tokens))?;
        let buffer = scratch.hold(device, "vision scratch", layout.bytes)?;
        device.write_i32(layout.index.of(buffer), &positions.index)?;
        device.write_f32(layout.weights.of(buffer), &positions.weights)?;
        device.write_f32(layout.cos.of(buffer), &positions.cos)?;
        device.write_f32(layout.sin.of(buffer), &positions.sin)?;
        self.embed_patches(device, images, layout.x.of(buffer), layout.patches.of(buffer))?;

        let mut pass = Pass::new(device).keep_taps(taps.is_some());
        self.record_blocks(&mut pass, &layout, buffer, &positions, tile, out.view(0, DType::F32, sides));
        pass.submit_to(taps)?;

        let buffer = Arc::new(out);
        let mut first = 0;
        images
            .iter()
            .map(|image| {
                let tokens = image.grid_thw.iter().product::<usize>() / self.config.merge_unit();
                first += tokens;
                ImageRows::new(buffer.clone(), sides, first - tokens, tokens)
            })
            .collect()
    }

    fn check(&self, i: usize, image: &VisionInput<'_>) -> Result<()> {
        let ([t, h, w], merge) = (image.grid_thw, self.config.spatial_merge_size);
        let patches = t.checked_mul(h).and_then(|n| n.checked_mul(w)).unwrap_or(usize::MAX);
        if patches == 0 || h % merge != 0 || w % merge != 0 {
            return Err(ModelError::Batch(format!("image {i}: grid {t}x{h}x{w} does not merge by {merge}")));
        }
        let got = image.patches.values();
        if Some(got) != patches.checked_mul(self.config.patch_dim()) {
            let dim = self.config.patch_dim();
            return Err(ModelError::Batch(format!(
                "image {i}: {got} patch values, expected {patches} patches of {dim} for grid {t}x{h}x{w}"
            )));
        }
        Ok(())
    }

    /// `x = W patch + b`, a tile of patches at a time so that the patches need no room on the device.
    fn embed_patches(
        &self,
        device: &dyn Device,
        images: &[VisionInput<'_>],
        x: View<'_>,
        staging: View<'_>,
    ) -> Result<()> {
        let (dim, most) = (self.config.patch_dim(), staging.dim(0));
        let mut row = 0;
        let mut made = Vec::new();
        for image in images {
            let patches: usize = image.grid_thw.iter().product();
            for first in (0..patches).step_by(most) {
                let some = first..patches.min(first + most);
                let n = some.len();
                let values = match image.patches {
                    Patches::Whole(values) => &values[some.start * dim..some.end * dim],
                    Patches::Made { write, .. } => {
                        made.resize(n * dim, 0.0);
                        write(some, &mut made);
                        &made
                    }
                };
                let staged = staging.rows(0..n);
                device.write_f32(staged, values)?;
                let mut pass = Pass::new(device);
                pass.scope("patch embedding", None);
                let bias = Some(self.patch_embed.bias.view());
                let out = x.rows(row..row + n);
                pass.matmul(Matmul { bias, ..Matmul::new(staged, self.patch_embed.weight.view(), out) });
                pass.submit()?;
                row += n;
            }
        }
        Ok(())
    }

    fn record_blocks<'a>(
        &'a self,
        pass: &mut Pass<'a>,
        layout: &Layout,
        buffer: &'a Buffer,
        positions: &'a Positions,
        tile_rows: usize,
        out: View<'a>,
    ) {
        let x = layout.x.of(buffer);
        pass.scope("vision positions", None);
        pass.tap("patch_embed", None, x);
        pass.gather(Gather {
            table: self.pos_embed.view().into(),
            index: layout.index.of(buffer),
            weights: Some(layout.weights.of(buffer)),
            out: x,
            accumulate: true,
        });
        let s = BlockScratch {
            x,
            mixed: layout.mixed.of(buffer),
            normed: layout.normed.of(buffer),
            qkv: layout.qkv.map(|r| r.of(buffer)),
            inner: layout.inner.of(buffer),
            cos: layout.cos.of(buffer),
            sin: layout.sin.of(buffer),
        };
        pass.tap("rope_cos", None, s.cos);
        pass.tap("rope_sin", None, s.sin);
        pass.tap("block_in", None, x);
        let eps = VisionConfig::NORM_EPS;
        let head_dim = self.config.head_dim();
        let shape = BlockShape { head_dim, eps, cu_seqlens: &positions.cu_seqlens, tile_rows };
        let merger = MergerScratch { normed: s.normed, inner: layout.merger_inner.of(buffer) };
        let set = |i: usize| out.narrow(0, i..i + 1).reshape([out.dim(1), out.dim(2)]);
        for (j, block) in self.blocks.iter().enumerate() {
            pass.scope("vision block", j);
            let streamed = self.ring.as_ref().zip(self.units.get(&j));
            if let Some((source, &unit)) = streamed {
                pass.acquire(Acquire { source: &**source, unit });
            }
            encode_block(pass, block, &s, &shape);
            if let Some((source, &unit)) = streamed {
                pass.release(Release { source: &**source, unit });
            }
            pass.tap("block", j, x);
            let taps = self.config.deepstack_visual_indexes.iter().enumerate().filter(|&(_, &at)| at == j);
            for (k, _) in taps {
                pass.scope("deepstack merger", k);
                merge(pass, &self.deepstack_mergers[k], eps, x, &merger, set(1 + k));
                pass.tap("deepstack", k, set(1 + k));
            }
        }
        pass.scope("merger", None);
        merge(pass, &self.merger, eps, x, &merger, set(0));
        pass.tap("merged", None, set(0));
    }

    /// Table rows, angles and segments of all patches, in merge-block order; a video's frames repeat them.
    fn positions(&self, images: &[VisionInput<'_>]) -> Positions {
        let c = &self.config;
        let rope = VisionRope::new(VisionConfig::ROPE_THETA, c.head_dim());
        let (side, m) = (c.position_side(), c.spatial_merge_size);
        let mut p = Positions { index: vec![], weights: vec![], cos: vec![], sin: vec![], cu_seqlens: vec![0] };
        let mut end = 0;
        for &VisionInput { grid_thw: [t, h, w], .. } in images {
            for _ in 0..t {
                for (r, col) in merge_block_order(h, w, m) {
                    interpolate(side, (r, h), (col, w), &mut p.index, &mut p.weights);
                    rope.extend(r, col, &mut p.cos, &mut p.sin);
                }
                end += h * w;
                p.cu_seqlens.push(end);
            }
        }
        if active(Mutant::VisionOneSegment) {
            p.cu_seqlens = vec![0, end];
        }
        p
    }
}

/// Row and column of each patch of a frame: blocks of `m` x `m` patches one after the other.
pub(crate) fn merge_block_order(h: usize, w: usize, m: usize) -> impl Iterator<Item = (usize, usize)> {
    let blocks = (0..h / m).flat_map(move |br| (0..w / m).map(move |bc| (br, bc)));
    blocks.flat_map(move |(br, bc)| (0..m * m).map(move |i| (br * m + i / m, bc * m + i % m)))
}

/// The four table rows around a patch and their weights, corners aligned; coordinates in f32.
pub(crate) fn interpolate(
    side: usize,
    (row, rows): (usize, usize),
    (column, columns): (usize, usize),
    index: &mut Vec<i32>,
    weights: &mut Vec<f32>,
) {
    let along = |at: usize, n: usize| {
        let last = (side - 1) as f32;
        let mut x = at as f32 * last / (n.max(2) - 1) as f32;
        if active(Mutant::PositionHalfPixel) {
            x = ((at as f32 + 0.5) * side as f32 / n as f32 - 0.5).clamp(0.0, last);
        }
        let floor = x.floor();
        let low = (floor as usize).min(side - 1);
        (low, (low + 1).min(side - 1), x - floor)
    };
    let (r0, r1, fr) = along(row, rows);
    let (c0, c1, fc) = along(column, columns);
    for (r, wr) in [(r0, 1.0 - fr), (r1, fr)] {
        for (c, wc) in [(c0, 1.0 - fc), (c1, fc)] {
            index.push((r * side + c) as i32);
            weights.push(wr * wc);
        }
    }
}
