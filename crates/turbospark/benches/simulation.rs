//! Decode speed on machines that aren't here, from recorded routing and a measured disk; and how far it is off here.
//!
//! ```sh
//! run="cargo bench -p turbospark --bench simulation --"
//! $run record MODEL PAGES routing.json     # what a trained mixture's router chooses while it reads a folder of pages
//! $run hits routing.json                   # hit rate against the size of the pool, by policy; JSON for scripts/hit_rate.py
//! $run machines routing.json               # the table of docs/bigger-than-memory.md
//! $run measure CHECKPOINT 4GiB [q4_k]      # decodes here, predicts the same, and compares
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use turbospark::bench::{BenchOptions, Shape, bench};
use turbospark::config::Config;
use turbospark::simulate::{Habits, Machine, Prediction, Subject, like, predict, uniform};
use turbospark::{Cancel, Choice, LoadOptions, Model, ResidencyChoice};
use turbospark_models::policy::{Policy, replay};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["record", model, pages, out] => record(Path::new(model), Path::new(pages), Path::new(out)),
        ["hits", routing] => hits(&Recording::read(routing)?),
        ["machines", routing] => machines(&Recording::read(routing)?),
        ["measure", checkpoint, memory] => measure(Path::new(checkpoint), bytes(memory)?, FORMATS[1].1),
        ["measure", checkpoint, memory, format] => {
            let known = FORMATS.iter().find(|(name, _)| *name == format).ok_or("formats are q4_k and bf16")?;
            measure(Path::new(checkpoint), bytes(memory)?, known.1)
        }
        _ => {
            println!("record MODEL PAGES OUT | hits ROUTING | machines ROUTING | measure CHECKPOINT MEMORY [FORMAT]");
            Ok(())
        }
    }
}

/// What a router chose.
struct Recording {
    layers: usize,
    experts: usize,
    /// Passes of prompts and of decoded tokens, as they came.
    all: Vec<Choice>,
    /// Of decoded tokens alone.
    decoded: Vec<Choice>,
}

/// Reads every page of a folder with its experts in a pool, and writes down what layers asked for.
fn record(model: &Path, pages: &Path, out: &Path) -> Result<()> {
    let options = LoadOptions { residency: ResidencyChoice::Streamed, sequences: 1, ..LoadOptions::default() };
    let model = Model::open(model, &options)?;
    let moe = model.config().text.moe.ok_or("not a mixture of experts")?;
    let mut files: Vec<_> = std::fs::read_dir(pages)?.filter_map(|f| Some(f.ok()?.path())).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "png"));
    files.sort();
    let (mut prompts, mut decoded) = (Vec::new(), Vec::new());
    let mut session = model.session();
    for file in &files {
        let prompt = model.prompt().image_file(file).text("Read the text.").build()?;
        model.note_routing(true);
        let mut logits = session.prefill(&prompt, &Cancel::new(), &mut |_| ())?.logits;
        prompts.push(model.note_routing(true));
        for _ in 0..400 {
            let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i as u32);
            if model.generation_config().eos_token_ids.contains(&best) || session.len() + 1 >= model.context() {
                break;
            }
            logits = session.decode(best)?;
        }
        decoded.push(model.note_routing(false));
    }
    let value = json!({
        "layers": model.config().text.num_hidden_layers, "experts": moe.num_experts,
        "per_token": moe.num_experts_per_tok, "pages": files.len(), "prompts": prompts, "decoded": decoded,
    });
    std::fs::write(out, value.to_string())?;
    let tokens = decoded.iter().map(Vec::len).sum::<usize>() / model.config().text.num_hidden_layers;
    println!("{} pages, {tokens} decoded tokens", files.len());
    Ok(())
}

impl Recording {
    fn read(path: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(&std::fs::read_to_string(path)?)?;
        let number = |key: &str| value[key].as_u64().map(|n| n as usize).ok_or(format!("{path}: no {key}"));
        let pages = |key: &str| serde_json::from_value::<Vec<Vec<Choice>>>(value[key].clone());
        let (prompts, decoded) = (pages("prompts")?, pages("decoded")?);
        let all = prompts.into_iter().zip(&decoded).flat_map(|(p, d)| p.into_iter().chain(d.clone())).collect();
        let decoded = decoded.concat();
        Ok(Recording { layers: number("layers")?, experts: number("experts")?, all, decoded })
    }
}

/// Half-lives that are compared: recency, some between, frequency.
const HALF_LIVES: [f64; 8] = [0.0, 2.0, 8.0, 16.0, 32.0, 64.0, 256.0, f64::INFINITY];

fn hits(recording: &Recording) -> Result<()> {
    let all = recording.layers * recording.experts;
    let habits = Habits::of(&recording.decoded, recording.experts);
    let curves: Vec<Value> = HALF_LIVES
        .iter()
        .map(|&half_life| {
            let points: Vec<[f64; 2]> = (1..=16)
                .map(|i| {
                    let slots = (all * i / 16).max(2);
                    let (asked, missed) = replay(&recording.all, slots, Policy { half_life }, &mut |_| ());
                    [slots as f64 / all as f64, 1.0 - missed as f64 / asked as f64]
                })
                .collect();
            let name = match half_life {
                0.0 => "recency".into(),
                f64::INFINITY => "frequency".into(),
                passes => format!("half-life {passes}"),
            };
            json!({"policy": name, "points": points})
        })
        .collect();
    println!("{}", json!({"experts": all, "again": habits.again, "popular": habits.popular, "curves": curves}));
    Ok(())
}

/// Common drives, bytes a second of large direct reads.
const DISKS: [(&str, f64); 4] = [("SATA 0.53", 0.53e9), ("Gen3 3.2", 3.2e9), ("Gen4 6.5", 6.5e9), ("Gen5 12", 12e9)];
/// Installed memory in GB: 4 of them are the system's. Two channels of DDR5 give decoding 50 GB/s.
const INSTALLED: [u64; 3] = [16, 32, 64];
const RAM: f64 = 50e9;
/// Formats: name, bits of linear layers and of tables.
const FORMATS: [(&str, [f64; 2]); 2] = [("q4_k", [4.5, 6.5625]), ("bf16", [16.0, 16.0])];

fn machines(recording: &Recording) -> Result<()> {
    println!("| model | memory | stays | hits | {} |", DISKS.map(|(name, _)| name).join(" | "));
    println!("| --- | --- | --- | --- |{}", " --- |".repeat(DISKS.len()));
    for name in ["qwen3-vl-30b-a3b", "qwen3-vl-235b-a22b"] {
        for (format, bits) in FORMATS {
            let subject = subject(name, bits)?;
            let text = &subject.config.text;
            let moe = text.moe.ok_or("not a mixture")?;
            let tokens = 400;
            let loyal = like(&recording.decoded, recording.experts, text.num_hidden_layers, &moe, tokens);
            let any = uniform(text.num_hidden_layers, &moe, tokens);
            for gb in INSTALLED {
                let machine = Machine { memory: (gb - 4) << 30, ram: RAM, threads: 8 };
                let (Ok(any), Ok(loyal)) = (predict(&subject, &machine, &any), predict(&subject, &machine, &loyal))
                else {
                    println!("| {name} {format} | {gb} GB | too small | |{}", " |".repeat(DISKS.len()));
                    continue;
                };
                let rates = DISKS.map(|(_, disk)| match [any.tokens_per_s(disk), loyal.tokens_per_s(disk)] {
                    [any, loyal] if loyal - any < 0.01 => format!("{loyal:.2}"),
                    [any, loyal] => format!("{any:.2} to {loyal:.2}"),
                });
                let hits = match (any.hit_rate, loyal.hit_rate) {
                    (Some(any), Some(loyal)) => format!("{:.0} to {:.0} %", 100.0 * any, 100.0 * loyal),
                    _ => "all".into(),
                };
                println!(
                    "| {name} {format} | {gb} GB | {} | {hits} | {} |",
                    stays(&loyal, &subject),
                    rates.join(" | ")
                );
            }
        }
    }
    Ok(())
}

fn stays(p: &Prediction, subject: &Subject) -> String {
    let residency = &p.plan.residency;
    let layers = subject.config.text.num_hidden_layers;
    let trunk = if residency.layers.is_empty() {
        "trunk".into()
    } else {
        format!("{} of {layers} trunk layers", layers - residency.layers.len())
    };
    match residency.expert_slots {
        0 => "all".into(),
        slots => {
            let all = subject.config.text.moe.as_ref().map_or(0, |m| m.num_experts) * layers;
            format!("{trunk}, {:.0} % of experts", 100.0 * slots as f64 / all as f64)
        }
    }
}

fn subject(name: &str, bits: [f64; 2]) -> Result<Subject> {
    let shape = Shape::named(name).ok_or("no such shape")?;
    let config = Config::parse(&shape.config.to_string())?;
    Ok(Subject { config, bits, context: 4096, most_patches: 65_536, program: 60 << 20 })
}

/// Decodes `checkpoint` under a ceiling, predicts the same from the choices that it made, and compares.
fn measure(checkpoint: &Path, memory: u64, bits: [f64; 2]) -> Result<()> {
    let options =
        BenchOptions { images: vec![], prefill: vec![], decode: 16, depth: 64, reps: 3, ..Default::default() };
    let load = LoadOptions { memory: Some(memory), ..LoadOptions::default() };
    let began = Instant::now();
    let model = Model::open(checkpoint, &options.load(load))?;
    println!("loaded in {:.1} s", began.elapsed().as_secs_f64());
    model.note_routing(true);
    let report = bench(&model, &options, &mut |_| ())?;
    let per_token = model.config().text.moe.as_ref().map_or(0, |m| m.num_experts_per_tok);
    // Decoded tokens and not chunks of the prompt.
    let routing: Vec<Choice> = model.note_routing(false).into_iter().filter(|(_, e)| e.len() <= per_token).collect();
    let decode = report.decode.as_ref().ok_or("nothing was decoded")?;
    let streaming = decode.streaming.as_ref().ok_or("nothing was read again: give less memory")?;
    let disk = streaming.disk().ok_or("no disk")?;
    // What the same passes computed: the rest of their time they waited. Another run would meet another load.
    let (tokens, all) = ((decode.tokens * decode.times.len()) as f64, decode.times.iter().sum::<Duration>());
    let computed = all.saturating_sub(streaming.reads.stalled).as_secs_f64() / tokens;
    let ram = decode.weight_bytes_per_token / computed.max(1e-6);
    let config = model.config().clone();
    let patch = model.image_config().map_or(0, |i| i.max_pixels / i.layout.patch_size.pow(2));
    let program = model.memory_plan().terms[0].bytes;
    let subject = Subject { config, bits, context: model.context(), most_patches: patch, program };
    let p = predict(&subject, &Machine { memory, ram, threads: 2 }, &routing)?;
    let predicted = p.tokens_per_s(disk);
    let percent = |rate: Option<f64>| rate.map_or("-".into(), |r| format!("{:.1} %", 100.0 * r));
    println!("disk {:.2} GB/s, computed with {:.1} GB/s of weights", disk / 1e9, ram / 1e9);
    println!(
        "measured  {:.3} tokens/s, {:.1} MB a token, hits {}, {:.0} % of the time waited",
        decode.tokens_per_s(),
        streaming.bytes_per_pass / 1e6,
        percent(streaming.reads.expert_hit_rate()),
        100.0 * decode.stall_share().unwrap_or(0.0)
    );
    println!(
        "predicted {:.3} tokens/s, {:.1} MB a token, hits {}: {:+.1} %",
        predicted,
        p.bytes_per_token / 1e6,
        percent(p.hit_rate),
        100.0 * (predicted / decode.tokens_per_s() - 1.0)
    );
    Ok(())
}

/// `4GiB` or `700M`, or bytes.
fn bytes(text: &str) -> Result<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[number.len()..].chars().next().map(|c| c.to_ascii_lowercase()) {
        None => 0,
        Some('m') => 20,
        Some('g') => 30,
        _ => return Err("sizes are such as 4GiB or 700M".into()),
    };
    Ok((number.parse::<f64>()? * f64::from(1u32 << unit)) as u64)
}
