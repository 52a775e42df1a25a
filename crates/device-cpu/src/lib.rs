//! The CPU device: vector kernels and a worker pool.
//!
//! One source of loops, compiled once an instruction set and chosen at run time. Activations are f32, weights
//! are widened exactly as they are loaded, sums are f32. Only with `Precision::Auto` are inputs of products rounded:
//! for the matrix kernels and attention to bf16 where the CPU is faster for it, and for rows being decoded to bf16 too,
//! on weights in bf16 where the vectors multiply it, and on quantised weights to signed bytes with a scale of 16 elements.
//!
//! What goes wrong unseen: a result that depends on company. No bit of a row's result depends on the number of
//! threads or on the rows beside it. So an element's sum runs in an order that its length alone decides; rows
//! of a prompt always take the matrix kernels and rows being decoded the row kernels; attention cuts the keys,
//! and the delta rule its chunks, at absolute multiples of 64.
#![deny(missing_docs)]

mod device;
mod isa;
mod limits;
mod memory;
mod ops;
mod overlap;
mod owned;
mod pool;
mod scratch;
mod simd;

pub use device::{CpuDevice, CpuOptions};
pub use isa::Isa;
