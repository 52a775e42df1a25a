//! What a command came to, as an exit code.

use std::fmt;
use std::process::ExitCode;

use crate::console;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything asked for was done.
    Done,
    /// Some part failed; it was reported when it did.
    Failed,
    /// The flags make no sense together or for this model.
    WrongUsage,
    /// The user stopped it.
    Interrupted,
}

/// Wrong usage that shows only after the flags were read.
#[derive(Debug)]
pub struct Usage(pub String);

/// Nobody reads stdout any more, as with `| head -1`: an end, not a failure.
#[derive(Debug)]
pub struct Closed;

impl Outcome {
    /// `Failed` where something did.
    pub fn failed_if(failed: bool) -> Self {
        if failed { Outcome::Failed } else { Outcome::Done }
    }

    /// Reports an error that ended a command.
    pub fn of_error(error: &anyhow::Error) -> Self {
        if error.is::<Closed>() {
            return Outcome::Done;
        }
        console::error(format_args!("{error:#}"));
        match error.downcast_ref::<turbospark::Error>() {
            Some(turbospark::Error::Cancelled) => Outcome::Interrupted,
            Some(turbospark::Error::Options(_)) => Outcome::WrongUsage,
            _ if error.is::<Usage>() => Outcome::WrongUsage,
            _ => Outcome::Failed,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        ExitCode::from(match outcome {
            Outcome::Done => 0,
            Outcome::Failed => 1,
            Outcome::WrongUsage => 2,
            Outcome::Interrupted => 130,
        })
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output was closed")
    }
}

impl std::error::Error for Closed {}
