//! `rm`: a model out of the cache.

use std::io::{self, BufRead, IsTerminal};

use clap::Args;
use serde_json::json;
use turbospark_hub::{Bytes, Cache, Removal, Spec};

use crate::console;
use crate::outcome::{Outcome, Usage};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RmArgs {
    /// The model: all its revisions, or one with @REVISION, or one quantisation with :QUANT
    #[arg(value_name = "NAME[@REV][:QUANT]", value_parser = str::parse::<Spec>)]
    name: Spec,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  turbospark rm Qwen/Qwen3-VL-2B-Instruct
  turbospark rm Qwen/Qwen3-VL-2B-Instruct-GGUF:q8_0
  turbospark rm --yes Qwen/Qwen3-VL-2B-Instruct@0123456789ab

Files that another revision or quantisation uses stay. The cache is shared with Python programs:
what is removed here is gone for them too.";

pub fn run(args: &RmArgs) -> anyhow::Result<Outcome> {
    let removal = Cache::from_env()?.removal(&args.name)?;
    if !args.yes && !confirmed(&removal, &args.name)? {
        console::note(format_args!("nothing was removed"));
        return Ok(Outcome::Failed);
    }
    let (files, commits, bytes) = (removal.files.clone(), removal.commits.clone(), removal.bytes);
    removal.apply()?;
    if args.json {
        let name = args.name.to_string();
        console::print_json(&json!({"removed": name, "revisions": commits, "files": files, "freed_bytes": bytes}))?;
    } else {
        console::print(&format!("removed {}: {} freed\n", args.name, Bytes(bytes)))?;
    }
    Ok(Outcome::Done)
}

fn confirmed(removal: &Removal, name: &Spec) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        return Err(Usage(format!("nobody can be asked whether {name} shall go; add --yes")).into());
    }
    let (files, commits) = (removal.files.len(), removal.commits.len());
    let revisions = if commits > 1 { format!(" of {commits} revisions") } else { String::new() };
    console::aside(&format!("remove {name}: {files} files{revisions}, {}? [y/N] ", Bytes(removal.bytes)));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
