//! Grouped-query attention over the paged cache.
//!
//! q, k = rope(head_norm(q_proj x)), rope(head_norm(k_proj x));  x += o_proj(attend(q, k, v) [* sigmoid(gate)])
//!
//! With an output gate, `q_proj` gives each head its query and then its gate. Taking them as two halves of
//! the whole row keeps every shape.

use turbospark_device::op::{Matmul, PagedAttention, RmsNorm, Rope, SigmoidGate, StoreKv};
use turbospark_device::{Pass, View};
use turbospark_tensor::mutant::{Mutant, active};

use crate::trunk::{Norm, Step};
use crate::weight::Matrix;

#[derive(Clone, Debug)]
pub(crate) struct AttentionWeights {
    /// `[heads * head_dim, hidden]`; with a gate `[heads * 2 head_dim, hidden]`.
    pub q_proj: Matrix,
    pub k_proj: Matrix,
    pub v_proj: Matrix,
    pub o_proj: Matrix,
    /// Of q and of k, in the families that have them.
    pub head_norms: Option<[Norm; 2]>,
    pub head_dim: usize,
    pub gated: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct AttentionScratch<'a> {
    /// `[rows, heads * head_dim]`, with a gate twice as wide.
    pub q: View<'a>,
    /// `[rows, kv_heads * head_dim]`.
    pub k: View<'a>,
    pub v: View<'a>,
    /// `[rows, heads * head_dim]`.
    pub out: View<'a>,
}

/// The layer's part of the cache.
#[derive(Clone, Copy)]
pub(crate) struct LayerKv<'a> {
    /// `[capacity, kv_heads, head_dim]`.
    pub k: View<'a>,
    pub v: View<'a>,
    pub page_len: usize,
}

/// Adds the mixer's output for `normed` to `x`.
pub(crate) fn attend<'a>(
    pass: &mut Pass<'a>,
    w: &'a AttentionWeights,
    s: &AttentionScratch<'a>,
    kv: LayerKv<'a>,
    step: &Step<'a>,
) {
    let (x, prompt_rows) = (step.x, step.prompt_rows);
    for (weight, out) in [(&w.q_proj, s.q), (&w.k_proj, s.k), (&w.v_proj, s.v)] {
        pass.matmul(Matmul { prompt_rows, ..Matmul::new(step.normed, weight.view(), out) });
    }
    let d = w.head_dim;
    let (q, gate) = match w.gated {
        false => (s.q.split_last(d), None),
        true if active(Mutant::GateAsHalves) => {
            let half = s.q.dim(1) / 2;
            let part = |r| s.q.narrow(1, r).split_last(d);
            (part(0..half), Some(part(half..2 * half)))
        }
        true => {
            let both = s.q.split_last(2 * d); // [rows, heads, q | gate]
            (both.narrow(2, 0..d), Some(both.narrow(2, d..2 * d)))
        }
    };
    let (k, v) = (s.k.split_last(d), s.v.split_last(d));
    for (i, x) in [q, k].into_iter().enumerate() {
        if let Some(norms) = w.head_norms.as_ref().filter(|_| !active(Mutant::NoHeadNorm)) {
            norms[i].apply(pass, x, x);
        }
        pass.rope(Rope { x, cos: step.cos, sin: step.sin });
    }
    pass.store_kv(StoreKv { k, v, slots: step.slots, k_cache: kv.k, v_cache: kv.v });
    let out = s.out.split_last(d);
    pass.paged_attention(PagedAttention {
        q,
        k_cache: kv.k,
        v_cache: kv.v,
        pages: step.pages,
        page_len: kv.page_len,
        spans: step.spans,
        scale: (d as f32).powf(-0.5),
        out,
    });
    if let Some(gate) = gate.filter(|_| !active(Mutant::NoOutputGate)) {
        pass.sigmoid_gate(SigmoidGate { x: out, gate, residual: None, out });
    }
    pass.matmul(Matmul { residual: Some(x), prompt_rows, ..Matmul::new(s.out, w.o_proj.view(), x) });
}

impl Norm {
    /// `out = norm(x)` over the innermost axis.
    pub(crate) fn apply<'a>(&'a self, pass: &mut Pass<'a>, x: View<'a>, out: View<'a>) {
        let one_plus = self.one_plus && !active(Mutant::NormWithoutOne);
        pass.rms_norm(RmsNorm { x, weight: self.weight.view(), one_plus, eps: self.eps, gate: None, out });
    }
}
