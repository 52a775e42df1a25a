//! JPEG: a walk over the markers.
//!
//! The decoder forgives a stream that stops early and paints what is missing with one colour. So the end marker
//! has to be there, the coded data has to be long enough for the pixels that the header claims, and a baseline
//! scan has to hold every block.

mod scan;

use super::bytes::be16;
use super::format::Format;
use super::{DecodeLimits, Facts};
use crate::ImageError;
use scan::{Frame, Scan};

/// Coded data holds a bit or more for each block of 8x8 pixels; twice that for odd subsampling.
const PIXELS_PER_BYTE: u64 = 64 * 8 * 2;

/// A baseline picture has a scan for each component at most; a hostile one may have a million.
const MOST_BASELINE_SCANS: usize = 4;

pub(super) fn inspect(bytes: &[u8], limits: &DecodeLimits) -> Result<Facts, ImageError> {
    let mut size = None;
    let mut frame = Frame::default();
    let mut scans_to_walk = 0;
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
        let segment = segment(bytes, at).ok_or_else(missing_end)?;
        at += 2 + segment.len();
        match marker {
            0xc4 => frame.read_tables(segment),
            0xdd => frame.read_restart_interval(segment),
            _ if is_frame_header(marker) && size.is_none() => {
                let (height, width) = be16(segment, 1).zip(be16(segment, 3)).ok_or_else(missing_end)?;
                size = Some((u32::from(width), u32::from(height)));
                limits.check(width.into(), height.into())?;
                if matches!(marker, 0xc0 | 0xc1) && frame.read(segment) {
                    scans_to_walk = MOST_BASELINE_SCANS;
                }
            }
            0xda => {
                let end = scan_end(bytes, at).ok_or_else(missing_end)?;
                coded += (end - at) as u64;
                if scans_to_walk > 0 {
                    scans_to_walk -= 1;
                    whole(frame.check(segment, &bytes[at..end]))?;
                }
                at = end;
            }
            _ => {}
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

fn whole(scan: Scan) -> Result<(), ImageError> {
    match scan {
        Scan::Whole => Ok(()),
        Scan::Short { blocks, expected } => {
            Err(Format::Jpeg.truncated(format!("{blocks} of {expected} blocks are there")))
        }
        Scan::Invalid => Err(Format::Jpeg.damaged("its picture data holds a code that its tables do not")),
    }
}

/// The segment whose length is at `at`, without that length.
fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let len = usize::from(be16(bytes, at)?);
    bytes.get(at + 2..at + len)
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
