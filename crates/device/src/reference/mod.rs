//! Plain loops: the oracle that every other device is tested against.
//!
//! Each op widens its inputs to f32, computes in f64 where a sum is taken, and rounds once when it stores.
//! It is never fast, keeps its memory private, cannot adopt a mapping, and no user path runs on it.

mod delta;
mod dense;
mod memory;
mod mix;

use std::io;

use memory::Memory;

use crate::{Buffer, Device, DeviceError, Mapping, Op, Precision, Recorded, View};

/// The oracle. See the module's documentation.
#[derive(Debug, Default)]
pub struct ReferenceDevice;

const NAME: &str = "reference";

impl Device for ReferenceDevice {
    fn name(&self) -> String {
        NAME.into()
    }

    fn precision(&self) -> Precision {
        Precision::F32
    }

    fn takes_order(&self) -> bool {
        true
    }

    fn alloc(&self, label: &str, bytes: usize) -> Result<Buffer, DeviceError> {
        Memory::zeroed(bytes)
            .map(|m| Buffer::new(bytes, m))
            .ok_or_else(|| DeviceError::OutOfMemory { label: label.into(), bytes })
    }

    fn adopt(&self, _: Mapping) -> Result<Option<Buffer>, DeviceError> {
        Ok(None)
    }

    fn write(&self, to: View<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        memory::of(&to)?.with(&to, bytes.len(), |m| m.copy_from_slice(bytes))
    }

    fn read(&self, from: View<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        memory::of(&from)?.with(&from, out.len(), |m| out.copy_from_slice(m))
    }

    fn fill(&self, slot: View<'_>, reader: &mut dyn FnMut(&mut [u8]) -> io::Result<()>) -> Result<(), DeviceError> {
        memory::of(&slot)?.with(&slot, memory::len(&slot)?, reader)?.map_err(DeviceError::Weights)
    }

    fn run(&self, ops: &[Recorded<'_>]) -> Result<(), DeviceError> {
        ops.iter().try_for_each(|r| match run(&r.op) {
            Err(DeviceError::Op { op, message, .. }) => {
                Err(DeviceError::Op { scope: r.scope.to_string(), op, message })
            }
            other => other,
        })
    }
}

fn run(op: &Op<'_>) -> Result<(), DeviceError> {
    match op {
        Op::Gather(op) => dense::gather(op),
        Op::Copy(op) => memory::copy(&op.from, &op.to),
        Op::Zero(op) => memory::of(&op.out)?.with(&op.out, memory::len(&op.out)?, |m| m.fill(0)),
        Op::Matmul(op) => dense::matmul(op),
        Op::GatedMatmul(op) => dense::gated_matmul(op),
        Op::RmsNorm(op) => dense::rms_norm(op),
        Op::LayerNorm(op) => dense::layer_norm(op),
        Op::SigmoidGate(op) => dense::sigmoid_gate(op),
        Op::Rope(op) => mix::rope(op),
        Op::Attention(op) => mix::attention(op),
        Op::StoreKv(op) => mix::store_kv(op),
        Op::PagedAttention(op) => mix::paged_attention(op),
        Op::CausalConv(op) => delta::causal_conv(op),
        Op::DeltaGates(op) => delta::delta_gates(op),
        Op::DeltaScan(op) => delta::delta_scan(op),
        Op::Router(op) => dense::router(op),
        Op::Experts(op) => dense::experts(op),
        Op::Acquire(op) => op.source.acquire(op.unit),
        Op::Release(op) => {
            op.source.release(op.unit);
            Ok(())
        }
    }
}
