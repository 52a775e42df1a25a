//! `trace`: named tensors of every stage.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use turbospark::TracedValues;
use turbospark::trace::trace_fixtures;

use crate::args::ModelArgs;
use crate::interrupt::Interrupt;
use crate::outcome::Outcome;
use crate::progress::Progress;
use crate::request::Request;
use crate::tensors::{self, Named};
use crate::{console, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct TraceArgs {
    /// Trace one request, as OpenAI's API takes it; - is standard input
    #[arg(long, value_name = "FILE.json", required_unless_present = "fixtures")]
    request: Option<PathBuf>,
    /// Rerun every case of this fixture set, under the same paths and names
    #[arg(long, value_name = "DIR", conflicts_with = "request")]
    fixtures: Option<PathBuf>,
    /// Where the tensors go: a safetensors file for a request, a folder for fixtures
    #[arg(long, value_name = "OUT")]
    out: PathBuf,
    /// Tokens to generate after a request, the likeliest each time
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
    max_tokens: u32,
    #[command(flatten)]
    model: ModelArgs,
}

const EXAMPLES: &str = "\
Examples:
  turbospark trace --request request.json --out request.safetensors
  turbospark trace --request request.json --out cpu.safetensors --model Qwen3-VL-2B-Instruct
  turbospark trace --fixtures fixtures --out got
  turbospark trace --fixtures fixtures --out oracle --device reference

Runs in f32 unless --precision says otherwise. --device reference takes the plain loops that the
other devices are tested against: slow.";

pub fn run(args: &TraceArgs) -> anyhow::Result<Outcome> {
    let _interrupt = Interrupt::listen();
    let progress = Progress::new(false, false);
    match (&args.fixtures, &args.request) {
        (Some(fixtures), _) => trace_set(args, fixtures, &progress),
        (None, Some(request)) => trace_one(args, request, &progress),
        (None, None) => unreachable!("the flags require one of the two"),
    }
}

fn trace_set(args: &TraceArgs, fixtures: &Path, progress: &Progress) -> anyhow::Result<Outcome> {
    let options = args.model.load.options_to_trace();
    let device = options.open_device()?;
    let report = trace_fixtures(fixtures, &args.out, &*device, options.kv, &mut |case| progress.says(case))?;
    progress.hide();
    for (case, reason) in &report.left_out {
        tracing::debug!("{case}: left out, {reason}");
    }
    let (tensors, files, left_out) = (report.tensors, report.files.len(), report.left_out.len());
    let name = device.name();
    console::note(format_args!(
        "{tensors} tensors in {files} files on {name}; {left_out} files left out (-v names them)"
    ));
    Ok(Outcome::Done)
}

fn trace_one(args: &TraceArgs, file: &Path, progress: &Progress) -> anyhow::Result<Outcome> {
    let request = Request::read(file)?;
    progress.says("loading the model");
    let model = model::open(args.model.path(), &args.model.load.options_to_trace())?;
    let prompt = request.prompt(&model)?;
    progress.says(format!("running {} tokens", prompt.len()));
    let traced = model.trace(&prompt, args.max_tokens as usize).context("the trace failed")?;
    let tensors: Vec<Named> = traced
        .into_iter()
        .map(|t| match t.values {
            TracedValues::F32(values) => Named::f32(t.name, t.dims, &values),
            TracedValues::I64(values) => Named::i64(t.name, t.dims, &values),
        })
        .collect();
    progress.hide();
    tensors::write(&args.out, &tensors)?;
    console::note(format_args!("{} tensors in {} on {}", tensors.len(), args.out.display(), model.device().name()));
    Ok(Outcome::Done)
}
