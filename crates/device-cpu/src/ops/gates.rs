//! What touches each element once: gates and rotary positions.

use turbospark_device::op::{DeltaGates, Rope, SigmoidGate};
use turbospark_tensor::widen_into;

use super::{Done, Engine};
use crate::memory::Tensor;
use crate::simd::{Simd, Task, math};

pub(super) fn sigmoid_gate(engine: &mut Engine, op: &SigmoidGate<'_>) -> Done {
    let mut a = engine.access();
    let x = a.read_also("x", &op.x)?;
    let gate = a.read("gate", &op.gate)?;
    let residual = op.residual.as_ref().map(|r| a.read_also("residual", r)).transpose()?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    engine.split(x.lines(), 4 * x.last(), |lines| {
        engine.kernels.run(Gate { x, gate, residual, out, lines });
    });
    Ok(())
}

struct Gate {
    x: Tensor,
    gate: Tensor,
    residual: Option<Tensor>,
    out: Tensor,
    lines: std::ops::Range<usize>,
}

impl Task for Gate {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.x.last();
        let one = self.gate.last() == 1;
        for line in self.lines {
            let (x, out) = (self.x.f32_line(line), self.out.f32_line(line));
            let gate = self.gate.f32_line(line);
            let residual = self.residual.map(|r| r.f32_line(line));
            for j in (0..n).step_by(S::LANES) {
                let some = S::LANES.min(n - j);
                // SAFETY: lines of `n` elements (the gate's perhaps of one); `out` is this part's alone, and
                // each input lies apart from it or is the same line.
                unsafe {
                    let g = if one { s.splat(*gate) } else { s.load_some(gate.add(j), some) };
                    let mut v = s.mul(s.load_some(x.add(j), some), math::sigmoid(s, g));
                    if let Some(r) = residual {
                        v = s.add(s.load_some(r.add(j), some), v);
                    }
                    s.store_some(out.add(j), v, some);
                }
            }
        }
    }
}

pub(super) fn rope(engine: &mut Engine, op: &Rope<'_>) -> Done {
    let mut a = engine.access();
    let cos = a.read("cos", &op.cos)?;
    let sin = a.read("sin", &op.sin)?;
    let x = a.write("x", &op.x)?;
    a.finish()?;
    engine.split(x.lines(), 4 * cos.dim(1), |lines| engine.kernels.run(Turn { x, cos, sin, lines }));
    Ok(())
}

struct Turn {
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    lines: std::ops::Range<usize>,
}

impl Task for Turn {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (heads, half) = (self.x.dim(1), self.cos.dim(1));
        for line in self.lines {
            let row = line / heads;
            let (x, cos, sin) = (self.x.f32_line(line), self.cos.row(row), self.sin.row(row));
            for j in (0..half).step_by(S::LANES) {
                let some = S::LANES.min(half - j);
                // SAFETY: a line has at least `2 * half` elements, and this one is this part's alone.
                unsafe {
                    let (c, n) = (s.load_some(cos.add(j), some), s.load_some(sin.add(j), some));
                    let (a, b) = (s.load_some(x.add(j), some), s.load_some(x.add(j + half), some));
                    s.store_some(x.add(j), s.sub(s.mul(a, c), s.mul(b, n)), some);
                    s.store_some(x.add(j + half), s.add(s.mul(b, c), s.mul(a, n)), some);
                }
            }
        }
    }
}

/// A few values a token, so plain loops, in f64 as the reference device's.
pub(super) fn delta_gates(engine: &mut Engine, op: &DeltaGates<'_>) -> Done {
    let mut a = engine.access();
    let decay = a.read_also("a", &op.a)?;
    let write = a.read_also("b", &op.b)?;
    let a_log = a.weight("a_log", &op.a_log)?;
    let dt_bias = a.weight("dt_bias", &op.dt_bias)?;
    let g = a.write("g", &op.g)?;
    let beta = a.write("beta", &op.beta)?;
    a.finish()?;
    let heads = decay.dim(1);
    let wide = |t: &Tensor| {
        let mut out = vec![0f32; heads];
        // SAFETY: a dense vector of `heads` elements, in bounds and locked.
        let bytes = unsafe { std::slice::from_raw_parts(t.byte(0).cast_const(), heads * t.dtype.size()) };
        widen_into(bytes, t.dtype, &mut out);
        out
    };
    let rate = |stored: f64| if op.is_rate { stored } else { -stored.exp() };
    let (rate, dt): (Vec<f64>, _) = (wide(&a_log).iter().map(|&x| rate(x as f64)).collect(), wide(&dt_bias));
    engine.split(decay.dim(0), 64 * heads, |rows| {
        for r in rows {
            for h in 0..heads {
                // SAFETY: rows of `heads` elements; those of `g` and `beta` are this part's alone, and each
                // input lies apart from them or is the very view.
                unsafe {
                    let x = *decay.row(r).add(h) as f64 + dt[h] as f64;
                    let b = *write.row(r).add(h) as f64;
                    // ln(1 + e^x) without overflow
                    let softplus = x.max(0.0) + (-x.abs()).exp().ln_1p();
                    *g.row(r).add(h) = (rate[h] * softplus) as f32;
                    *beta.row(r).add(h) = (1.0 / (1.0 + (-b).exp())) as f32;
                }
            }
        }
    });
    Ok(())
}
