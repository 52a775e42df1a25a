//! What a pull tells while it works, and how it is asked to stop.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::http::Failure;

/// One thing that happened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// It is known what is to come.
    Planned {
        /// Files of the model.
        files: usize,
        /// Their bytes.
        bytes: u64,
        /// Bytes of them that are here already.
        here: u64,
    },
    /// A file's turn has come.
    File {
        /// Its path in the repository.
        name: &'a str,
        /// Its bytes.
        bytes: u64,
        /// Bytes that an earlier pull left.
        from: u64,
    },
    /// So many more bytes came.
    Bytes(u64),
    /// So many bytes have to come again.
    Again(u64),
    /// Another process fetches the same file.
    Waiting {
        /// The file.
        name: &'a str,
    },
    /// It failed in a way that passes, and is tried again.
    Retry {
        /// What went wrong.
        problem: &'a Error,
        /// The wait before the next attempt.
        wait: Duration,
    },
    /// A file is here, whole and checked.
    Done {
        /// Its path in the repository.
        name: &'a str,
        /// Its bytes.
        bytes: u64,
    },
    /// Nothing happened; a moment to ask for the end.
    Idle,
}

/// Hears of events and may ask for the end.
pub type Watch<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// Tells, and ends where the listener wants it.
pub(crate) fn tell(watch: &mut Watch<'_>, event: Event<'_>) -> Result<()> {
    match watch(event) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Cancelled),
    }
}

/// Waits, in steps short enough for a person who wants to stop.
pub(crate) fn sleep(time: Duration, watch: &mut Watch<'_>) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        tell(watch, Event::Idle)?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// How often, and after what wait, something is tried again.
pub(crate) struct Patience {
    first: Duration,
    tries: u32,
}

impl Patience {
    const TRIES: u32 = 5;
    /// A server that wants a longer wait than this gets none.
    const LONGEST: Duration = Duration::from_secs(300);

    pub(crate) fn new(first: Duration) -> Self {
        Patience { first, tries: 0 }
    }

    /// It worked for a while.
    pub(crate) fn renew(&mut self) {
        self.tries = 0;
    }

    /// Waits for the next attempt.
    ///
    /// # Errors
    /// The failure itself, where no further attempt makes sense.
    pub(crate) fn after(&mut self, failure: Failure, watch: &mut Watch<'_>) -> Result<()> {
        let (problem, asked) = match failure {
            Failure::Final(error) => return Err(error),
            Failure::Passing(error, asked) => (error, asked),
        };
        self.tries += 1;
        if self.tries >= Self::TRIES || asked.is_some_and(|a| a > Self::LONGEST) {
            return Err(match (problem, asked) {
                (Error::Network { host, problem }, Some(asked)) => {
                    Error::Network { host, problem: format!("{problem}; it asks to wait {} seconds", asked.as_secs()) }
                }
                (problem, _) => problem,
            });
        }
        let wait = asked.unwrap_or(self.first * 2u32.pow(self.tries - 1));
        tracing::debug!(%problem, ?wait, "trying again");
        tell(watch, Event::Retry { problem: &problem, wait })?;
        sleep(wait, watch)
    }
}
