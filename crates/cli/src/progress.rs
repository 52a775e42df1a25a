//! What is going on, on a terminal's last line; nothing anywhere else.

use std::cell::Cell;
use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line on stderr that is gone when the work is.
pub struct Progress {
    bar: Option<ProgressBar>,
    has_length: Cell<bool>,
    /// Text streams to the same terminal: the line would lie over it.
    shares_terminal: bool,
}

impl Progress {
    /// Drawn only where stderr is a terminal and no log is written there. `streams` says whether text goes to
    /// stdout as it comes.
    pub fn new(verbose: bool, streams: bool) -> Self {
        let drawn = io::stderr().is_terminal() && !verbose;
        let bar = drawn.then(|| {
            let bar = ProgressBar::new_spinner();
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        let shares_terminal = streams && io::stdout().is_terminal();
        Progress { bar, has_length: Cell::new(false), shares_terminal }
    }

    /// Heads the line, such as `3/10 page.png`.
    pub fn about(&self, what: String) {
        if let Some(bar) = &self.bar {
            bar.set_prefix(what);
        }
    }

    /// Says what is going on where there is no number to it.
    pub fn says(&self, message: impl Into<String>) {
        let Some(bar) = &self.bar else { return };
        bar.set_style(style("{spinner} {prefix} {msg}"));
        self.has_length.set(false);
        bar.set_message(message.into());
    }

    /// The work before the first token.
    pub fn report(&self, progress: turbospark::Progress) {
        match progress {
            turbospark::Progress::Encode { images, of } if images < of => {
                self.says(format!("encoding image {} of {of}", images + 1));
            }
            turbospark::Progress::Prefill { tokens, of } => self.counts("reading the prompt", tokens, of),
            _ => {}
        }
    }

    fn counts(&self, message: &str, done: usize, of: usize) {
        let Some(bar) = &self.bar else { return };
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        bar.set_message(message.to_owned());
        if !self.has_length.replace(true) {
            bar.set_style(style("{spinner} {prefix} {msg} [{bar:24}] {pos}/{len} tokens"));
        }
    }

    /// How fast tokens come.
    pub fn decoding(&self, tokens: usize, time: Duration) {
        if self.shares_terminal {
            return self.hide();
        }
        if self.bar.is_some() {
            let rate = tokens.saturating_sub(1) as f64 / time.as_secs_f64().max(1e-9);
            self.says(format!("{tokens} tokens, {rate:.1} a second"));
        }
    }

    /// Takes the line away for good.
    pub fn hide(&self) {
        if let Some(bar) = self.bar.as_ref().filter(|b| !b.is_finished()) {
            bar.finish_and_clear();
        }
    }

    /// Shows the line again for the next piece of work.
    pub fn again(&self) {
        if let Some(bar) = self.bar.as_ref().filter(|b| b.is_finished()) {
            bar.reset();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("our own templates parse")
}
