//! Run Qwen vision-language models on the machine you have.
//!
//! ```
//! use turbospark::{GenerateOptions, LoadOptions, Model};
//!
//! # fn main() -> turbospark::Result<()> {
//! # #[cfg(feature = "embedded-model")] {
//! let model = Model::embedded(&LoadOptions::default())?;
//! # let receipt = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/receipt.png");
//! let prompt = model.prompt().image_file(receipt).text("What is the total?").build()?;
//!
//! let mut session = model.session();
//! let mut generation = session.generate(&prompt, &GenerateOptions::default())?;
//! for piece in &mut generation {
//!     print!("{}", piece?);
//! }
//! assert_eq!(generation.so_far().text, "$179.61");
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! A [`Model`] is a loaded checkpoint, a [`Prompt`] a validated value, a [`Session`] one sequence in the cache,
//! a [`Generation`] an answer in the making. Several sessions may be held and driven from several threads;
//! nothing is global.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod bench;
mod chat;
#[cfg(feature = "embedded-model")]
mod embedded;
mod encode;
mod error;
mod folders;
mod generate;
mod memory;
mod model;
mod options;
pub mod pack;
mod pool;
mod prompt;
pub mod sampler;
mod session;
pub mod simulate;
pub mod trace;
mod trace_request;

pub use chat::{ChatOptions, DataUris, ImageLoader, LocalFiles, PromptBuilder};
pub use encode::Encoded;
pub use error::{Error, Result};
pub use generate::{Answer, FinishReason, GenerateOptions, Generation, Timing, Usage};
pub use memory::{DiskSpeed, Free, MemoryPlan, ResidencyChoice, Term, free, peak_bytes, resident_bytes};
pub use model::{Model, Reads};
pub use options::{DeviceChoice, LoadOptions};
pub use prompt::{Pixels, Prompt, PromptError, PromptLimits, PromptParts, Visual, VisualRows, VisualSpan};
pub use sampler::{Sampler, Sampling};
pub use session::{Cancel, Prefill, Progress, Session};
pub use trace_request::{Traced, TracedValues};
pub use turbospark_models::{Choice, Visit};

pub use turbospark_device as device;
#[cfg(feature = "device-wgpu")]
pub use turbospark_device_wgpu as device_wgpu;
pub use turbospark_models::{KvFormat, ModelError, Quant, UnknownKvFormat, UnknownQuant, config};
pub use turbospark_text as text;
pub use turbospark_vision as vision;
pub use turbospark_weights as weights;
pub use turbospark_weights::gguf::Mmproj;

/// The README's example runs as a test.
#[cfg(all(doctest, feature = "embedded-model", feature = "device-cpu"))]
#[doc = include_str!("../../../README.md")]
struct Readme;
