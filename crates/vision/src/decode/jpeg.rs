//! JPEG: a walk over the markers.
//!
//! The decoder forgives a stream that stops early and paints what is missing grey. So the end marker has to
//! be there, and the coded data has to be long enough for the pixels that the header claims.

use super::Facts;
use super::bytes::be16;
use super::format::Format;
use crate::ImageError;

/// Coded data holds a bit or more for each block of 8x8 pixels; twice that for odd subsampling.
const PIXELS_PER_BYTE: u64 = 64 * 8 * 2;

pub(super) fn inspect(bytes: &[u8]) -> Result<Facts, ImageError> {
    let mut size = None;
    let mut coded = 0;
    let mut at = 2;
    loop {
        let (marker, after) = next_marker(bytes, at).ok_or_else(missing_end)?;
        at = after;
        match marker {
            0xd9 => break,
            // No length follows these: restarts, a stuffed zero, TEM, and a second start of image.
            0x00 | 0x01 | 0xd0..=0xd8 => continue,
            _ => {}
        }
        let segment = be16(bytes, at).map(usize::from).filter(|&len| len >= 2).ok_or_else(missing_end)?;
        if is_frame_header(marker) && size.is_none() {
            let (height, width) = be16(bytes, at + 3).zip(be16(bytes, at + 5)).ok_or_else(missing_end)?;
            size = Some((u32::from(width), u32::from(height)));
        }
        at += segment;
        if marker == 0xda {
            let end = scan_end(bytes, at).ok_or_else(missing_end)?;
            coded += (end - at) as u64;
            at = end;
        }
    }
    let Some((width, height)) = size else {
        return Err(Format::Jpeg.damaged("it ends before any picture data"));
    };
    if coded * PIXELS_PER_BYTE < u64::from(width) * u64::from(height) {
        let what = format!("{width}x{height} pixels cannot be coded in the {coded} bytes it holds");
        return Err(Format::Jpeg.truncated(what));
    }
    Ok(Facts { size, ..Facts::default() })
}

fn missing_end() -> ImageError {
    Format::Jpeg.truncated("the file ends before its end-of-image marker")
}

/// The next marker from `at` on and the place after it; stray bytes between segments are passed over.
fn next_marker(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let start = at + bytes.get(at..)?.iter().position(|&b| b == 0xff)?;
    let marker = start + bytes[start..].iter().position(|&b| b != 0xff)?;
    Some((bytes[marker], marker + 1))
}

/// Where the coded data that starts at `at` ends: at a marker that is no stuffing and no restart.
fn scan_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += bytes.get(at..)?.iter().position(|&b| b == 0xff)?;
        match *bytes.get(at + 1)? {
            0x00 | 0xd0..=0xd7 => at += 2,
            0xff => at += 1,
            _ => return Some(at),
        }
    }
}

/// SOF0 to SOF15 without the three other markers in that range.
fn is_frame_header(marker: u8) -> bool {
    matches!(marker, 0xc0..=0xcf) && !matches!(marker, 0xc4 | 0xc8 | 0xcc)
}
