use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use turbospark_device::{Device, DeviceError};
use turbospark_models::config::Config;
use turbospark_models::{
    Cache, CacheShape, Choice, Counters, LoadAs, ModelError, Planned, Residency, Scratch, Sequence, UnitSizes,
};
use turbospark_tensor::DType;
use turbospark_text::{ChatTemplate, GenerationConfig, Placeholders, Tokenizer};
use turbospark_vision::{DecodeLimits, ImageConfig, Picture};
use turbospark_weights::{Checkpoint, Folder, Linear, Piece, Place, Sidecar};

use crate::memory::{
    Demand, DiskSpeed, MemoryPlan, PROGRAM_STEP, ResidencyChoice, disk, free, peak_bytes, resident_bytes,
};
use crate::options::{LoadOptions, automatic, device};
use crate::pool::Pool;
use crate::{Cancel, Error, PromptBuilder, PromptLimits, Result, Sampling, Session};

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
    demand: Demand,
    /// The tower's mapped tensors, where their memory is given back while it has nothing to do.
    tower_pages: Vec<Place>,
    fit_images: bool,
}

/// What was read of weights that stay on the disk, since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reads {
    /// Bytes.
    pub bytes: u64,
    /// Of them, experts.
    pub expert_bytes: u64,
    /// How long passes waited for them.
    pub stalled: Duration,
    /// Layers, blocks and parts of the head that were there when they were used.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
    /// Experts that were in memory when a layer chose them.
    pub expert_hits: u64,
    /// Those that were not.
    pub expert_misses: u64,
}

impl Reads {
    /// What was read after `before`.
    pub fn since(&self, before: &Reads) -> Reads {
        Reads {
            bytes: self.bytes - before.bytes,
            expert_bytes: self.expert_bytes - before.expert_bytes,
            stalled: self.stalled - before.stalled,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            expert_hits: self.expert_hits - before.expert_hits,
            expert_misses: self.expert_misses - before.expert_misses,
        }
    }

    /// Both together.
    pub fn and(&self, other: &Reads) -> Reads {
        Reads {
            bytes: self.bytes + other.bytes,
            expert_bytes: self.expert_bytes + other.expert_bytes,
            stalled: self.stalled + other.stalled,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            expert_hits: self.expert_hits + other.expert_hits,
            expert_misses: self.expert_misses + other.expert_misses,
        }
    }

    /// The part of the chosen experts that was in memory; `None` where there are none.
    pub fn expert_hit_rate(&self) -> Option<f64> {
        let asked = self.expert_hits + self.expert_misses;
        (asked > 0).then(|| self.expert_hits as f64 / asked as f64)
    }
}

/// Where a ceiling shortens the default context, it does so down to this.
const LEAST_DEFAULT_CONTEXT: usize = 2048;

/// What sequences share and take turns with.
pub(crate) struct Engine {
    pub(crate) cache: Cache,
    pub(crate) scratch: Scratch,
    pub(crate) vision_scratch: Scratch,
    pub(crate) pages: Pool,
    pub(crate) states: Pool,
    /// Whether the tower ran since its memory was given back.
    pub(crate) tower_ran: bool,
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

    /// Loads on the best device that the options allow and that has the room.
    fn load(folder: &Folder, name: String, options: &LoadOptions) -> Result<Self> {
        let large = || folder.checkpoint().is_ok_and(|c| c.total_bytes() >= WORTH_A_GPU);
        if let Some(gpu) = automatic(options, large) {
            match Self::load_on(folder, name.clone(), options, Arc::clone(&gpu)) {
                Err(Error::Model(ModelError::Device(e @ DeviceError::OutOfMemory { .. }))) => {
                    tracing::warn!(device = %gpu.name(), "{e}; the processor runs the model");
                }
                other => return other,
            }
        }
        Self::load_on(folder, name, options, device(options)?.into())
    }

    fn load_on(folder: &Folder, name: String, options: &LoadOptions, device: Arc<dyn Device>) -> Result<Self> {
        let peak_before = peak_bytes();
        let config_text = folder.require(Sidecar::Config)?;
        let config = Config::parse(&config_text).map_err(turbospark_models::ModelError::from)?;
        let checkpoint = folder.checkpoint()?;
        let tokenizer_config = folder.text(Sidecar::TokenizerConfig)?;
        let tokenizer_json = folder.require(Sidecar::Tokenizer)?;
        let tokenizer = Tokenizer::from_json(tokenizer_json.as_bytes(), tokenizer_config.as_deref())?;
        let jinja = folder.text(Sidecar::ChatTemplate)?;
        let (template, tool_template) = match &options.chat_template {
            Some(choice) => (Some(chosen_template(choice, tokenizer_config.as_deref())?), None),
            None => templates(jinja.as_deref(), tokenizer_config.as_deref())?,
        };
        let generation = folder.text(Sidecar::GenerationConfig)?;
        let generation = GenerationConfig::load(generation.as_deref(), Some(&config_text), Some(&tokenizer))?;
        let image_config = if config.has_vision() { Some(image_config(folder, &config, options)?) } else { None };
        let context = context(&config, options)?;
        if options.sequences == 0 || options.sequences > 4096 {
            let n = options.sequences;
            return Err(Error::Options(format!("{n} sequences were asked for; 1 to 4096 can be held")));
        }

        let checkpoint = Arc::new(checkpoint);
        let span = tracing::info_span!("load", model = %name, device = %device.name()).entered();
        let widen_ordered = !device.takes_order();
        let how = LoadAs { quant: options.quant, threads: options.threads, widen_ordered, ..LoadAs::default() };
        let kv_dtype = options.kv.dtype(device.precision());
        let shape_of = |context: usize| {
            let mut shape = CacheShape::for_sequences(options.sequences, context, kv_dtype);
            // A live state and a snapshot each.
            shape.states = if config.text.delta.is_some() { 2 * options.sequences } else { 0 };
            shape
        };
        let planned = turbospark_models::plan(config.clone(), &checkpoint, &how)?;
        let patch = image_config.as_ref().map_or(1, |i| i.layout.patch_size * i.layout.patch_size);
        let peak = peak_bytes().filter(|_| peak_bytes() > peak_before);
        let system = options.memory.is_none() && options.residency == ResidencyChoice::Auto && device.shares_memory();
        let demand = Demand {
            config: config.clone(),
            sizes: UnitSizes::of(&planned),
            ceiling: options.memory,
            free: if system { free() } else { None },
            choice: options.residency,
            program: resident_bytes().next_multiple_of(PROGRAM_STEP),
            // Of this opening; an earlier one's is over.
            peak: peak.unwrap_or(0),
            contexts: contexts(context, options.context.is_some())
                .map(|n| (n, shape_of(n).bytes(&config.text) as u64))
                .collect(),
            rows: device.prompt_rows(),
            sequences: options.sequences,
            threads: threads(options),
            most_patches: image_config.as_ref().map_or(0, |i| i.max_pixels / patch),
            keep_vision: options.keep_vision,
        };
        let memory = demand.plan()?;
        let (context, shape) = (memory.context, shape_of(memory.context));
        let tower_mapped = memory.residency.vision_mapped || !(memory.streams() || memory.residency.loaded);
        let tower_pages = if tower_mapped && !options.keep_vision { tower_pages(&planned) } else { Vec::new() };
        let model = match memory.residency == Residency::default() {
            true => turbospark_models::Model::load_as(config, &checkpoint, &*device, &how)?,
            false => turbospark_models::Model::load_streamed(
                config,
                &checkpoint,
                &device,
                &how,
                &planned,
                &memory.residency,
            )?,
        };
        let engine = Engine::new(&*device, &model, shape)?;
        drop(span);
        let threads = options.threads.unwrap_or(1).clamp(1, 16);
        let mut decode_limits = DecodeLimits { max_pixels: options.max_image_pixels, threads, ..Default::default() };
        if memory.ceiling.is_some() {
            decode_limits.max_alloc_bytes = decode_limits.max_alloc_bytes.min(memory.most_decode_bytes);
        }
        Ok(Model {
            inner: Arc::new(Inner {
                engine: Mutex::new(engine),
                model,
                device,
                tokenizer,
                template,
                tool_template,
                image_config,
                generation,
                decode_limits,
                name,
                context,
                checkpoint,
                memory,
                demand,
                tower_pages,
                fit_images: options.fit_images,
            }),
        })
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
        disk::speed(&self.inner.checkpoint, self.device(), disk::memory().as_deref())
    }

    /// As [`Model::read_speed`], measured in any case.
    ///
    /// # Errors
    /// The disk's.
    pub fn measure_read_speed(&self) -> Result<Option<DiskSpeed>> {
        disk::speed(&self.inner.checkpoint, self.device(), None)
    }

    /// Begins to note which experts each layer is asked for, pass by pass, or ends it; what was noted so far. Only of
    /// a model whose experts are read again.
    pub fn note_routing(&self, on: bool) -> Vec<Choice> {
        self.inner.model.counters.as_ref().map_or(Vec::new(), |counters| counters.note_routing(on))
    }

    /// Gives the memory of the tower's mapped pages back; they are fetched again when the next image comes.
    pub(crate) fn rest_tower(&self) {
        for place in &self.inner.tower_pages {
            self.inner.checkpoint.give_back(place);
        }
    }

    /// What was read of weights that stay on the disk; `None` where none do.
    pub fn reads(&self) -> Option<Reads> {
        let counters = self.inner.model.counters.as_ref()?;
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Some(Reads {
            bytes: of(&counters.bytes),
            expert_bytes: of(&counters.expert_bytes),
            stalled: Duration::from_nanos(of(&counters.stalled)),
            hits: of(&counters.hits),
            misses: of(&counters.misses),
            expert_hits: of(&counters.expert_hits),
            expert_misses: of(&counters.expert_misses),
        })
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
        let most = memory.ceiling.map_or(usize::MAX, |_| memory.most_patches);
        let pixels = most.saturating_mul(config.layout.patch_size.pow(2));
        let config = match self.inner.fit_images && config.max_pixels > pixels {
            true => {
                let fitted = config.clone().with_limits(Some(config.min_pixels.min(pixels)), Some(pixels));
                fitted.map_err(|source| Error::Image { number, source: source.into() })?
            }
            false => config,
        };
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
        })
    }
}

/// The checkpoint's template, and the one for messages with tools where it is another.
fn templates(jinja: Option<&str>, config: Option<&str>) -> Result<(Option<ChatTemplate>, Option<ChatTemplate>)> {
    match (jinja, config) {
        (None, Some(config)) if !config.contains("\"chat_template\"") => return Ok((None, None)),
        (None, None) => return Ok((None, None)),
        _ => {}
    }
    // A file of its own is one template for all.
    let for_tools = if jinja.is_none() { ChatTemplate::named(config, "tool_use")? } else { None };
    Ok((Some(ChatTemplate::from_files(jinja, config)?), for_tools))
}

/// The template that was asked for: a file, or one of the checkpoint's by its name.
fn chosen_template(choice: &str, config: Option<&str>) -> Result<ChatTemplate> {
    if Path::new(choice).extension().is_some_and(|e| e == "jinja") {
        let source = std::fs::read_to_string(choice)
            .map_err(|e| Error::Options(format!("the chat template {choice:?} can't be read: {e}")))?;
        return Ok(ChatTemplate::new(&source)?);
    }
    ChatTemplate::named(config, choice)?.map(Ok).unwrap_or_else(|| {
        let names = ChatTemplate::names(config)?;
        Err(Error::Options(format!(
            "the model has no chat template named {choice:?}; it has {names}; a file must end in .jinja"
        )))
    })
}

/// The name of a folder, or of a file without its extension.
fn name_of(path: &Path) -> String {
    let named = |path: &Path| {
        // A folder named `Qwen3.5-0.8B` has no extension to cut.
        let name = if path.is_dir() { path.file_name() } else { path.file_stem() };
        name.map(|name| name.to_string_lossy().into_owned())
    };
    // As it was given, since links may lead to files named by hash; `.` and the like have no name of their own.
    named(path).or_else(|| named(&path.canonicalize().ok()?)).unwrap_or_else(|| "model".into())
}

fn context(config: &Config, options: &LoadOptions) -> Result<usize> {
    let most = config.max_context();
    match options.context {
        Some(0) => Err(Error::Options("a context of 0 tokens holds nothing".into())),
        Some(n) if n > most => Err(Error::Options(format!(
            "a context of {n} tokens was asked for; this checkpoint was made for at most {most}"
        ))),
        Some(n) => Ok(n),
        None => Ok(most.min(LoadOptions::DEFAULT_CONTEXT)),
    }
}

/// The context, and where nobody asked for it what it may be shortened to.
fn contexts(context: usize, asked: bool) -> impl Iterator<Item = usize> {
    let shorter = move |n: &usize| (!asked && *n > LEAST_DEFAULT_CONTEXT).then(|| (n / 2).max(LEAST_DEFAULT_CONTEXT));
    std::iter::successors(Some(context), shorter)
}

/// Bytes of weights below which nobody waits for the processor, and finding and opening a graphics adapter takes longer.
const WORTH_A_GPU: u64 = 256 << 20;

fn threads(options: &LoadOptions) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    options.threads.unwrap_or_else(cores).max(1)
}

/// Where the tower's tensors lie in their files.
fn tower_pages(planned: &[Planned]) -> Vec<Place> {
    let tower = planned.iter().filter(|t| t.name.contains(".visual.") && t.target.is_none());
    let place = |t: &Planned| match &t.source {
        Linear::Piece(Piece::Place(place)) => Some(*place),
        _ => None,
    };
    tower.filter_map(place).collect()
}

/// How the checkpoint itself sizes images.
pub(crate) fn own_image_config(folder: &Folder) -> Result<ImageConfig> {
    let text = match folder.text(Sidecar::PreprocessorConfig)?.or(folder.text(Sidecar::ProcessorConfig)?) {
        Some(text) => text,
        None => folder.require(Sidecar::PreprocessorConfig)?,
    };
    Ok(ImageConfig::from_json(&text)?)
}

fn image_config(folder: &Folder, config: &Config, options: &LoadOptions) -> Result<ImageConfig> {
    let image = own_image_config(folder)?;
    let image = image.with_limits(options.min_pixels, options.max_pixels).map_err(|e| Error::Options(e.to_string()))?;
    if let Some(v) = &config.vision {
        let layout = image.layout;
        let pairs = [
            ("patch_size", layout.patch_size, v.patch_size),
            ("merge_size", layout.merge_size, v.spatial_merge_size),
            ("temporal_patch_size", layout.temporal_patch_size, v.temporal_patch_size),
        ];
        for (key, file, model) in pairs {
            if file != model {
                return Err(Error::Options(format!(
                    "preprocessor_config.json: {key} is {file}, the vision tower of config.json has {model}"
                )));
            }
        }
    }
    Ok(image)
}
