//! The size a picture is given before it is cut into patches.
//!
//! Positions, token counts and boxes all follow from it. Halves round to even (80/32 is 2.5 and gives 2),
//! and the limits are compared with the *rounded* area while the scale uses the true one: either slip moves
//! a picture by a whole row of tokens, only at some sizes.

use turbospark_tensor::mutant::{Mutant, active};

use crate::SizeError;

/// A longer side may be 200 times the shorter and no more.
const MAX_RATIO: usize = 200;

/// Height and width of a `height` x `width` image after sizing: multiples of `factor` whose area lies between
/// `min_pixels` and `max_pixels` as nearly as the shape allows.
///
/// ```
/// # use turbospark_vision::smart_resize;
/// assert_eq!(smart_resize(80, 2048, 32, 65536, 16777216), Ok((64, 2048)));
/// ```
pub fn smart_resize(
    height: usize,
    width: usize,
    factor: usize,
    min_pixels: usize,
    max_pixels: usize,
) -> Result<(usize, usize), SizeError> {
    check_sides(height, width)?;
    Ok(fit(Fit { height, width, frames: 1, rounded_frames: 1, factor, min_pixels, max_pixels }))
}

/// As [`smart_resize`] for every frame of a clip; the limits are for the whole clip.
///
/// Sides below `factor` are scaled up first. The area is that of the frames rounded to a multiple of
/// `temporal_factor`, the scale that of the true number.
pub fn smart_resize_video(
    frames: usize,
    height: usize,
    width: usize,
    temporal_factor: usize,
    factor: usize,
    min_pixels: usize,
    max_pixels: usize,
) -> Result<(usize, usize), SizeError> {
    if height == 0 || width == 0 {
        return Err(SizeError::ZeroSide { width, height });
    }
    let (mut h, mut w) = (height, width);
    if h < factor || w < factor {
        let scale = f64::max(factor as f64 / h as f64, factor as f64 / w as f64);
        (h, w) = ((h as f64 * scale) as usize, (w as f64 * scale) as usize);
    }
    if frames < temporal_factor {
        return Err(SizeError::TooFewFrames { frames, needed: temporal_factor });
    }
    check_sides(h, w)?;
    let rounded_frames = round_to(frames, temporal_factor);
    Ok(fit(Fit { height: h, width: w, frames, rounded_frames, factor, min_pixels, max_pixels }))
}

fn check_sides(height: usize, width: usize) -> Result<(), SizeError> {
    let (short, long) = (height.min(width), height.max(width));
    if short == 0 {
        return Err(SizeError::ZeroSide { width, height });
    }
    if long > short.saturating_mul(MAX_RATIO) {
        return Err(SizeError::AspectRatio { width, height });
    }
    Ok(())
}

struct Fit {
    height: usize,
    width: usize,
    frames: usize,
    rounded_frames: usize,
    factor: usize,
    min_pixels: usize,
    max_pixels: usize,
}

fn fit(f: Fit) -> (usize, usize) {
    let factor = f.factor as f64;
    let (h, w) = (round_to(f.height, f.factor), round_to(f.width, f.factor));
    // u128: a hostile header can claim sides whose product leaves u64.
    let area = f.rounded_frames as u128 * h as u128 * w as u128;
    let true_area = (f.frames as u128 * f.height as u128 * f.width as u128) as f64;
    if area > f.max_pixels as u128 {
        let shrink = (true_area / f.max_pixels as f64).sqrt();
        let side = |n: usize| ((n as f64 / shrink / factor).floor() as usize * f.factor).max(f.factor);
        (side(f.height), side(f.width))
    } else if area < f.min_pixels as u128 {
        let grow = (f.min_pixels as f64 / true_area).sqrt();
        let side = |n: usize| (n as f64 * grow / factor).ceil() as usize * f.factor;
        (side(f.height), side(f.width))
    } else {
        (h, w)
    }
}

fn round_to(n: usize, factor: usize) -> usize {
    let exact = n as f64 / factor as f64;
    let rounded = if active(Mutant::SizeRoundsHalfUp) { exact.round() } else { exact.round_ties_even() };
    rounded as usize * factor
}
