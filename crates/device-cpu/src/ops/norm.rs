//! Norms: one line at a time, sums in two vectors of partial sums.

use turbospark_device::op::{LayerNorm, RmsNorm};

use super::{Done, Engine, Shared};
use crate::memory::Tensor;
use crate::simd::stored::Vector;
use crate::simd::{Simd, Task, math};

/// Widens a vector into scratch.
struct Widen(Vector, usize, Shared<f32>);

impl Task for Widen {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the vector has this many elements, as the op's check found, and so has the scratch.
        unsafe { self.0.widen(s, 0, std::slice::from_raw_parts_mut(self.2.at(0), self.1)) }
    }
}

pub(super) fn rms_norm(engine: &mut Engine, op: &RmsNorm<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read_also("x", &op.x)?;
    let weight = a.weight("weight", &op.weight)?;
    let gate = op.gate.as_ref().map(|g| a.read("gate", g)).transpose()?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let n = x.last();
    let wide = Shared::new(engine.partial.get(n));
    engine.kernels.run(Widen(weight.vector(), n, wide));
    engine.split(x.lines(), n, |lines| {
        engine.kernels.run(Rms { x, weight: wide, plus: op.one_plus as u8 as f32, eps: op.eps, gate, out, lines });
    });
    Ok(())
}

struct Rms {
    x: Tensor,
    weight: Shared<f32>,
    plus: f32,
    eps: f32,
    gate: Option<Tensor>,
    out: Tensor,
    lines: std::ops::Range<usize>,
}

impl Task for Rms {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.last();
        for line in self.lines {
            let (x, out) = (self.x.f32_line(line).cast_const(), self.out.f32_line(line));
            let gate = self.gate.map(|g| g.f32_line(line).cast_const());
            // SAFETY: lines of `n` elements; `out` is this part's alone, and `x` lies apart or is the same line.
            unsafe {
                let squares = sum_of(s, x, n, |v| s.mul(v, v));
                let scale = s.splat(1.0 / (squares / n as f32 + self.eps).sqrt());
                for j in (0..n).step_by(S::LANES) {
                    let some = S::LANES.min(n - j);
                    let w = s.add(s.load_some(self.weight.at(j), some), s.splat(self.plus));
                    let mut v = s.mul(s.mul(s.load_some(x.add(j), some), scale), w);
                    if let Some(gate) = gate {
                        v = s.mul(v, math::silu(s, s.load_some(gate.add(j), some)));
                    }
                    s.store_some(out.add(j), v, some);
                }
            }
        }
    }
}

/// The sum of `f` over `n` elements, in an order that `n` alone decides. `f(0)` is not counted past the end
/// only where it is zero, so the last vector is masked.
///
/// # Safety
/// `n` elements are readable.
#[inline(always)]
pub(super) unsafe fn sum_of<S: Simd>(s: S, x: *const f32, n: usize, f: impl Fn(S::V) -> S::V) -> f32 {
    let mut acc = [s.splat(0.0); 2];
    let mut j = 0;
    // SAFETY: the caller's promise.
    unsafe {
        while j + 2 * S::LANES <= n {
            acc[0] = s.add(acc[0], f(s.load(x.add(j))));
            acc[1] = s.add(acc[1], f(s.load(x.add(j + S::LANES))));
            j += 2 * S::LANES;
        }
        while j < n {
            let some = S::LANES.min(n - j);
            let mut last = [0f32; 16];
            s.store(last.as_mut_ptr(), f(s.load_some(x.add(j), some)));
            acc[0] = s.add(acc[0], s.load_some(last.as_ptr(), some));
            j += some;
        }
    }
    s.sum(s.add(acc[0], acc[1]))
}

pub(super) fn layer_norm(engine: &mut Engine, op: &LayerNorm<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read_also("x", &op.x)?;
    let weight = a.weight("weight", &op.weight)?;
    let bias = a.weight("bias", &op.bias)?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let n = x.last();
    let wide = Shared::new(engine.partial.get(2 * n));
    engine.kernels.run(Widen(weight.vector(), n, wide));
    engine.kernels.run(Widen(bias.vector(), n, Shared(wide.at(n))));
    engine.split(x.lines(), n, |lines| {
        engine.kernels.run(Layer { x, weight: wide, eps: op.eps, out, lines });
    });
    Ok(())
}

struct Layer {
    x: Tensor,
    /// Weight and bias, one after the other.
    weight: Shared<f32>,
    eps: f32,
    out: Tensor,
    lines: std::ops::Range<usize>,
}

impl Task for Layer {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.last();
        for line in self.lines {
            let (x, out) = (self.x.f32_line(line).cast_const(), self.out.f32_line(line));
            // SAFETY: lines of `n` elements; `out` is this part's alone, and `x` lies apart or is the same line.
            unsafe {
                let mean = s.splat(sum_of(s, x, n, |v| v) / n as f32);
                let squares = sum_of(s, x, n, |v| {
                    let d = s.sub(v, mean);
                    s.mul(d, d)
                });
                let scale = s.splat(1.0 / (squares / n as f32 + self.eps).sqrt());
                for j in (0..n).step_by(S::LANES) {
                    let some = S::LANES.min(n - j);
                    let w = s.load_some(self.weight.at(j), some);
                    let b = s.load_some(self.weight.at(n + j), some);
                    let v = s.mul(s.sub(s.load_some(x.add(j), some), mean), scale);
                    s.store_some(out.add(j), s.fma(v, w, b), some);
                }
            }
        }
    }
}
