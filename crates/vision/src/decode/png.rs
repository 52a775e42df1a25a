//! PNG: a walk over the chunks.
//!
//! The decoder checks the pixel chunks, but skips others whose checksum is wrong and reads none that follow
//! the pixels: a damaged transparency list, or an orientation mark at the end, would be lost in silence.

use super::bytes::be32;
use super::format::Format;
use super::{Facts, Note};
use crate::ImageError;

const SIGNATURE: usize = 8;

pub(super) fn inspect(bytes: &[u8]) -> Result<Facts, ImageError> {
    let mut facts = Facts::default();
    let mut at = SIGNATURE;
    loop {
        let chunk = chunk(bytes, at)?;
        if checked_here(chunk.name) && crc32(&bytes[at + 4..at + 8 + chunk.data.len()]) != chunk.crc {
            let name = String::from_utf8_lossy(chunk.name).into_owned();
            return Err(Format::Png.damaged(format!("the checksum (CRC) of its {name} chunk is wrong")));
        }
        match chunk.name {
            b"IHDR" => facts.size = be32(chunk.data, 0).zip(be32(chunk.data, 4)),
            b"eXIf" => facts.exif = Some(chunk.data.to_vec()),
            b"acTL" => {
                let frames = be32(chunk.data, 0).unwrap_or(1) as usize;
                facts.notes.extend((frames > 1).then_some(Note::FirstFrameOnly { frames }));
            }
            b"IEND" => return Ok(facts),
            _ => {}
        }
        at += 12 + chunk.data.len();
    }
}

struct Chunk<'a> {
    name: &'a [u8; 4],
    data: &'a [u8],
    crc: u32,
}

fn chunk(bytes: &[u8], at: usize) -> Result<Chunk<'_>, ImageError> {
    let parts = || {
        let len = be32(bytes, at)? as usize;
        let name: &[u8; 4] = bytes.get(at + 4..)?.first_chunk()?;
        let data = bytes.get(at + 8..(at + 8).checked_add(len)?)?;
        Some(Chunk { name, data, crc: be32(bytes, at + 8 + len)? })
    };
    parts().ok_or_else(|| Format::Png.truncated("the file ends before its IEND chunk"))
}

/// Chunks that change the picture and that the decoder does not check, or not in time.
fn checked_here(name: &[u8; 4]) -> bool {
    matches!(name, b"IHDR" | b"PLTE" | b"tRNS" | b"eXIf" | b"acTL" | b"IEND")
}

/// These chunks are short, so a table is not worth its lines.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &b| (0..8).fold(crc ^ u32::from(b), step))
}
