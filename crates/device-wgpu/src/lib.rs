//! The GPU, through Vulkan, Metal or DX12: hand-written WGSL behind the same ops as every other device.
//!
//! A pass becomes a [`plan`]: a list of dispatches, each a kernel with its bindings and a few words. A plan becomes one
//! command buffer and one submission; nothing waits for the host inside it, unless weights are streamed.
//!
//! What goes wrong unseen: a kernel that runs past a view. Bindings reach over the whole buffer, where a binding may
//! be that large, so a wrong index reads a neighbour's numbers and no check of the API sees it. Kernels therefore
//! guard rows and columns themselves, and the tests hold what lies beside an output against what was there before.
#![deny(unsafe_code)]
#![deny(missing_docs)]

#[cfg(test)]
extern crate self as turbospark_device_wgpu;

mod adapter;
mod clock;
mod device;
mod emulated;
mod encode;
mod kernel;
mod limits;
mod linear;
mod memory;
mod ops;
mod pipelines;
mod plan;
#[cfg(test)]
mod steps;
mod template;
#[cfg(test)]
mod testing;
mod trust;
#[cfg(test)]
mod variants;

pub use adapter::{Adapter, AdapterKind, Capabilities};
pub use device::{WgpuDevice, WgpuOptions};
