//! Any sample layout to opaque 8-bit RGB.

use image::ColorType;
use turbospark_tensor::mutant::{Mutant, active};

use super::format::Format;
use crate::ImageError;

/// Colour laid on white, 16-bit samples cut to their high byte. Works in the buffer it is given where the
/// result is not longer: a large photo is held once.
pub(super) fn to_rgb8(
    raw: Vec<u8>,
    color: ColorType,
    premultiplied: bool,
    format: Format,
) -> Result<Vec<u8>, ImageError> {
    Ok(match color {
        ColorType::Rgb8 => raw,
        ColorType::L8 => grey_to_rgb(&raw),
        ColorType::La8 => grey_to_rgb(&lay_on_white::<2>(raw, premultiplied)),
        ColorType::Rgba8 => lay_on_white::<4>(raw, premultiplied),
        ColorType::L16 => grey_to_rgb(&high_bytes(raw)),
        ColorType::La16 => grey_to_rgb(&lay_on_white::<2>(high_bytes(raw), premultiplied)),
        ColorType::Rgb16 => high_bytes(raw),
        ColorType::Rgba16 => lay_on_white::<4>(high_bytes(raw), premultiplied),
        other => return Err(format.unsupported(format!("samples of type {other:?}"))),
    })
}

fn grey_to_rgb(grey: &[u8]) -> Vec<u8> {
    grey.iter().map(|&v| [v; 3]).collect::<Vec<[u8; 3]>>().into_flattened()
}

/// The decoders give 16-bit samples in the machine's own order.
fn high_bytes(mut raw: Vec<u8>) -> Vec<u8> {
    let len = raw.len() / 2;
    for i in 0..len {
        raw[i] = (u16::from_ne_bytes([raw[2 * i], raw[2 * i + 1]]) >> 8) as u8;
    }
    shortened(raw, len)
}

/// Drops the last of `N` channels, alpha, after laying the others on white.
fn lay_on_white<const N: usize>(mut raw: Vec<u8>, premultiplied: bool) -> Vec<u8> {
    let pixels = raw.len() / N;
    for i in 0..pixels {
        let alpha = raw[i * N + N - 1];
        for c in 0..N - 1 {
            raw[i * (N - 1) + c] = over_white(raw[i * N + c], alpha, premultiplied);
        }
    }
    shortened(raw, pixels * (N - 1))
}

/// `c * a + 255 * (255 - a)` over 255, to the nearest; colour that was multiplied by alpha already is only added.
fn over_white(c: u8, alpha: u8, premultiplied: bool) -> u8 {
    if active(Mutant::AlphaDropped) {
        return c;
    }
    if premultiplied {
        return c.saturating_add(255 - alpha);
    }
    let (c, alpha) = (u32::from(c), u32::from(alpha));
    ((c * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

fn shortened(mut raw: Vec<u8>, len: usize) -> Vec<u8> {
    raw.truncate(len);
    raw.shrink_to_fit();
    raw
}
