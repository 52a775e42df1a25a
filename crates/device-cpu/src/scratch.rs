//! Working memory that outlives a region, so that none is allocated inside one.

use std::cell::Cell;

use crate::owned::{HUGE, Owned};

/// Aligned f32 that grow to the largest size asked for.
pub(crate) struct Scratch {
    memory: Option<Owned>,
    len: usize,
}

impl Scratch {
    pub(crate) const fn new() -> Self {
        Scratch { memory: None, len: 0 }
    }

    /// The first `len` elements; their values are left from an earlier use.
    ///
    /// # Panics
    /// Where there is no memory: sizes here are a few megabytes, bounded by tile sizes.
    pub(crate) fn get(&mut self, len: usize) -> &mut [f32] {
        if len > self.len || self.memory.is_none() {
            self.memory = None;
            let bytes = len.checked_mul(4).expect("a size within the address space");
            // Whole huge pages, where most of the last one is used.
            let bytes = if bytes > HUGE / 2 { bytes.next_multiple_of(HUGE) } else { bytes };
            self.memory = Some(Owned::zeroed(bytes).expect("memory for scratch"));
            self.len = bytes / 4;
        }
        let ptr = self.memory.as_ref().expect("just made").ptr();
        // SAFETY: `len` initialised f32, borrowed from `self` as a whole.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast(), len) }
    }
}

thread_local! {
    static LOCAL: Cell<Scratch> = const { Cell::new(Scratch::new()) };
}

/// This thread's scratch, put back when dropped.
///
/// A value and not a function that takes a closure: the body of a closure is compiled without the vector
/// instructions of the task that it is written in.
pub(crate) struct Local {
    scratch: Scratch,
    len: usize,
}

/// `len` elements of this thread's scratch.
pub(crate) fn local(len: usize) -> Local {
    Local { scratch: LOCAL.replace(Scratch::new()), len }
}

impl Local {
    /// All of them.
    pub(crate) fn all(&mut self) -> &mut [f32] {
        self.scratch.get(self.len)
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        LOCAL.set(std::mem::replace(&mut self.scratch, Scratch::new()));
    }
}

/// Cuts `len` elements off the front, rounded up so that the next piece stays aligned.
pub(crate) fn cut<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (piece, tail) = std::mem::take(rest).split_at_mut(rounded(len));
    *rest = tail;
    &mut piece[..len]
}

/// What [`cut`] takes for `len` elements.
pub(crate) const fn rounded(len: usize) -> usize {
    len.next_multiple_of(16)
}
