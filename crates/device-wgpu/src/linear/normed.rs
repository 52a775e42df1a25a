//! The norm of decode rows as the beginning of the layers that read it.
//!
//! A norm of one row is a few microseconds of work behind a launch that takes longer. Every workgroup of the layer computes
//! it again, which costs a read of the row beside that of its weights: the same numbers in the same order as the norm
//! alone, so that no bit depends on which of the two ran.

use turbospark_device::op::RmsNorm;
use turbospark_device::{DeviceError, View};
use turbospark_tensor::DType;

use super::Rows;
use crate::kernel::Form;
use crate::ops::{apart, is_wide_norm, same};
use crate::plan::{At, Plan, Run, word};

/// Buffers that a kernel binds for it.
pub(super) const BUFFERS: u32 = 2;

/// What a kernel's text depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    pub weight: DType,
    pub one_plus: bool,
}

/// A norm whose result layers read, and where that goes besides.
#[derive(Clone, Debug)]
pub(super) struct Normed {
    pub kind: Kind,
    pub x: Rows,
    weight: At,
    eps: f32,
    out: Rows,
}

impl Normed {
    /// The norm, for layers that read `x` and write `outs`; `None` where they can't begin with it.
    pub fn of(plan: &Plan<'_>, norm: &RmsNorm<'_>, x: &View<'_>, outs: &[&View<'_>]) -> Option<Self> {
        let views = [&[&norm.x, &norm.out], outs].concat();
        if !is_wide_norm(plan, norm) || !same(&norm.out, x) || !apart(&views) {
            return None;
        }
        let made = || -> Result<Self, DeviceError> {
            Ok(Normed {
                kind: Kind { weight: norm.weight.dtype(), one_plus: norm.one_plus },
                x: Rows::of(plan, &norm.x)?,
                weight: plan.stored(&norm.weight)?,
                eps: norm.eps,
                out: Rows::of(plan, &norm.out)?,
            })
        };
        made().ok()
    }

    /// Writes its parameters after those of the layer.
    pub fn words(&self) -> Result<[u32; 4], DeviceError> {
        Ok([self.weight.at, self.eps.to_bits(), word(self.out.at.at as usize / 4)?, self.out.row / 4])
    }

    pub fn bind<'p, 'd>(&self, run: Run<'p, 'd>) -> Run<'p, 'd> {
        run.read("norm_weight", Form::Stored(self.kind.weight), &self.weight.window).write(
            "normed",
            Form::Vec4,
            &self.out.at.window,
        )
    }
}

#[cfg(test)]
mod tests {
    use turbospark_device::op::{GatedMatmul, Matmul, WeightLayout};
    use turbospark_device::{Device, Op};

    use super::*;
    use crate::{Adapter, WgpuDevice, WgpuOptions, testing};

    const SIDES: [usize; 2] = [204, 24];

    /// A norm and the layers after it on known numbers, in one pass or each in its own; all that they write, in bits.
    fn run(device: &dyn Device, rows: usize, layers: usize, gated: bool, together: bool) -> Vec<u32> {
        let [k, n] = SIDES;
        let put = |count: usize, seed: usize| {
            let buffer = device.alloc("test", 4 * count).unwrap();
            let values: Vec<f32> = (0..count).map(|i| ((i * 7919 + seed * 31) % 997) as f32 / 498.5 - 1.0).collect();
            device.write_f32(buffer.view(0, DType::F32, [count]), &values).unwrap();
            buffer
        };
        let (scratch, weights) = (put(2 * rows * k + 3 * rows * n, 1), put(3 * n * k + k, 2));
        let [x, normed] = [0, 1].map(|i| scratch.view(4 * i * rows * k, DType::F32, [rows, k]));
        let out = |i: usize| scratch.view(4 * (2 * rows * k + i * rows * n), DType::F32, [rows, n]);
        let weight = |i: usize| weights.view(4 * i * n * k, DType::F32, [n, k]);
        let of = weights.view(12 * n * k, DType::F32, [k]);
        let mut ops = vec![Op::RmsNorm(RmsNorm { x, weight: of, one_plus: true, eps: 1e-6, gate: None, out: normed })];
        if gated {
            let (gate, up, layout) = (weight(0).into(), weight(1).into(), WeightLayout::OutIn);
            ops.push(Op::GatedMatmul(GatedMatmul { x: normed, gate, up, layout, out: out(0), prompt_rows: 0 }));
        }
        let layer = |i| Op::Matmul(Matmul { prompt_rows: 0, ..Matmul::new(normed, weight(i), out(i)) });
        ops.extend((0..layers).map(layer));
        testing::run(device, ops, together);
        let all = scratch.view(0, DType::F32, [scratch.len() / 4]);
        device.read_f32(all).unwrap().into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn layers_that_begin_with_their_norm_give_the_bits_of_both() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        for subgroups in [true, false] {
            for (rows, layers, gated) in [(1, 3, false), (3, 1, false), (2, 0, true)] {
                // Matrix units would be tried out, by kernels of their own.
                let options = WgpuOptions { no_matrix_units: true, ..WgpuOptions::default() };
                let mut device = WgpuDevice::new(&adapter, options).unwrap();
                if !subgroups {
                    device.gpu.subgroups = (0, 0);
                }
                let one = run(&device, rows, layers, gated, true);
                assert_eq!(device.kernels().len(), 1, "{rows} rows");
                assert!(one == run(&device, rows, layers, gated, false), "{rows} rows, {layers} layers");
            }
        }
    }
}
