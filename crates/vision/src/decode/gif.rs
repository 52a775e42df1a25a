//! GIF: a walk over the blocks, for the size and the number of frames.

use super::bytes::le16;
use super::format::Format;
use super::{Facts, Note};
use crate::ImageError;

pub(super) fn inspect(bytes: &[u8]) -> Result<Facts, ImageError> {
    let size = le16(bytes, 6).zip(le16(bytes, 8)).map(|(w, h)| (u32::from(w), u32::from(h)));
    let frames = frames(bytes);
    if size.is_none() {
        return Err(Format::Gif.truncated("the file ends inside its header"));
    }
    let notes = if frames > 1 { vec![Note::FirstFrameOnly { frames }] } else { Vec::new() };
    Ok(Facts { size, notes, ..Facts::default() })
}

/// Frames that are there whole; a file may be cut after the first, which is all that is read.
fn frames(bytes: &[u8]) -> usize {
    let mut frames = 0;
    let mut at = 13 + bytes.get(10).map_or(0, |&flags| palette_len(flags));
    loop {
        let after = match bytes.get(at) {
            Some(0x21) => skip_sub_blocks(bytes, at + 2),
            Some(0x2c) => bytes.get(at + 9).and_then(|&flags| skip_sub_blocks(bytes, at + 11 + palette_len(flags))),
            _ => None,
        };
        let Some(after) = after else { return frames };
        frames += usize::from(bytes[at] == 0x2c);
        at = after;
    }
}

fn palette_len(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) }
}

fn skip_sub_blocks(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1 + len;
        if len == 0 {
            return Some(at);
        }
    }
}
