//! Element types, shapes and exact rounding.
//!
//! The lowest crate: everything that names a tensor's form agrees on it here. What goes wrong unseen is
//! rounding: [`f32_to_bf16`] rounds to nearest even as the reference does, and truncating instead gives a
//! model that is slightly wrong everywhere.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod block;
mod dtype;
pub mod mutant;
pub mod quant;
pub mod scaled;
mod shape;
mod small_floats;

pub use block::Block;
pub use dtype::{DType, UnknownDType, f32_to_bf16, f32_to_f16, widen_into, widen_one};
pub use scaled::{Code, ScaledForm};
pub use shape::{Shape, ShapeError};
pub use small_floats::{bf16_to_f32, e2m1_to_f32, e4m3_to_f32, e8m0_to_f32, f16_to_f32};
