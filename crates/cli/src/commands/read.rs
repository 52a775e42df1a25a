//! `read`: images to the text on them.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use turbospark::{Answer, Cancel, Encoded, FinishReason, GenerateOptions, Model, Prompt, Sampling, Session};

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
    /// The next file, opened and too much for those before it.
    waiting: Option<Page>,
}

/// A file that is to be read, or why it can't be.
struct Page {
    number: usize,
    prompt: anyhow::Result<Prompt>,
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
    let mut reader =
        Reader { args, session: model.session(), model, options, progress, verbose, printed: false, waiting: None };
    let mut failed = false;
    let mut number = 0;
    while number < args.files.len() && !reader.options.cancel.is_cancelled() {
        let pages = reader.pages(number);
        number += pages.len();
        let encoded = reader.encode(&pages);
        for page in pages {
            if reader.options.cancel.is_cancelled() {
                break;
            }
            reader.session.take_encoded(&encoded);
            failed |= !reader.page(page)?;
        }
    }
    reader.progress.hide();
    if reader.options.cancel.is_cancelled() {
        console::note(format_args!("interrupted"));
        return Ok(Outcome::Interrupted);
    }
    Ok(Outcome::failed_if(failed))
}

impl Reader<'_> {
    /// The next file, and where the tower is read from the disk as many after it as can share the reading.
    fn pages(&mut self, first: usize) -> Vec<Page> {
        let most = self.model.patches_at_once().unwrap_or(0);
        let (mut pages, mut patches) = (Vec::new(), 0);
        for number in first..self.args.files.len() {
            if self.options.cancel.is_cancelled() {
                break;
            }
            self.progress.again();
            self.progress.about(self.title(number));
            let prompt = match self.waiting.take() {
                Some(page) => page.prompt,
                None => self.open(number),
            };
            patches += prompt.iter().flat_map(|p| p.visuals()).map(|v| v.grid.patches()).sum::<usize>();
            let page = Page { number, prompt };
            if patches > most && !pages.is_empty() {
                self.waiting = Some(page);
                break;
            }
            pages.push(page);
            if patches >= most {
                break;
            }
        }
        pages
    }

    /// Their images, if there are several. What fails or is cancelled here is so again, and told, page by page.
    fn encode(&self, pages: &[Page]) -> Encoded {
        let prompts: Vec<&Prompt> = pages.iter().filter_map(|page| page.prompt.as_ref().ok()).collect();
        if prompts.len() < 2 {
            return Encoded::default();
        }
        self.progress.about(format!("{} pages", prompts.len()));
        self.model.encode(&prompts, &self.options.cancel, &mut |p| self.progress.report(p)).unwrap_or_default()
    }

    /// What heads the line of progress.
    fn title(&self, number: usize) -> String {
        let (file, of) = (&self.args.files[number], self.args.files.len());
        let short = file.file_name().map_or_else(|| input::name(file), |n| n.to_string_lossy().into_owned());
        if of > 1 { format!("{}/{of} {short}", number + 1) } else { short }
    }

    fn open(&self, number: usize) -> anyhow::Result<Prompt> {
        self.progress.says("opening");
        let name = input::name(&self.args.files[number]);
        let bytes = input::bytes(&self.args.files[number])?;
        let picture = input::picture(&self.model, &name, &bytes)?;
        Ok(self.model.prompt().picture(picture).text(self.args.prompt.as_str()).build()?)
    }

    /// Reads one file and reports on it; whether all of it was read.
    ///
    /// # Errors
    /// Only what ends the whole run: a stdout that can't be written.
    fn page(&mut self, page: Page) -> anyhow::Result<bool> {
        let number = page.number;
        let name = input::name(&self.args.files[number]);
        self.progress.again();
        self.progress.about(self.title(number));
        let done = page.prompt.and_then(|prompt| self.read(&prompt, &name).map(|answer| (prompt, answer)));
        let (prompt, answer) = match done {
            Ok(done) => done,
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
            let object = answer::object(&self.model, &prompt, &answer);
            console::print_json(&answer::headed(json!({"file": name, "page": 1}), object))?;
        }
        if self.verbose {
            console::note(format_args!("{name}: {}", answer::summary(&answer)));
            answer::tell_reads(&self.model);
        }
        let cut = answer::tell_cut(&name, &self.model, &answer);
        Ok(!cut && answer.finish_reason != FinishReason::Cancelled)
    }

    fn read(&mut self, prompt: &Prompt, name: &str) -> anyhow::Result<Answer> {
        let (session, options) = (&mut self.session, &self.options);
        if self.args.json {
            return answer::stream(session, prompt, options, &self.progress, &mut |_| Ok(()));
        }
        if self.args.files.len() > 1 {
            self.progress.hide();
            let gap = if std::mem::replace(&mut self.printed, true) { "\n" } else { "" };
            console::print(&format!("{gap}==> {name} <==\n"))?;
            self.progress.again();
        }
        answer::stream_to_stdout(session, prompt, options, &self.progress)
    }
}
