use std::{
    borrow::Cow,
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use serde_json::Value;

use crate::{
    Checkpoint, Error, Mapping, Result, WeightFile,
    error::shorten,
    foreign,
    gguf::{self, GgufModel, Mmproj},
    index::{INDEX_NAME, MAX_INDEX_BYTES, ShardIndex},
    packed, readings,
};

const SINGLE_NAME: &str = "model.safetensors";
/// What GPTQ, AWQ and ModelOpt folders had before `config.json` said it.
const OLDER_QUANTISATION: [&str; 3] = ["quantize_config.json", "quant_config.json", "hf_quant_config.json"];

/// The folder of chat templates beside the one in `chat_template.jinja`.
pub const ADDITIONAL_TEMPLATES: &str = "additional_chat_templates";
/// More than any model has.
const MOST_TEMPLATES: usize = 64;

/// A text file beside the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sidecar {
    /// `config.json`.
    Config,
    /// `generation_config.json`.
    GenerationConfig,
    /// `tokenizer.json`.
    Tokenizer,
    /// `tokenizer_config.json`.
    TokenizerConfig,
    /// `chat_template.jinja`.
    ChatTemplate,
    /// `chat_template.json`, an older wrapping of the template.
    ChatTemplateJson,
    /// `preprocessor_config.json`.
    PreprocessorConfig,
    /// `video_preprocessor_config.json`.
    VideoPreprocessorConfig,
    /// `processor_config.json`.
    ProcessorConfig,
}

impl Sidecar {
    /// All of them.
    pub const ALL: [Sidecar; 9] = [
        Sidecar::Config,
        Sidecar::GenerationConfig,
        Sidecar::Tokenizer,
        Sidecar::TokenizerConfig,
        Sidecar::ChatTemplate,
        Sidecar::ChatTemplateJson,
        Sidecar::PreprocessorConfig,
        Sidecar::VideoPreprocessorConfig,
        Sidecar::ProcessorConfig,
    ];

    /// Its name in a folder.
    pub const fn file_name(self) -> &'static str {
        match self {
            Sidecar::Config => "config.json",
            Sidecar::GenerationConfig => "generation_config.json",
            Sidecar::Tokenizer => "tokenizer.json",
            Sidecar::TokenizerConfig => "tokenizer_config.json",
            Sidecar::ChatTemplate => "chat_template.jinja",
            Sidecar::ChatTemplateJson => "chat_template.json",
            Sidecar::PreprocessorConfig => "preprocessor_config.json",
            Sidecar::VideoPreprocessorConfig => "video_preprocessor_config.json",
            Sidecar::ProcessorConfig => "processor_config.json",
        }
    }

    /// The most that is read of it: several times the largest published one.
    pub const fn max_bytes(self) -> u64 {
        match self {
            Sidecar::Tokenizer => 128 << 20,
            Sidecar::TokenizerConfig => 16 << 20,
            _ => 4 << 20,
        }
    }
}

/// Where a model lies: a folder as on the model hub, GGUF files, or the files of a folder built into the program.
///
/// The texts beside the weights are the same in all cases: those of GGUF files are made from their metadata.
#[derive(Clone, Debug)]
pub struct Folder {
    origin: Origin,
    /// The weight file or index that was named, if one was.
    weights: Option<String>,
}

#[derive(Clone, Debug)]
enum Origin {
    Disk(PathBuf),
    Gguf { folder: PathBuf, model: Arc<GgufModel> },
    Embedded(&'static [(&'static str, &'static [u8])]),
}

impl Folder {
    /// A folder, or the folder of a weight file or shard index, or a GGUF file with its vision tower beside it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Mmproj::Beside)
    }

    /// As [`Folder::open`], with the vision tower of a GGUF model where `mmproj` says.
    pub fn open_with(path: impl AsRef<Path>, mmproj: &Mmproj) -> Result<Self> {
        let path = path.as_ref();
        let about = std::fs::metadata(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        if about.is_dir() {
            let folder = Folder { origin: Origin::Disk(path.to_owned()), weights: None };
            let files = folder.names(|name| name.to_ascii_lowercase().ends_with(".gguf") && !name.starts_with('.'))?;
            if files.is_empty() || !folder.weight_names()?.is_empty() {
                not_gguf(path, mmproj)?;
                return Ok(folder);
            }
            return Self::open_gguf(&gguf::trunk_of(path, &files)?, path, mmproj);
        }
        let magic = about.is_file() && gguf::is_gguf(&WeightFile::open(path)?)?;
        if magic || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            return Self::open_gguf(path, folder, mmproj);
        }
        not_gguf(path, mmproj)?;
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::NotAFile(path.to_owned()));
        };
        let Some(name) = name.to_str() else { return Err(Error::NotAFile(path.to_owned())) };
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        Ok(Folder { origin: Origin::Disk(folder.to_owned()), weights: Some(name.to_owned()) })
    }

    fn open_gguf(path: &Path, folder: &Path, mmproj: &Mmproj) -> Result<Self> {
        let model = Arc::new(GgufModel::open(path, mmproj)?);
        Ok(Folder { origin: Origin::Gguf { folder: folder.to_owned(), model }, weights: None })
    }

    /// Files that are part of the program, by name.
    pub const fn embedded(files: &'static [(&'static str, &'static [u8])]) -> Self {
        Folder { origin: Origin::Embedded(files), weights: None }
    }

    /// The folder's path, unless the files are embedded.
    pub fn path(&self) -> Option<&Path> {
        match &self.origin {
            Origin::Disk(path) | Origin::Gguf { folder: path, .. } => Some(path),
            Origin::Embedded(_) => None,
        }
    }

    /// The keys of the trunk's GGUF file; `None` of any other model.
    pub fn gguf(&self) -> Option<&gguf::Metadata> {
        match &self.origin {
            Origin::Gguf { model, .. } => Some(model.metadata()),
            Origin::Disk(_) | Origin::Embedded(_) => None,
        }
    }

    /// The text of a file beside the weights, or `None` where there is none.
    pub fn text(&self, sidecar: Sidecar) -> Result<Option<Cow<'static, str>>> {
        let Origin::Gguf { model, .. } = &self.origin else {
            return self.read_text(sidecar.file_name(), sidecar.max_bytes());
        };
        let text = match sidecar {
            Sidecar::Config => Some(&model.config),
            Sidecar::Tokenizer => Some(&model.tokenizer),
            Sidecar::TokenizerConfig => Some(&model.tokenizer_config),
            Sidecar::GenerationConfig => Some(&model.generation_config),
            Sidecar::PreprocessorConfig => {
                // Limits that the model was made with go before the family's, where someone put them beside it.
                let own = self.read_text(sidecar.file_name(), sidecar.max_bytes())?;
                return Ok(own.or_else(|| model.preprocessor.clone().map(Cow::Owned)));
            }
            _ => None,
        };
        Ok(text.map(|text| Cow::Owned(text.clone())))
    }

    /// The text of a file that the model can't do without.
    pub fn require(&self, sidecar: Sidecar) -> Result<Cow<'static, str>> {
        match self.text(sidecar)? {
            Some(text) => Ok(text),
            None if self.weight_names()?.is_empty() => match self.without_weights()? {
                Error::NoWeights { .. } => Err(self.missing(sidecar.file_name())),
                foreign => Err(foreign),
            },
            None => Err(self.missing(sidecar.file_name())),
        }
    }

    /// Why a folder without weights can't be read: what it has instead.
    fn without_weights(&self) -> Result<Error> {
        let (folder, names) = (self.describe(), self.names(|_| true)?);
        Ok(match foreign::instead(&names) {
            Some((file, what)) => Error::ForeignWeights { folder, file: shorten(file), what },
            None => Error::NoWeights { folder },
        })
    }

    /// Name and text of the chat templates in `additional_chat_templates`, in name order: a template a file, `NAME.jinja`.
    ///
    /// # Errors
    /// The system's; a file that is no text, or too large.
    pub fn additional_chat_templates(&self) -> Result<Vec<(String, String)>> {
        let Origin::Disk(folder) = &self.origin else { return Ok(Vec::new()) };
        let folder = folder.join(ADDITIONAL_TEMPLATES);
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
            Err(source) => return Err(Error::Io { path: folder, source }),
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter_map(|file| file.strip_suffix(".jinja").map(str::to_owned))
            .filter(|name| !name.is_empty() && !name.starts_with('.'))
            .collect();
        names.sort_unstable();
        let text = |name: String| {
            let file = format!("{ADDITIONAL_TEMPLATES}/{name}.jinja");
            let text = self.read_text(&file, Sidecar::ChatTemplate.max_bytes())?;
            Ok(text.map(|text| (name, text.into_owned())))
        };
        names.into_iter().take(MOST_TEMPLATES).filter_map(|name| text(name).transpose()).collect()
    }

    /// Opens the weights: the file or index that was named, else `model.safetensors`, else the shards of
    /// `model.safetensors.index.json`, else the only safetensors file there is. Tensors that a quantising program
    /// wrote are found under the published names.
    pub fn checkpoint(&self) -> Result<Checkpoint> {
        if let Origin::Gguf { model, .. } = &self.origin {
            return model.checkpoint();
        }
        if let Some(manifest) = self.read_text(packed::MANIFEST_NAME, packed::MAX_MANIFEST_BYTES)? {
            return packed::open(&manifest, |name| self.weight_file(name));
        }
        let json = |text: Option<Cow<'static, str>>| text.and_then(|t| serde_json::from_str::<Value>(&t).ok());
        let config = json(self.text(Sidecar::Config)?);
        let older = OLDER_QUANTISATION.iter().map(|name| self.read_text(name, Sidecar::Config.max_bytes()));
        let older = older.collect::<Result<Vec<_>>>()?.into_iter().find_map(json);
        self.stored()?.read_as(|table, bytes| readings::read(table, config.as_ref(), older.as_ref(), bytes))
    }

    /// The weights under the names in their files.
    fn stored(&self) -> Result<Checkpoint> {
        match self.weights.as_deref() {
            Some(name) if name.ends_with(".json") => return self.sharded(name),
            Some(name) => return Checkpoint::from_files(vec![self.weight_file(name)?]),
            None => {}
        }
        let names = self.weight_names()?;
        let has = |name: &str| names.iter().any(|n| n == name);
        match names.as_slice() {
            _ if has(SINGLE_NAME) => Checkpoint::from_files(vec![self.weight_file(SINGLE_NAME)?]),
            _ if has(INDEX_NAME) => self.sharded(INDEX_NAME),
            [] => Err(self.without_weights()?),
            [only] => Checkpoint::from_files(vec![self.weight_file(only)?]),
            several => {
                let some: Vec<_> = several.iter().take(4).map(|name| shorten(name)).collect();
                let more = if several.len() > some.len() { ", ..." } else { "" };
                Err(Error::AmbiguousWeights { folder: self.describe(), files: some.join(", ") + more })
            }
        }
    }

    fn sharded(&self, index_name: &str) -> Result<Checkpoint> {
        let text = self.read_text(index_name, MAX_INDEX_BYTES)?.ok_or_else(|| self.missing(index_name))?;
        let index = ShardIndex::parse(index_name, &text)?;
        let files = index.shards().into_iter().map(|shard| self.weight_file(shard)).collect::<Result<Vec<_>>>()?;
        if files.is_empty() {
            return Err(Error::NoWeights { folder: format!("{}: {index_name} lists no tensor", self.describe()) });
        }
        let checkpoint = Checkpoint::from_files(files)?;
        index.check(&checkpoint)?;
        Ok(checkpoint)
    }

    /// The safetensors files and the index, in name order. An adapter is no weights of a model.
    fn weight_names(&self) -> Result<Vec<String>> {
        self.names(|name| {
            let hidden = name.starts_with('.') || name.starts_with("adapter_model") || name == "adapters.safetensors";
            name == INDEX_NAME || (name.ends_with(".safetensors") && !hidden)
        })
    }

    /// The files that are wanted, in name order.
    fn names(&self, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>> {
        let mut names = Vec::new();
        match &self.origin {
            Origin::Embedded(files) => names.extend(files.iter().map(|(name, _)| (*name).to_owned())),
            Origin::Disk(folder) | Origin::Gguf { folder, .. } => {
                let io = |source| Error::Io { path: folder.clone(), source };
                for entry in std::fs::read_dir(folder).map_err(io)? {
                    // A name that is not Unicode is none of ours.
                    names.extend(entry.map_err(io)?.file_name().into_string());
                }
            }
        }
        names.retain(|name| wanted(name));
        names.sort_unstable();
        Ok(names)
    }

    fn weight_file(&self, name: &str) -> Result<WeightFile> {
        match &self.origin {
            Origin::Disk(folder) | Origin::Gguf { folder, .. } => {
                WeightFile::open(&folder.join(name)).map_err(|e| match e {
                    Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => self.missing(name),
                    other => other,
                })
            }
            Origin::Embedded(_) => match self.embedded_file(name) {
                Some(bytes) => Ok(WeightFile::in_memory(name, Mapping::from(bytes))),
                None => Err(self.missing(name)),
            },
        }
    }

    fn embedded_file(&self, name: &str) -> Option<&'static [u8]> {
        match self.origin {
            Origin::Embedded(files) => files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| *bytes),
            Origin::Disk(_) | Origin::Gguf { .. } => None,
        }
    }

    fn read_text(&self, name: &str, limit: u64) -> Result<Option<Cow<'static, str>>> {
        let too_large = |length| Error::TooLarge { file: name.to_owned(), length, limit };
        let not_text = |offset| Error::NotText { file: name.to_owned(), offset };
        let (Origin::Disk(folder) | Origin::Gguf { folder, .. }) = &self.origin else {
            let Some(bytes) = self.embedded_file(name) else { return Ok(None) };
            if bytes.len() as u64 > limit {
                return Err(too_large(bytes.len() as u64));
            }
            return match std::str::from_utf8(bytes) {
                Ok(text) => Ok(Some(Cow::Borrowed(text))),
                Err(e) => Err(not_text(e.valid_up_to())),
            };
        };
        let path = folder.join(name);
        let io = |source| Error::Io { path: path.clone(), source };
        let about = match std::fs::metadata(&path) {
            Ok(about) => about,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io(e)),
        };
        if !about.is_file() {
            return Err(Error::NotAFile(path));
        }
        if about.len() > limit {
            return Err(too_large(about.len()));
        }
        // The length is only a hint: the file may grow, and some file systems say 0.
        let mut bytes = Vec::new();
        File::open(&path).map_err(io)?.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
        if bytes.len() as u64 > limit {
            return Err(too_large(bytes.len() as u64));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(Cow::Owned(text))),
            Err(e) => Err(not_text(e.utf8_error().valid_up_to())),
        }
    }

    fn missing(&self, file: &str) -> Error {
        Error::MissingFile { folder: self.describe(), file: file.to_owned() }
    }

    fn describe(&self) -> String {
        match &self.origin {
            Origin::Disk(path) | Origin::Gguf { folder: path, .. } => path.display().to_string(),
            Origin::Embedded(_) => "the embedded model".to_owned(),
        }
    }
}

/// Refuses a vision tower for a model that has its own in the same folder.
fn not_gguf(path: &Path, mmproj: &Mmproj) -> Result<()> {
    match mmproj {
        Mmproj::Beside => Ok(()),
        Mmproj::At(_) | Mmproj::Without => Err(Error::Gguf {
            file: path.display().to_string(),
            problem: "--mmproj is for .gguf models; this one has its vision tower among its own weights, if it has one"
                .to_owned(),
        }),
    }
}
