//! How far a pull is: a line on a terminal, now and then a line in a log.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use turbospark_hub::{Bytes, Event};

use crate::console;

/// Between two lines where nothing can be drawn over.
const PAUSE: Duration = Duration::from_secs(15);

pub struct Transfer {
    quiet: bool,
    bar: Option<ProgressBar>,
    told: Instant,
    total: u64,
    here: u64,
}

impl Transfer {
    pub fn new(quiet: bool, verbose: bool) -> Self {
        let drawn = io::stderr().is_terminal() && !verbose && !quiet;
        let bar = drawn.then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_message("asking the hub");
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Transfer { quiet, bar, told: Instant::now(), total: 0, here: 0 }
    }

    pub fn hear(&mut self, event: Event<'_>) {
        match event {
            Event::Planned { files, bytes, here } => self.plan(files, bytes, here),
            Event::File { name, bytes, from } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(name.to_owned());
                } else if from > 0 {
                    self.line(format_args!("{name}: going on after {} of {}", Bytes(from), Bytes(bytes)));
                }
            }
            Event::Bytes(n) => {
                self.here += n;
                self.moved();
            }
            Event::Again(n) => {
                self.here = self.here.saturating_sub(n);
                self.moved();
            }
            Event::Waiting { name } => self.line(format_args!("another process fetches {name}; waiting for it")),
            Event::Retry { problem, wait } => {
                self.line(format_args!("{problem}; trying again in {} s", wait.as_secs_f32().ceil()));
            }
            Event::Done { name, bytes } if self.bar.is_none() => self.line(format_args!("{name}: {}", Bytes(bytes))),
            _ => {}
        }
    }

    fn plan(&mut self, files: usize, bytes: u64, here: u64) {
        (self.total, self.here) = (bytes, here);
        if let Some(bar) = &self.bar {
            let template =
                "{spinner} {msg} [{bar:24}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}";
            bar.set_style(ProgressStyle::with_template(template).expect("our own templates parse"));
            bar.set_length(bytes);
            // What was here says nothing about how fast the rest comes.
            bar.set_position(here);
            bar.reset_eta();
        } else if here < bytes {
            let part = if here > 0 { format!(", {} of it here", Bytes(here)) } else { String::new() };
            self.line(format_args!("{files} files, {}{part}", Bytes(bytes)));
        }
    }

    fn moved(&mut self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.here);
        } else if self.told.elapsed() >= PAUSE {
            let percent = 100.0 * self.here as f64 / self.total.max(1) as f64;
            self.line(format_args!("{} of {}, {percent:.0} %", Bytes(self.here), Bytes(self.total)));
        }
    }

    fn line(&mut self, message: std::fmt::Arguments<'_>) {
        self.told = Instant::now();
        match &self.bar {
            _ if self.quiet => {}
            Some(bar) => bar.suspend(|| console::note(message)),
            None => console::note(message),
        }
    }

    /// Takes the line away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
