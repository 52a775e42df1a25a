//! The op set: one struct an op, with named views.
//!
//! Shapes are written outermost first. Activations are f32; weights may be any float type unless an op says
//! otherwise, and the `[out, in]` weights of linear layers and the tables of gathers any block
//! type, or codes with scales apart, too. An `out` may be the same view as an input only where the op says so.

mod check;
mod data;
mod delta;
mod dense;
mod experts;
mod mix;
mod norm;
mod unit;

pub use data::{Copy, Gather, SigmoidGate, Zero};
pub use delta::{CausalConv, DeltaGates, DeltaScan};
pub use dense::{Activation, GatedMatmul, LinearWeight, Matmul, ScaledWeight, WeightLayout};
pub use experts::{Expert, ExpertSource, Experts, Router, UseExpert, UseExperts};
pub use mix::{Attention, PagedAttention, Rope, Snapshot, Span, StoreKv};
pub use norm::{LayerNorm, RmsNorm};
pub use unit::{Acquire, Release, UnitSource};

use crate::View;

macro_rules! ops {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Any op.
        #[derive(Debug)]
        #[allow(clippy::large_enum_variant, reason = "hundreds a pass, each moved once as it is recorded")]
        pub enum Op<'a> { $($(#[doc = $doc])* $name($name<'a>),)* }

        impl Op<'_> {
            /// The op's name, for errors and timings.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$name(_) => stringify!($name),)* }
            }

            /// Whether the views fit each other and their buffers; the message says what came and what was wanted.
            pub fn check(&self) -> Result<(), String> {
                match self { $(Op::$name(op) => op.check(),)* }
            }
        }
    };
}

ops! {
    /// Rows of a table by index.
    Gather,
    /// One view to another.
    Copy,
    /// Zeros.
    Zero,
    /// A linear layer.
    Matmul,
    /// The gated half of an MLP.
    GatedMatmul,
    /// Root mean square norm.
    RmsNorm,
    /// Layer norm.
    LayerNorm,
    /// Rotary embedding.
    Rope,
    /// Unmasked attention within segments.
    Attention,
    /// Keys and values into the cache.
    StoreKv,
    /// Causal attention over the cache.
    PagedAttention,
    /// Depthwise causal convolution.
    CausalConv,
    /// Decay and write strength of gated DeltaNet.
    DeltaGates,
    /// The gated delta rule.
    DeltaScan,
    /// A sigmoid gate.
    SigmoidGate,
    /// Top-k choice of experts.
    Router,
    /// A mixture of experts.
    Experts,
    /// Waits for weights.
    Acquire,
    /// Gives weights back.
    Release,
}

impl Op<'_> {
    /// The name, and of a linear layer rows x inputs x outputs and what its weights are stored as: for timings.
    pub fn label(&self) -> String {
        let linear = |x: &View<'_>, weight: &LinearWeight<'_>, out: &View<'_>| {
            let stored = match weight {
                LinearWeight::View(view) => view.dtype().to_string(),
                LinearWeight::Scaled(scaled) => format!("{:?}", scaled.form),
            };
            format!("{} {}x{}x{} {stored}", self.name(), x.dim(0), x.dim(1), out.dim(1))
        };
        match self {
            Op::Matmul(op) => linear(&op.x, &op.weight, &op.out),
            Op::GatedMatmul(op) => linear(&op.x, &op.gate, &op.out),
            _ => self.name().into(),
        }
    }
}
