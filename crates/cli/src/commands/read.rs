//! `read`: images to the text on them.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use turbospark::{Answer, Cancel, FinishReason, GenerateOptions, Model, Prompt, Sampling, Session};

use crate::args::{AnswerArgs, ModelArgs};
use crate::interrupt::Interrupt;
use crate::outcome::{Closed, Outcome, Usage};
use crate::progress::Progress;
use crate::{answer, console, input, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ReadArgs {
    /// Image files; - is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// What to ask about each image
    #[arg(long, value_name = "TEXT", default_value = "Read the text.")]
    prompt: String,
    /// Print one JSON object a page
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    answer: AnswerArgs,
}

const EXAMPLES: &str = "\
Examples:
  turbospark read receipt.png
  turbospark read --prompt \"What is the total?\" receipt.png
  turbospark read --json scans/*.png > pages.jsonl
  curl -s https://example.com/page.jpg | turbospark read -
  turbospark read --model Qwen3-VL-2B-Instruct --max-tokens 2000 contract.jpg

Reads PNG, JPEG, WebP, GIF, BMP, TIFF and PNM, told by content. The likeliest token is always
taken, so that a page gives the same text each time; --temperature changes that. A file that
can't be read is named on stderr, the others are read, and the exit code is 1.";

/// What all pages share.
struct Reader<'a> {
    args: &'a ReadArgs,
    model: Model,
    session: Session,
    options: GenerateOptions,
    progress: Progress,
    verbose: bool,
    /// Whether a page stands on stdout already.
    printed: bool,
}

/// A page that was read, as far as it went.
struct Page {
    prompt: Prompt,
    answer: Answer,
}

pub fn run(args: &ReadArgs, verbose: bool) -> anyhow::Result<Outcome> {
    if args.files.iter().filter(|f| f.as_os_str() == input::STDIN).count() > 1 {
        return Err(Usage("standard input (-) can be read once only".into()).into());
    }
    let interrupt = Interrupt::listen();
    let progress = Progress::new(verbose, !args.json);
    // Greedy whatever the checkpoint says: this is transcription.
    let options = args.answer.options(Sampling::default(), Cancel::new())?;
    progress.says("loading the model");
    let model = model::open(args.model.path(), &args.model.load.options())?;
    interrupt.begin(options.cancel.clone());
    let mut reader = Reader { args, session: model.session(), model, options, progress, verbose, printed: false };
    let mut failed = false;
    for number in 0..args.files.len() {
        if reader.options.cancel.is_cancelled() {
            break;
        }
        failed |= !reader.page(number)?;
    }
    reader.progress.hide();
    if reader.options.cancel.is_cancelled() {
        console::note(format_args!("interrupted"));
        return Ok(Outcome::Interrupted);
    }
    Ok(Outcome::failed_if(failed))
}

impl Reader<'_> {
    /// Reads one file and reports on it; whether all of it was read.
    ///
    /// # Errors
    /// Only what ends the whole run: a stdout that can't be written.
    fn page(&mut self, number: usize) -> anyhow::Result<bool> {
        let (file, of) = (&self.args.files[number], self.args.files.len());
        let name = input::name(file);
        self.progress.again();
        let short = file.file_name().map_or_else(|| name.clone(), |n| n.to_string_lossy().into_owned());
        self.progress.about(if of > 1 { format!("{}/{of} {short}", number + 1) } else { short });
        let page = match self.read(number, &name) {
            Ok(page) => page,
            Err(error) if error.is::<Closed>() => return Err(error),
            Err(error) => {
                self.progress.hide();
                console::error(format_args!("{name}: {error:#}"));
                if self.args.json {
                    console::print_json(&json!({"file": name, "page": 1, "error": format!("{error:#}")}))?;
                }
                return Ok(false);
            }
        };
        if self.args.json {
            self.progress.hide();
            let object = answer::object(&self.model, &page.prompt, &page.answer);
            console::print_json(&answer::headed(json!({"file": name, "page": 1}), object))?;
        }
        if self.verbose {
            console::note(format_args!("{name}: {}", answer::summary(&page.answer)));
            answer::tell_reads(&self.model);
        }
        let cut = answer::tell_cut(&name, &self.model, &page.answer);
        Ok(!cut && page.answer.finish_reason != FinishReason::Cancelled)
    }

    fn read(&mut self, number: usize, name: &str) -> anyhow::Result<Page> {
        self.progress.says("opening");
        let bytes = input::bytes(&self.args.files[number])?;
        let picture = input::picture(&self.model, name, &bytes)?;
        let prompt = self.model.prompt().picture(picture).text(self.args.prompt.as_str()).build()?;
        let (session, options) = (&mut self.session, &self.options);
        let answer = if self.args.json {
            answer::stream(session, &prompt, options, &self.progress, &mut |_| Ok(()))?
        } else {
            if self.args.files.len() > 1 {
                self.progress.hide();
                let gap = if std::mem::replace(&mut self.printed, true) { "\n" } else { "" };
                console::print(&format!("{gap}==> {name} <==\n"))?;
                self.progress.again();
            }
            answer::stream_to_stdout(session, &prompt, options, &self.progress)?
        };
        Ok(Page { prompt, answer })
    }
}
