//! Where everything of one pass of the trunk lies in the scratch buffer.

use turbospark_device::Buffer;

use crate::blocks::attention::AttentionScratch;
use crate::blocks::delta::DeltaScratch;
use crate::blocks::mlp::{MlpScratch, RoutedScratch};
use crate::config::{LayerKind, MlpKind, TextConfig};
use crate::scratch::{Plan, Region};

/// Scratch of the layers.
#[derive(Clone, Copy)]
pub(crate) struct LayerScratch<'a> {
    pub attention: Option<AttentionScratch<'a>>,
    pub delta: Option<DeltaScratch<'a>>,
    pub mlp: MlpScratch<'a>,
}

/// Where everything of one pass lies in the scratch buffer.
pub(crate) struct Layout {
    pub ids: Region,
    pub iota: Region,
    pub slots: Region,
    pub pages: Region,
    pub wanted: Region,
    pub cos: Region,
    pub sin: Region,
    pub x: Region,
    pub normed: Region,
    pub attention: Option<[Region; 4]>,
    pub delta: Option<[Region; 6]>,
    pub inner: Region,
    pub routed: Option<[Region; 5]>,
    pub head: Region,
    pub logits: Region,
    pub bytes: usize,
}

impl Layout {
    pub(crate) fn plan(c: &TextConfig, half: usize, rows: usize, tables: [usize; 2], wanted: usize) -> Self {
        let mut p = Plan::default();
        let (ids, iota, slots) = (p.i32(&[rows]), p.i32(&[rows]), p.i32(&[rows]));
        let (pages, wanted_rows) = (p.i32(&tables), p.i32(&[wanted]));
        let (cos, sin) = (p.f32(&[rows, half]), p.f32(&[rows, half]));
        let (x, normed) = (p.f32(&[rows, c.hidden_size]), p.f32(&[rows, c.hidden_size]));
        let mark = p.mark(); // mixer, MLP and head live one after the other
        let queries = c.num_attention_heads * c.head_dim;
        let keys = c.num_key_value_heads * c.head_dim;
        let attention = c.layer_kinds.contains(&LayerKind::FullAttention).then(|| {
            let q = queries * (1 + c.attention_output_gate as usize);
            [q, keys, keys, queries].map(|n| p.f32(&[rows, n]))
        });
        p.release(mark);
        let delta = c.delta.as_ref().map(|d| {
            let (u, v, h) = (d.conv_channels(), d.value_dim(), d.num_value_heads);
            [u, u, v, v, h, h].map(|n| p.f32(&[rows, n]))
        });
        p.release(mark);
        let shared = c.moe.as_ref().and_then(|m| m.shared_expert_intermediate_size).unwrap_or(0);
        let dense = c.mlp_kinds.contains(&MlpKind::Dense);
        let inner = p.f32(&[rows, shared.max(if dense { c.intermediate_size } else { 0 })]);
        let routed = c.moe.as_ref().map(|m| {
            let k = m.num_experts_per_tok;
            [
                p.f32(&[rows, m.num_experts]),
                p.i32(&[rows, k]),
                p.f32(&[rows, k]),
                p.f32(&[rows, 1]),
                p.f32(&[rows, c.hidden_size]),
            ]
        });
        p.release(mark);
        let (head, logits) = (p.f32(&[wanted, c.hidden_size]), p.f32(&[wanted, c.vocab_size]));
        Layout {
            ids,
            iota,
            slots,
            pages,
            wanted: wanted_rows,
            cos,
            sin,
            x,
            normed,
            attention,
            delta,
            inner,
            routed,
            head,
            logits,
            bytes: p.bytes(),
        }
    }

    pub(crate) fn layers<'a>(&self, b: &'a Buffer, c: &TextConfig, layer: usize) -> LayerScratch<'a> {
        // The shared expert and a dense MLP of another width use the same region.
        let width = match (c.mlp_kinds[layer], &c.moe) {
            (MlpKind::Moe, Some(m)) => m.shared_expert_intermediate_size.unwrap_or(0),
            _ => c.intermediate_size,
        };
        let inner = self.inner.of(b);
        let inner = b.view(inner.offset_bytes(), inner.dtype(), [inner.dim(0), width]);
        LayerScratch {
            attention: self.attention.map(|[q, k, v, out]| AttentionScratch {
                q: q.of(b),
                k: k.of(b),
                v: v.of(b),
                out: out.of(b),
            }),
            delta: self.delta.map(|[u, y, z, out, a, bb]| DeltaScratch {
                u: u.of(b),
                y: y.of(b),
                z: z.of(b),
                out: out.of(b),
                a: a.of(b),
                b: bb.of(b),
            }),
            mlp: MlpScratch {
                inner,
                routed: self.routed.map(|[logits, ids, weights, shared_gate, shared]| RoutedScratch {
                    logits: logits.of(b),
                    ids: ids.of(b),
                    weights: weights.of(b),
                    shared_gate: shared_gate.of(b),
                    shared: shared.of(b),
                }),
            },
        }
    }
}
