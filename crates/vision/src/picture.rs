//! One image, ready for the tower.

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::{
    DecodeLimits, Grid, ImageConfig, ImageError, Note, PatchLayout, PixelScale, Rgb, decode, resize, smart_resize,
    write_patches, write_some_patches,
};

/// An image after decoding, orienting and sizing.
///
/// It keeps the sized 8-bit pixels, an eighth of the patches, and makes the patches when they are needed.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Columns of the upright image as it came.
    pub width: usize,
    /// Rows of the upright image as it came.
    pub height: usize,
    /// Patches after sizing.
    pub grid: Grid,
    /// SHA-256 of the sized pixels and of every setting that turns them into patches. Equal digests, equal
    /// patches: the key under which work on this picture may be reused.
    pub digest: [u8; 32],
    /// What the user should hear although the image was read.
    pub notes: Vec<Note>,
    sized: Rgb,
    layout: PatchLayout,
    scale: PixelScale,
}

/// Decodes, orients and sizes an image file.
pub fn preprocess(bytes: &[u8], config: &ImageConfig, limits: &DecodeLimits) -> Result<Picture, ImageError> {
    let decoded = decode(bytes, limits)?;
    let mut picture = Picture::from_rgb(decoded.rgb, config, limits)?;
    picture.notes = decoded.notes;
    Ok(picture)
}

impl Picture {
    /// Sizes raw pixels.
    pub fn from_rgb(rgb: Rgb, config: &ImageConfig, limits: &DecodeLimits) -> Result<Self, ImageError> {
        let (width, height) = (rgb.width(), rgb.height());
        let layout = config.layout;
        let (h, w) = smart_resize(height, width, layout.factor(), config.min_pixels, config.max_pixels)?;
        let sized = if (h, w) == (height, width) { rgb } else { resize(&rgb, h, w, limits.threads)? };
        Ok(Picture {
            width,
            height,
            grid: layout.grid(1, h, w),
            digest: digest(&[sized.data()], (h, w), layout, &config.scale),
            notes: Vec::new(),
            sized,
            layout,
            scale: config.scale.clone(),
        })
    }

    /// Height and width after sizing.
    pub fn resized(&self) -> (usize, usize) {
        (self.sized.height(), self.sized.width())
    }

    /// The sized pixels.
    pub fn rgb(&self) -> &Rgb {
        &self.sized
    }

    /// Tokens that the image takes in a prompt.
    pub fn tokens(&self) -> usize {
        self.grid.tokens(self.layout.merge_size)
    }

    /// How the picture is cut.
    pub fn layout(&self) -> PatchLayout {
        self.layout
    }

    /// Values that [`Picture::write_patches`] writes.
    pub fn patches_len(&self) -> usize {
        self.grid.patches() * self.layout.patch_len()
    }

    /// The patches, `[grid.patches(), patch_len]`.
    pub fn patches(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.patches_len()];
        self.write_patches(&mut out).expect("the buffer was made for this picture");
        out
    }

    /// As [`Picture::patches`], into a buffer of [`Picture::patches_len`] values.
    pub fn write_patches(&self, out: &mut [f32]) -> Result<(), ImageError> {
        write_patches(&[self.sized.data()], self.grid, self.layout, &self.scale, out)
    }

    /// The patches of a range, `[range.len(), patch_len]`, in the order of [`Picture::patches`].
    pub fn write_some_patches(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), ImageError> {
        write_some_patches(&[self.sized.data()], self.grid, self.layout, &self.scale, range, out)
    }
}

/// Names sized frames and the settings that make patches of them.
pub(crate) fn digest(
    frames: &[&[u8]],
    (height, width): (usize, usize),
    layout: PatchLayout,
    scale: &PixelScale,
) -> [u8; 32] {
    let mut hash = Sha256::new();
    let PatchLayout { patch_size, merge_size, temporal_patch_size } = layout;
    for n in [frames.len(), height, width, patch_size, merge_size, temporal_patch_size] {
        hash.update((n as u64).to_le_bytes());
    }
    // The values that the samples become say all there is to say about mean, spread and factor.
    for value in scale.table().as_flattened() {
        hash.update(value.to_le_bytes());
    }
    for frame in frames {
        hash.update(frame);
    }
    hash.finalize().into()
}
