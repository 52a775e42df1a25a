//! Ctrl-C: the first one ends the answer in the making, the next one the program.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, MutexGuard};

use turbospark::Cancel;

use crate::console;

/// Exit code of a program that the user stopped.
pub const EXIT_CODE: i32 = 130;

/// What Ctrl-C ends.
#[derive(Clone, Default)]
pub struct Interrupt {
    work: Arc<Mutex<Option<Cancel>>>,
}

impl Interrupt {
    /// Listens from now on. While no work is announced, Ctrl-C ends the program.
    pub fn listen() -> Self {
        let interrupt = Interrupt::default();
        let heard = interrupt.clone();
        // Without a handler the system's own ending remains, with the same exit code from a shell's view.
        let _ = ctrlc::set_handler(move || {
            let work = heard.lock();
            match work.as_ref().filter(|cancel| !cancel.is_cancelled()) {
                Some(cancel) => cancel.cancel(),
                None => {
                    if io::stderr().is_terminal() {
                        console::aside("\n");
                    }
                    std::process::exit(EXIT_CODE);
                }
            }
        });
        interrupt
    }

    /// Announces work: until [`Interrupt::end`], the first Ctrl-C sets `cancel`.
    pub fn begin(&self, cancel: Cancel) {
        *self.lock() = Some(cancel);
    }

    /// The work is over.
    pub fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Cancel>> {
        self.work.lock().unwrap_or_else(|e| e.into_inner())
    }
}
