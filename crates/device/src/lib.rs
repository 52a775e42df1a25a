//! Devices, passes and ops.
//!
//! A [`Device`] owns memory and runs ops; a [`Pass`] records them. Models are written against this crate
//! alone, so every device takes every model. An op is a struct of named [`View`]s whose shapes are checked
//! once, when it is recorded; a device sees only checked ops, and may fuse neighbours as it likes as long as
//! the result is the one that [`ReferenceDevice`] computes.
//!
//! What goes wrong unseen: an op that reads memory a previous op has yet to write. Ops of one pass run in
//! order, and a device that overlaps them places the barriers itself.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod buffer;
mod device;
mod error;
mod limits;
pub mod op;
mod op_times;
mod pass;
pub mod reference;

pub use buffer::{Buffer, View};
pub use device::{Device, Mapping, MemoryKind, Precision};
pub use error::DeviceError;
pub use limits::{Inputs, Limits, Peak};
pub use op::{
    Activation, Expert, ExpertSource, LinearWeight, Op, ScaledWeight, Snapshot, Span, UnitSource, WeightLayout,
};
pub use op_times::{OpTime, OpTimes};
pub use pass::{Pass, Recorded, Scope, TapSink};
pub use reference::ReferenceDevice;
