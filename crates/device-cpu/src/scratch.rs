//! Working memory that outlives a region, so that none is allocated inside one.

use std::cell::RefCell;

use crate::memory::Owned;

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
            self.memory = Some(Owned::zeroed(bytes).expect("memory for scratch"));
            self.len = len;
        }
        let ptr = self.memory.as_ref().expect("just made").ptr();
        // SAFETY: `len` initialised f32, borrowed from `self` as a whole.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast(), len) }
    }
}

thread_local! {
    static LOCAL: RefCell<Scratch> = const { RefCell::new(Scratch::new()) };
}

/// Runs `f` with `len` elements of this thread's scratch.
///
/// # Panics
/// When called within itself.
pub(crate) fn with_local<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    LOCAL.with(|s| f(s.borrow_mut().get(len)))
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
