use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use turbospark_device::Device;
use turbospark_models::config::Config;
use turbospark_models::{Cache, CacheShape, LoadAs, Residency, Scratch, Sequence, UnitSizes};
use turbospark_tensor::DType;
use turbospark_text::{ChatTemplate, GenerationConfig, Placeholders, Tokenizer};
use turbospark_vision::{DecodeLimits, ImageConfig, Picture};
use turbospark_weights::{Checkpoint, Folder, Sidecar};

use crate::memory::{Demand, MemoryPlan, resident_bytes};
use crate::options::{LoadOptions, device};
use crate::pool::Pool;
use crate::{Error, PromptBuilder, PromptLimits, Result, Sampling, Session};

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
    fit_images: bool,
}

/// What was read of weights that stay on the disk, since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Bytes.
    pub bytes: u64,
    /// How long passes waited for them.
    pub stalled: Duration,
    /// Layers, blocks and experts that were there when they were used.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
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

    /// The tiny trained checkpoint that is compiled in: it reads printed English.
    ///
    /// # Errors
    /// When the options ask for what this build or machine lacks.
    #[cfg(feature = "embedded-model")]
    pub fn embedded(options: &LoadOptions) -> Result<Self> {
        use crate::embedded::{FILES, NAME};
        Self::load(&Folder::embedded(FILES), NAME.into(), options)
    }

    fn load(folder: &Folder, name: String, options: &LoadOptions) -> Result<Self> {
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

        let device: Arc<dyn Device> = device(options)?.into();
        let checkpoint = Arc::new(checkpoint);
        let span = tracing::info_span!("load", model = %name, device = %device.name()).entered();
        let (quant, threads, widen_ordered) = (options.quant, options.threads, !device.takes_order());
        let how = LoadAs { quant, threads, widen_ordered, ..LoadAs::default() };
        let kv_dtype = options.kv.dtype(device.precision());
        let shape_of = |context: usize| {
            let mut shape = CacheShape::for_sequences(options.sequences, context, kv_dtype);
            // A live state and a snapshot each.
            shape.states = if config.text.delta.is_some() { 2 * options.sequences } else { 0 };
            shape
        };
        // A context that nobody asked for makes way for weights.
        let mut context = context;
        if let (None, Some(ceiling)) = (options.context, options.memory) {
            while context > LEAST_DEFAULT_CONTEXT && shape_of(context).bytes(&config.text) as u64 > ceiling / 8 {
                context = (context / 2).max(LEAST_DEFAULT_CONTEXT);
            }
        }
        let shape = shape_of(context);
        let planned = turbospark_models::plan(config.clone(), &checkpoint, &how)?;
        let sizes = UnitSizes::of(&planned);
        let layout = image_config.as_ref().map(|i| i.layout.patch_size * i.layout.patch_size);
        let demand = Demand {
            config: &config,
            sizes: &sizes,
            ceiling: options.memory,
            choice: options.residency,
            program: resident_bytes(),
            cache: shape.bytes(&config.text) as u64,
            rows: Session::CHUNK.min(context),
            context,
            most_patches: image_config.as_ref().zip(layout).map_or(0, |(i, patch)| i.max_pixels / patch),
        };
        let memory = demand.plan()?;
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
        let decode_limits = DecodeLimits { max_pixels: options.max_image_pixels, threads, ..Default::default() };
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

    /// Bytes a second that the checkpoint's disk gives when it is read directly, measured in a moment; `None` for a
    /// checkpoint in memory.
    ///
    /// # Errors
    /// The disk's.
    pub fn read_speed(&self) -> Result<Option<f64>> {
        crate::memory::read_speed(&self.inner.checkpoint)
    }

    /// What was read of weights that stay on the disk; `None` where none do.
    pub fn reads(&self) -> Option<Reads> {
        let counters = self.inner.model.counters.as_ref()?;
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Some(Reads {
            bytes: of(&counters.bytes),
            stalled: Duration::from_nanos(of(&counters.stalled)),
            hits: of(&counters.hits),
            misses: of(&counters.misses),
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

    /// One pass over rows of several sequences: the logits of the rows that want them.
    pub(crate) fn forward(&self, engine: &mut Engine, batch: &[Sequence<'_>]) -> Result<Vec<f32>> {
        let Engine { cache, scratch, .. } = engine;
        let logits = self.inner.model.trunk.forward(&*self.inner.device, batch, cache, scratch, None)?;
        self.inner.checkpoint.check_intact()?;
        Ok(logits)
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
