//! One block of the vision tower, and its mergers.
//!
//! x += proj(attend(rope(q), rope(k), v))   with q, k, v from layer_norm(x)
//! x += fc2(gelu_tanh(fc1(layer_norm(x))))
//!
//! Two slips keep every shape and read as a slightly different image: rotating `v`, and using the tanh GELU
//! in the merger, whose reference is the erf form. The deepstack mergers concatenate four patches before
//! they normalise, the main one after.

use turbospark_device::op::{Attention, LayerNorm, Matmul, Rope};
use turbospark_device::{Activation, Pass, View};
use turbospark_tensor::mutant::{Mutant, active};

use crate::weight::{Affine, Weight};

/// Scale and shift of a layer norm.
#[derive(Clone, Debug)]
pub(crate) struct NormWeights {
    pub weight: Weight,
    pub bias: Weight,
}

/// The twelve roles of a block.
#[derive(Clone, Debug)]
pub(crate) struct BlockWeights {
    pub norm1: NormWeights,
    /// Rows q, k, v of `[3 hidden, hidden]`; used as three row ranges.
    pub qkv: Affine,
    pub proj: Affine,
    pub norm2: NormWeights,
    pub fc1: Affine,
    pub fc2: Affine,
}

/// Scratch of a block over `n` patches.
#[derive(Clone, Copy)]
pub(crate) struct BlockScratch<'a> {
    /// The residual stream, `[n, hidden]`.
    pub x: View<'a>,
    /// What attention gives, `[n, hidden]`.
    pub mixed: View<'a>,
    /// Rows that are normalised together: `[some, hidden]`, not less than a tile. The same memory as `mixed` where it
    /// has all rows, which are used up by then.
    pub normed: View<'a>,
    /// Of some heads, `[n, heads * head_dim]` each.
    pub qkv: [View<'a>; 3],
    /// `[tile, intermediate]`.
    pub inner: View<'a>,
    /// `[n, head_dim / 2]` each.
    pub cos: View<'a>,
    pub sin: View<'a>,
}

/// What all blocks of a call share.
#[derive(Clone, Copy)]
pub(crate) struct BlockShape<'a> {
    pub head_dim: usize,
    pub eps: f32,
    /// One segment a frame.
    pub cu_seqlens: &'a [usize],
    /// Rows of the MLP done at a time; changes no bit.
    pub tile_rows: usize,
}

fn norm<'a>(pass: &mut Pass<'a>, w: &'a NormWeights, eps: f32, x: View<'a>, out: View<'a>) {
    let eps = if active(Mutant::VisionEps) { 1e-5 } else { eps };
    pass.layer_norm(LayerNorm { x, weight: w.weight.view(), bias: w.bias.view(), eps, out });
}

pub(crate) fn encode_block<'a>(pass: &mut Pass<'a>, w: &'a BlockWeights, s: &BlockScratch<'a>, shape: &BlockShape<'a>) {
    let (n, hidden, width) = (s.x.dim(0), s.x.dim(1), s.qkv[0].dim(1));
    // Some heads after the other: q, k and v of all are three times the picture.
    for first in (0..hidden).step_by(width) {
        for start in (0..n).step_by(s.normed.dim(0)) {
            let rows = start..n.min(start + s.normed.dim(0));
            let normed = s.normed.rows(0..rows.len());
            norm(pass, &w.norm1, shape.eps, s.x.rows(rows.clone()), normed);
            for (i, out) in s.qkv.into_iter().enumerate() {
                let part = i * hidden + first..i * hidden + first + width;
                let bias = Some(w.qkv.bias.view().rows(part.clone()));
                let weight = w.qkv.weight.view().rows(part);
                pass.matmul(Matmul { bias, ..Matmul::new(normed, weight, out.rows(rows.clone())) });
            }
        }
        let [q, k, v] = s.qkv.map(|x| x.split_last(shape.head_dim)); // [n, heads, head_dim]
        let turned = if active(Mutant::VisionRopeOnV) { &[q, k, v][..] } else { &[q, k][..] };
        for &x in turned {
            pass.rope(Rope { x, cos: s.cos, sin: s.sin });
        }
        let out = s.mixed.narrow(1, first..first + width).split_last(shape.head_dim);
        let scale = (shape.head_dim as f32).powf(-0.5);
        pass.attention(Attention { q, k, v, cu_seqlens: shape.cu_seqlens, scale, out });
    }
    affine(pass, &w.proj, s.mixed, None, Some(s.x), s.x);
    pass.tap("block_mid", None, s.x);

    let gelu = if active(Mutant::VisionGeluErf) { Activation::GeluErf } else { Activation::GeluTanh };
    for start in (0..n).step_by(shape.tile_rows.max(1)) {
        let rows = start..n.min(start + shape.tile_rows);
        let (normed, inner, x) = (s.normed.rows(0..rows.len()), s.inner.rows(0..rows.len()), s.x.rows(rows));
        norm(pass, &w.norm2, shape.eps, x, normed);
        affine(pass, &w.fc1, normed, Some(gelu), None, inner);
        affine(pass, &w.fc2, inner, None, Some(x), x);
    }
}

fn affine<'a>(
    pass: &mut Pass<'a>,
    w: &'a Affine,
    x: View<'a>,
    activation: Option<Activation>,
    residual: Option<View<'a>>,
    out: View<'a>,
) {
    let bias = Some(w.bias.view());
    pass.matmul(Matmul { bias, activation, residual, ..Matmul::new(x, w.weight.view(), out) });
}

/// Four patches to one row of the trunk's width.
#[derive(Clone, Debug)]
pub(crate) struct MergerWeights {
    pub norm: NormWeights,
    pub fc1: Affine,
    pub fc2: Affine,
    /// Concatenate, then normalise over all four patches: the deepstack mergers.
    pub postshuffle_norm: bool,
}

/// Scratch of a merger over `n` patches.
#[derive(Clone, Copy)]
pub(crate) struct MergerScratch<'a> {
    /// The patches of a tile, `[merge * tile, hidden]` or more.
    pub normed: View<'a>,
    /// `[tile, merge * hidden]`.
    pub inner: View<'a>,
}

/// `out = fc2(gelu_erf(fc1(concatenated, normalised x)))`, `[n / merge, out_hidden]`.
pub(crate) fn merge<'a>(
    pass: &mut Pass<'a>,
    w: &'a MergerWeights,
    eps: f32,
    x: View<'a>,
    s: &MergerScratch<'a>,
    out: View<'a>,
) {
    let (hidden, wide, tokens) = (x.dim(1), w.fc1.weight.shape().dims()[1], out.dim(0));
    let gelu = if active(Mutant::MergerGeluTanh) { Activation::GeluTanh } else { Activation::GeluErf };
    let (tile, merge) = (s.inner.dim(0).max(1), wide / hidden);
    for start in (0..tokens).step_by(tile) {
        let rows = start..tokens.min(start + tile);
        let patches = x.rows(merge * rows.start..merge * rows.end);
        let normed = s.normed.rows(0..merge * rows.len());
        let inputs = normed.reshape([rows.len(), wide]);
        if !w.postshuffle_norm {
            norm(pass, &w.norm, eps, patches, normed);
        } else if active(Mutant::DeepstackNormBeforeShuffle) {
            for at in (0..wide).step_by(hidden) {
                let part = |v: View<'a>| v.narrow(1, at..at + hidden);
                let weight = w.norm.weight.view().rows(at..at + hidden);
                let bias = w.norm.bias.view().rows(at..at + hidden);
                let x = part(patches.reshape([rows.len(), wide]));
                pass.layer_norm(LayerNorm { x, weight, bias, eps, out: part(inputs) });
            }
        } else {
            norm(pass, &w.norm, eps, patches.reshape([rows.len(), wide]), inputs);
        }
        let inner = s.inner.rows(0..rows.len());
        affine(pass, &w.fc1, inputs, Some(gelu), None, inner);
        affine(pass, &w.fc2, inner, None, None, out.rows(rows));
    }
}
