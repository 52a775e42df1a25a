//! `run`: one prompt, one answer.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use turbospark::{Cancel, FinishReason, Model, Prompt};

use crate::args::{AnswerArgs, ModelArgs};
use crate::interrupt::Interrupt;
use crate::outcome::{Closed, Outcome, Usage};
use crate::progress::Progress;
use crate::request::Request;
use crate::{answer, console, input, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// What to ask; - or nothing reads it from standard input
    prompt: Option<String>,
    /// An image to ask about, before the text; may be given several times
    #[arg(long = "image", value_name = "FILE")]
    images: Vec<PathBuf>,
    /// What the model should be
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// A whole request as JSON, as OpenAI's API takes it; - is standard input
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["prompt", "images", "system"])]
    messages: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    answer: AnswerArgs,
}

const EXAMPLES: &str = "\
Examples:
  turbospark run --image receipt.png \"What is the total?\"
  turbospark run --image before.jpg --image after.jpg \"What changed?\" --model Qwen3-VL-2B-Instruct
  git diff | turbospark run --system \"You review code.\" --model Qwen3.5-0.8B
  turbospark run --messages request.json --json
  turbospark run \"Name a colour.\" --temperature 1 --seed 7

Images stand before the text. A request's image addresses may be paths (from the request's own
folder), file: URLs and data: URIs; nothing is fetched. Flags go before a request's settings, and
those before the checkpoint's.";

pub fn run(args: &RunArgs, verbose: bool) -> anyhow::Result<Outcome> {
    let done = answer(args, verbose);
    if let (true, Err(error)) = (args.json, &done)
        && !error.is::<Closed>()
    {
        console::print_json(&json!({"error": format!("{error:#}")}))?;
    }
    done
}

fn answer(args: &RunArgs, verbose: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::listen();
    let request = args.messages.as_deref().map(Request::read).transpose()?;
    let text = if request.is_some() { String::new() } else { prompt_text(args)? };
    let progress = Progress::new(verbose, !args.json);
    progress.says("loading the model");
    let model = model::open(args.model.path(), &args.model.load.options())?;
    let cancel = Cancel::new();
    interrupt.begin(cancel.clone());
    let (prompt, options) = match &request {
        None => (prompt(args, &model, &text)?, args.answer.options(model.sampling(), cancel)?),
        Some(request) => {
            let mut options = args.answer.options(request.answer.sampling(model.sampling()), cancel)?;
            options.max_tokens = options.max_tokens.or(request.answer.max_tokens);
            if options.stop.is_empty() {
                options.stop = request.answer.stop.clone();
            }
            (request.prompt(&model)?, options)
        }
    };
    if let Some(request) = &request {
        let unused = request.unused.iter();
        unused.for_each(|key| console::note(format_args!("the request's {key:?} is not used")));
        answer::pictures(&prompt).enumerate().for_each(|(i, p)| input::tell_notes(&format!("image {}", i + 1), p));
    }
    let mut session = model.session();
    let answer = if args.json {
        let answer = answer::stream(&mut session, &prompt, &options, &progress, &mut |_| Ok(()))?;
        progress.hide();
        console::print_json(&answer::object(&model, &prompt, &answer))?;
        answer
    } else {
        answer::stream_to_stdout(&mut session, &prompt, &options, &progress)?
    };
    if verbose {
        console::note(format_args!("{}", answer::summary(&answer)));
        answer::tell_reads(&model);
    }
    if answer.finish_reason == FinishReason::Cancelled {
        console::note(format_args!("interrupted"));
        return Ok(Outcome::Interrupted);
    }
    Ok(Outcome::failed_if(answer::tell_cut("", &model, &answer)))
}

fn prompt_text(args: &RunArgs) -> anyhow::Result<String> {
    let text = match args.prompt.as_deref() {
        Some(text) if text != input::STDIN => text.to_owned(),
        None if io::stdin().is_terminal() => {
            return Err(Usage("there is no prompt: give one, or pipe it in; see turbospark run --help".into()).into());
        }
        _ => input::stdin_text()?,
    };
    if text.trim().is_empty() {
        return Err(Usage("the prompt is empty".into()).into());
    }
    Ok(text)
}

fn prompt(args: &RunArgs, model: &Model, text: &str) -> anyhow::Result<Prompt> {
    let mut builder = model.prompt();
    if let Some(system) = &args.system {
        builder = builder.system(system.as_str());
    }
    for file in &args.images {
        let name = input::name(file);
        let picture = input::bytes(file).and_then(|bytes| input::picture(model, &name, &bytes));
        builder = builder.picture(picture.with_context(|| name.clone())?);
    }
    Ok(builder.text(text).build()?)
}
