//! The checkpoint's own preprocessing settings.
//!
//! Nothing that differs between models is assumed: patch size, mean, spread and pixel limits of another
//! generation of the family give a picture that is merely worse, so a file without them is refused.

mod read;

use crate::{ConfigError, PatchLayout, PixelScale, SizeError};
use read::Reader;

/// How images are sized, cut and normalised: `preprocessor_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageConfig {
    /// How sized pictures are cut.
    pub layout: PatchLayout,
    /// How samples become numbers.
    pub scale: PixelScale,
    /// Fewest pixels after sizing.
    pub min_pixels: usize,
    /// Most pixels after sizing.
    pub max_pixels: usize,
}

/// How clips are sampled, sized and cut: `video_preprocessor_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct VideoConfig {
    /// How sized frames are cut.
    pub layout: PatchLayout,
    /// How samples become numbers.
    pub scale: PixelScale,
    /// Fewest pixels of the whole clip after sizing.
    pub min_pixels: usize,
    /// Most pixels of the whole clip after sizing.
    pub max_pixels: usize,
    /// Frames taken a second.
    pub fps: f64,
    /// Fewest frames taken, where there are as many.
    pub min_frames: usize,
    /// Most frames taken.
    pub max_frames: usize,
    /// Whether frames are sampled at all.
    pub sample_frames: bool,
}

const IMAGE_FILE: &str = "preprocessor_config.json";
const VIDEO_FILE: &str = "video_preprocessor_config.json";

impl ImageConfig {
    /// From the text of `preprocessor_config.json`, or of `processor_config.json` that holds the same
    /// settings under `image_processor`.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let reader = Reader::new(IMAGE_FILE, "image_processor", text)?;
        reader.check_type("image_processor_type", "a Qwen2VL or Qwen3VL image processor")?;
        let (min_pixels, max_pixels) = reader.limits()?;
        let config = ImageConfig { layout: reader.layout()?, scale: reader.scale()?, min_pixels, max_pixels };
        config.check().map_err(|source| ConfigError::Limits { file: IMAGE_FILE, source })?;
        Ok(config)
    }

    /// The same with the user's own limits in place of the file's.
    pub fn with_limits(mut self, min_pixels: Option<usize>, max_pixels: Option<usize>) -> Result<Self, SizeError> {
        self.min_pixels = min_pixels.unwrap_or(self.min_pixels);
        self.max_pixels = max_pixels.unwrap_or(self.max_pixels);
        self.check()?;
        Ok(self)
    }

    fn check(&self) -> Result<(), SizeError> {
        check_limits(self.min_pixels, self.max_pixels, self.layout)
    }
}

impl VideoConfig {
    /// From the text of `video_preprocessor_config.json`, or of `processor_config.json` that holds the same
    /// settings under `video_processor`.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let reader = Reader::new(VIDEO_FILE, "video_processor", text)?;
        reader.check_type("video_processor_type", "a Qwen2VL or Qwen3VL video processor")?;
        reader.flag_is("cap_pixels_per_frame", false)?;
        let (min_pixels, max_pixels) = reader.limits()?;
        let config = VideoConfig {
            layout: reader.layout()?,
            scale: reader.scale()?,
            min_pixels,
            max_pixels,
            // These four are the processor's own and the same in every published checkpoint.
            fps: reader.positive("fps", 2.0)?,
            min_frames: reader.count("min_frames", 4)?,
            max_frames: reader.count("max_frames", 768)?,
            sample_frames: reader.flag("do_sample_frames", true)?,
        };
        check_limits(min_pixels, max_pixels, config.layout)
            .map_err(|source| ConfigError::Limits { file: VIDEO_FILE, source })?;
        Ok(config)
    }
}

fn check_limits(min_pixels: usize, max_pixels: usize, layout: PatchLayout) -> Result<(), SizeError> {
    if min_pixels == 0 || min_pixels > max_pixels {
        return Err(SizeError::Limits { min_pixels, max_pixels });
    }
    let factor = layout.factor();
    if max_pixels < factor * factor {
        return Err(SizeError::LimitBelowToken { max_pixels, factor });
    }
    Ok(())
}
