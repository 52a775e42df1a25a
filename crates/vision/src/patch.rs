//! Cutting sized pictures into the rows that the tower's first matmul reads.
//!
//! Patches come in merge-block order: block row, block column, then row and column inside the block, so
//! that the merger can take consecutive rows. Inside a patch the order is channel, frame, y, x. Raster order,
//! or frame before channel, keeps every shape.

use std::ops::Range;

use turbospark_tensor::mutant::{Mutant, active};

use crate::{ImageError, PixelScale};

/// How pictures are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PatchLayout {
    /// Pixels along a patch's side.
    pub patch_size: usize,
    /// Patches along a side of the block that becomes one token.
    pub merge_size: usize,
    /// Frames in a patch.
    pub temporal_patch_size: usize,
}

impl PatchLayout {
    /// Pixels along a merged patch's side; sized pictures are multiples of it.
    pub fn factor(&self) -> usize {
        self.patch_size * self.merge_size
    }

    /// Values in one patch row.
    pub fn patch_len(&self) -> usize {
        3 * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// The grid of `frames` sized frames; an odd last frame counts as a pair.
    pub fn grid(&self, frames: usize, height: usize, width: usize) -> Grid {
        Grid { t: frames.div_ceil(self.temporal_patch_size), h: height / self.patch_size, w: width / self.patch_size }
    }
}

/// Patches of a picture or clip along time, height and width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Groups of frames; 1 for an image.
    pub t: usize,
    /// Rows of patches.
    pub h: usize,
    /// Columns of patches.
    pub w: usize,
}

impl Grid {
    /// Number of patches.
    pub fn patches(&self) -> usize {
        self.t * self.h * self.w
    }

    /// Number of tokens after merging `merge` x `merge` patches.
    pub fn tokens(&self, merge: usize) -> usize {
        self.t * (self.h / merge) * (self.w / merge)
    }
}

impl std::fmt::Display for Grid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}x{}", self.t, self.h, self.w)
    }
}

/// Writes the patches of `frames`, RGB8 of the grid's size each, to `out`, `[patches, patch_len]`.
///
/// A group that runs past the last frame repeats it; so an image, one frame, fills all its slots.
pub fn write_patches(
    frames: &[&[u8]],
    grid: Grid,
    layout: PatchLayout,
    scale: &PixelScale,
    out: &mut [f32],
) -> Result<(), ImageError> {
    write_some_patches(frames, grid, layout, scale, 0..grid.patches(), out)
}

/// As [`write_patches`], those of a range alone.
pub fn write_some_patches(
    frames: &[&[u8]],
    grid: Grid,
    layout: PatchLayout,
    scale: &PixelScale,
    range: Range<usize>,
    out: &mut [f32],
) -> Result<(), ImageError> {
    let (height, width) = (grid.h * layout.patch_size, grid.w * layout.patch_size);
    if let Some(frame) = frames.iter().find(|f| f.len() != height * width * 3) {
        return Err(ImageError::WrongLength { width, height, got: frame.len() });
    }
    let expected = range.end.min(grid.patches()).saturating_sub(range.start) * layout.patch_len();
    if out.len() != expected || frames.len().div_ceil(layout.temporal_patch_size) != grid.t {
        return Err(ImageError::PatchBuffer { expected, got: out.len() });
    }
    let cutter = Cutter { layout, width, tables: scale.table() };
    let groups = frames.chunks(layout.temporal_patch_size);
    let all = groups.flat_map(|group| patch_order(grid, layout.merge_size).map(move |at| (group, at)));
    for (patch, (group, (row, column))) in out.chunks_exact_mut(layout.patch_len()).zip(all.skip(range.start)) {
        cutter.cut(group, (row * width + column) * layout.patch_size, patch);
    }
    Ok(())
}

struct Cutter {
    layout: PatchLayout,
    width: usize,
    tables: [[f32; 256]; 3],
}

impl Cutter {
    /// One patch of a group of frames, from the pixel `corner` on.
    fn cut(&self, group: &[&[u8]], corner: usize, patch: &mut [f32]) {
        let side = self.layout.patch_size;
        let slots = self.layout.temporal_patch_size;
        let plane = side * side;
        for slot in 0..slots {
            for (channel, table) in self.tables.iter().enumerate() {
                let at = plane_index(channel, slot, slots) * plane;
                match group.get(slot) {
                    Some(frame) => {
                        let pixels = &frame.as_chunks().0[corner..];
                        gather(pixels, self.width, channel, table, &mut patch[at..at + plane], side);
                    }
                    // Past the last frame: the slot before holds it already.
                    None => {
                        let from = plane_index(channel, slot - 1, slots) * plane;
                        patch.copy_within(from..from + plane, at);
                    }
                }
            }
        }
    }
}

/// Where the plane of a channel and a frame slot lies in a patch row.
fn plane_index(channel: usize, slot: usize, slots: usize) -> usize {
    if active(Mutant::PatchFrameBeforeChannel) { slot * 3 + channel } else { channel * slots + slot }
}

/// One channel of one patch, from the pixels at its top left corner on.
fn gather(pixels: &[[u8; 3]], width: usize, channel: usize, table: &[f32; 256], out: &mut [f32], side: usize) {
    for (out, pixels) in out.chunks_exact_mut(side).zip(pixels.chunks(width)) {
        for (out, pixel) in out.iter_mut().zip(pixels) {
            *out = table[usize::from(pixel[channel])];
        }
    }
}

/// Row and column of every patch of one frame group, in the order of the patch rows.
fn patch_order(grid: Grid, merge: usize) -> impl Iterator<Item = (usize, usize)> {
    let merge = if active(Mutant::PatchesInRasterOrder) { 1 } else { merge };
    let blocks = (0..grid.h / merge).flat_map(move |y| (0..grid.w / merge).map(move |x| (y, x)));
    blocks.flat_map(move |(by, bx)| {
        (0..merge).flat_map(move |y| (0..merge).map(move |x| (by * merge + y, bx * merge + x)))
    })
}
