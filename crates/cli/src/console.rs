//! The two streams: results on stdout, everything else on stderr.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::outcome::Closed;

/// Writes to stdout at once: a reader sees a streamed answer as it is made.
///
/// # Errors
/// [`Closed`] where nobody reads any more.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Err(Closed.into()),
        Err(e) => Err(anyhow::Error::new(e).context("cannot write to standard output")),
    }
}

/// One JSON object on a line of its own.
pub fn print_json(value: &Value) -> anyhow::Result<()> {
    print(&format!("{value}\n"))
}

/// Tells the user something that is no result. A closed stderr is nobody's loss.
pub fn note(message: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "turbospark: {message}");
}

/// As [`note`], for what failed.
pub fn error(message: fmt::Arguments<'_>) {
    let style = if colours() { AnsiColor::Red.on_default().bold() } else { Style::new() };
    let _ = writeln!(io::stderr().lock(), "{style}turbospark:{style:#} {message}");
}

/// Text on stderr as it is: the chat's prompt and its answers to commands.
pub fn aside(text: &str) {
    let mut err = io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

fn colours() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// Spans and their times on stderr: `-v` those of a request's stages, `-vv` everything.
pub fn start_tracing(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => "debug",
        _ => "trace",
    };
    // The names of our crates all begin so; the rest speaks up only when something is wrong.
    let filter = EnvFilter::new(format!("warn,turbospark={level}"));
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(io::stderr)
        .with_ansi(colours())
        .with_target(verbose > 1)
        .finish();
    let _ = tracing::subscriber::set_global_default(subscriber);
}
