//! Threads that help to read.
//!
//! They are started once and then sleep: a thread that is new takes its turn behind those that compute, and on a busy
//! machine that cost more than reading an expert. One that has slept is run at once.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Two that read at once have all the helpers that they can use.
const HELPERS: usize = 6;

/// Runs `work` here and on up to `more` other threads at the same time, and waits for all that began it.
///
/// # Panics
/// Where `work` does, on any of them.
pub(crate) fn together(more: usize, work: &(dyn Fn() + Sync)) {
    let helpers = if more > 0 { helpers() } else { None };
    let Some(helpers) = helpers else { return work() };
    let open = Arc::new(Open::default());
    // SAFETY: erased for the time of this call only: `Waiting` takes back what nobody has begun and waits for the rest,
    // however this function ends.
    let work: &'static (dyn Fn() + Sync) = unsafe { std::mem::transmute(work) };
    let waiting = Waiting { helpers, open: open.clone() };
    helpers.queue().extend((0..more).map(|_| Ticket { work, open: open.clone() }));
    (0..more).for_each(|_| helpers.more.notify_one());
    work();
    drop(waiting);
    assert!(!open.panicked.load(Ordering::Acquire), "another thread panicked at this work");
}

struct Helpers {
    queue: Mutex<VecDeque<Ticket>>,
    more: Condvar,
}

/// An invitation to run some work.
struct Ticket {
    work: &'static (dyn Fn() + Sync),
    open: Arc<Open>,
}

/// How many are at some work.
#[derive(Default)]
struct Open {
    at_work: Mutex<usize>,
    ended: Condvar,
    panicked: AtomicBool,
}

impl Open {
    fn at_work(&self) -> MutexGuard<'_, usize> {
        self.at_work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who waits for the others, when it is dropped.
struct Waiting {
    helpers: &'static Helpers,
    open: Arc<Open>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.helpers.queue().retain(|ticket| !Arc::ptr_eq(&ticket.open, &self.open));
        let mut at_work = self.open.at_work();
        while *at_work > 0 {
            at_work = self.open.ended.wait(at_work).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Helpers {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Ticket>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn help(&self) {
        let mut queue = self.queue();
        loop {
            let Some(Ticket { work, open }) = queue.pop_front() else {
                queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // Before the queue is free again: who waits finds the ticket there, or somebody at work.
            *open.at_work() += 1;
            drop(queue);
            // Told to whoever waits; this thread is others' too.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err() {
                open.panicked.store(true, Ordering::Release);
            }
            *open.at_work() -= 1;
            open.ended.notify_all();
            queue = self.queue();
        }
    }
}

/// The threads; `None` where none can be started.
fn helpers() -> Option<&'static Helpers> {
    static ALL: OnceLock<(&'static Helpers, usize)> = OnceLock::new();
    let (helpers, started) = ALL.get_or_init(|| {
        let helpers: &'static Helpers =
            Box::leak(Box::new(Helpers { queue: Mutex::new(VecDeque::new()), more: Condvar::new() }));
        let start = || std::thread::Builder::new().name("read".into()).spawn(|| helpers.help());
        (helpers, (0..HELPERS).filter(|_| start().is_ok()).count())
    });
    (*started > 0).then_some(*helpers)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn all_who_began_have_ended_when_it_returns() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let (left, ended, began) =
                            (AtomicUsize::new(round % 7), AtomicUsize::new(0), AtomicUsize::new(0));
                        together(3, &|| {
                            began.fetch_add(1, Ordering::Relaxed);
                            let take = |n: usize| n.checked_sub(1);
                            while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
                                std::thread::yield_now();
                            }
                            ended.fetch_add(1, Ordering::Relaxed);
                        });
                        assert_eq!(left.into_inner(), 0);
                        let began = began.into_inner();
                        assert!((1..=4).contains(&began) && ended.into_inner() == began);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_on_a_helper_is_one_here() {
        let here = std::thread::current().id();
        let panics = std::panic::catch_unwind(|| {
            for _ in 0..1000 {
                together(2, &|| {
                    assert!(std::thread::current().id() == here, "meant to be seen in the output of this test");
                    std::thread::sleep(std::time::Duration::from_millis(1));
                });
            }
        });
        assert!(panics.is_err());
        together(2, &|| ());
    }
}
