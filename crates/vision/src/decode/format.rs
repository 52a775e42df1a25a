//! Which format a file is, by its first bytes; a name or a declared type is never asked.

use std::error::Error;
use std::io;

use image::error::ImageError as Foreign;

use super::DecodeLimits;
use crate::ImageError;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Png,
    Jpeg,
    Gif,
    WebP,
    Bmp,
    Tiff,
    Pnm,
}

impl Format {
    pub fn of(bytes: &[u8]) -> Result<Self, ImageError> {
        if bytes.is_empty() {
            return Err(ImageError::Empty);
        }
        let is = |magic: &[u8]| bytes.starts_with(magic);
        if is(b"\x89PNG\r\n\x1a\n") {
            Ok(Format::Png)
        } else if is(b"\xff\xd8\xff") {
            Ok(Format::Jpeg)
        } else if is(b"GIF87a") || is(b"GIF89a") {
            Ok(Format::Gif)
        } else if is(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Ok(Format::WebP)
        } else if is(b"BM") {
            Ok(Format::Bmp)
        } else if is(b"II*\0") || is(b"MM\0*") || is(b"II+\0") || is(b"MM\0+") {
            Ok(Format::Tiff)
        } else if bytes.len() > 2 && bytes[0] == b'P' && (b'1'..=b'7').contains(&bytes[1]) && is_space(bytes[2]) {
            Ok(Format::Pnm)
        } else {
            Err(refusal(bytes))
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::Gif => "GIF",
            Format::WebP => "WebP",
            Format::Bmp => "BMP",
            Format::Tiff => "TIFF",
            Format::Pnm => "PNM",
        }
    }

    pub fn damaged(self, reason: impl ToString) -> ImageError {
        ImageError::Damaged { format: self.name(), reason: reason.to_string() }
    }

    pub fn truncated(self, what: impl ToString) -> ImageError {
        ImageError::Truncated { format: self.name(), what: what.to_string() }
    }

    pub fn unsupported(self, what: impl ToString) -> ImageError {
        ImageError::UnsupportedFeature { format: self.name(), what: what.to_string() }
    }

    /// A decoder's error in our words.
    pub fn error(self, e: Foreign, limits: &DecodeLimits) -> ImageError {
        if is_end_of_file(&e) {
            return self.truncated("the file ends inside the picture");
        }
        match e {
            Foreign::Limits(_) => ImageError::TooMuchMemory { format: self.name(), limit: limits.max_alloc_bytes },
            Foreign::Unsupported(e) => self.unsupported(e),
            other => self.damaged(other),
        }
    }
}

/// Whether an error, or one it was made from, is that the file ended.
fn is_end_of_file(e: &Foreign) -> bool {
    let mut next: Option<&(dyn Error + 'static)> = Some(e);
    while let Some(e) = next {
        if e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::UnexpectedEof) {
            return true;
        }
        next = e.source();
    }
    false
}

fn is_space(b: u8) -> bool {
    b.is_ascii_whitespace() || b == b'#'
}

/// The error for bytes that are none of ours, by name where the name is known.
fn refusal(bytes: &[u8]) -> ImageError {
    match foreign(bytes) {
        Some((format, advice)) => ImageError::UnsupportedFormat { format, advice },
        None => {
            let start: Vec<String> = bytes.iter().take(8).map(|b| format!("{b:02x}")).collect();
            ImageError::UnknownFormat { start: start.join(" ") }
        }
    }
}

fn foreign(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    const CONVERT: &str = "convert it to PNG or JPEG first";
    const PHONE: &str = "convert it to JPEG first, or set the phone's camera to the most compatible format";
    const RENDER: &str = "render its pages to PNG first";
    let is = |magic: &[u8]| bytes.starts_with(magic);
    if let (Some(b"ftyp"), Some(brand)) = (bytes.get(4..8), bytes.get(8..12)) {
        return Some(match brand {
            b"avif" | b"avis" => ("AVIF", CONVERT),
            b"heic" | b"heix" | b"heim" | b"heis" | b"hevc" | b"hevx" | b"mif1" | b"msf1" => ("HEIC", PHONE),
            _ => ("MP4 or another ISO media file", "send a still image, or frames of the video as images"),
        });
    }
    if is(b"%PDF-") {
        Some(("PDF", RENDER))
    } else if is(b"\xff\x0a") || is(b"\0\0\0\x0cJXL ") {
        Some(("JPEG XL", CONVERT))
    } else if is(b"\0\0\0\x0cjP  ") || is(b"\xff\x4f\xff\x51") {
        Some(("JPEG 2000", CONVERT))
    } else if is(b"\0\0\x01\0") {
        Some(("ICO", CONVERT))
    } else if is(b"8BPS") {
        Some(("Photoshop PSD", CONVERT))
    } else {
        markup(bytes)
    }
}

/// Text files that are sent as images by mistake.
fn markup(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(1024)]).to_ascii_lowercase();
    let head = head.trim_start_matches('\u{feff}').trim_start();
    let xml = head.starts_with("<?xml") || head.starts_with("<!--") || head.starts_with("<!doctype svg");
    if head.starts_with("<svg") || (xml && head.contains("<svg")) {
        Some(("SVG", "render it to PNG first"))
    } else if head.starts_with("<!doctype html") || head.starts_with("<html") {
        Some(("HTML", "the address gave a web page; use the address of the image itself"))
    } else {
        None
    }
}
