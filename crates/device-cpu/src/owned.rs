//! Memory from the system: zeroed, aligned, in huge pages where it can be.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of owned memory: a cache line, and the widest vector.
pub(crate) const ALIGN: usize = 64;

/// Size and alignment of a huge page: with them, kernels that walk many rows don't wait for address translation.
pub(crate) const HUGE: usize = 2 << 20;

/// Asks for huge pages where the system gives them on request only. It may refuse; nothing depends on it.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(ptr: *mut u8, bytes: usize) {
    // SAFETY: a range of our own memory, and advice that changes none of its contents.
    unsafe { libc::madvise(ptr.cast(), bytes, libc::MADV_HUGEPAGE) };
}

#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_: *mut u8, _: usize) {}

/// Gives whole pages back to the system; they are zeros when they are touched again.
#[cfg(target_os = "linux")]
pub(crate) fn give_pages_back(ptr: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    let first = ptr.align_offset(PAGE).min(bytes);
    let whole = (bytes - first) / PAGE * PAGE;
    // SAFETY: whole pages within a range of our own anonymous memory, which nobody uses (the caller's promise). Where a
    // page is larger the system refuses, and nothing is given back.
    unsafe { libc::madvise(ptr.wrapping_add(first).cast(), whole, libc::MADV_DONTNEED) };
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn give_pages_back(_: *mut u8, _: usize) {}

/// Owned, zeroed, aligned bytes.
pub(crate) struct Owned {
    /// As allocated.
    start: NonNull<u8>,
    /// The first aligned byte.
    ptr: *mut u8,
    layout: Layout,
}

// SAFETY: plain bytes; who touches them is the module's concern.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl Owned {
    /// `None` where there is no room.
    ///
    /// Aligned by hand: an allocator that is asked for more than its usual alignment zeroes by writing, which
    /// touches every page of a cache that may never be used.
    pub(crate) fn zeroed(bytes: usize) -> Option<Self> {
        let align = if bytes >= HUGE { HUGE } else { ALIGN };
        let layout = Layout::from_size_align(bytes.checked_add(align)?, 16).ok()?;
        // SAFETY: the size isn't zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let ptr = start.as_ptr();
        let ptr = ptr.wrapping_add(ptr.align_offset(align));
        if align == HUGE {
            ask_for_huge_pages(ptr, bytes / HUGE * HUGE);
        }
        Some(Owned { start, ptr, layout })
    }

    /// The first byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
