//! WebP: a walk over the RIFF chunks, for the canvas, the number of frames and the end.

use super::bytes::le32;
use super::format::Format;
use super::{Facts, Note};
use crate::ImageError;

const HEADER: usize = 12;

pub(super) fn inspect(bytes: &[u8]) -> Result<Facts, ImageError> {
    let claimed = le32(bytes, 4).map_or(usize::MAX, |n| n as usize).saturating_add(8);
    if claimed > bytes.len() {
        let what = format!("its header says {claimed} bytes, there are {}", bytes.len());
        return Err(Format::WebP.truncated(what));
    }
    let mut facts = Facts::default();
    let mut frames = 0;
    let mut at = HEADER;
    while let (Some(name), Some(len)) = (bytes.get(at..at + 4), le32(bytes, at + 4)) {
        match name {
            b"VP8X" => facts.size = le24(bytes, at + 12).zip(le24(bytes, at + 15)).map(|(w, h)| (w + 1, h + 1)),
            b"ANMF" => frames += 1,
            _ => {}
        }
        // Chunks are padded to an even length.
        at += 8 + (len as usize).next_multiple_of(2);
    }
    facts.notes.extend((frames > 1).then_some(Note::FirstFrameOnly { frames }));
    Ok(facts)
}

fn le24(bytes: &[u8], at: usize) -> Option<u32> {
    let [a, b, c] = super::bytes::array(bytes, at)?;
    Some(u32::from_le_bytes([a, b, c, 0]))
}
