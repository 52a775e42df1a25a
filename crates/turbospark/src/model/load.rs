//! Opening a checkpoint: its sidecars, the device, the memory plan, the weights.

use std::path::Path;
use std::sync::{Arc, Mutex};

use turbospark_device::{Device, DeviceError, MemoryKind};
use turbospark_models::config::Config;
use turbospark_models::{CacheShape, LoadAs, ModelError, Planned, Residency, UnitSizes};
use turbospark_text::{ChatTemplate, ChatTemplates, GenerationConfig, TemplateTexts, Tokenizer};
use turbospark_vision::{DecodeLimits, ImageConfig};
use turbospark_weights::{Checkpoint, Folder, Place, Sidecar};

use super::ahead::{fetch_ahead, places_of};
use super::{Engine, ImageRoom, Inner, Model};
use crate::memory::{Demand, PROGRAM_STEP, ResidencyChoice, free, peak_bytes, resident_bytes};
use crate::options::{LoadOptions, automatic, device};
use crate::{Error, Result};

/// Where a ceiling shortens the default context, it does so down to this.
const LEAST_DEFAULT_CONTEXT: usize = 2048;

impl Model {
    /// Loads on the best device that the options allow and that has the room.
    pub(super) fn load(folder: &Folder, name: String, options: &LoadOptions) -> Result<Self> {
        // The headers that tell how large it is are those that it is read by.
        let mut opened = None;
        let weights = || {
            let checkpoint = opened.insert(Arc::new(folder.checkpoint().ok()?));
            Some(checkpoint.total_bytes()).filter(|bytes| *bytes >= WORTH_A_GPU)
        };
        if let Some(gpu) = automatic(options, weights) {
            match Self::load_opened(folder, name.clone(), options, Arc::clone(&gpu), opened.clone()) {
                // Options are refused where its memory is too small for them; what is wrong with them is told again.
                Err(e @ (Error::Model(ModelError::Device(DeviceError::OutOfMemory { .. })) | Error::Options(_))) => {
                    tracing::warn!(device = %gpu.name(), "{e}; the processor runs the model");
                }
                other => return other,
            }
        }
        Self::load_opened(folder, name, options, device(options)?.into(), opened)
    }

    pub(super) fn load_on(
        folder: &Folder,
        name: String,
        options: &LoadOptions,
        device: Arc<dyn Device>,
    ) -> Result<Self> {
        Self::load_opened(folder, name, options, device, None)
    }

    /// With the checkpoint, where it was opened to see how large it is.
    fn load_opened(
        folder: &Folder,
        name: String,
        options: &LoadOptions,
        device: Arc<dyn Device>,
        opened: Option<Arc<Checkpoint>>,
    ) -> Result<Self> {
        let peak_before = peak_bytes();
        let config_text = folder.require(Sidecar::Config)?;
        let config = Config::parse(&config_text).map_err(turbospark_models::ModelError::from)?;
        let checkpoint = match opened {
            Some(checkpoint) => checkpoint,
            None => Arc::new(folder.checkpoint()?),
        };
        let tokenizer_config = folder.text(Sidecar::TokenizerConfig)?;
        let tokenizer_json = folder.require(Sidecar::Tokenizer)?;
        let tokenizer = Tokenizer::from_json(tokenizer_json.as_bytes(), tokenizer_config.as_deref())?;
        let templates = own_templates(folder)?;
        let (template, tool_template) = match &options.chat_template {
            Some(choice) => (Some(chosen_template(choice, &templates)?), None),
            None => (templates.own()?, templates.for_tools()?),
        };
        let generation = folder.text(Sidecar::GenerationConfig)?;
        let generation = GenerationConfig::load(generation.as_deref(), Some(&config_text), Some(&tokenizer))?;
        let image_config = if config.has_vision() { Some(image_config(folder, &config, options)?) } else { None };
        let context = context(&config, options)?;
        if options.sequences == 0 || options.sequences > 4096 {
            let n = options.sequences;
            return Err(Error::Options(format!("{n} sequences were asked for; 1 to 4096 can be held")));
        }

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
        let system = options.memory.is_none() && options.residency == ResidencyChoice::Auto;
        let kind = device.memory_kind();
        let own = matches!(kind, MemoryKind::Own { .. });
        if options.adapter_memory.is_some() && !own {
            let message = "--adapter-memory bounds a graphics adapter's own memory; this device uses the machine's, which --memory bounds";
            return Err(Error::Options(message.into()));
        }
        let demand = Demand {
            config: config.clone(),
            sizes: UnitSizes::of(&planned),
            ceiling: options.memory,
            free: if system { free() } else { None },
            kind,
            adapter: options.adapter_memory,
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
            gives_back: device.gives_back(),
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
        // What a ceiling was found for fits.
        if memory.residency == Residency::default() && demand.free.is_some() && !own {
            fetch_ahead(&checkpoint, &planned);
        }
        let engine = Engine::new(&*device, &model, shape)?;
        drop(span);
        let threads = options.threads.unwrap_or(1).clamp(1, 16);
        let mut decode_limits = DecodeLimits { max_pixels: options.max_image_pixels, threads, ..Default::default() };
        if memory.patches().is_some() {
            decode_limits.max_alloc_bytes = decode_limits.max_alloc_bytes.min(memory.most_decode_bytes);
        }
        let model = Model {
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
                images: ImageRoom::default(),
                fit_images: options.fit_images,
            }),
        };
        model.begin_with_room();
        Ok(model)
    }
}

/// The templates of a checkpoint.
pub(crate) fn own_templates(folder: &Folder) -> Result<ChatTemplates> {
    let text = |sidecar| folder.text(sidecar);
    let additional = folder.additional_chat_templates()?;
    let (jinja, json) = (text(Sidecar::ChatTemplate)?, text(Sidecar::ChatTemplateJson)?);
    let (processor, tokenizer) = (text(Sidecar::ProcessorConfig)?, text(Sidecar::TokenizerConfig)?);
    Ok(ChatTemplates::read(&TemplateTexts {
        jinja: jinja.as_deref(),
        additional: &additional,
        json: json.as_deref(),
        processor_config: processor.as_deref(),
        tokenizer_config: tokenizer.as_deref(),
    })?)
}

/// The template that was asked for: a file, or one of the checkpoint's by its name.
fn chosen_template(choice: &str, templates: &ChatTemplates) -> Result<ChatTemplate> {
    if Path::new(choice).extension().is_some_and(|e| e == "jinja") {
        let source = std::fs::read_to_string(choice)
            .map_err(|e| Error::Options(format!("the chat template {choice:?} can't be read: {e}")))?;
        return Ok(ChatTemplate::new(&source)?);
    }
    templates.named(choice)?.ok_or_else(|| {
        let names = templates.names();
        Error::Options(format!(
            "the model has no chat template named {choice:?}; it has {names}; a file must end in .jinja"
        ))
    })
}

/// The name of a folder, or of a file without its extension.
pub(super) fn name_of(path: &Path) -> String {
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
    tower.flat_map(places_of).collect()
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
