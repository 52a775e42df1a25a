//! Where each token of a prompt stands: the walk over text, images and video frames.
//!
//! Text counts up alike on three axes. An image holds the first axis still and counts its merged rows and
//! columns on the other two; the clock then moves on by its longer side, not by its number of tokens. So
//! later tokens stand *before* their index, and decoding has to go on from `index + rope_delta`. A delta of
//! zero does not mean that there is no picture.

use turbospark_tensor::mutant::{Mutant, active};

use crate::{Grid, PositionError};

/// What a token of the prompt stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Modality {
    /// Text, also the markers around pictures and a video's timestamps.
    Text,
    /// One merged patch of an image.
    Image,
    /// One merged patch of a video frame.
    Video,
}

impl TryFrom<u8> for Modality {
    type Error = PositionError;

    fn try_from(id: u8) -> Result<Self, PositionError> {
        match id {
            0 => Ok(Modality::Text),
            1 => Ok(Modality::Image),
            2 => Ok(Modality::Video),
            _ => Err(PositionError::Modality(id)),
        }
    }
}

/// Rope positions of a prompt without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Positions {
    /// Time, height and width of each token.
    pub thw: Vec<[u32; 3]>,
    /// What a later token's index is moved by, on all axes.
    pub rope_delta: i64,
}

impl Positions {
    /// Position of the first token decoded after the prompt.
    pub fn first_decode_position(&self) -> i64 {
        self.thw.len() as i64 + self.rope_delta
    }
}

/// Positions of a prompt's tokens, given the grids of its images and videos in order of appearance.
///
/// Runs of equal modality are one image or one video frame each, so two pictures need a text token between
/// them; the markers of the chat template are that.
pub fn rope_index(
    modalities: &[Modality],
    images: &[Grid],
    videos: &[Grid],
    merge: usize,
) -> Result<Positions, PositionError> {
    if u32::try_from(modalities.len()).is_err() {
        return Err(PositionError::TooLong(modalities.len()));
    }
    let mut images = Grids::of_images(images, merge)?;
    let mut frames = Grids::of_video_frames(videos, merge)?;
    let mut thw = Vec::with_capacity(modalities.len());
    let mut clock = 0;
    for run in modalities.chunk_by(|a, b| a == b) {
        let grids = match run[0] {
            Modality::Text => {
                thw.extend((clock..).take(run.len()).map(|p| [p; 3]));
                clock += run.len() as u32;
                continue;
            }
            Modality::Image => &mut images,
            Modality::Video => &mut frames,
        };
        let grid = grids.next(thw.len(), run.len(), merge)?;
        let (rows, columns) = ((grid.h / merge) as u32, (grid.w / merge) as u32);
        if active(Mutant::ImagePositionsPlain) {
            thw.extend((clock..clock + rows * columns).map(|p| [p; 3]));
        } else {
            thw.extend((0..rows).flat_map(|y| (0..columns).map(move |x| [clock, clock + y, clock + x])));
        }
        let by_tokens = active(Mutant::ClockByTokens) || active(Mutant::ImagePositionsPlain);
        clock += if by_tokens { rows * columns } else { rows.max(columns) };
    }
    images.finish()?;
    frames.finish()?;
    let last = thw.iter().flatten().max().map_or(-1, |&p| i64::from(p));
    let rope_delta = if active(Mutant::RopeDeltaZero) { 0 } else { last + 1 - thw.len() as i64 };
    Ok(Positions { thw, rope_delta })
}

/// The grids of one kind, each one frame, taken in order.
struct Grids {
    kind: &'static str,
    grids: Vec<Grid>,
    used: usize,
}

impl Grids {
    fn of_images(grids: &[Grid], merge: usize) -> Result<Self, PositionError> {
        for (index, grid) in grids.iter().enumerate() {
            check_grid("image", index, grid, merge)?;
            if grid.t != 1 {
                return Err(PositionError::Grid { kind: "image", index, grid: grid.to_string(), merge });
            }
        }
        Ok(Grids { kind: "image", grids: grids.to_vec(), used: 0 })
    }

    /// Each frame of a video is a picture of its own: the timestamps between them are text.
    fn of_video_frames(videos: &[Grid], merge: usize) -> Result<Self, PositionError> {
        for (index, grid) in videos.iter().enumerate() {
            check_grid("video", index, grid, merge)?;
        }
        let frames = videos.iter().flat_map(|g| std::iter::repeat_n(Grid { t: 1, ..*g }, g.t)).collect();
        Ok(Grids { kind: "video frame", grids: frames, used: 0 })
    }

    /// The grid of a run of `run` tokens from token `at` on.
    fn next(&mut self, at: usize, run: usize, merge: usize) -> Result<Grid, PositionError> {
        let Grids { kind, ref grids, used: index } = *self;
        let Some(&grid) = grids.get(index) else {
            return Err(PositionError::MissingGrid { kind, at, grids: grids.len() });
        };
        let needed = grid.tokens(merge);
        if run != needed {
            return Err(PositionError::RunLength { kind, index, at, run, grid: grid.to_string(), needed });
        }
        self.used += 1;
        Ok(grid)
    }

    fn finish(&self) -> Result<(), PositionError> {
        let (kind, grids, used) = (self.kind, self.grids.len(), self.used);
        if used < grids { Err(PositionError::UnusedGrid { kind, grids, used }) } else { Ok(()) }
    }
}

fn check_grid(kind: &'static str, index: usize, grid: &Grid, merge: usize) -> Result<(), PositionError> {
    // 2^16 patches a side and frames: far past any picture, and no product below leaves usize.
    let side = |n: usize| n > 0 && n <= 1 << 16 && merge > 0 && n.is_multiple_of(merge);
    if side(grid.h) && side(grid.w) && (1..=1 << 16).contains(&grid.t) {
        Ok(())
    } else {
        Err(PositionError::Grid { kind, index, grid: grid.to_string(), merge })
    }
}
