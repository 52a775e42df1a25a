//! The worker threads.
//!
//! A pass is hundreds of short parallel regions, so entering and leaving one must cost about a microsecond:
//! workers look for work for a while before they sleep, and nothing is allocated. The parts of a region are
//! handed out by a counter, so a thread that the system holds up delays one part and not a fixed share.
//!
//! What goes wrong unseen: a worker that is late for a region must not enter it once the caller has left, since
//! the job lives on the caller's stack. `gate` guards that: workers enter only while it is open, and the
//! caller closes it and waits for those inside.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker looks for work before it sleeps: longer than the gaps between the regions of a pass.
const LOOK: Duration = Duration::from_micros(40);

/// In `gate`: a region is open. The lower bits count the workers inside.
const OPEN: usize = 1 << (usize::BITS - 1);

type Job<'a> = &'a (dyn Fn(usize) + Sync);

struct Shared {
    gate: AtomicUsize,
    /// Counts regions; a worker enters each at most once.
    epoch: AtomicUsize,
    job: UnsafeCell<Option<(Job<'static>, usize)>>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleeping: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    end: AtomicBool,
}

// SAFETY: `job` is written by the caller of a region while the gate is closed and nobody is inside, and read
// by workers that are inside.
unsafe impl Sync for Shared {}
// SAFETY: as above; the job itself is `Sync`.
unsafe impl Send for Shared {}

/// Threads that run the parts of a region together with the caller.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: AtomicBool,
}

impl Pool {
    /// A pool of `threads` threads, the caller among them.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            gate: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            sleeping: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            end: AtomicBool::new(false),
        });
        let mut pool = Pool { shared, workers: Vec::new(), busy: AtomicBool::new(false) };
        for i in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("cpu-{i}"));
            pool.workers.push(thread.spawn(move || shared.work())?);
        }
        Ok(pool)
    }

    /// Number of threads, the caller among them.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `f` with each of `0..parts`, in any order and on any thread, and returns when all are done.
    ///
    /// # Panics
    /// With the first panic of `f`, once no thread runs it any more.
    pub(crate) fn run(&self, parts: usize, f: impl Fn(usize) + Sync) {
        // A region inside a region runs on its own thread.
        if parts <= 1 || self.workers.is_empty() || self.busy.swap(true, Acquire) {
            return (0..parts).for_each(f);
        }
        let s = &*self.shared;
        let job: Job<'_> = &f;
        // SAFETY: only the lifetime changes. No worker holds the job once the gate is closed and nobody is
        // inside, which is awaited below before `f` goes out of scope, panic or not.
        let job: Job<'static> = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: the gate is closed and nobody is inside: the last region ended so, and `busy` keeps others out.
        unsafe { *s.job.get() = Some((job, parts)) };
        s.next.store(0, Relaxed);
        s.epoch.fetch_add(1, SeqCst);
        s.gate.fetch_or(OPEN, SeqCst);
        if s.sleeping.load(SeqCst) > 0 {
            let _held = s.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            s.wake.notify_all();
        }
        s.take_parts(job, parts);
        s.gate.fetch_and(!OPEN, SeqCst);
        let mut spins = 0u32;
        while s.gate.load(Acquire) != 0 {
            pause(&mut spins);
        }
        let panic = s.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.busy.store(false, Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.end.store(true, SeqCst);
        {
            let _held = self.shared.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its parts, so it has none of its own to report.
            let _ = worker.join();
        }
    }
}

/// Waits a moment; gives the core away now and then, since another thread may need this very core.
fn pause(spins: &mut u32) {
    *spins += 1;
    if spins.is_multiple_of(256) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

impl Shared {
    /// Runs parts until none is left. The first panic is kept for the caller and ends the region early.
    fn take_parts(&self, job: Job<'_>, parts: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let part = self.next.fetch_add(1, Relaxed);
                if part >= parts {
                    return;
                }
                job(part);
            }
        }));
        if let Err(panic) = outcome {
            self.next.store(parts, Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Adds this worker to those inside, if the gate is open.
    fn enter(&self) -> bool {
        let mut gate = self.gate.load(Acquire);
        while gate & OPEN != 0 {
            match self.gate.compare_exchange_weak(gate, gate + 1, SeqCst, Acquire) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        while self.wait(seen) {
            if self.enter() {
                // No new region begins while this worker is inside, so epoch and job are those of one region.
                seen = self.epoch.load(SeqCst);
                // SAFETY: inside, where nobody writes the job.
                if let Some((job, parts)) = unsafe { *self.job.get() } {
                    self.take_parts(job, parts);
                }
                self.gate.fetch_sub(1, Release);
            }
        }
    }

    /// Returns once there is a region after `seen` (true) or the pool ends (false).
    fn wait(&self, seen: usize) -> bool {
        let news = || self.end.load(SeqCst) || (self.epoch.load(SeqCst) != seen && self.gate.load(SeqCst) & OPEN != 0);
        let began = Instant::now();
        let mut spins = 0;
        while !news() {
            pause(&mut spins);
            if spins.is_multiple_of(64) && began.elapsed() > LOOK {
                let mut held = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
                self.sleeping.fetch_add(1, SeqCst);
                while !news() {
                    held = self.wake.wait(held).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleeping.fetch_sub(1, SeqCst);
            }
        }
        !self.end.load(SeqCst)
    }
}

/// One thread a physical core, within the CPUs and the quota that the system grants.
pub(crate) fn default_threads() -> usize {
    let granted = std::thread::available_parallelism().map_or(1, |n| n.get());
    (granted / threads_per_core()).max(1)
}

/// How many logical CPUs share a core; 1 where the system doesn't tell.
fn threads_per_core() -> usize {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
    list.map_or(1, |list| count_cpus(list.trim()))
}

/// The number of CPUs in a list such as `0,64` or `0-1`.
fn count_cpus(list: &str) -> usize {
    let count = |part: &str| match part.split_once('-') {
        Some((a, b)) => Some(b.parse::<usize>().ok()?.checked_sub(a.parse().ok()?)? + 1),
        None => part.parse::<usize>().ok().map(|_| 1),
    };
    list.split(',').map(count).sum::<Option<usize>>().unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once_in_many_short_regions() {
        let pool = Pool::new(4).unwrap();
        for parts in (0..2000).map(|i| i % 37) {
            let hits: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
            pool.run(parts, |p| {
                hits[p].fetch_add(1, Relaxed);
            });
            assert!(hits.iter().all(|h| h.load(Relaxed) == 1));
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(3).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| pool.run(64, |p| assert!(p != 40, "part 40"))));
        assert!(caught.unwrap_err().downcast_ref::<&str>().unwrap().contains("part 40"));
        let sum = AtomicUsize::new(0);
        pool.run(10, |p| {
            sum.fetch_add(p, Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }

    #[test]
    fn a_region_after_a_long_pause_wakes_the_workers() {
        let pool = Pool::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(3));
            let sum = AtomicUsize::new(0);
            pool.run(4, |p| {
                sum.fetch_add(p, Relaxed);
            });
            assert_eq!(sum.into_inner(), 6);
        }
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!((count_cpus("0"), count_cpus("0,64"), count_cpus("0-1"), count_cpus("?")), (1, 2, 2, 1));
    }
}
