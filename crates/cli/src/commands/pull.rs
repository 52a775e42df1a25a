//! `pull`: a model from the hub into the cache.

use std::ops::ControlFlow;

use clap::Args;
use serde_json::{Value, json};
use turbospark::Cancel;
use turbospark_hub::{Bytes, Error, Format, LocalModel, Pulled, Settings, Spec, pull};

use crate::commands::list;
use crate::console;
use crate::interrupt::Interrupt;
use crate::outcome::Outcome;
use crate::transfer::Transfer;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PullArgs {
    /// org/name, with @REVISION for a branch, tag or commit, and :QUANT or :FILE.gguf for one of several GGUF files
    #[arg(value_name = "REPO[@REV][:QUANT]", value_parser = str::parse::<Spec>)]
    repo: Spec,
    /// Use no network: say where the copy is that is here, or that there is none
    #[arg(long)]
    offline: bool,
    /// Say nothing but errors and the path
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object instead of the path
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  turbospark pull Qwen/Qwen3-VL-2B-Instruct
  turbospark pull Qwen/Qwen3-VL-2B-Instruct-GGUF:q8_0
  turbospark pull Qwen/Qwen3-VL-2B-Instruct@main --json
  turbospark read scan.png --model Qwen/Qwen3-VL-2B-Instruct

What a model needs is fetched and nothing else: config, tokenizer, templates and the safetensors,
or one GGUF quantisation (Q4_K_M unless another is named) with all its parts and its vision part.
Every file is checked against the hub's checksums. Ctrl-C keeps what came; the same command goes
on from there.

Models go to the cache that Python programs use: HF_HUB_CACHE, else HF_HOME/hub, else
~/.cache/huggingface/hub. A gated or private model needs a token: HF_TOKEN, or the file that
`hf auth login` writes. HF_ENDPOINT names another hub, HTTPS_PROXY a proxy; HF_HUB_OFFLINE=1 is
the same as --offline.";

pub fn run(args: &PullArgs, verbose: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::listen();
    let cancel = Cancel::new();
    interrupt.begin(cancel.clone());
    let mut settings = Settings::from_env()?;
    settings.offline |= args.offline;
    let mut transfer = Transfer::new(args.quiet, verbose);
    let pulled = pull(&args.repo, &settings, &mut |event| {
        transfer.hear(event);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    transfer.finish();
    let pulled = match pulled {
        Err(Error::Cancelled) => {
            console::note(format_args!("stopped; turbospark pull {} goes on from here", args.repo));
            return Ok(Outcome::Interrupted);
        }
        other => other?,
    };
    if !args.quiet {
        tell(&pulled);
    }
    if args.json {
        console::print_json(&object(&pulled))?;
    } else {
        console::print(&format!("{}\n", pulled.model.path.display()))?;
    }
    Ok(Outcome::Done)
}

fn tell(pulled: &Pulled) {
    let (model, files) = (&pulled.model, pulled.files.len());
    let bytes = Bytes(pulled.files.iter().map(|f| f.bytes).sum());
    let came = match pulled.downloaded {
        0 => "all of it was here".to_owned(),
        n => format!("{} fetched", Bytes(n)),
    };
    console::note(format_args!("{}: {files} files, {bytes}, {came}; use it with --model {0}", model.name()));
    if let Some(why) = list::objection(model) {
        console::note(format_args!("this program does not run it: {why}"));
    }
    if let Some(old) = &pulled.replaced {
        let (repo, old) = (&model.repo, &old[..12]);
        console::note(format_args!("the copy from before is still here; turbospark rm {repo}@{old} removes it"));
    }
}

fn object(pulled: &Pulled) -> Value {
    let mut object = model_object(&pulled.model);
    let files = pulled.files.iter().map(|f| json!({"name": f.name, "bytes": f.bytes, "fetched": f.fetched}));
    object["files"] = files.collect();
    object["downloaded_bytes"] = pulled.downloaded.into();
    object
}

/// A model of the cache, as `pull` and `list` print it.
pub fn model_object(model: &LocalModel) -> Value {
    let (format, quant) = match &model.format {
        Format::Gguf(label) => ("gguf", Some(label.as_str())),
        _ => ("safetensors", None),
    };
    json!({
        "model": model.repo.to_string(),
        "name": model.name(),
        "revision": model.commit,
        "refs": model.refs,
        "format": format,
        "quant": quant,
        "bytes": model.bytes(),
        "path": model.path,
        "missing": model.missing,
    })
}
