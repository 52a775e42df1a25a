//! Bounded reading from a file's beginning.

use std::fmt::Display;

use crate::{Error, HeaderError, Result, WeightFile};

const BUFFER: usize = 64 << 10;

/// Reads forward through the first bytes of a file. `what` in each call is the item being read, for messages.
pub(super) struct Cursor<'f> {
    file: &'f WeightFile,
    limit: u64,
    /// Next byte to hand out.
    position: u64,
    buffer: Vec<u8>,
    /// How much of the buffer was handed out.
    used: usize,
}

impl<'f> Cursor<'f> {
    pub(super) fn new(file: &'f WeightFile, limit: u64) -> Self {
        Cursor { file, limit, position: 0, buffer: Vec::new(), used: 0 }
    }

    pub(super) fn file(&self) -> &'f WeightFile {
        self.file
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// Refuses unless `count` items of at least `size` bytes may follow. What passes is safe to allocate for.
    pub(super) fn expect(&self, count: u64, size: u64, what: &dyn Display) -> Result<()> {
        let refuse = |problem| Error::Header { file: self.file.name().to_owned(), problem };
        let needed = count.checked_mul(size);
        let length = self.file.length();
        if needed.is_none_or(|n| n > length - self.position) {
            let (what, offset) = (what.to_string(), self.position);
            return Err(refuse(HeaderError::Cut { what, offset, count, size, file: length }));
        }
        if needed.is_none_or(|n| n > self.limit.saturating_sub(self.position)) {
            return Err(refuse(HeaderError::TooLong { what: what.to_string(), limit: self.limit }));
        }
        Ok(())
    }

    /// Fills `out`, whose length passed [`Cursor::expect`].
    pub(super) fn fill(&mut self, mut out: &mut [u8], what: &dyn Display) -> Result<()> {
        self.expect(out.len() as u64, 1, what)?;
        while !out.is_empty() {
            if self.used == self.buffer.len() {
                let left = (self.file.length() - self.position).min(BUFFER as u64) as usize;
                self.buffer.resize(left, 0);
                self.file.read_at(self.position, &mut self.buffer)?;
                self.used = 0;
            }
            let n = out.len().min(self.buffer.len() - self.used);
            let (now, later) = out.split_at_mut(n);
            now.copy_from_slice(&self.buffer[self.used..self.used + n]);
            self.used += n;
            self.position += n as u64;
            out = later;
        }
        Ok(())
    }

    pub(super) fn array<const N: usize>(&mut self, what: &dyn Display) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &dyn Display) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &dyn Display) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A length and as many bytes, which are mostly text.
    pub(super) fn text(&mut self, what: &dyn Display) -> Result<Vec<u8>> {
        let length = self.u64(what)?;
        self.expect(length, 1, what)?;
        let mut bytes = vec![0; length as usize];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }
}
