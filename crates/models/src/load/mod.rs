//! From a checkpoint's names to a model's weights.
//!
//! Every tensor is claimed by name and shape (`names.rs`), and what is left over is refused: a tensor that nobody asked
//! for belongs to a slightly different model. What is claimed is brought to the device (`bring.rs`), or only listed.

mod bring;
mod names;

use std::collections::HashMap;
use std::sync::Arc;

use turbospark_device::{Buffer, Device, ReferenceDevice};
use turbospark_tensor::DType;
use turbospark_weights::{Checkpoint, Claims, DirectFile, FileId, Linear};

use crate::Result;
use crate::config::Config;
use crate::quant::Quant;
use crate::stream::{Counters, ExpertReads, Lender, Residency, Streamed};
use crate::trunk::Trunk;
use crate::vision_tower::VisionTower;

/// Parts of published checkpoints that are known and not run: the multi-token prediction head.
const KNOWN_SKIPS: &[&str] = &["mtp.", "model.mtp.", "model.language_model.mtp."];

/// A tower and a trunk, ready to run on the device they were loaded to.
#[derive(Debug)]
pub struct Model {
    /// What `config.json` says.
    pub config: Config,
    /// The decoder.
    pub trunk: Trunk,
    /// The vision tower; `None` in a text-only checkpoint.
    pub vision: Option<VisionTower>,
    /// Tensors of heads that are known and not run.
    pub skipped_tensors: usize,
    /// What was read since it was loaded; `None` where nothing stays on the disk.
    pub counters: Option<Arc<Counters>>,
    /// Who can use memory that is lent.
    pub(crate) lender: Option<Lender>,
}

impl Model {
    /// Brings a checkpoint's weights to `device`: the file's own pages where the device can use them, copies
    /// elsewhere.
    ///
    /// # Errors
    /// A tensor that is missing, unknown or misshapen, by name and with both shapes; the device's.
    pub fn load(config: Config, checkpoint: &Checkpoint, device: &dyn Device) -> Result<Self> {
        Self::load_as(config, checkpoint, device, &LoadAs::default())
    }

    /// As [`Model::load`], with the trunk's linear weights quantised as they are brought.
    ///
    /// # Errors
    /// As [`Model::load`]; a weight that is not finite or too large for its format, by name.
    pub fn load_as(config: Config, checkpoint: &Checkpoint, device: &dyn Device, how: &LoadAs) -> Result<Self> {
        Loader::new(device, how, checkpoint).load(config).map(|loaded| loaded.model)
    }

    /// As [`Model::load_as`], with a part of the model left on the disk; `planned` is what [`plan`] gives for it.
    ///
    /// # Errors
    /// As [`Model::load_as`]; weights that are to be quantised can't stay on the disk.
    pub fn load_streamed(
        config: Config,
        checkpoint: &Arc<Checkpoint>,
        device: &Arc<dyn Device>,
        how: &LoadAs,
        planned: &[Planned],
        residency: &Residency,
    ) -> Result<Self> {
        let streamed = Streamed::new(planned, residency, device, checkpoint)?;
        let mut loader = Loader::new(&**device, how, checkpoint);
        (loader.loaded, loader.vision_mapped) = (residency.loaded, residency.vision_mapped);
        loader.streamed = Some(streamed);
        let Loaded { mut model, streamed, pooled, .. } = loader.load(config)?;
        if let Some(streamed) = streamed {
            streamed.attach(&mut model, pooled, device, checkpoint)?;
        }
        Ok(model)
    }

    /// Lets weights that are streamed use `bytes` more memory, as far as the [`Residency`] prepared for it, or less than
    /// before: what is over then is given back before this returns. Between passes only; no bit depends on it.
    pub fn lend(&self, bytes: u64) {
        self.lender.iter().for_each(|lender| lender.lend(bytes));
    }
}

/// A tensor that a model asks for, and what becomes of it.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Its published name.
    pub name: String,
    /// Where it comes from.
    pub source: Linear,
    /// The block format that it is quantised to; `None` where it stays as it is stored.
    pub target: Option<DType>,
    /// Whether it is stored `[.., in, out]`.
    pub in_out: bool,
}

/// The tensors of a model in the order in which a pass uses them, without bringing one.
///
/// # Errors
/// As [`Model::load_as`], but for what only the tensors' bytes show.
pub fn plan(config: Config, checkpoint: &Checkpoint, how: &LoadAs) -> Result<Vec<Planned>> {
    let mut loader = Loader::new(&ReferenceDevice, how, checkpoint);
    loader.plan = Some(Vec::new());
    loader.load(config).map(|loaded| loaded.plan)
}

/// How weights are brought to a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadAs {
    /// Formats to quantise the trunk to; what is quantised already stays as it is.
    pub quant: Option<Quant>,
    /// Formats to quantise the vision tower to.
    pub vision_quant: Option<Quant>,
    /// Whether what is quantised already is quantised again.
    pub requantise: bool,
    /// Threads that quantise; the number changes no bit. `None` takes the processors that the process may use.
    pub threads: Option<usize>,
    /// Whether weights whose columns have an order of their own are widened: a plan for a device that
    /// [takes none](Device::takes_order) has to say so.
    pub widen_ordered: bool,
}

struct Loader<'a> {
    device: &'a dyn Device,
    how: LoadAs,
    claims: Claims<'a>,
    /// Mapped files that the device uses in place; `None` where it can't.
    files: HashMap<FileId, Option<Arc<Buffer>>>,
    /// Where tensors are listed and not brought.
    plan: Option<Vec<Planned>>,
    /// The files for direct reads, once one was made.
    direct: Option<Vec<DirectFile>>,
    /// Whether tensors are copied although the device could use the file's pages.
    loaded: bool,
    /// Whether the tower uses the file's pages all the same.
    vision_mapped: bool,
    /// What stays on the disk.
    streamed: Option<Streamed>,
    /// Experts that go to a pool, layer by layer.
    pooled: Vec<Vec<ExpertReads>>,
}

impl<'a> Loader<'a> {
    fn new(device: &'a dyn Device, how: &LoadAs, checkpoint: &'a Checkpoint) -> Self {
        Loader {
            device,
            how: *how,
            claims: checkpoint.claims(),
            files: HashMap::new(),
            plan: None,
            direct: None,
            loaded: false,
            vision_mapped: false,
            streamed: None,
            pooled: Vec::new(),
        }
    }

    fn load(mut self, config: Config) -> Result<Loaded> {
        let loaded = self.loaded;
        self.loaded &= !self.vision_mapped;
        let vision = config.vision.as_ref().map(|v| self.tower(v)).transpose()?;
        self.loaded = loaded;
        let deepstack_blocks = config.vision.as_ref().map_or(Vec::new(), |v| v.deepstack_visual_indexes.clone());
        let trunk = self.trunk(&config, deepstack_blocks)?;
        let names = self.claims.checkpoint().entries().map(|(name, _)| name);
        // Older files of Llama have the angles' frequencies, which follow from the configuration.
        let frequencies = names.filter(|name| name.ends_with(".rotary_emb.inv_freq"));
        let skips: Vec<&str> = KNOWN_SKIPS.iter().copied().chain(frequencies).collect();
        let skipped_tensors = self.claims.finish(&skips)?;
        let model = Model { config, trunk, vision, skipped_tensors, counters: None, lender: None };
        Ok(Loaded { model, plan: self.plan.unwrap_or_default(), streamed: self.streamed, pooled: self.pooled })
    }
}

/// What a loader leaves.
struct Loaded {
    model: Model,
    plan: Vec<Planned>,
    streamed: Option<Streamed>,
    pooled: Vec<Vec<ExpertReads>>,
}
