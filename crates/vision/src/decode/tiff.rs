//! TIFF: a walk over the directories, for the number of pages and the kind of alpha.
//!
//! It only collects notes; whether the file is sound is for the decoder to say.

use std::collections::HashSet;

use super::bytes::{array, be16, be32, le16, le32};
use super::{Facts, Note};

const NEW_SUBFILE_TYPE: u16 = 254;
const EXTRA_SAMPLES: u16 = 338;
/// Bits of NewSubfileType: a smaller copy of another page, a transparency mask.
const NOT_A_PAGE: u32 = 1 | 4;
const ASSOCIATED_ALPHA: u32 = 1;
const MOST_PAGES: usize = 100_000;

pub(super) fn inspect(bytes: &[u8]) -> Facts {
    let file = File { bytes, big_endian: bytes[0] == b'M', big: bytes[2] == b'+' || bytes[3] == b'+' };
    let mut facts = Facts::default();
    let mut pages = 0;
    let mut seen = HashSet::new();
    let mut next = if file.big { file.offset(8) } else { file.offset(4) };
    while let Some(at) = next.filter(|&at| at != 0 && seen.len() < MOST_PAGES && seen.insert(at)) {
        let Some(directory) = file.directory(at) else { break };
        if seen.len() == 1 {
            facts.premultiplied = directory.extra_samples == Some(ASSOCIATED_ALPHA);
        }
        pages += usize::from(directory.is_page);
        next = directory.next;
    }
    facts.notes.extend((pages > 1).then_some(Note::FirstPageOnly { pages }));
    facts
}

struct Directory {
    is_page: bool,
    extra_samples: Option<u32>,
    next: Option<usize>,
}

struct File<'a> {
    bytes: &'a [u8],
    big_endian: bool,
    big: bool,
}

impl File<'_> {
    fn directory(&self, at: usize) -> Option<Directory> {
        let (count, first, entry) =
            if self.big { (self.offset(at)?, at + 8, 20) } else { (usize::from(self.u16(at)?), at + 2, 12) };
        let end = first.checked_add(count.checked_mul(entry)?).filter(|&end| end <= self.bytes.len())?;
        let mut directory = Directory { is_page: true, extra_samples: None, next: self.offset(end) };
        for at in (first..end).step_by(entry) {
            match self.u16(at)? {
                NEW_SUBFILE_TYPE => directory.is_page = self.value(at)? & NOT_A_PAGE == 0,
                EXTRA_SAMPLES => directory.extra_samples = self.value(at),
                _ => {}
            }
        }
        Some(directory)
    }

    /// The first value of an entry that holds it inline as SHORT or LONG.
    fn value(&self, entry: usize) -> Option<u32> {
        let at = entry + if self.big { 12 } else { 8 };
        match self.u16(entry + 2)? {
            3 => self.u16(at).map(u32::from),
            4 => self.u32(at),
            _ => None,
        }
    }

    fn u16(&self, at: usize) -> Option<u16> {
        if self.big_endian { be16(self.bytes, at) } else { le16(self.bytes, at) }
    }

    fn u32(&self, at: usize) -> Option<u32> {
        if self.big_endian { be32(self.bytes, at) } else { le32(self.bytes, at) }
    }

    /// An offset within the file, 4 or 8 bytes wide.
    fn offset(&self, at: usize) -> Option<usize> {
        let value = if !self.big {
            u64::from(self.u32(at)?)
        } else if self.big_endian {
            u64::from_be_bytes(array(self.bytes, at)?)
        } else {
            u64::from_le_bytes(array(self.bytes, at)?)
        };
        usize::try_from(value).ok().filter(|&at| at < self.bytes.len())
    }
}
