//! `bench`: speed of the tower, of prompts and of decoding, against what the machine can do.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use turbospark::bench::{self, BenchOptions, Decode, Encode, Prefill, Report, Shape, Stage, Streaming};
use turbospark::device::{Limits, OpTime, Precision};
use turbospark::{Cancel, LoadOptions, MemoryPlan, Model};

use crate::args::{DeviceArgs, MOST, count};
use crate::interrupt::Interrupt;
use crate::outcome::{Outcome, Usage};
use crate::progress::Progress;
use crate::{console, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    /// Folder of a checkpoint, a .gguf file, or a pulled model such as org/name; without it and without --shape the embedded model
    #[arg(value_name = "MODEL", conflicts_with = "shape")]
    path: Option<PathBuf>,
    /// The same as MODEL
    #[arg(long = "model", value_name = "DIR|NAME", conflicts_with_all = ["path", "shape"])]
    model: Option<PathBuf>,
    /// Random weights in the shape of a published model; an unknown NAME lists them
    #[arg(long, value_name = "NAME", value_parser = shape)]
    shape: Option<Shape>,
    /// Parts to measure
    #[arg(long, value_name = "PART,...", value_delimiter = ',', default_values_t = Part::ALL)]
    only: Vec<Part>,
    /// A picture to encode; may be given several times [default: 1024x1024]
    #[arg(long, value_name = "WxH", value_parser = image_size)]
    image: Vec<(usize, usize)>,
    /// Tokens of a prompt; may be given several times [default: 512]
    #[arg(long, value_name = "N", value_parser = |s: &str| count(s, 1..=MOST))]
    prefill: Vec<usize>,
    /// Tokens to decode for each sequence
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = |s: &str| count(s, 1..=MOST))]
    decode: usize,
    /// Tokens in the cache before decoding
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = |s: &str| count(s, 1..=MOST))]
    depth: usize,
    /// Sequences to decode at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = |s: &str| count(s, 1..=4096))]
    batch: usize,
    /// Timed runs of each part; their median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = |s: &str| count(s, 1..=1000))]
    reps: usize,
    /// Run each part once more with its ops timed one by one, and print what they took
    #[arg(long)]
    ops: bool,
    #[command(flatten)]
    device: DeviceArgs,
    /// Instruction set of the kernels, such as avx2 [default: the best that the processor has]
    #[arg(long, value_name = "NAME")]
    isa: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  turbospark bench
  turbospark bench --shape qwen3-vl-2b --threads 2
  turbospark bench --shape qwen3.5-0.8b --only prefill --prefill 512 --prefill 2048
  turbospark bench --shape qwen3-vl-2b --only decode --batch 8 --isa avx2 --json
  turbospark bench --shape qwen3-vl-2b --only prefill,decode --quant q4_k
  turbospark bench Qwen3-VL-2B-Instruct --only encode --image 1280x960

A shape's checkpoint is written once, to turbospark/shapes in the cache folder (XDG_CACHE_HOME),
and takes two bytes a weight of disk. Each part runs once untimed, then --reps times. Shares are
of what the program measures last: the fastest floating-point unit that the precision allows,
and reading memory. Operations are counted from the shapes; bytes of a decoded token are the
weights that a pass reads, shared by the batch, and the token's own cache.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    Encode,
    Prefill,
    Decode,
}

impl Part {
    const ALL: [Part; 3] = [Part::Encode, Part::Prefill, Part::Decode];
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Encode => "encode",
            Part::Prefill => "prefill",
            Part::Decode => "decode",
        })
    }
}

fn shape(name: &str) -> Result<Shape, String> {
    let names = || Shape::names().collect::<Vec<_>>().join(", ");
    Shape::named(name).ok_or_else(|| format!("the shapes are {}", names()))
}

fn image_size(text: &str) -> Result<(usize, usize), String> {
    // The tower's patches are counted in 32 bits, and a side of 16384 has a thousand.
    let side = |s: &str| s.parse().ok().filter(|n| (1..=16_384).contains(n));
    let sides = text.split_once('x').and_then(|(w, h)| side(w).zip(side(h)));
    sides.ok_or_else(|| "expected width and height such as 1280x960, at most 16384 each".into())
}

pub fn run(args: &BenchArgs, verbose: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::listen();
    let progress = Progress::new(verbose, false);
    let cancel = Cancel::new();
    let options = args.bench_options(cancel.clone());
    interrupt.begin(cancel.clone());
    let built = args.shape.as_ref().map(|shape| build(shape, &cancel, &progress)).transpose()?;
    let path = built.as_deref().or(args.path.as_deref()).or(args.model.as_deref());
    progress.says("loading the model");
    let model = model::open(path, &options.load(args.load_options()))?;
    let has_vision = model.config().has_vision();
    if !has_vision && args.only == [Part::Encode] {
        return Err(Usage(format!("{} reads text only: there is nothing to encode", model.name())).into());
    }
    let images = if has_vision { options.images.clone() } else { Vec::new() };
    let options = BenchOptions { images, ..options };
    let report = bench::bench(&model, &options, &mut |stage| progress.says(stage_name(stage)))?;
    progress.hide();
    interrupt.end();
    if args.json {
        let mut object = object(&model, &report);
        object["model_path"] = json!(path);
        #[cfg(feature = "device-wgpu")]
        if model.device().name().starts_with("gpu") {
            object["adapter"] = json!(super::adapters::chosen(args.load_options().adapter.as_deref()));
        }
        object["quant"] = json!(args.load_options().quant.map(|q| q.to_string()));
        console::print_json(&object)?;
    } else {
        console::print(&table(&model, &report))?;
    }
    Ok(Outcome::Done)
}

impl BenchArgs {
    fn bench_options(&self, cancel: Cancel) -> BenchOptions {
        let or = |given: &[usize], default: usize| if given.is_empty() { vec![default] } else { given.to_vec() };
        let has = |part| self.only.contains(&part);
        let images = if self.image.is_empty() { vec![(1024, 1024)] } else { self.image.clone() };
        BenchOptions {
            images: if has(Part::Encode) { images } else { Vec::new() },
            prefill: if has(Part::Prefill) { or(&self.prefill, 512) } else { Vec::new() },
            decode: if has(Part::Decode) { self.decode } else { 0 },
            depth: self.depth,
            batch: self.batch,
            reps: self.reps,
            ops: self.ops,
            cancel,
        }
    }

    fn load_options(&self) -> LoadOptions {
        LoadOptions { isa: self.isa.clone(), ..self.device.options() }
    }
}

/// The checkpoint of a shape, written where it is not there yet.
fn build(shape: &Shape, cancel: &Cancel, progress: &Progress) -> anyhow::Result<PathBuf> {
    let folder = bench::cache_folder()?;
    let path = folder.join(shape.name);
    let mut told = false;
    let built = bench::build_checkpoint(shape, &folder, cancel, &mut |done, of| {
        if !std::mem::replace(&mut told, true) {
            let gigabytes = of as f64 / 1e9;
            console::note(format_args!("writing random weights to {}: {gigabytes:.2} GB", path.display()));
        }
        progress.says(format!("writing {} % of the weights", 100 * done / of.max(1)));
    })?;
    Ok(built)
}

fn stage_name(stage: Stage) -> String {
    match stage {
        Stage::Limits => "measuring the machine".into(),
        Stage::Encode(width, height) => format!("encoding {width}x{height}"),
        Stage::Prefill(tokens) => format!("prefill of {tokens} tokens"),
        Stage::Decode(1) => "decoding".into(),
        Stage::Decode(batch) => format!("decoding {batch} sequences"),
        _ => "measuring".into(),
    }
}

fn object(model: &Model, report: &Report) -> Value {
    let name = model.device().name();
    let encode: Vec<Value> = report.encode.iter().map(|e| encode_object(e, report)).collect();
    let prefill: Vec<Value> = report.prefill.iter().map(|p| prefill_object(p, report)).collect();
    json!({
        "device": name.split(' ').next(),
        "device_name": name,
        "threads": report.threads,
        "kv": model.kv_dtype().to_string().to_lowercase(),
        "precision": if model.device().precision() == Precision::F32 { "f32" } else { "auto" },
        "model": model.name(),
        "limits": report.limits.as_ref().map(limits_object),
        "image": encode.first(),
        "images": encode,
        "prefill": prefill.first(),
        "prefills": prefill,
        "decode": report.decode.as_ref().map(|d| decode_object(d, report)),
        "weights_bytes": model.checkpoint().total_bytes(),
        "residency": residency(model.memory_plan()),
        "memory": {"ceiling": model.memory_plan().ceiling, "planned": model.memory_plan().total()},
        "peak_rss_bytes": report.peak_rss_bytes,
    })
}

/// Where weights are: what is mapped is in the page cache after the untimed run, what is streamed goes past it.
fn residency(plan: &MemoryPlan) -> &'static str {
    match (plan.streams(), plan.residency.loaded) {
        (true, _) => "streamed",
        (false, true) => "loaded",
        (false, false) => "mapped",
    }
}

fn limits_object(limits: &Limits) -> Value {
    let unit =
        |p: &turbospark::device::Peak| json!({"unit": p.unit, "inputs": p.inputs.name(), "tops": p.ops_per_s / 1e12});
    json!({
        "read_gb_s": limits.read_bytes_per_s / 1e9,
        "peaks": limits.peaks.iter().map(unit).collect::<Vec<_>>(),
    })
}

fn encode_object(e: &Encode, report: &Report) -> Value {
    let (w, h) = e.size;
    json!({
        "size": format!("{w}x{h}"),
        "grid_thw": e.grid_thw,
        "patches": e.patches(),
        "tokens": e.tokens,
        "encode_s": bench::median(&e.times).as_secs_f64(),
        "tflops": e.flops_per_s() / 1e12,
        "tflop": e.flops.total() / 1e12,
        "peak_share": peak_share(report, e.flops_per_s()),
        "runs_s": seconds(&e.times),
        "ops": ops_list(e.ops.as_deref()),
    })
}

fn prefill_object(p: &Prefill, report: &Report) -> Value {
    json!({
        "tokens": p.tokens,
        "tok_s": p.tokens_per_s(),
        "prefill_s": bench::median(&p.times).as_secs_f64(),
        "tflops": p.flops_per_s() / 1e12,
        "tflop": p.flops.total() / 1e12,
        "peak_share": peak_share(report, p.flops_per_s()),
        "runs_s": seconds(&p.times),
        "ops": ops_list(p.ops.as_deref()),
    })
}

fn decode_object(d: &Decode, report: &Report) -> Value {
    json!({
        "tokens": d.tokens,
        "depth": d.depth,
        "batch": d.batch,
        "tok_s": d.tokens_per_s(),
        "decode_s": bench::median(&d.times).as_secs_f64(),
        "bytes_per_token": d.bytes_per_token,
        "weight_bytes_per_token": d.weight_bytes_per_token,
        "gb_s": d.bytes_per_s() / 1e9,
        "bandwidth_share": bandwidth_share(report, d),
        "runs_s": seconds(&d.times),
        "ops": ops_list(d.ops.as_deref()),
        "streaming": d.streaming.as_ref().map(|s| streaming_object(d, s)),
    })
}

fn streaming_object(d: &Decode, s: &Streaming) -> Value {
    let mut object = crate::answer::reads_object(&s.reads);
    object["bytes_per_pass"] = json!(s.bytes_per_pass);
    object["disk_bytes_per_s"] = json!(s.disk());
    object["disk_runs_bytes_per_s"] = json!(s.disk_bytes_per_s);
    object["disk_share"] = json!(d.disk_share());
    object["stall_share"] = json!(d.stall_share());
    object["hidden_share"] = json!(d.hidden_share());
    object["bound_share"] = json!(d.bound_share());
    let visits = |of: &dyn Fn(&turbospark::Visit) -> f64| s.visits.iter().map(of).sum::<f64>();
    object["visits"] = json!({
        "layers": s.visits.len(),
        "bytes": visits(&|v| v.bytes as f64),
        "computing_s": visits(&|v| v.computing.as_secs_f64()),
        "last_s": visits(&|v| v.last.as_secs_f64()),
        "stalled_s": visits(&|v| v.stalled.as_secs_f64()),
    });
    object
}

fn ops_list(ops: Option<&[OpTime]>) -> Option<Vec<Value>> {
    let one = |op: &OpTime| json!({"op": op.op, "runs": op.runs, "s": op.time.as_secs_f64()});
    ops.map(|ops| ops.iter().map(one).collect())
}

/// Ops as lines, the longest first.
fn ops_lines(out: &mut String, ops: Option<&[OpTime]>) {
    let all: Duration = ops.unwrap_or_default().iter().map(|op| op.time).sum();
    for op in ops.unwrap_or_default() {
        let (ms, share) = (1e3 * op.time.as_secs_f64(), 100.0 * op.time.as_secs_f64() / all.as_secs_f64().max(1e-12));
        let _ = writeln!(out, "  {ms:>10.3} ms {share:>4.0} % {:>5} x {}", op.runs, op.op);
    }
}

fn seconds(times: &[Duration]) -> Vec<f64> {
    times.iter().map(Duration::as_secs_f64).collect()
}

fn peak_share(report: &Report, ops_per_s: f64) -> Option<f64> {
    report.peak_ops_per_s.map(|peak| ops_per_s / peak)
}

fn bandwidth_share(report: &Report, d: &Decode) -> Option<f64> {
    report.limits.as_ref().map(|l| d.bytes_per_s() / l.read_bytes_per_s)
}

/// The same for people.
fn table(model: &Model, report: &Report) -> String {
    let mut out = format!("{} on {}\n", model.name(), model.device().name());
    let line = |out: &mut String, key: &str, value: String| {
        let _ = writeln!(out, "{key:<18}{value}");
    };
    if let Some(limits) = &report.limits {
        line(&mut out, "memory read", format!("{:.1} GB/s", limits.read_bytes_per_s / 1e9));
        for p in &limits.peaks {
            line(
                &mut out,
                "arithmetic",
                format!("{:.3} T{}/s {}, {}", p.ops_per_s / 1e12, ops(p), p.inputs.name(), p.unit),
            );
        }
    }
    let of =
        |share: Option<f64>, what: &str| share.map_or(String::new(), |s| format!(", {:.0} % of {what}", 100.0 * s));
    for e in &report.encode {
        let (w, h) = e.size;
        let share = of(peak_share(report, e.flops_per_s()), "peak");
        let (time, speed) = (bench::median(&e.times).as_secs_f64(), e.flops_per_s() / 1e12);
        let rows = format!("{} patches, {} tokens", e.patches(), e.tokens);
        line(&mut out, &format!("encode {w}x{h}"), format!("{time:.3} s, {speed:.3} TFLOP/s{share} ({rows})"));
        ops_lines(&mut out, e.ops.as_deref());
    }
    for p in &report.prefill {
        let share = of(peak_share(report, p.flops_per_s()), "peak");
        let speed = p.flops_per_s() / 1e12;
        line(
            &mut out,
            &format!("prefill {}", p.tokens),
            format!("{:.1} tokens/s, {speed:.3} TFLOP/s{share}", p.tokens_per_s()),
        );
        ops_lines(&mut out, p.ops.as_deref());
    }
    if let Some(d) = &report.decode {
        let share = of(bandwidth_share(report, d), "memory read");
        let name =
            if d.batch == 1 { format!("decode {}", d.tokens) } else { format!("decode {} x {}", d.batch, d.tokens) };
        let (rate, read, each) = (d.tokens_per_s(), d.bytes_per_s() / 1e9, d.bytes_per_token / 1e6);
        line(&mut out, &name, format!("{rate:.2} tokens/s, {read:.1} GB/s{share} ({each:.1} MB a token)"));
        ops_lines(&mut out, d.ops.as_deref());
    }
    if let Some((d, s)) = report.decode.as_ref().and_then(|d| Some((d, d.streaming.as_ref()?))) {
        let (each, share, disk) = (s.bytes_per_pass / 1e6, d.disk_share().unwrap_or(0.0), s.disk().unwrap_or(0.0));
        let shares = format!("{:.0} % of a disk of {:.2} GB/s", 100.0 * share, disk / 1e9);
        line(&mut out, "read again", format!("{each:.1} MB a pass, {shares}"));
        let bound = 100.0 * d.bound_share().unwrap_or(0.0);
        let hidden = format!("what reads and computing allow is {bound:.0} % of it");
        line(&mut out, "waited", format!("{:.0} % of the time; {hidden}", 100.0 * d.stall_share().unwrap_or(0.0)));
        if let Some(rate) = s.reads.expert_hit_rate() {
            let (right, all, vain) = (s.reads.right_guesses, s.reads.guesses, s.reads.vain_bytes as f64 / 1e6);
            let guesses = format!("{right} of {all} read on a guess were chosen, {vain:.1} MB read in vain");
            line(&mut out, "experts there", format!("{:.1} %; {guesses}", 100.0 * rate));
        }
    }
    if let Some(bytes) = report.peak_rss_bytes {
        line(&mut out, "peak memory", format!("{:.2} GB, mapped weights included", bytes as f64 / 1e9));
    }
    out
}

/// FLOP, or OP for integers.
fn ops(peak: &turbospark::device::Peak) -> &'static str {
    if peak.inputs.name() == "int8" { "OP" } else { "FLOP" }
}
