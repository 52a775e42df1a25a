//! Which kernel an op is, and how many workgroups.

mod attention;
mod conv;
mod data;
mod decode;
mod delta;
mod heads;
mod norm;
mod paged;
mod rows;
mod trial;
mod work;

use turbospark_device::{DeviceError, Op, Recorded, View};

use crate::linear;
use crate::plan::{Plan, word};

pub(crate) use norm::is_wide_norm;
pub(crate) use trial::{HEADS, attention_works};
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

/// Puts as many of the first ops into the plan at once as one kernel does: how many, or `None`, and nothing was planned.
pub(crate) fn plan_some(plan: &mut Plan<'_>, ops: &[Recorded<'_>]) -> Option<(usize, Done)> {
    if let Some(done) = decode::ready(plan, ops) {
        return Some((decode::OPS, done));
    }
    if let Some(done) = heads::heads(plan, ops) {
        return Some((heads::OPS, done));
    }
    if let Some(planned) = linear::normed(plan, ops) {
        return Some(planned);
    }
    if let Some(planned) = linear::several(plan, None, ops) {
        return Some(planned);
    }
    match ops {
        [a, b, ..] => match (&a.op, &b.op) {
            (Op::RmsNorm(norm), Op::Rope(rope)) => norm::norm_rope(plan, norm, rope).map(|done| (2, done)),
            _ => None,
        },
        _ => None,
    }
}

/// Whether two views are the same elements in the same order.
pub(crate) fn same(a: &View<'_>, b: &View<'_>) -> bool {
    std::ptr::eq(a.buffer(), b.buffer())
        && (a.offset_bytes(), a.dtype()) == (b.offset_bytes(), b.dtype())
        && a.dims() == b.dims()
        && (0..a.dims().len()).all(|axis| a.stride(axis) == b.stride(axis))
}

/// Whether no byte from the first to the last of a view lies within another.
pub(crate) fn apart(views: &[&View<'_>]) -> bool {
    let end = |v: &View<'_>| v.end_bytes().unwrap_or(usize::MAX);
    views.iter().enumerate().all(|(i, a)| {
        views[..i]
            .iter()
            .all(|b| !std::ptr::eq(a.buffer(), b.buffer()) || a.offset_bytes() >= end(b) || b.offset_bytes() >= end(a))
    })
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
