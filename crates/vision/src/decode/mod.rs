//! From a file's bytes to an upright, opaque RGB picture.
//!
//! What goes wrong unseen: a photo whose EXIF mark is ignored lies on its side, colour hidden under full
//! transparency turns into noise, 16-bit scans saturate to white, and a JPEG that was cut short comes back
//! with a grey lower half. The first three are handled here, the last is an error.
//!
//! The format is told by content, and the size is checked before a pixel is decoded.

mod bytes;
mod format;
mod gif;
mod jpeg;
mod orient;
mod png;
mod samples;
mod tiff;
mod webp;

use std::fmt;
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

use image::ImageDecoder;
use image::codecs::{
    bmp::BmpDecoder, gif::GifDecoder, jpeg::JpegDecoder, png::PngDecoder, pnm::PnmDecoder, tiff::TiffDecoder,
    webp::WebPDecoder,
};
use image::metadata::Orientation;
use turbospark_tensor::mutant::{Mutant, active};

use crate::{ImageError, Rgb};
use format::Format;

/// What one image may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most pixels that a header may claim.
    pub max_pixels: u64,
    /// Most bytes that the decoder may hold beside the file.
    pub max_alloc_bytes: u64,
    /// Threads that size one image; their number does not change its pixels.
    pub threads: usize,
}

impl Default for DecodeLimits {
    /// 200 million pixels, 2 GiB, one thread.
    fn default() -> Self {
        DecodeLimits { max_pixels: 200_000_000, max_alloc_bytes: 2 << 30, threads: 1 }
    }
}

impl DecodeLimits {
    fn check(&self, width: u32, height: u32) -> Result<(), ImageError> {
        let (width, height) = (u64::from(width), u64::from(height));
        let pixels = width * height;
        if pixels > self.max_pixels {
            return Err(ImageError::TooManyPixels { width, height, pixels, limit: self.max_pixels });
        }
        Ok(())
    }
}

/// A picture and what to tell about its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The picture, upright and opaque.
    pub rgb: Rgb,
    /// What was left out.
    pub notes: Vec<Note>,
}

/// Part of a file that was not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A document of which the first page was read.
    FirstPageOnly {
        /// Pages in the file.
        pages: usize,
    },
    /// An animation of which the first frame was read.
    FirstFrameOnly {
        /// Frames in the file.
        frames: usize,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::FirstPageOnly { pages } => write!(f, "only the first of {pages} pages was read"),
            Note::FirstFrameOnly { frames } => write!(f, "only the first of {frames} frames was used"),
        }
    }
}

/// What a walk over the container tells before anything is decoded.
#[derive(Default)]
struct Facts {
    size: Option<(u32, u32)>,
    notes: Vec<Note>,
    /// EXIF that the decoder does not find by itself.
    exif: Option<Vec<u8>>,
    /// Colour was multiplied by alpha already.
    premultiplied: bool,
}

/// Decodes an image file: PNG, JPEG, WebP, GIF, BMP, TIFF or PNM.
pub fn decode(bytes: &[u8], limits: &DecodeLimits) -> Result<Decoded, ImageError> {
    let format = Format::of(bytes)?;
    let facts = match format {
        Format::Png => png::inspect(bytes)?,
        Format::Jpeg => jpeg::inspect(bytes, limits)?,
        Format::Gif => gif::inspect(bytes)?,
        Format::WebP => webp::inspect(bytes)?,
        Format::Tiff => tiff::inspect(bytes),
        Format::Bmp | Format::Pnm => Facts::default(),
    };
    if let Some((width, height)) = facts.size {
        limits.check(width, height)?;
    }
    // The decoders are other people's and read hostile bytes: a panic there costs the caller one image.
    catch_unwind(AssertUnwindSafe(|| pixels(bytes, format, &facts, limits)))
        .unwrap_or_else(|_| Err(format.damaged("the decoder gave up on it")))
        .map(|rgb| Decoded { rgb, notes: facts.notes })
}

fn pixels(bytes: &[u8], format: Format, facts: &Facts, limits: &DecodeLimits) -> Result<Rgb, ImageError> {
    let fail = |e| format.error(e, limits);
    let mut decoder = open(bytes, format, limits).map_err(fail)?;
    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        return Err(ImageError::NoPixels { width: width as usize, height: height as usize });
    }
    limits.check(width, height)?;
    if decoder.total_bytes() > limits.max_alloc_bytes {
        return Err(ImageError::TooMuchMemory { format: format.name(), limit: limits.max_alloc_bytes });
    }
    decoder.set_limits(image_limits(limits)).map_err(fail)?;
    let orientation = orientation(decoder.as_mut(), format, facts);
    let color = decoder.color_type();
    let mut raw = vec![0; decoder.total_bytes() as usize];
    decoder.read_image_boxed(&mut raw).map_err(fail)?;
    let data = samples::to_rgb8(raw, color, facts.premultiplied, format)?;
    let (data, width, height) = orient::apply(data, width as usize, height as usize, orientation);
    Rgb::new(width, height, data)
}

fn open<'a>(bytes: &'a [u8], format: Format, limits: &DecodeLimits) -> image::ImageResult<Box<dyn ImageDecoder + 'a>> {
    let reader = Cursor::new(bytes);
    Ok(match format {
        Format::Png => Box::new(PngDecoder::with_limits(reader, image_limits(limits))?),
        Format::Jpeg => Box::new(JpegDecoder::new(reader)?),
        Format::Gif => Box::new(GifDecoder::new(reader)?),
        Format::WebP => Box::new(WebPDecoder::new(reader)?),
        Format::Bmp => Box::new(BmpDecoder::new(reader)?),
        Format::Tiff => Box::new(TiffDecoder::new(reader)?),
        Format::Pnm => Box::new(PnmDecoder::new(reader)?),
    })
}

fn image_limits(limits: &DecodeLimits) -> image::Limits {
    let mut out = image::Limits::default();
    out.max_alloc = Some(limits.max_alloc_bytes);
    out
}

/// How the stored rows have to be turned. A mark that cannot be read is no mark.
fn orientation(decoder: &mut dyn ImageDecoder, format: Format, facts: &Facts) -> Orientation {
    if active(Mutant::OrientationIgnored) {
        return Orientation::NoTransforms;
    }
    if format == Format::Tiff {
        return decoder.orientation().unwrap_or(Orientation::NoTransforms);
    }
    let exif = facts.exif.clone().or_else(|| decoder.exif_metadata().ok().flatten()).unwrap_or_default();
    // Some writers keep JPEG's prefix inside PNG and WebP chunks.
    let exif = exif.strip_prefix(b"Exif\0\0").unwrap_or(&exif);
    Orientation::from_exif_chunk(exif).unwrap_or(Orientation::NoTransforms)
}
