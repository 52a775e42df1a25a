//! The order of operations of each model family.
//!
//! Written against [`turbospark_device`] alone: no file here names a device, and no device names a model.
//! One file a family holds its decoder layer ([`qwen3_vl`], [`qwen3_5`] in the source); what they share are
//! blocks. [`Trunk::forward`] runs over a ragged batch of rows, [`VisionTower::encode`] over images of
//! different sizes.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod batch;
mod blocks;
mod cache;
pub mod config;
mod error;
mod layout;
mod load;
pub mod probe;
mod quant;
mod qwen3_5;
mod qwen3_vl;
pub mod rope;
mod scratch;
mod stream;
mod traffic;
mod trunk;
mod vision_tower;
mod weight;

pub use batch::{Row, Sequence, Source};
pub use cache::{Cache, CacheShape, KvFormat, UnknownKvFormat};
pub use error::{ModelError, Result};
pub use load::{LoadAs, Model, Planned, plan};
pub use quant::{Quant, Role, UnknownQuant};
pub use scratch::Scratch;
pub use stream::{Choice, Counters, Pool, READERS, Residency, Ring, UnitSizes, Visit, policy};
pub use trunk::Trunk;
pub use vision_tower::{ImageRows, Patches, VisionInput, VisionTower};
pub use weight::Weight;
