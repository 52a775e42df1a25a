//! Clips: which frames are taken, what time stands before them, and their patches.
//!
//! A label is the mean of a group's first and last time, printed to one decimal from the exact binary value
//! with ties to even (0.25 gives `0.2`). The time of the first frame, or 0.25 as `0.3`, reads as well.

use crate::picture::digest;
use crate::{
    Grid, ImageError, PatchLayout, PixelScale, Rgb, VideoConfig, VideoError, resize, smart_resize_video, write_patches,
};

/// The rate assumed of a source that does not say.
const UNKNOWN_SOURCE_FPS: f64 = 24.0;

/// How many frames to take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sampling {
    /// So many a second, between a least and a most.
    Rate {
        /// Frames a second.
        fps: f64,
        /// Fewest, where the clip has as many.
        min_frames: usize,
        /// Most.
        max_frames: usize,
    },
    /// So many, spread evenly.
    Count(usize),
}

impl VideoConfig {
    /// The checkpoint's own sampling.
    pub fn sampling(&self) -> Sampling {
        Sampling::Rate { fps: self.fps, min_frames: self.min_frames, max_frames: self.max_frames }
    }
}

/// Indices of the frames taken from a clip of `total` frames, first and last among them.
pub fn sample_frames(total: usize, source_fps: Option<f64>, sampling: Sampling) -> Result<Vec<usize>, VideoError> {
    if total == 0 {
        return Err(VideoError::NoFrames);
    }
    let count = match sampling {
        Sampling::Count(n) if n == 0 || n > total => return Err(VideoError::FrameCount { wanted: n, total }),
        Sampling::Count(n) => n,
        Sampling::Rate { fps, min_frames, max_frames } => {
            let source_fps = checked_rate(source_fps.unwrap_or(UNKNOWN_SOURCE_FPS))?;
            let wanted = (total as f64 / source_fps * checked_rate(fps)?) as usize;
            wanted.max(min_frames).min(max_frames).min(total).max(1)
        }
    };
    // One step for all, as the reference has it: dividing anew for each index moves some of the halves.
    let last = (total - 1) as f64;
    let step = last / (count.max(2) - 1) as f64;
    let mut indices: Vec<usize> = (0..count).map(|i| (i as f64 * step).round_ties_even() as usize).collect();
    if count > 1 {
        indices[count - 1] = total - 1;
    }
    Ok(indices)
}

/// Seconds that stand before each group of `group` frames.
pub fn timestamps(indices: &[usize], source_fps: Option<f64>, group: usize) -> Result<Vec<f64>, VideoError> {
    let source_fps = checked_rate(source_fps.unwrap_or(UNKNOWN_SOURCE_FPS))?;
    let Some(&end) = indices.last() else { return Err(VideoError::NoFrames) };
    let group = group.max(1);
    let seconds = |index: usize| index as f64 / source_fps;
    let mean = |g: &[usize]| (seconds(g[0]) + seconds(g.get(group - 1).copied().unwrap_or(end))) / 2.0;
    Ok(indices.chunks(group).map(mean).collect())
}

/// The text of a timestamp.
///
/// ```
/// # use turbospark_vision::timestamp_label;
/// assert_eq!(timestamp_label(0.25), "<0.2 seconds>");
/// ```
pub fn timestamp_label(seconds: f64) -> String {
    format!("<{seconds:.1} seconds>")
}

fn checked_rate(fps: f64) -> Result<f64, VideoError> {
    if fps.is_finite() && fps > 0.0 { Ok(fps) } else { Err(VideoError::Rate(fps.to_string())) }
}

/// A clip after sizing.
#[derive(Debug, Clone)]
pub struct Clip {
    /// Columns of the frames as they came.
    pub width: usize,
    /// Rows of the frames as they came.
    pub height: usize,
    /// Patches after sizing; two frames share a patch.
    pub grid: Grid,
    /// As [`crate::Picture::digest`].
    pub digest: [u8; 32],
    frames: Vec<Rgb>,
    layout: PatchLayout,
    scale: PixelScale,
}

/// Sizes frames that were sampled already.
pub fn preprocess_frames(frames: &[Rgb], config: &VideoConfig, threads: usize) -> Result<Clip, ImageError> {
    let first = frames.first().ok_or(VideoError::NoFrames)?;
    let (width, height) = (first.width(), first.height());
    if let Some((index, f)) = frames.iter().enumerate().find(|(_, f)| (f.width(), f.height()) != (width, height)) {
        let (first_width, first_height) = (width, height);
        let (width, height) = (f.width(), f.height());
        return Err(VideoError::FrameSize { index, width, height, first_width, first_height }.into());
    }
    let layout = config.layout;
    let (h, w) = smart_resize_video(
        frames.len(),
        height,
        width,
        layout.temporal_patch_size,
        layout.factor(),
        config.min_pixels,
        config.max_pixels,
    )?;
    let sized = frames.iter().map(|f| resize(f, h, w, threads)).collect::<Result<Vec<Rgb>, _>>()?;
    let data: Vec<&[u8]> = sized.iter().map(Rgb::data).collect();
    Ok(Clip {
        width,
        height,
        grid: layout.grid(frames.len(), h, w),
        digest: digest(&data, (h, w), layout, &config.scale),
        frames: sized,
        layout,
        scale: config.scale.clone(),
    })
}

impl Clip {
    /// The sized frames.
    pub fn frames(&self) -> &[Rgb] {
        &self.frames
    }

    /// Tokens that the clip takes in a prompt, without its timestamps.
    pub fn tokens(&self) -> usize {
        self.grid.tokens(self.layout.merge_size)
    }

    /// How the frames are cut.
    pub fn layout(&self) -> PatchLayout {
        self.layout
    }

    /// Values that [`Clip::write_patches`] writes.
    pub fn patches_len(&self) -> usize {
        self.grid.patches() * self.layout.patch_len()
    }

    /// The patches, `[grid.patches(), patch_len]`; an odd last frame is repeated.
    pub fn patches(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.patches_len()];
        self.write_patches(&mut out).expect("the buffer was made for this clip");
        out
    }

    /// As [`Clip::patches`], into a buffer of [`Clip::patches_len`] values.
    pub fn write_patches(&self, out: &mut [f32]) -> Result<(), ImageError> {
        let frames: Vec<&[u8]> = self.frames.iter().map(Rgb::data).collect();
        write_patches(&frames, self.grid, self.layout, &self.scale, out)
    }
}
