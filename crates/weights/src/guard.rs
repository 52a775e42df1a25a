//! What happens when a mapped file is cut while it is in use.
//!
//! Reading a page past the new end raises SIGBUS, whose default ends the process. With the guard a page of zeros takes
//! the place of the lost one and the mapping is marked, so that whoever computed with it learns that the result is
//! worth nothing ([`Checkpoint::check_intact`](crate::Checkpoint::check_intact)) and the process lives. A signal
//! handler belongs to the program, so it is installed on request only.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A mapped range; free where `start` is 0.
struct Range {
    start: AtomicUsize,
    end: AtomicUsize,
    damaged: AtomicBool,
}

/// More files than any published model has.
static RANGES: [Range; 512] =
    [const { Range { start: AtomicUsize::new(0), end: AtomicUsize::new(0), damaged: AtomicBool::new(false) } }; 512];

/// A mapping's place among those that are watched.
#[derive(Debug)]
pub(crate) struct Watch(usize);

impl Watch {
    /// Watches a mapped range; `None` where there are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let start = bytes.as_ptr() as usize;
        let free = |range: &Range| range.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let at = RANGES.iter().position(free)?;
        let range = &RANGES[at];
        range.damaged.store(false, Ordering::Relaxed);
        range.end.store(start + bytes.len(), Ordering::Relaxed);
        // Last: the handler takes a range for real once it begins somewhere.
        range.start.store(start, Ordering::Release);
        Some(Watch(at))
    }

    /// Whether a page of it was lost.
    pub fn is_damaged(&self) -> bool {
        RANGES[self.0].damaged.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        RANGES[self.0].start.store(0, Ordering::Release);
    }
}

/// Installs the guard for the whole process. Other causes of SIGBUS end it as before. On systems without the signal
/// nothing happens.
pub fn guard_mappings() {
    #[cfg(unix)]
    unix::install();
}

#[cfg(unix)]
mod unix {
    use super::{Ordering, RANGES};
    use std::sync::atomic::AtomicUsize;

    /// Bytes of a page; 0 until the guard is installed.
    static PAGE: AtomicUsize = AtomicUsize::new(0);

    pub fn install() {
        // SAFETY: `sysconf` only reads; `sigaction` gets a handler of the type that SA_SIGINFO asks for, which calls
        // nothing but `mmap`, `signal` and atomics, all of which a handler may.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE);
            PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }

    extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system gives a valid `info` to a handler with SA_SIGINFO.
        let at = unsafe { (*info).si_addr() } as usize;
        let inside = |start: usize, end: usize| start > 1 && (start..end).contains(&at);
        let range = RANGES.iter().find(|r| inside(r.start.load(Ordering::Acquire), r.end.load(Ordering::Relaxed)));
        let page = PAGE.load(Ordering::Acquire).max(1);
        if let Some(range) = range {
            range.damaged.store(true, Ordering::Release);
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            // SAFETY: one page of a file mapping of ours, lent out as shared bytes only: it becomes readable zeros.
            let mapped = unsafe { libc::mmap((at / page * page) as *mut _, page, libc::PROT_READ, flags, -1, 0) };
            if mapped != libc::MAP_FAILED {
                return;
            }
        }
        // SAFETY: the default action; the instruction runs again and ends the process.
        unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    }
}
