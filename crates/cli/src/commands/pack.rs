//! `pack`: a checkpoint laid out anew, and quantised if asked.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use turbospark::pack::{Agreement, PackFormat, PackOptions, PackReport, check, pack};
use turbospark::{Cancel, LoadOptions, Mmproj, Model, Quant};
use turbospark_hub::Bytes;

use crate::interrupt::Interrupt;
use crate::outcome::Outcome;
use crate::{args, console, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PackArgs {
    /// What is packed: a folder of a checkpoint in any format that is read, a .gguf file, or a pulled model
    #[arg(value_name = "SRC")]
    source: PathBuf,
    /// A new or empty folder, or one that an interrupted run began; with --format gguf any folder
    #[arg(value_name = "DST")]
    target: PathBuf,
    /// folder: laid out for this program's reads from disk; gguf: NAME-TYPE.gguf, and mmproj-NAME-TYPE.gguf with the
    /// vision tower, which llama.cpp reads too
    #[arg(long, value_enum, default_value = "folder")]
    format: Format,
    /// Format of the text model's weights: q8_0, q6_k, q5_k, q4_k or q4_0; keep only lays them out
    #[arg(long, value_name = "FORMAT", default_value = "keep", value_parser = quant)]
    quant: Keep,
    /// Format of the vision tower's weights
    #[arg(long, value_name = "FORMAT", default_value = "keep", value_parser = quant)]
    vision_quant: Keep,
    /// Quantise again what is quantised already; loses more than quantising the original
    #[arg(long)]
    requantise: bool,
    /// Hold the packed model against its source over a built-in text and picture
    #[arg(long)]
    check: bool,
    /// Vision tower of a .gguf model, or none [default: the mmproj file beside the model]
    #[arg(long, value_name = "FILE|none", value_parser = args::mmproj)]
    mmproj: Option<Mmproj>,
    /// Threads that quantise [default: the machine's cores]
    #[arg(long, value_name = "N", value_parser = |s: &str| args::count(s, 1..=1024))]
    threads: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  turbospark pack Qwen3-VL-8B-Instruct qwen3-vl-8b-q4k --quant q4_k
  turbospark pack Qwen3-VL-2B-Instruct qwen3-vl-2b-q8 --quant q8_0 --vision-quant q8_0 --check
  turbospark pack model-q6_k.gguf packed
  turbospark pack Qwen3-VL-8B-Instruct gguf --format gguf --quant q4_k
  turbospark run --model qwen3-vl-8b-q4k --image photo.jpg \"What is on the table?\"

The packed folder holds the weights in the order of their use, each layer, expert and vision block
aligned for direct reads; everything that is not a linear weight keeps its precision. Quantised
sources keep their format unless --requantise is given. Memory stays small whatever the size of
the model; Ctrl-C keeps what is whole, and the same command goes on from there.

GGUF files hold what llama.cpp's converter would write, tokenizer and chat template among it; what
GGUF has no words for is refused. Weights with scales of their own (MLX, FP8, AWQ, GPTQ) are
widened and quantised to --quant, or become F16 without it. Files are NAME.gguf.partial until all
are whole; the same command goes on from there, too.";

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Folder,
    Gguf,
}

/// `keep`, or a format.
#[derive(Clone, Copy)]
struct Keep(Option<Quant>);

fn quant(name: &str) -> Result<Keep, String> {
    match name {
        "keep" => Ok(Keep(None)),
        _ => name.parse().map(|q| Keep(Some(q))).map_err(|e: turbospark::UnknownQuant| format!("{e}, or keep")),
    }
}

pub fn run(args: &PackArgs, verbose: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::listen();
    let cancel = Cancel::new();
    interrupt.begin(cancel.clone());
    let source = model::locate(&args.source)?;
    // A pulled copy lies under its commit's hash: it is called as it was asked for.
    let name = (source != args.source && source.is_dir()).then(|| args.source.file_name()).flatten();
    let options = PackOptions {
        format: match args.format {
            Format::Folder => PackFormat::Folder,
            Format::Gguf => PackFormat::Gguf,
        },
        name: name.map(|name| name.to_string_lossy().into_owned()),
        quant: args.quant.0,
        vision_quant: args.vision_quant.0,
        requantise: args.requantise,
        threads: args.threads,
        mmproj: args.mmproj.clone().unwrap_or_default(),
    };
    let bar = (io::stderr().is_terminal() && !verbose).then(bar);
    let packed = pack(&source, &args.target, &options, &cancel, &mut |progress| {
        if let Some(bar) = &bar {
            bar.set_length(progress.of);
            bar.set_position(progress.bytes);
        }
    });
    if let Some(bar) = &bar {
        bar.finish_and_clear();
    }
    let report = match packed {
        Err(turbospark::Error::Cancelled) => {
            console::note(format_args!("stopped; the same command goes on from here"));
            return Ok(Outcome::Interrupted);
        }
        other => other?,
    };
    if report.kept_quantised > 0 {
        console::note(format_args!(
            "{} weights were quantised already and stay as they are; --requantise changes them",
            report.kept_quantised
        ));
    }
    if report.widened > 0 {
        console::note(format_args!(
            "{} weights have scales of their own, which GGUF has no form for, and are now F16; --quant q4_k, say, \
             makes them small again",
            report.widened
        ));
    }
    let agreement = if args.check { Some(agreement(args, &options, &source, &report)?) } else { None };
    match args.json {
        true => console::print_json(&object(args, &report, agreement))?,
        false => console::print(&table(args, &report, agreement))?,
    }
    Ok(Outcome::Done)
}

fn bar() -> ProgressBar {
    let template = "{spinner} packing [{bar:24}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
    ProgressBar::new(0).with_style(ProgressStyle::with_template(template).expect("our own templates parse"))
}

fn agreement(args: &PackArgs, options: &PackOptions, source: &Path, report: &PackReport) -> anyhow::Result<Agreement> {
    let load =
        LoadOptions { mmproj: options.mmproj.clone(), threads: args.threads, sequences: 1, ..LoadOptions::default() };
    let source = Model::open(source, &load)?;
    let mmproj = match args.format {
        Format::Folder => Mmproj::Beside,
        Format::Gguf => report.files.get(1).cloned().map_or(Mmproj::Without, Mmproj::At),
    };
    let written = LoadOptions { mmproj, ..load };
    Ok(check(&source, &Model::open(&report.model, &written)?)?)
}

fn object(args: &PackArgs, report: &PackReport, agreement: Option<Agreement>) -> Value {
    let groups = report.groups.iter().map(|g| {
        json!({
            "part": g.part, "format": g.format, "weights": g.weights, "bytes": g.bytes,
            "bits_per_weight": bits(g.bytes, g.weights), "relative_error": g.relative_error,
        })
    });
    let groups: Vec<Value> = groups.collect();
    json!({
        "packed": args.target, "files": report.files, "bytes": report.bytes, "source_bytes": report.source_bytes,
        "resumed_bytes": report.resumed, "kept_quantised": report.kept_quantised, "widened": report.widened,
        "groups": groups,
        "check": agreement.map(|a| json!({"rows": a.rows, "kl_divergence": a.divergence, "top1": a.top1})),
    })
}

fn bits(bytes: u64, weights: u64) -> f64 {
    8.0 * bytes as f64 / weights.max(1) as f64
}

fn table(args: &PackArgs, report: &PackReport, agreement: Option<Agreement>) -> String {
    let mut out =
        format!("{:<20}{:<14}{:>14}{:>12}{:>7}{:>16}\n", "part", "format", "weights", "size", "bits", "relative error");
    for g in &report.groups {
        let error = if g.relative_error > 0.0 { format!("{:.3} %", 100.0 * g.relative_error) } else { "exact".into() };
        let (size, bits) = (Bytes(g.bytes).to_string(), bits(g.bytes, g.weights));
        out += &format!("{:<20}{:<14}{:>14}{size:>12}{bits:>7.2}{error:>16}\n", g.part, g.format, g.weights);
    }
    let (before, now) = (Bytes(report.source_bytes), Bytes(report.bytes));
    let files: Vec<String> = report.files.iter().map(|file| file.display().to_string()).collect();
    let written = if files.is_empty() { args.target.display().to_string() } else { files.join(" and ") };
    out += &format!("\n{written}: {now}, before {before}\n");
    if let Some(a) = agreement {
        out += &format!(
            "against the source over {} tokens: KL divergence {:.5} nats, likeliest token equal in {:.1} %\n",
            a.rows,
            a.divergence,
            100.0 * a.top1
        );
    }
    out
}
