//! `inspect`: what a model is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use turbospark::Model;
use turbospark::config::{LayerKind, MlpKind, TextConfig, VisionConfig};
use turbospark_hub::Bytes;

use super::plan;
use crate::args::LoadArgs;
use crate::outcome::Outcome;
use crate::{console, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct InspectArgs {
    /// Folder of a checkpoint, a .gguf file, or a pulled model such as org/name; without it the embedded model
    #[arg(value_name = "MODEL")]
    path: Option<PathBuf>,
    /// The same as MODEL
    #[arg(long = "model", value_name = "DIR|NAME", conflicts_with = "path")]
    model: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show what memory would be used for, with --memory under that ceiling
    #[arg(long)]
    plan: bool,
    /// List the graphics adapters of this machine, and what decides which kernels run on them
    #[cfg(feature = "device-wgpu")]
    #[arg(long, conflicts_with_all = ["path", "model", "plan"])]
    adapters: bool,
    #[command(flatten)]
    load: LoadArgs,
}

const EXAMPLES: &str = "\
Examples:
  turbospark inspect
  turbospark inspect Qwen3-VL-2B-Instruct
  turbospark inspect --json Qwen3.5-0.8B | jq .parameters
  turbospark inspect --adapters

Every tensor's name and shape is held against config.json; weights are not read. A checkpoint
that this build can't run is refused with the tensor or key that is in the way.";

pub fn run(args: &InspectArgs) -> anyhow::Result<Outcome> {
    #[cfg(feature = "device-wgpu")]
    if args.adapters {
        return super::adapters::run(args.json);
    }
    let path = args.path.as_deref().or(args.model.as_deref());
    if args.plan {
        // With the real context: the cache is part of the plan.
        let model = model::open_quietly(path, &args.load.options())?;
        match args.json {
            true => console::print_json(&plan::object(&model)?)?,
            false => console::print(&plan::table(&model)?)?,
        }
        return Ok(Outcome::Done);
    }
    let model = model::open_quietly(path, &args.load.options_to_look())?;
    let facts = facts(&model, args.load.options().context);
    if args.json {
        console::print_json(&facts)?;
    } else {
        console::print(&table(&facts))?;
    }
    Ok(Outcome::Done)
}

/// What tensors of one group and one format come to.
#[derive(Default)]
struct Group {
    tensors: usize,
    parameters: u64,
    bytes: u64,
}

/// The part of a model that a tensor belongs to, by the words of its name.
fn part(name: &str) -> &'static str {
    let has = |word: &str| name.contains(word);
    if name.starts_with("mtp.") || name.starts_with("model.mtp.") {
        "prediction head (not run)"
    } else if has(".visual.") {
        if has("merger") { "vision mergers" } else { "vision tower" }
    } else if has("embed_tokens") {
        "embedding"
    } else if name.starts_with("lm_head") {
        "output head"
    } else if has("linear_attn") {
        "linear attention"
    } else if has("self_attn") {
        "attention"
    } else if has("shared_expert") {
        "shared expert"
    } else if has(".experts.") || has("mlp.gate.") {
        "experts and router"
    } else if has(".mlp.") {
        "mlp"
    } else {
        "norms"
    }
}

fn facts(model: &Model, context: Option<usize>) -> Value {
    let (config, checkpoint) = (model.config(), model.checkpoint());
    let mut groups: BTreeMap<(&str, String), Group> = BTreeMap::new();
    for (name, entry) in checkpoint.entries() {
        let group = groups.entry((part(name), entry.format())).or_default();
        group.tensors += 1;
        group.parameters += entry.elements();
        group.bytes += entry.length();
    }
    let parameters: u64 = groups.values().map(|g| g.parameters).sum();
    let listed: Vec<Value> = groups
        .iter()
        .map(|((part, dtype), g)| {
            json!({
                "part": part,
                "dtype": dtype,
                "tensors": g.tensors,
                "parameters": g.parameters,
                "bytes": g.bytes,
                "bits_per_weight": (g.bytes * 8) as f64 / g.parameters.max(1) as f64,
            })
        })
        .collect();
    let files: Vec<Value> = checkpoint.files().iter().map(|f| json!({"name": f.name(), "bytes": f.length()})).collect();
    let default_context = config.max_context().min(turbospark::LoadOptions::DEFAULT_CONTEXT);
    let images = model.image_config().map(|c| {
        json!({"min_pixels": c.min_pixels, "max_pixels": c.max_pixels, "patch_size": c.layout.patch_size,
            "merge_size": c.layout.merge_size, "most_tokens": c.max_pixels / c.layout.factor().pow(2)})
    });
    json!({
        "model": model.name(),
        "family": config.family.model_type(),
        "architecture": if config.has_vision() { "vision and text" } else { "text only" },
        "parameters": parameters,
        "bytes": checkpoint.total_bytes(),
        "context": {"default": context.unwrap_or(default_context), "most": config.max_context()},
        "tied_embeddings": config.tie_word_embeddings,
        "text": text(&config.text),
        "vision": config.vision.as_ref().map(vision),
        "images": images,
        "tensors": listed,
        "skipped_tensors": model.skipped_tensors(),
        "files": files,
        "chat_template": model.has_chat_template(),
        "end_tokens": model.generation_config().eos_token_ids,
        "can": {"text": true, "images": config.has_vision(), "video": false},
        "device": model.device().name(),
    })
}

fn text(c: &TextConfig) -> Value {
    let attention = c.layer_kinds.iter().filter(|k| **k == LayerKind::FullAttention).count();
    let moe = c.mlp_kinds.iter().filter(|k| **k == MlpKind::Moe).count();
    let mut text = json!({
        "layers": c.num_hidden_layers,
        "attention_layers": attention,
        "linear_attention_layers": c.num_hidden_layers - attention,
        "expert_layers": moe,
        "hidden_size": c.hidden_size,
        "heads": c.num_attention_heads,
        "key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "intermediate_size": c.intermediate_size,
        "vocab_size": c.vocab_size,
    });
    if let Some(moe) = &c.moe {
        text["experts"] = json!({
            "experts": moe.num_experts,
            "per_token": moe.num_experts_per_tok,
            "intermediate_size": moe.moe_intermediate_size,
            "shared_intermediate_size": moe.shared_expert_intermediate_size,
        });
    }
    text
}

fn vision(c: &VisionConfig) -> Value {
    json!({
        "blocks": c.depth,
        "hidden_size": c.hidden_size,
        "heads": c.num_heads,
        "intermediate_size": c.intermediate_size,
        "patch_size": c.patch_size,
        "merge_size": c.spatial_merge_size,
        "deepstack_blocks": c.deepstack_visual_indexes,
    })
}

/// The same for people.
fn table(facts: &Value) -> String {
    let number = |v: &Value| v.as_u64().unwrap_or(0);
    let yes = |v: &Value| if v.as_bool() == Some(true) { "yes" } else { "no" };
    let word = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let mut rows: Vec<(&str, String)> = vec![
        (
            "model",
            format!("{}, family {}, {}", word(&facts["model"]), word(&facts["family"]), word(&facts["architecture"])),
        ),
        ("parameters", format!("{}, {}", short(number(&facts["parameters"])), Bytes(number(&facts["bytes"])))),
    ];
    let t = &facts["text"];
    let kinds = [("linear_attention_layers", "with linear attention"), ("expert_layers", "with experts")];
    let kinds = kinds.iter().filter(|(key, _)| number(&t[*key]) > 0);
    let kinds: Vec<String> = kinds.map(|(key, kind)| format!("{} {kind}", t[*key])).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let layers = format!("{} layers{kinds}", t["layers"]);
    rows.push((
        "text",
        format!(
            "{layers}, {} wide, {} heads of {}, {} for keys and values, vocabulary {}",
            t["hidden_size"], t["heads"], t["head_dim"], t["key_value_heads"], t["vocab_size"]
        ),
    ));
    if let Value::Object(e) = &t["experts"] {
        rows.push((
            "experts",
            format!("{}, {} a token, {} wide", e["experts"], e["per_token"], e["intermediate_size"]),
        ));
    }
    if let Value::Object(v) = &facts["vision"] {
        let deepstack = v["deepstack_blocks"].as_array().map_or(0, Vec::len);
        let shape = format!(
            "{} blocks, {} wide, {} heads, patches of {}",
            v["blocks"], v["hidden_size"], v["heads"], v["patch_size"]
        );
        rows.push(("vision", format!("{shape}, {deepstack} deepstack levels")));
    }
    if let Value::Object(i) = &facts["images"] {
        let limits = format!("{} to {} pixels, at most {} tokens", i["min_pixels"], i["max_pixels"], i["most_tokens"]);
        rows.push(("images", limits));
    }
    let context = &facts["context"];
    rows.push(("context", format!("{} tokens (made for {})", context["default"], context["most"])));
    let tied = if facts["tied_embeddings"] == true { "the embedding (tied)" } else { "its own" };
    rows.push(("output head", tied.into()));
    rows.push(("chat template", yes(&facts["chat_template"]).into()));
    let can = &facts["can"];
    rows.push(("this build", format!("text {}, images {}, video not yet", yes(&can["text"]), yes(&can["images"]))));
    rows.push(("device", word(&facts["device"])));

    let mut out: String = rows.iter().map(|(key, value)| format!("{key:<14}{value}\n")).collect();
    out +=
        &format!("\n{:<26}{:<14}{:>8}{:>14}{:>12}{:>9}\n", "part", "format", "tensors", "parameters", "size", "bits");
    for g in facts["tensors"].as_array().into_iter().flatten() {
        let bits = format!("{:.2}", g["bits_per_weight"].as_f64().unwrap_or(0.0));
        let (tensors, parameters) = (number(&g["tensors"]), number(&g["parameters"]));
        let (part, dtype) = (word(&g["part"]), word(&g["dtype"]));
        let bytes = Bytes(number(&g["bytes"])).to_string();
        out += &format!("{part:<26}{dtype:<14}{tensors:>8}{parameters:>14}{bytes:>12}{bits:>9}\n");
    }
    if number(&facts["skipped_tensors"]) > 0 {
        out += &format!("{} tensors belong to parts that are known and not run\n", facts["skipped_tensors"]);
    }
    out.push('\n');
    for f in facts["files"].as_array().into_iter().flatten() {
        out += &format!("{}  {}\n", word(&f["name"]), Bytes(number(&f["bytes"])));
    }
    out
}

/// 11.7 million.
fn short(n: u64) -> String {
    match n {
        1_000_000_000.. => format!("{:.2} billion", n as f64 / 1e9),
        1_000_000.. => format!("{:.1} million", n as f64 / 1e6),
        _ => n.to_string(),
    }
}
