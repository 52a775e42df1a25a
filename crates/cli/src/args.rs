//! The flags that commands share.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, Parser, Subcommand};
use turbospark::device::Precision;
use turbospark::{
    Cancel, DeviceChoice, GenerateOptions, KvFormat, LoadOptions, Mmproj, Quant, ResidencyChoice, Sampling,
};

use crate::commands::{bench, chat, inspect, list, pack, preprocess, pull, read, rm, run, trace};
use crate::outcome::Usage;

/// Read pages, ask about images and chat with Qwen vision-language models on this machine.
#[derive(Parser)]
#[command(name = "turbospark", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Show what is done and how long it takes, on stderr; -vv shows more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

const EXAMPLES: &str = "\
Examples:
  turbospark read receipt.png
  turbospark read --json scans/*.png > pages.jsonl
  turbospark run --image photo.jpg \"What is on the table?\" --model Qwen3-VL-2B-Instruct
  turbospark chat --model Qwen3.5-0.8B
  turbospark inspect Qwen3-VL-2B-Instruct
  turbospark pull Qwen/Qwen3-VL-2B-Instruct

Results go to stdout, everything else to stderr. Exit codes: 0 all done (also when the reader
of a pipe stops reading), 1 some part failed or was cut short, 2 wrong usage, 130 interrupted.";

#[derive(Subcommand)]
pub enum Command {
    /// Read the text on images
    Read(read::ReadArgs),
    /// Answer one prompt, about images or not
    Run(run::RunArgs),
    /// Talk, showing images by path or by dragging them here
    Chat(chat::ChatArgs),
    /// Show what a model is made of and what this build can do with it
    Inspect(inspect::InspectArgs),
    /// Show what the model will see of images: sizes, patches, tokens
    Preprocess(preprocess::PreprocessArgs),
    /// Measure encode, prefill and decode against the machine's limits
    Bench(bench::BenchArgs),
    /// Write the named tensors of every stage, to hold against a reference
    Trace(trace::TraceArgs),
    /// Lay a model out for reading from disk, and quantise it
    Pack(pack::PackArgs),
    /// Fetch a model from the hub, or go on where an earlier pull ended
    Pull(pull::PullArgs),
    /// Show the models that were pulled
    List(list::ListArgs),
    /// Remove a pulled model
    Rm(rm::RmArgs),
}

/// Which model.
#[derive(Args)]
pub struct ModelArgs {
    /// Folder of a checkpoint, a .gguf file, or a pulled model such as org/name; without it the small embedded model
    /// that reads printed English
    #[arg(long, value_name = "DIR|FILE.gguf|NAME")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
}

impl ModelArgs {
    /// The model's path, if one was named.
    pub fn path(&self) -> Option<&Path> {
        self.model.as_deref()
    }
}

/// What runs the model, and in which numbers.
#[derive(Args)]
pub struct DeviceArgs {
    /// What runs the model: auto, cpu or gpu
    #[arg(long, default_value = "auto", value_parser = str::parse::<DeviceChoice>)]
    device: DeviceChoice,
    /// Which graphics adapter, by a part of its name or its number in `inspect --adapters` [default: the first that is
    /// hardware]
    #[arg(long, value_name = "NAME|N")]
    adapter: Option<String>,
    /// Worker threads [default: the machine's cores]
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 1..=1024))]
    threads: Option<usize>,
    /// f32 rounds nothing and is slower; auto takes 16 bits where that is faster
    #[arg(long, value_name = "f32|auto", value_parser = precision)]
    precision: Option<Precision>,
    /// Quantise weights while loading, to use less memory: q8_0, q6_k, q5_k, q4_k or q4_0 [default: as stored]
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Quant>)]
    quant: Option<Quant>,
    /// How keys and values are kept in the cache: auto (f16, or f32 where --precision is f32), f32, f16, or q8, which
    /// takes about half of f16
    #[arg(long, value_name = "FORMAT", default_value = "auto", hide_default_value = true,
          value_parser = str::parse::<KvFormat>)]
    kv: KvFormat,
    /// The most memory that the program may use, such as 6GiB: what doesn't fit is read again as it is used; slower, and
    /// the same to the bit [default: what the system and the program's memory group have free]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    memory: Option<u64>,
    /// The most that may be used of a graphics adapter's own memory, which --memory doesn't count
    /// [default: what it has, less a reserve]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    adapter_memory: Option<u64>,
    /// Where weights live: auto, mapped, loaded or streamed
    #[arg(long, value_name = "WHERE", default_value = "auto", hide_default_value = true,
          value_parser = str::parse::<ResidencyChoice>)]
    residency: ResidencyChoice,
}

impl DeviceArgs {
    /// With the defaults for all else.
    pub fn options(&self) -> LoadOptions {
        LoadOptions {
            device: self.device,
            adapter: self.adapter.clone(),
            threads: self.threads,
            precision: self.precision.unwrap_or_default(),
            quant: self.quant,
            kv: self.kv,
            memory: self.memory,
            adapter_memory: self.adapter_memory,
            residency: self.residency,
            ..LoadOptions::default()
        }
    }
}

/// How the model is loaded.
#[derive(Args)]
#[command(next_help_heading = "Machine and images")]
pub struct LoadArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Vision tower of a .gguf model, or none to read text alone [default: the mmproj file beside the model]
    #[arg(long, value_name = "FILE|none", value_parser = mmproj)]
    mmproj: Option<Mmproj>,
    /// How messages become a prompt: a template of the model by its name, or a file that ends in .jinja
    /// [default: the model's own]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Shrink images that --memory leaves no room for, rather than refuse them
    #[arg(long)]
    fit_images: bool,
    /// Keep the vision tower in memory while it has nothing to do, rather than fetch it again for the next image
    #[arg(long)]
    keep_vision: bool,
    /// Tokens that prompt and answer may have together [default: the model's, at most 16384]
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 2..=MOST))]
    context: Option<usize>,
    /// Enlarge images below this many pixels [default: the model's]
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 1..=MOST))]
    min_pixels: Option<usize>,
    /// Shrink images above this many pixels [default: the model's]
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 1..=MOST))]
    max_pixels: Option<usize>,
    /// Refuse image files that claim more pixels than this
    #[arg(long, value_name = "N", default_value_t = LoadOptions::default().max_image_pixels as usize,
          value_parser = |s: &str| count(s, 1..=MOST))]
    max_image_pixels: usize,
}

impl LoadArgs {
    /// For a program that answers one request at a time.
    pub fn options(&self) -> LoadOptions {
        LoadOptions {
            mmproj: self.mmproj.clone().unwrap_or_default(),
            chat_template: self.chat_template.clone(),
            fit_images: self.fit_images,
            keep_vision: self.keep_vision,
            context: self.context,
            sequences: 1,
            min_pixels: self.min_pixels,
            max_pixels: self.max_pixels,
            max_image_pixels: self.max_image_pixels as u64,
            ..self.device.options()
        }
    }

    /// For a look at the model that runs nothing: no room for a cache.
    pub fn options_to_look(&self) -> LoadOptions {
        let options = self.options();
        // What is mapped costs nothing until it is used.
        let residency = match (options.memory, options.residency) {
            (None, ResidencyChoice::Auto) => ResidencyChoice::Mapped,
            (_, asked) => asked,
        };
        LoadOptions { context: Some(1), residency, ..options }
    }

    /// For a trace, which is compared with a reference: exact unless asked otherwise.
    pub fn options_to_trace(&self) -> LoadOptions {
        LoadOptions { precision: self.device.precision.unwrap_or(Precision::F32), ..self.options() }
    }
}

/// How the answer is made.
#[derive(Args)]
#[command(next_help_heading = "Answer", allow_negative_numbers = true)]
pub struct AnswerArgs {
    /// Longest answer in tokens [default: the model's, else what the context holds]
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 1..=MOST))]
    pub max_tokens: Option<usize>,
    /// 0 always takes the likeliest token; higher is more varied
    #[arg(long, value_name = "X", value_parser = |s: &str| number(s, 0.0..=100.0))]
    pub temperature: Option<f32>,
    /// Sample from the likeliest tokens that make up this probability
    #[arg(long, value_name = "P", value_parser = |s: &str| number(s, 0.0..=1.0))]
    pub top_p: Option<f32>,
    /// Sample from this many likeliest tokens; 0 is all
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 0..=MOST))]
    pub top_k: Option<usize>,
    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, value_name = "P", value_parser = |s: &str| number(s, 0.0..=1.0))]
    pub min_p: Option<f32>,
    /// Above 1 makes tokens that occurred less likely
    #[arg(long, value_name = "X", value_parser = |s: &str| number(s, 0.01..=100.0))]
    pub repetition_penalty: Option<f32>,
    /// Above 0 makes tokens of the answer less likely
    #[arg(long, value_name = "X", value_parser = |s: &str| number(s, -100.0..=100.0))]
    pub presence_penalty: Option<f32>,
    /// As --presence-penalty, once for each time a token occurred
    #[arg(long, value_name = "X", value_parser = |s: &str| number(s, -100.0..=100.0))]
    pub frequency_penalty: Option<f32>,
    /// Makes sampling repeatable
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = non_empty)]
    pub stop: Vec<String>,
}

impl AnswerArgs {
    /// `base`, the command's or the checkpoint's own way, with these settings in place of its own.
    pub fn sampling(&self, base: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.map_or(base.top_k, |k| u32::try_from(k).unwrap_or(u32::MAX)),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(base.frequency_penalty),
            seed: self.seed.or(base.seed),
        }
    }

    /// These flags over `base`.
    ///
    /// # Errors
    /// Flags that could have no effect: the user expects one.
    pub fn options(&self, base: Sampling, cancel: Cancel) -> anyhow::Result<GenerateOptions> {
        let sampling = self.sampling(base);
        let narrows = self.top_p.is_some() || self.top_k.is_some() || self.min_p.is_some();
        if sampling.temperature == 0.0 && self.temperature.is_none() && narrows {
            let problem = "top-p, top-k and min-p do nothing at temperature 0, which holds here; add --temperature";
            return Err(Usage(problem.into()).into());
        }
        sampling.check().map_err(Usage)?;
        let max_tokens = self.max_tokens;
        Ok(GenerateOptions { sampling: Some(sampling), max_tokens, stop: self.stop.clone(), ignore_eos: false, cancel })
    }
}

/// The most that a number of tokens or pixels can be: far above use, and no product of two overflows.
pub const MOST: usize = 1 << 31;

pub fn count(text: &str, range: RangeInclusive<usize>) -> Result<usize, String> {
    let (low, high) = (range.start(), range.end());
    let wanted = || format!("expected a whole number from {low} to {high}");
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(wanted)
}

fn number(text: &str, range: RangeInclusive<f32>) -> Result<f32, String> {
    let (low, high) = (range.start(), range.end());
    let wanted = || format!("expected a number from {low} to {high}");
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(wanted)
}

pub fn precision(text: &str) -> Result<Precision, String> {
    match text {
        "f32" => Ok(Precision::F32),
        "auto" => Ok(Precision::Auto),
        _ => Err("expected f32 or auto".into()),
    }
}

/// `6GiB`, `512M`, `1.5g`: binary units, as memory has them.
pub fn bytes(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[number.len()..].to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("expected a size such as 6GiB or 512M".into()),
    };
    let size = number.trim().parse::<f64>().ok().filter(|n| *n > 0.0 && *n < 1e9);
    let size = size.ok_or("expected a size such as 6GiB or 512M")? * (1u64 << unit) as f64;
    if size < f64::from(1 << 20) { Err("less than a MiB holds no model".into()) } else { Ok(size as u64) }
}

pub fn mmproj(text: &str) -> Result<Mmproj, std::convert::Infallible> {
    Ok(if text == "none" { Mmproj::Without } else { Mmproj::At(text.into()) })
}

fn non_empty(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("an empty stop text would match everywhere".into()) } else { Ok(text.to_owned()) }
}
