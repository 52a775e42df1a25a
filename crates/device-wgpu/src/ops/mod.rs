//! Which kernel an op is, and how many workgroups.

mod attention;
mod conv;
mod data;
mod delta;
mod norm;
mod paged;
mod rows;
mod trial;
mod work;

use turbospark_device::{DeviceError, Op, View};

use crate::linear;
use crate::plan::{Plan, word};

pub(crate) use trial::attention_works;
pub(crate) use work::work;

pub(crate) type Done = Result<(), DeviceError>;

/// Threads of a workgroup where a thread does an element.
pub(crate) const WG: u32 = 256;

/// Puts an op's dispatches into the plan.
pub(crate) fn plan(plan: &mut Plan<'_>, op: &Op<'_>) -> Done {
    match op {
        Op::Gather(op) => linear::gather(plan, op),
        Op::Copy(op) => data::copy(plan, op),
        Op::Zero(op) => data::zero(plan, op),
        Op::Matmul(op) => linear::matmul(plan, op),
        Op::GatedMatmul(op) => linear::gated_matmul(plan, op),
        Op::RmsNorm(op) => norm::rms_norm(plan, op),
        Op::LayerNorm(op) => norm::layer_norm(plan, op),
        Op::SigmoidGate(op) => rows::sigmoid_gate(plan, op),
        Op::Rope(op) => rows::rope(plan, op),
        Op::Attention(op) => attention::attention(plan, op),
        Op::StoreKv(op) => paged::store_kv(plan, op),
        Op::PagedAttention(op) => paged::paged_attention(plan, op),
        Op::CausalConv(op) => conv::causal_conv(plan, op),
        Op::DeltaGates(op) => rows::delta_gates(plan, op),
        Op::DeltaScan(op) => delta::delta_scan(plan, op),
        Op::Router(op) => rows::router(plan, op),
        Op::Experts(_) | Op::Acquire(_) | Op::Release(_) => unreachable!("split the plan"),
    }
}

/// Puts two neighbours into the plan at once, where one kernel does both; else `None`, and nothing was planned.
pub(crate) fn plan_two(plan: &mut Plan<'_>, first: &Op<'_>, second: &Op<'_>) -> Option<Done> {
    match (first, second) {
        (Op::RmsNorm(norm), Op::Rope(rope)) => norm::norm_rope(plan, norm, rope),
        _ => None,
    }
}

/// Workgroups of [`WG`] threads for a thread an element.
pub(crate) fn groups(elements: usize) -> u64 {
    (elements as u64).div_ceil(u64::from(WG))
}

/// Elements from a row to the next, and from a head to the next; zero where there is no such axis.
pub(crate) fn strides(v: &View<'_>) -> Result<[u32; 2], DeviceError> {
    let rank = v.shape().rank();
    let of = |axis: usize| if axis + 1 < rank { word(v.stride(axis)) } else { Ok(0) };
    Ok([of(0)?, of(1)?])
}
