//! `chat`: turns, images by path, one session so that what was said is not computed again.

use std::io::{self, BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use turbospark::text::{Content, ImageSource, Message, Part, Role};
use turbospark::vision::Picture;
use turbospark::{Answer, ChatOptions, FinishReason, Model, Session};

use super::dropped;
use crate::args::{AnswerArgs, ModelArgs};
use crate::interrupt::Interrupt;
use crate::outcome::{Closed, Outcome};
use crate::progress::Progress;
use crate::{answer, console, input, model};

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ChatArgs {
    /// What the model should be
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    answer: AnswerArgs,
}

const EXAMPLES: &str = "\
Examples:
  turbospark chat
  turbospark chat --model Qwen3-VL-2B-Instruct --system \"Answer in one sentence.\"
  turbospark chat --temperature 0 < questions.txt

A line that is only the path of an image (typed or dragged here) shows it to the model with what
you say next. Ctrl-C stops an answer, and leaves at an empty prompt; Ctrl-D leaves. Fed from a
file or pipe, the exit code is 1 when some turn failed.";

const HELP: &str = "\
/image PATH   show an image with what you say next (or just give its path)
/system TEXT  say what the model should be, and begin anew
/clear        forget what was said
/stats        tokens and times of the last answer
/help         this
/quit         leave (also Ctrl-D)
";

struct Chat<'a> {
    args: &'a ChatArgs,
    model: Model,
    session: Session,
    interrupt: Interrupt,
    system: Option<String>,
    history: Vec<Message>,
    /// Of the history and of the turn to come, in order.
    pictures: Vec<Picture>,
    /// How many of them were shown since the last turn.
    shown: usize,
    last: Option<Answer>,
    failed: bool,
    terminal: bool,
    verbose: bool,
}

pub fn run(args: &ChatArgs, verbose: bool) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::listen();
    let progress = Progress::new(verbose, true);
    progress.says("loading the model");
    let model = model::open(args.model.path(), &args.model.load.options())?;
    // Wrong settings end it here, not in the first turn.
    args.answer.options(model.sampling(), turbospark::Cancel::new())?;
    drop(progress);
    let terminal = io::stdin().is_terminal();
    let mut chat = Chat {
        args,
        session: model.session(),
        model,
        interrupt,
        system: args.system.clone(),
        history: Vec::new(),
        pictures: Vec::new(),
        shown: 0,
        last: None,
        failed: false,
        terminal,
        verbose,
    };
    if terminal {
        console::aside(&format!(
            "{} on {}; /help shows what there is\n",
            chat.model.name(),
            chat.model.device().name()
        ));
    }
    chat.talk()?;
    Ok(Outcome::failed_if(chat.failed && !terminal))
}

impl Chat<'_> {
    fn talk(&mut self) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        loop {
            if self.terminal {
                console::aside("> ");
            }
            bytes.clear();
            if io::stdin().lock().read_until(b'\n', &mut bytes)? == 0 {
                if self.terminal {
                    console::aside("\n");
                }
                return Ok(());
            }
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim();
            if line == "/quit" || line == "/exit" {
                return Ok(());
            }
            match self.line(line) {
                Ok(()) => {}
                Err(error) if error.is::<Closed>() => return Err(error),
                Err(error) => {
                    self.failed = true;
                    console::error(format_args!("{error:#}"));
                }
            }
        }
    }

    fn line(&mut self, line: &str) -> anyhow::Result<()> {
        if line.is_empty() {
            return Ok(());
        }
        let paths = dropped::paths(line);
        if !paths.is_empty() && paths.iter().all(|p| input::is_media(p)) {
            return paths.iter().try_for_each(|path| self.show(path));
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match command {
            "/help" => console::aside(HELP),
            "/image" if rest.is_empty() => anyhow::bail!("/image needs a path"),
            "/image" => {
                let paths = dropped::paths(rest);
                let whole = [PathBuf::from(rest)];
                let paths = if paths.is_empty() { &whole[..] } else { &paths[..] };
                paths.iter().try_for_each(|path| self.show(path))?;
            }
            "/clear" => self.clear(),
            "/system" => {
                self.system = (!rest.is_empty()).then(|| rest.to_owned());
                self.clear();
            }
            "/stats" => {
                let held = self.session.len();
                let last = self.last.as_ref().map_or("no answer yet".to_owned(), answer::summary);
                console::aside(&format!("{last}; {held} of {} tokens of context used\n", self.model.context()));
            }
            _ if command.starts_with('/') && !command[1..].contains('/') => {
                anyhow::bail!("there is no command {command}; /help shows what there is");
            }
            _ => self.turn(line)?,
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.history.clear();
        self.pictures.clear();
        self.shown = 0;
        self.session.clear();
    }

    fn show(&mut self, path: &Path) -> anyhow::Result<()> {
        let name = input::name(path);
        let picture = input::bytes(path).and_then(|bytes| input::picture(&self.model, &name, &bytes));
        let picture = picture.map_err(|e| e.context(name.clone()))?;
        if self.terminal {
            let (width, height, tokens) = (picture.width, picture.height, picture.tokens());
            console::aside(&format!("{name}: {width}x{height}, {tokens} tokens; what about it?\n"));
        }
        self.pictures.push(picture);
        self.shown += 1;
        Ok(())
    }

    /// Says `text` with the images shown since the last turn. A turn that fails leaves no trace in the history,
    /// its images included.
    fn turn(&mut self, text: &str) -> anyhow::Result<()> {
        let shown = std::mem::take(&mut self.shown);
        let mut parts: Vec<Part> = (0..shown).map(|_| Part::Image(ImageSource::default())).collect();
        parts.push(Part::Text(text.to_owned()));
        let content = if shown == 0 { Content::from(text) } else { Content::from(parts) };
        self.history.push(Message::new(Role::User, content));
        match self.answer() {
            Ok(answer) => {
                if answer.finish_reason == FinishReason::Cancelled && answer.text.is_empty() {
                    // Nothing was said: as if it had not been asked, the images still to be asked about.
                    self.history.pop();
                    self.shown = shown;
                } else {
                    self.history.push(Message::new(Role::Assistant, answer.text.as_str()));
                }
                self.failed |= answer::tell_cut("", &self.model, &answer);
                if answer.finish_reason == FinishReason::Cancelled && self.terminal {
                    console::aside("(stopped)\n");
                }
                if self.verbose {
                    console::note(format_args!("{}", answer::summary(&answer)));
                }
                self.last = Some(answer);
                Ok(())
            }
            Err(error) => {
                self.history.pop();
                self.pictures.truncate(self.pictures.len() - shown);
                Err(error)
            }
        }
    }

    fn answer(&mut self) -> anyhow::Result<Answer> {
        let system = self.system.iter().map(|text| Message::new(Role::System, text.as_str()));
        let messages: Vec<Message> = system.chain(self.history.iter().cloned()).collect();
        let prompt = self.model.prompt_with_pictures(&messages, self.pictures.clone(), &ChatOptions::default())?;
        let cancel = turbospark::Cancel::new();
        let options = self.args.answer.options(self.model.sampling(), cancel.clone())?;
        let progress = Progress::new(self.verbose, true);
        self.interrupt.begin(cancel);
        let answer = answer::stream_to_stdout(&mut self.session, &prompt, &options, &progress);
        self.interrupt.end();
        answer
    }
}
