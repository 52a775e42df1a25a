//! The turbospark program: flags and glue around the library.
//!
//! Results go to stdout and nothing else does; progress, notes and errors go to stderr. The exit code says
//! whether everything asked for was done (0), a part failed (1), the usage was wrong (2) or the user stopped it
//! (130).
#![forbid(unsafe_code)]

mod answer;
mod args;
mod commands;
mod console;
mod input;
mod interrupt;
mod model;
mod outcome;
mod progress;
mod request;
mod tensors;
mod transfer;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use outcome::Outcome;

fn main() -> ExitCode {
    let cli = Cli::parse();
    console::start_tracing(cli.verbose);
    turbospark::weights::guard_mappings();
    let verbose = cli.verbose > 0;
    let done = match cli.command {
        Command::Read(args) => commands::read::run(&args, verbose),
        Command::Run(args) => commands::run::run(&args, verbose),
        Command::Chat(args) => commands::chat::run(&args, verbose),
        Command::Inspect(args) => commands::inspect::run(&args),
        Command::Preprocess(args) => commands::preprocess::run(&args),
        Command::Bench(args) => commands::bench::run(&args, verbose),
        Command::Trace(args) => commands::trace::run(&args),
        Command::Pack(args) => commands::pack::run(&args, verbose),
        Command::Pull(args) => commands::pull::run(&args, verbose),
        Command::List(args) => commands::list::run(&args),
        Command::Rm(args) => commands::rm::run(&args),
    };
    done.unwrap_or_else(|error| Outcome::of_error(&error)).into()
}
