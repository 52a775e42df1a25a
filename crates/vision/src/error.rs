use thiserror::Error;

/// Why bytes did not become a picture.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// No bytes at all.
    #[error("the image is empty: 0 bytes; check that the file was uploaded or written completely")]
    Empty,
    /// The first bytes belong to no known format.
    #[error(
        "not an image format that is known here (it starts with {start}); send PNG, JPEG, WebP, GIF, BMP, TIFF or PNM"
    )]
    UnknownFormat {
        /// The first bytes in hexadecimal.
        start: String,
    },
    /// A known format that is not read here.
    #[error("{format} is not a supported image format; {advice}")]
    UnsupportedFormat {
        /// The format's name.
        format: &'static str,
        /// What to do instead.
        advice: &'static str,
    },
    /// A supported format in a form that is not.
    #[error("this {format} image uses something that is not supported: {what}; save it as 8-bit RGB PNG or JPEG")]
    UnsupportedFeature {
        /// The format's name.
        format: &'static str,
        /// What the file uses.
        what: String,
    },
    /// The header claims more pixels than are allowed.
    #[error(
        "the image is too large: {width}x{height} is {pixels} pixels, the limit is {limit}; send a smaller image or raise the pixel limit"
    )]
    TooManyPixels {
        /// Columns according to the header.
        width: u64,
        /// Rows according to the header.
        height: u64,
        /// Their product.
        pixels: u64,
        /// The limit in force.
        limit: u64,
    },
    /// Decoding would need more memory than is allowed.
    #[error(
        "decoding this {format} image needs more than the {limit} bytes allowed; send a smaller image or raise the limit"
    )]
    TooMuchMemory {
        /// The format's name.
        format: &'static str,
        /// The limit in force.
        limit: u64,
    },
    /// The file ends before the picture does.
    #[error("the {format} image is truncated, data is missing: {what}; send the whole file")]
    Truncated {
        /// The format's name.
        format: &'static str,
        /// What was missing.
        what: String,
    },
    /// The file contradicts itself or its checksums.
    #[error("the {format} image is damaged, cannot decode it: {reason}")]
    Damaged {
        /// The format's name.
        format: &'static str,
        /// What the decoder found.
        reason: String,
    },
    /// A picture without pixels.
    #[error("the image has no pixels: width {width}, height {height}")]
    NoPixels {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// Raw samples whose number does not fit the sides.
    #[error("raw image of {width}x{height} needs width * height * 3 bytes, got {got}")]
    WrongLength {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
        /// Bytes given.
        got: usize,
    },
    /// A patch buffer of the wrong length.
    #[error("the patch buffer holds {got} values, this image needs {expected}")]
    PatchBuffer {
        /// Values needed.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// The picture cannot be sized.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The clip's frames do not fit together.
    #[error(transparent)]
    Video(#[from] VideoError),
}

/// Why a size has no resized form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizeError {
    /// A side of zero.
    #[error("an image of {width}x{height} has no pixels")]
    ZeroSide {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// The longer side is more than 200 times the shorter.
    #[error(
        "the image's aspect ratio is too extreme: {width}x{height} is over the limit of 200 to 1; crop it or cut it into parts"
    )]
    AspectRatio {
        /// Columns.
        width: usize,
        /// Rows.
        height: usize,
    },
    /// A clip of fewer frames than one patch spans.
    #[error("a video needs at least {needed} frames, this one has {frames}; send it as an image")]
    TooFewFrames {
        /// Frames given.
        frames: usize,
        /// Frames in one patch.
        needed: usize,
    },
    /// Pixel limits that contradict each other.
    #[error("pixel limits of {min_pixels} to {max_pixels} are not usable: at least 1, and the smaller one first")]
    Limits {
        /// Fewest pixels.
        min_pixels: usize,
        /// Most pixels.
        max_pixels: usize,
    },
    /// A most that one merged patch exceeds.
    #[error("a limit of {max_pixels} pixels is below one image token, {factor}x{factor} pixels; allow at least that")]
    LimitBelowToken {
        /// Most pixels.
        max_pixels: usize,
        /// Side of a merged patch.
        factor: usize,
    },
}

/// Why frames did not become a clip.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum VideoError {
    /// No frames at all.
    #[error("the video has no frames")]
    NoFrames,
    /// A rate that is not a positive number.
    #[error("{0} is not a frame rate; give frames per second as a positive number")]
    Rate(String),
    /// More frames asked for than there are.
    #[error("{wanted} frames were asked for, the video has {total}")]
    FrameCount {
        /// Frames asked for.
        wanted: usize,
        /// Frames there are.
        total: usize,
    },
    /// A frame unlike the first.
    #[error("video frame {index} is {width}x{height}, the first is {first_width}x{first_height}; all must be equal")]
    FrameSize {
        /// Number of the frame, from 0.
        index: usize,
        /// Its columns.
        width: usize,
        /// Its rows.
        height: usize,
        /// Columns of the first frame.
        first_width: usize,
        /// Rows of the first frame.
        first_height: usize,
    },
}

impl Eq for VideoError {}

/// Why a checkpoint's preprocessing file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Not JSON.
    #[error("{file} is not valid JSON: {reason}")]
    Json {
        /// The file's usual name.
        file: &'static str,
        /// What the parser says.
        reason: String,
    },
    /// A key that has no safe default is missing.
    #[error("{file} has no \"{key}\"; it differs between models, so none is assumed")]
    Missing {
        /// The file's usual name.
        file: &'static str,
        /// The key.
        key: &'static str,
    },
    /// A value that is not supported or makes no sense.
    #[error("{file}: \"{key}\" is {got}, expected {expected}")]
    Value {
        /// The file's usual name.
        file: &'static str,
        /// The key.
        key: &'static str,
        /// What the file says.
        got: String,
        /// What is supported.
        expected: &'static str,
    },
    /// Pixel limits that are not usable.
    #[error("{file}: {source}")]
    Limits {
        /// The file's usual name.
        file: &'static str,
        /// What is wrong with them.
        source: SizeError,
    },
}

/// Why a prompt has no positions.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PositionError {
    /// A modality id that is none of 0, 1, 2.
    #[error("modality id {0} is unknown; 0 is text, 1 image, 2 video")]
    Modality(u8),
    /// More runs of placeholders than grids.
    #[error("the prompt has a {kind} at token {at} but only {grids} {kind} grids were given")]
    MissingGrid {
        /// `image` or `video frame`.
        kind: &'static str,
        /// Token index of the run.
        at: usize,
        /// Grids given.
        grids: usize,
    },
    /// More grids than runs of placeholders.
    #[error("{grids} {kind} grids were given but the prompt has placeholders for {used}")]
    UnusedGrid {
        /// `image` or `video frame`.
        kind: &'static str,
        /// Grids given.
        grids: usize,
        /// Grids used.
        used: usize,
    },
    /// A run whose length is not its grid's.
    #[error("{kind} {index} spans {run} tokens from token {at}, its grid {grid} needs {needed}")]
    RunLength {
        /// `image` or `video frame`.
        kind: &'static str,
        /// Number of the grid, from 0.
        index: usize,
        /// Token index of the run.
        at: usize,
        /// Tokens in the run.
        run: usize,
        /// The grid as `t x h x w`.
        grid: String,
        /// Tokens that the grid needs.
        needed: usize,
    },
    /// A grid that does not merge into tokens.
    #[error("{kind} grid {index} is {grid}: sides must be positive multiples of {merge}, an image has one frame")]
    Grid {
        /// `image` or `video`.
        kind: &'static str,
        /// Number of the grid, from 0.
        index: usize,
        /// The grid as `t x h x w`.
        grid: String,
        /// Patches merged along a side.
        merge: usize,
    },
    /// More tokens than positions can count.
    #[error("{0} tokens are more than positions can count")]
    TooLong(usize),
}
