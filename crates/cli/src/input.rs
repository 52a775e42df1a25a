//! Files that the user names.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use turbospark::vision::{DecodeLimits, ImageError, Picture, decode};
use turbospark::{Error, Model};

use crate::console;

/// The name that stands for standard input.
pub const STDIN: &str = "-";

/// No picture within the pixel limit needs more, and a film must not fill the memory before it is refused.
const MAX_BYTES: u64 = 1 << 30;
/// Enough of a file to tell what it is.
const HEAD: u64 = 4096;

/// A path for messages and results.
pub fn name(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The bytes of a picture's file, or of standard input. The format is told by content, never by the name.
///
/// # Errors
/// What can't be read, and by name what is no picture at all: folders and films.
pub fn bytes(path: &Path) -> anyhow::Result<Vec<u8>> {
    if path.as_os_str() == STDIN {
        return whole(&mut std::io::stdin().lock());
    }
    if path.is_dir() {
        bail!("this is a folder; name the files in it, as in {}", path.join("*.png").display());
    }
    whole(&mut File::open(path)?)
}

fn whole(file: &mut dyn Read) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(HEAD).read_to_end(&mut bytes)?;
    refuse_films(&bytes)?;
    // What is known and not read is refused by its name before the rest is read.
    if let Err(error @ ImageError::UnsupportedFormat { .. }) = header(&bytes) {
        return Err(error.into());
    }
    file.take(MAX_BYTES - HEAD + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        bail!("the file is larger than {MAX_BYTES} bytes, more than a picture takes; give a picture file");
    }
    Ok(bytes)
}

/// What the first bytes alone say: with a limit of no pixels nothing is decoded.
fn header(bytes: &[u8]) -> Result<(), ImageError> {
    decode(bytes, &DecodeLimits { max_pixels: 0, ..Default::default() }).map(drop)
}

/// Whether a file's content is a picture, or something that people take for one.
pub fn is_media(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|f| f.take(HEAD).read_to_end(&mut bytes));
    let unknown = || matches!(header(&bytes), Err(ImageError::UnknownFormat { .. } | ImageError::Empty));
    path.is_file() && read.is_ok() && (film(&bytes).is_some() || !unknown())
}

/// Refuses video files by name.
pub fn refuse_films(bytes: &[u8]) -> anyhow::Result<()> {
    match film(bytes) {
        Some(kind) => bail!("{kind} is not read yet; send single frames of the video as images"),
        None => Ok(()),
    }
}

/// Containers of video that a picture decoder has no name for.
fn film(bytes: &[u8]) -> Option<&'static str> {
    let is = |magic: &[u8]| bytes.starts_with(magic);
    let box_is = |kinds: &[&[u8]]| bytes.get(4..8).is_some_and(|b| kinds.contains(&b));
    if is(b"\x1a\x45\xdf\xa3") {
        Some("Matroska or WebM video")
    } else if is(b"RIFF") && bytes.get(8..12) == Some(b"AVI ") {
        Some("AVI video")
    } else if box_is(&[b"moov", b"mdat", b"wide"]) {
        Some("QuickTime video")
    } else if is(b"\0\0\x01\xba") || is(b"\0\0\x01\xb3") || (is(b"G") && bytes.get(188) == Some(&b'G')) {
        Some("MPEG video")
    } else if is(b"FLV\x01") {
        Some("Flash video")
    } else if is(b"OggS") {
        Some("Ogg media")
    } else if is(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11") {
        Some("Windows Media video")
    } else {
        None
    }
}

/// Decodes and sizes a picture for `model`, and tells what of its file was left out. `name` stands for it in
/// messages, so errors do not number it.
pub fn picture(model: &Model, name: &str, bytes: &[u8]) -> anyhow::Result<Picture> {
    refuse_films(bytes)?;
    let picture = model.picture(1, bytes, None, None).map_err(|e| match e {
        Error::Image { source, .. } => anyhow::Error::new(source),
        other => other.into(),
    })?;
    tell_notes(name, &picture);
    Ok(picture)
}

/// Tells what of a picture's file was not used.
pub fn tell_notes(name: &str, picture: &Picture) {
    for note in &picture.notes {
        console::note(format_args!("{name}: {note}"));
    }
}

/// Standard input as text, without the line end that closes it.
pub fn stdin_text() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().lock().read_to_string(&mut text).context("cannot read standard input as text")?;
    let trimmed = text.strip_suffix('\n').map_or(text.as_str(), |t| t.strip_suffix('\r').unwrap_or(t));
    Ok(trimmed.to_owned())
}
