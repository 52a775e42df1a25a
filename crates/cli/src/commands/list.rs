//! `list`: the models of the cache that this program runs.

use std::fs;

use clap::Args;
use serde_json::Value;
use turbospark::config::Config;
use turbospark_hub::{Bytes, Cache, Format, LocalModel};

use crate::commands::pull::model_object;
use crate::console;
use crate::outcome::Outcome;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    /// Show other programs' models too
    #[arg(long)]
    all: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  turbospark list
  turbospark list --all
  turbospark list --json | jq -r .path

A name of the first column is what --model and rm take. Models that Python programs fetched are
shown as well: the cache is the same.";

pub fn run(args: &ListArgs) -> anyhow::Result<Outcome> {
    let cache = Cache::from_env()?;
    let all = cache.list()?;
    let total = all.len();
    let judged = all.into_iter().map(|model| (runs(&model), model));
    let shown: Vec<(bool, LocalModel)> = judged.filter(|(runs, _)| *runs || args.all).collect();
    if args.json {
        for (runs, model) in &shown {
            let mut object = model_object(model);
            object["runs"] = (*runs).into();
            object["dtype"] = dtype(model).into();
            console::print_json(&object)?;
        }
    } else if !shown.is_empty() {
        console::print(&table(&shown))?;
    }
    let hidden = total - shown.len();
    if hidden > 0 {
        console::note(format_args!(
            "{hidden} more in {} are not for this program; --all shows them",
            cache.root().display()
        ));
    } else if total == 0 && !args.json {
        console::note(format_args!("no models in {}; turbospark pull org/name fetches one", cache.root().display()));
    }
    Ok(Outcome::Done)
}

fn runs(model: &LocalModel) -> bool {
    objection(model).is_none()
}

/// Why this program does not run it, as far as its configuration tells. What a GGUF file holds shows when it is opened.
pub fn objection(model: &LocalModel) -> Option<String> {
    if model.format != Format::Safetensors {
        return None;
    }
    let Some(text) = config(model) else { return Some("its config.json can't be read".into()) };
    Config::parse(&text).err().map(|e| e.to_string())
}

fn config(model: &LocalModel) -> Option<String> {
    const MOST: u64 = 4 << 20;
    let path = model.path.join("config.json");
    fs::metadata(&path).ok().filter(|m| m.len() <= MOST)?;
    fs::read_to_string(path).ok()
}

/// The number format of a checkpoint, by its own account.
fn dtype(model: &LocalModel) -> Option<String> {
    if let Format::Gguf(label) = &model.format {
        return Some(label.clone());
    }
    let config: Value = serde_json::from_str(&config(model)?).ok()?;
    let method = config["quantization_config"]["quant_method"].as_str().map(str::to_owned);
    let bits = || config["quantization"]["bits"].as_u64().map(|b| format!("{b} bits"));
    let plain = || {
        let places = [&config, &config["text_config"]];
        places.iter().flat_map(|c| [&c["dtype"], &c["torch_dtype"]]).find_map(|t| t.as_str()).map(str::to_owned)
    };
    let short: String = method.or_else(bits).or_else(plain)?.chars().filter(|c| !c.is_control()).take(16).collect();
    Some(short)
}

fn table(models: &[(bool, LocalModel)]) -> String {
    let header = ["NAME", "REVISION", "FORMAT", "SIZE", ""].map(str::to_owned);
    let row = |(runs, model): &(bool, LocalModel)| {
        let kind = if model.format == Format::Safetensors { "safetensors" } else { "gguf" };
        let note = match (&model.missing, runs) {
            (Some(missing), _) => missing.clone(),
            (None, false) => "not for this program".into(),
            (None, true) => String::new(),
        };
        let format = format!("{kind} {}", dtype(model).unwrap_or_default());
        [model.name(), model.commit[..12].into(), format.trim().into(), Bytes(model.bytes()).to_string(), note]
    };
    let rows: Vec<[String; 5]> = std::iter::once(header).chain(models.iter().map(row)).collect();
    let width = |i: usize| rows.iter().map(|r| r[i].chars().count()).max().unwrap_or(0);
    let (name, format, size) = (width(0), width(2), width(3));
    let line = |[n, r, f, s, note]: &[String; 5]| {
        let line = format!("{n:<name$}  {r:<12}  {f:<format$}  {s:>size$}  {note}");
        format!("{}\n", line.trim_end())
    };
    rows.iter().map(line).collect()
}
