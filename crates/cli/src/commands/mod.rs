//! One file a command.

#[cfg(feature = "device-wgpu")]
pub mod adapters;
pub mod bench;
pub mod chat;
mod dropped;
pub mod inspect;
pub mod list;
pub mod pack;
pub mod plan;
pub mod preprocess;
pub mod pull;
pub mod read;
pub mod rm;
pub mod run;
pub mod trace;
