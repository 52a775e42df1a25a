//! The gated delta rule, parallel over value heads: prompts in chunks, rows being decoded step by step.

use std::ops::Range;

use turbospark_device::Span;
use turbospark_device::op::DeltaScan;

use super::{Done, Engine, delta_chunk};
use crate::memory::Tensor;
use crate::scratch::{cut, local, rounded};
use crate::simd::{Simd, Task, math};

pub(super) fn delta_scan(engine: &mut Engine, op: &DeltaScan<'_>) -> Done {
    let mut a = engine.access();
    let (q, k, v) = (a.read("q", &op.q)?, a.read("k", &op.k)?, a.read("v", &op.v)?);
    let (g, beta) = (a.read("g", &op.g)?, a.read("beta", &op.beta)?);
    let state = a.write("state", &op.state)?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let scan = Scan { q, k, v, g, beta, state, out, tiled: op.tiled, spans: op.spans };
    let (heads, rows) = (v.dim(1), op.spans.iter().map(|s| s.rows).sum::<usize>());
    engine.split(heads, rows * state.dim(2) * state.dim(3), |range| {
        for head in range {
            engine.kernels.run(Head { scan, head });
        }
    });
    Ok(())
}

/// The op's tensors. Whoever runs a head of it has checked that spans and slots lie in them.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub q: Tensor,
    pub k: Tensor,
    pub v: Tensor,
    pub g: Tensor,
    pub beta: Tensor,
    pub state: Tensor,
    pub out: Tensor,
    pub tiled: bool,
    pub spans: &'a [Span],
}

impl Scan<'_> {
    /// Start of a head's state in a slot, `[K, V]`, dense.
    #[inline(always)]
    pub(super) fn state(&self, slot: usize, head: usize) -> *mut f32 {
        self.state.head(slot, head)
    }

    /// The key head of a value head.
    #[inline(always)]
    pub(super) fn key_head(&self, head: usize) -> usize {
        let key_heads = self.q.dim(1);
        if self.tiled { head % key_heads } else { head / (self.v.dim(1) / key_heads) }
    }
}

/// All sequences of one value head, one after the other.
struct Head<'a> {
    scan: Scan<'a>,
    head: usize,
}

impl Task for Head<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for span in self.scan.spans.iter().filter(|span| span.rows > 0) {
            // SAFETY: spans and slots were checked; this head of state and outputs is this part's alone.
            unsafe {
                if span.decode {
                    steps(s, &self.scan, self.head, span);
                } else {
                    delta_chunk::chunks(s, &self.scan, self.head, span);
                }
            }
        }
    }
}

/// `x / sqrt(sum x^2 + 1e-6) * factor`.
///
/// # Safety
/// `n` elements are readable at `x`, and writable at `out`.
#[inline(always)]
pub(super) unsafe fn unit<S: Simd>(s: S, x: *const f32, n: usize, factor: f32, out: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        let squares = super::norm::sum_of(s, x, n, |v| s.mul(v, v));
        let scale = s.splat(factor / (squares + 1e-6).sqrt());
        for j in (0..n).step_by(S::LANES) {
            let some = S::LANES.min(n - j);
            s.store_some(out.add(j), s.mul(s.load_some(x.add(j), some), scale), some);
        }
    }
}

/// A span token by token, in place in its slot.
///
/// # Safety
/// Span and head lie in the scan's tensors, and nobody else touches this head's state and outputs.
#[inline(always)]
unsafe fn steps<S: Simd>(s: S, scan: &Scan<'_>, head: usize, span: &Span) {
    let (kn, vn) = (scan.k.dim(2), scan.v.dim(2));
    let key_head = scan.key_head(head);
    let state = scan.state(span.state, head);
    let mut local = local(2 * rounded(kn));
    let mut scratch = local.all();
    let q = cut(&mut scratch, kn).as_mut_ptr();
    let k = cut(&mut scratch, kn).as_mut_ptr();
    for i in 0..span.rows {
        let row = span.first_row + i;
        // SAFETY: the caller's promise.
        unsafe {
            unit(s, scan.q.head(row, key_head), kn, 1.0 / (kn as f32).sqrt(), q);
            unit(s, scan.k.head(row, key_head), kn, 1.0, k);
            let mut decay = [0f32; 16];
            s.store(decay.as_mut_ptr(), math::exp(s, s.splat(*scan.g.row(row).add(head))));
            let step = Step {
                q,
                k,
                v: scan.v.head(row, head),
                decay: decay[0],
                beta: *scan.beta.row(row).add(head),
                state,
                out: scan.out.head(row, head),
                kn,
                vn,
            };
            let mut j = 0;
            while j + 8 * S::LANES <= vn {
                step.columns::<S, 8>(s, j..j + 8 * S::LANES);
                j += 8 * S::LANES;
            }
            while j < vn {
                step.columns::<S, 1>(s, j..vn.min(j + S::LANES));
                j += S::LANES;
            }
            for shot in span.snapshots.iter().filter(|shot| shot.after == i + 1) {
                std::ptr::copy_nonoverlapping(state, scan.state(shot.slot, head), kn * vn);
            }
        }
    }
}

/// One token of one head.
struct Step {
    q: *const f32,
    k: *const f32,
    v: *const f32,
    decay: f32,
    beta: f32,
    state: *mut f32,
    out: *mut f32,
    kn: usize,
    vn: usize,
}

impl Step {
    /// `N` vectors of columns, the last of which may be cut short (only where `N` is 1).
    ///
    /// # Safety
    /// All pointers are valid for the sizes.
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(&self, s: S, cols: Range<usize>) {
        let some = |j: usize| S::LANES.min(cols.len() - j * S::LANES);
        let at = |a: usize, j: usize| self.state.wrapping_add(a * self.vn + cols.start + j * S::LANES);
        let decay = s.splat(self.decay);
        // SAFETY: the caller's promise.
        unsafe {
            let mut seen = [s.splat(0.0); N];
            for a in 0..self.kn {
                let k = s.splat(*self.k.add(a));
                for (j, v) in seen.iter_mut().enumerate() {
                    *v = s.fma(k, s.load_some(at(a, j), some(j)), *v);
                }
            }
            let mut d = seen;
            for (j, d) in d.iter_mut().enumerate() {
                let v = s.load_some(self.v.add(cols.start + j * S::LANES), some(j));
                *d = s.mul(s.sub(v, s.mul(decay, seen[j])), s.splat(self.beta));
            }
            let mut out = [s.splat(0.0); N];
            for a in 0..self.kn {
                let (k, q) = (s.splat(*self.k.add(a)), s.splat(*self.q.add(a)));
                for j in 0..N {
                    let new = s.fma(k, d[j], s.mul(decay, s.load_some(at(a, j), some(j))));
                    s.store_some(at(a, j), new, some(j));
                    out[j] = s.fma(q, new, out[j]);
                }
            }
            for (j, v) in out.into_iter().enumerate() {
                s.store_some(self.out.add(cols.start + j * S::LANES), v, some(j));
            }
        }
    }
}
