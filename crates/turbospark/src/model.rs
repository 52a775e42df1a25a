use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use turbospark_device::{Device, DeviceError};
use turbospark_models::config::Config;
use turbospark_models::{Cache, CacheShape, Choice, Counters, Scratch, Sequence, Visit};
use turbospark_tensor::DType;
use turbospark_text::{ChatTemplate, GenerationConfig, Placeholders, Tokenizer};
use turbospark_vision::{DecodeLimits, ImageConfig, Picture};
use turbospark_weights::{Checkpoint, Folder, Place};

use crate::memory::{Demand, DiskSpeed, MemoryPlan, disk};
use crate::options::LoadOptions;
use crate::pool::Pool;
use crate::{Cancel, Error, PromptBuilder, PromptLimits, Result, Sampling, Session};

mod ahead;
mod load;
mod reads;
mod room;

use load::name_of;
pub(crate) use load::{own_image_config, own_templates};
pub use reads::Reads;
pub(crate) use room::HeldRows;
use room::{ImageRoom, Lent};

/// A checkpoint ready to run. Cheap to clone; all clones share the weights and the cache.
#[derive(Clone)]
pub struct Model {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    // Declared before the device: buffers go first.
    engine: Mutex<Engine>,
    pub(crate) model: turbospark_models::Model,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    /// The one for messages with tools, where it is another.
    pub(crate) tool_template: Option<ChatTemplate>,
    pub(crate) image_config: Option<ImageConfig>,
    pub(crate) generation: GenerationConfig,
    pub(crate) decode_limits: DecodeLimits,
    name: String,
    context: usize,
    checkpoint: Arc<Checkpoint>,
    memory: MemoryPlan,
    /// What the plan was made from.
    pub(crate) demand: Demand,
    /// The tower's mapped tensors, where their memory is given back while it has nothing to do.
    tower_pages: Vec<Place>,
    images: ImageRoom,
    fit_images: bool,
}

/// What sequences share and take turns with.
pub(crate) struct Engine {
    pub(crate) cache: Cache,
    pub(crate) scratch: Scratch,
    pub(crate) vision_scratch: Scratch,
    pub(crate) pages: Pool,
    pub(crate) states: Pool,
    /// Whether the tower ran since its memory was given back.
    pub(crate) tower_ran: bool,
    /// What of the room of images holds weights.
    lent: Lent,
}

impl Model {
    /// Opens a checkpoint folder, a safetensors file in one, or a GGUF file with its vision tower beside it.
    ///
    /// # Errors
    /// What is missing, damaged or not supported, by file, key or tensor.
    pub fn open(path: impl AsRef<Path>, options: &LoadOptions) -> Result<Self> {
        let path = path.as_ref();
        let name = options.name.clone().unwrap_or_else(|| name_of(path));
        Self::load(&Folder::open_with(path, &options.mmproj)?, name, options)
    }

    /// [`open`](Model::open) on a device that the caller made, such as a GPU that it draws with too. What `options`
    /// say about the device is not looked at.
    ///
    /// # Errors
    /// As [`open`](Model::open).
    pub fn open_on(path: impl AsRef<Path>, device: Arc<dyn Device>, options: &LoadOptions) -> Result<Self> {
        let path = path.as_ref();
        let name = options.name.clone().unwrap_or_else(|| name_of(path));
        Self::load_on(&Folder::open_with(path, &options.mmproj)?, name, options, device)
    }

    /// The tiny trained checkpoint that is compiled in: it reads printed English.
    ///
    /// # Errors
    /// When the options ask for what this build or machine lacks.
    #[cfg(feature = "embedded-model")]
    pub fn embedded(options: &LoadOptions) -> Result<Self> {
        use crate::embedded::{FILES, NAME};
        Self::load(&Folder::embedded(FILES), NAME.into(), options)
    }

    /// The checkpoint's name: its folder's.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What `config.json` says.
    pub fn config(&self) -> &Config {
        &self.inner.model.config
    }

    /// The checkpoint's files and tensors.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.inner.checkpoint
    }

    /// What memory is used for.
    pub fn memory_plan(&self) -> &MemoryPlan {
        &self.inner.memory
    }

    /// What more memory would change: plans under larger ceilings, up to one that reads nothing again; empty where
    /// this one doesn't.
    pub fn memory_outlook(&self) -> Vec<MemoryPlan> {
        self.inner.demand.outlook(&self.inner.memory)
    }

    /// What the checkpoint's disk gives when it is read directly, as remembered in the user's cache folder or measured
    /// in a moment; `None` for a checkpoint in memory.
    ///
    /// # Errors
    /// The disk's.
    pub fn read_speed(&self) -> Result<Option<DiskSpeed>> {
        disk::speed(&self.inner.checkpoint, self.device(), disk::memory().as_deref(), false)
    }

    /// As [`Model::read_speed`], measured in any case.
    ///
    /// # Errors
    /// The disk's.
    pub fn measure_read_speed(&self) -> Result<Option<DiskSpeed>> {
        disk::speed(&self.inner.checkpoint, self.device(), disk::memory().as_deref(), true)
    }

    /// Begins to note which experts each layer is asked for, pass by pass, or ends it; what was noted so far. Only of
    /// a model whose experts are read again.
    pub fn note_routing(&self, on: bool) -> Vec<Choice> {
        self.inner.model.counters.as_ref().map_or(Vec::new(), |counters| counters.note_routing(on))
    }

    /// Begins to note layers that have to read experts, or ends it; what was noted so far.
    pub(crate) fn note_visits(&self, on: bool) -> Vec<Visit> {
        self.inner.model.counters.as_ref().map_or(Vec::new(), |counters| counters.note_visits(on))
    }

    /// Gives the memory of the tower's mapped pages back; they are fetched again when the next image comes.
    pub(crate) fn rest_tower(&self) {
        for place in &self.inner.tower_pages {
            self.inner.checkpoint.give_back(place);
        }
    }

    /// What was read of weights that stay on the disk; `None` where none do.
    pub fn reads(&self) -> Option<Reads> {
        self.inner.model.counters.as_ref().map(|counters| Reads::of(counters))
    }

    /// Tensors of heads that are known and not run.
    pub fn skipped_tensors(&self) -> usize {
        self.inner.model.skipped_tensors
    }

    /// The device it runs on.
    pub fn device(&self) -> &dyn Device {
        &*self.inner.device
    }

    /// The checkpoint's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// What the checkpoint says about sampling and where answers end.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.inner.generation
    }

    /// The checkpoint's own sampling settings.
    pub fn sampling(&self) -> Sampling {
        Sampling::from_checkpoint(&self.inner.generation)
    }

    /// Whether the checkpoint says how messages become a prompt.
    pub fn has_chat_template(&self) -> bool {
        self.inner.template.is_some()
    }

    /// Tokens that a sequence may have.
    pub fn context(&self) -> usize {
        self.inner.context
    }

    /// How images are sized; `None` for a text-only checkpoint.
    pub fn image_config(&self) -> Option<&ImageConfig> {
        self.inner.image_config.as_ref()
    }

    /// How keys and values are kept.
    pub fn kv_dtype(&self) -> DType {
        self.engine().cache.shape().kv_dtype
    }

    /// Bytes of the cache that all sequences share.
    pub fn cache_bytes(&self) -> usize {
        self.engine().cache.shape().bytes(&self.config().text)
    }

    /// Decodes and sizes one image as the model will see it. `number` is the image's place in the request,
    /// from 1, for messages.
    ///
    /// # Errors
    /// [`Error::Image`], or a refusal where the checkpoint reads text only.
    pub fn picture(&self, number: usize, bytes: &[u8], min: Option<usize>, max: Option<usize>) -> Result<Picture> {
        let config = self.inner.image_config.as_ref().ok_or(turbospark_models::ModelError::NoVision)?;
        let config = match (min, max) {
            (None, None) => config.clone(),
            _ => {
                config.clone().with_limits(min, max).map_err(|source| Error::Image { number, source: source.into() })?
            }
        };
        let memory = &self.inner.memory;
        let most = memory.patches().unwrap_or(usize::MAX);
        let pixels = most.saturating_mul(config.layout.patch_size.pow(2));
        let config = match self.inner.fit_images && config.max_pixels > pixels {
            true => {
                let fitted = config.clone().with_limits(Some(config.min_pixels.min(pixels)), Some(pixels));
                fitted.map_err(|source| Error::Image { number, source: source.into() })?
            }
            false => config,
        };
        let _room = self.open_file();
        let picture = turbospark_vision::preprocess(bytes, &config, &self.inner.decode_limits)
            .map_err(|source| Error::Image { number, source })?;
        let patches = picture.grid.patches();
        if patches > most {
            return Err(Error::Unsupported(format!(
                "image {number} takes {patches} patches, and the memory that was given leaves room for {most}: \
                 --fit-images shrinks it to {pixels} pixels, a larger --memory takes it as it is"
            )));
        }
        Ok(picture)
    }

    /// A prompt with images and text, one turn after the other.
    pub fn prompt(&self) -> PromptBuilder<'_> {
        PromptBuilder::new(self)
    }

    /// A sequence with nothing in it.
    pub fn session(&self) -> Session {
        Session::new(self.clone())
    }

    /// What prompts for this model have to fit.
    pub fn prompt_limits(&self) -> PromptLimits {
        let config = self.config();
        PromptLimits {
            vocab_size: config.text.vocab_size,
            pads: [config.image_token_id, config.video_token_id].into_iter().flatten().collect(),
            merge_size: config.vision.as_ref().map_or(2, |v| v.spatial_merge_size),
        }
    }

    pub(crate) fn placeholders(&self) -> Option<Placeholders> {
        let c = self.config();
        Some(Placeholders {
            image: c.image_token_id?,
            video: c.video_token_id?,
            vision_start: c.vision_start_token_id?,
            vision_end: c.vision_end_token_id?,
        })
    }

    pub(crate) fn engine(&self) -> MutexGuard<'_, Engine> {
        // A panic in another thread's pass leaves pages taken at worst; what this thread owns is intact.
        self.inner.engine.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// While the guard lives, `cancel` ends a pass that waits for weights.
    pub(crate) fn cancel_reads_by(&self, cancel: &Cancel) -> Watched<'_> {
        let counters = self.inner.model.counters.as_deref();
        counters.iter().for_each(|counters| counters.cancel_by(Some(cancel.switch())));
        Watched(counters)
    }

    /// One pass over rows of several sequences: the logits of the rows that want them.
    pub(crate) fn forward(&self, engine: &mut Engine, batch: &[Sequence<'_>], cancel: &Cancel) -> Result<Vec<f32>> {
        let Engine { cache, scratch, .. } = engine;
        let logits = {
            let _watched = self.cancel_reads_by(cancel);
            self.inner.model.trunk.forward(&*self.inner.device, batch, cache, scratch, None).map_err(cancelled)?
        };
        self.inner.checkpoint.check_intact()?;
        Ok(logits)
    }
}

/// Ends when the pass does.
pub(crate) struct Watched<'m>(Option<&'m Counters>);

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|counters| counters.cancel_by(None));
    }
}

/// A pass that was ended on request is no failure of the device.
pub(crate) fn cancelled(error: turbospark_models::ModelError) -> Error {
    match error {
        turbospark_models::ModelError::Device(DeviceError::Cancelled) => Error::Cancelled,
        other => other.into(),
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Model({} on {})", self.name(), self.device().name())
    }
}

impl Engine {
    fn new(device: &dyn Device, model: &turbospark_models::Model, shape: CacheShape) -> Result<Self> {
        Ok(Engine {
            cache: Cache::new(device, &model.config.text, shape)?,
            scratch: Scratch::default(),
            vision_scratch: Scratch::default(),
            pages: Pool::new(shape.pages),
            states: Pool::new(shape.states),
            tower_ran: false,
            lent: Lent::default(),
        })
    }
}
