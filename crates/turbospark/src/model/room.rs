//! The room that the memory plan keeps for images, which holds weights while there are none.
//!
//! It is given up before an image file is decoded and before the tower runs, and taken again once a few tokens were
//! decoded since; what rows of images still take then is left to them. Taking it reads nothing that a pass wouldn't
//! read anyway, and costs fresh pages: an answer of a word or two isn't worth those.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Engine, Model};

/// Tokens that are decoded after the last image before its room is taken.
const CALM: u32 = 4;

/// What of the room is taken by images.
#[derive(Debug, Default)]
pub(crate) struct ImageRoom {
    /// Files that are being decoded.
    files: AtomicUsize,
    /// Bytes of rows that somebody holds.
    rows: Arc<AtomicU64>,
}

/// What of the room holds weights.
#[derive(Debug, Default)]
pub(crate) struct Lent {
    /// Tokens that were decoded since anything was done for an image.
    calm: u32,
    /// Bytes.
    bytes: u64,
}

/// Rows of images on the device, as long as it lives.
#[derive(Debug)]
pub(crate) struct HeldRows {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for HeldRows {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A file that is being decoded.
pub(crate) struct OpenFile<'m>(&'m ImageRoom);

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.0.files.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Model {
    /// Keeps the room free of weights while the guard lives.
    pub(crate) fn open_file(&self) -> Option<OpenFile<'_>> {
        if self.memory_plan().lent_bytes == 0 {
            return None;
        }
        let room = &self.inner.images;
        room.files.fetch_add(1, Ordering::SeqCst);
        let guard = OpenFile(room);
        // Waits for the pass that runs; none that begins later takes the room.
        self.make_room(&mut self.engine());
        Some(guard)
    }

    /// Frees the room for what comes next.
    pub(crate) fn make_room(&self, engine: &mut Engine) {
        engine.lent.calm = 0;
        if std::mem::take(&mut engine.lent.bytes) > 0 {
            self.inner.model.lend(0);
        }
    }

    /// Counts the rows that an image of `bytes` has.
    pub(crate) fn hold_rows(&self, bytes: u64) -> Arc<HeldRows> {
        let all = self.inner.images.rows.clone();
        all.fetch_add(bytes, Ordering::Relaxed);
        Arc::new(HeldRows { bytes, all })
    }

    /// Takes the room for weights if nobody needs it; asked before each step of decoding.
    pub(crate) fn take_room(&self, engine: &mut Engine) {
        let lent = &mut engine.lent;
        lent.calm = lent.calm.saturating_add(1);
        let ImageRoom { files, rows } = &self.inner.images;
        let most = self.memory_plan().lent_bytes;
        if most == 0 || lent.calm <= CALM || files.load(Ordering::SeqCst) > 0 {
            return;
        }
        let bytes = most.saturating_sub(rows.load(Ordering::Relaxed));
        if std::mem::replace(&mut lent.bytes, bytes) != bytes {
            self.inner.model.lend(bytes);
        }
    }

    /// Takes the room as long as no image came yet.
    pub(super) fn begin_with_room(&self) {
        let bytes = self.memory_plan().lent_bytes;
        self.inner.model.lend(bytes);
        self.engine().lent = Lent { calm: CALM, bytes };
    }
}
