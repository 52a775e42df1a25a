//! From image bytes to patches and positions.
//!
//! bytes -> [`decode`] -> [`smart_resize`] -> [`resize`] -> [`Picture`] -> patches, and
//! modality ids and grids -> [`rope_index`] -> a position triple a token.
//!
//! Nothing here fails loudly when it is slightly wrong: a picture that is turned, one merged row too tall,
//! or cut into patches in raster order still gives a fluent answer. So every stage is tested against the
//! reference's own bytes, and what cannot be read exactly is refused by name.
//!
//! ```
//! use turbospark_vision::{DecodeLimits, ImageConfig, Picture, Rgb};
//!
//! let config = ImageConfig::from_json(
//!     r#"{"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
//!         "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
//!         "size": {"shortest_edge": 65536, "longest_edge": 16777216}}"#,
//! )?;
//! let grey = Rgb::new(640, 480, vec![128; 640 * 480 * 3])?;
//! let picture = Picture::from_rgb(grey, &config, &DecodeLimits::default())?;
//! assert_eq!(picture.tokens(), 300);
//! assert_eq!(picture.patches().len(), 1200 * 1536);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod config;
mod decode;
mod error;
mod normalize;
mod patch;
mod picture;
mod positions;
mod resize;
mod rgb;
mod size;
mod video;

pub use config::{ImageConfig, VideoConfig};
pub use decode::{DecodeLimits, Decoded, Note, decode};
pub use error::{ConfigError, ImageError, PositionError, SizeError, VideoError};
pub use normalize::PixelScale;
pub use patch::{Grid, PatchLayout, write_patches, write_some_patches};
pub use picture::{Picture, preprocess};
pub use positions::{Modality, Positions, rope_index};
pub use resize::resize;
pub use rgb::Rgb;
pub use size::{smart_resize, smart_resize_video};
pub use video::{Clip, Sampling, preprocess_frames, sample_frames, timestamp_label, timestamps};
