//! Rotary positions and attention.

use turbospark_tensor::mutant::{Mutant, active};

use super::memory::{load, load_i32, store};
use crate::DeviceError;
use crate::op::{Attention, PagedAttention, Rope, StoreKv};

type Done = Result<(), DeviceError>;

pub(super) fn rope(op: &Rope<'_>) -> Done {
    let (mut x, cos, sin) = (load(&op.x)?, load(&op.cos)?, load(&op.sin)?);
    let (heads, n, half) = (op.x.dim(1), op.x.dim(2), op.cos.dim(1));
    for (i, head) in x.chunks_exact_mut(n).enumerate() {
        let row = i / heads;
        for j in 0..half {
            let (c, s) = (cos[row * half + j], sin[row * half + j]);
            let (a, b) = (head[j], head[j + half]);
            head[j] = a * c - b * s;
            head[j + half] = b * c + a * s;
        }
    }
    store(&op.x, &x)
}

/// `softmax(scale q k^T) v` of one query over the given keys and values.
fn attend<'a>(q: &[f32], scale: f32, seen: impl Iterator<Item = (&'a [f32], &'a [f32])> + Clone, out: &mut [f32]) {
    let score = |k: &[f32]| q.iter().zip(k).map(|(&a, &b)| a as f64 * b as f64).sum::<f64>() * scale as f64;
    let top = seen.clone().map(|(k, _)| score(k)).fold(f64::NEG_INFINITY, f64::max);
    let mut total = 0.0;
    let mut sum = vec![0f64; out.len()];
    for (k, v) in seen {
        let p = (score(k) - top).exp();
        total += p;
        sum.iter_mut().zip(v).for_each(|(s, &v)| *s += p * v as f64);
    }
    out.iter_mut().zip(&sum).for_each(|(o, s)| *o = (s / total) as f32);
}

pub(super) fn attention(op: &Attention<'_>) -> Done {
    let (q, k, v) = (load(&op.q)?, load(&op.k)?, load(&op.v)?);
    let (heads, n) = (op.q.dim(1), op.q.dim(2));
    let mut out = vec![0f32; q.len()];
    for segment in op.cu_seqlens.windows(2) {
        for row in segment[0]..segment[1] {
            for h in 0..heads {
                let at = |r: usize| (r * heads + h) * n..(r * heads + h + 1) * n;
                let seen = (segment[0]..segment[1]).map(|r| (&k[at(r)], &v[at(r)]));
                attend(&q[at(row)], op.scale, seen, &mut out[at(row)]);
            }
        }
    }
    store(&op.out, &out)
}

pub(super) fn store_kv(op: &StoreKv<'_>) -> Done {
    let slots = load_i32(&op.slots)?;
    let capacity = op.k_cache.dim(0);
    for (r, &slot) in slots.iter().enumerate() {
        let slot = usize::try_from(slot).ok().filter(|&s| s < capacity).ok_or_else(|| DeviceError::Op {
            scope: String::new(),
            op: "StoreKv",
            message: format!("row {r} goes to slot {slot} of {capacity}"),
        })?;
        store(&op.k_cache.rows(slot..slot + 1), &load(&op.k.rows(r..r + 1))?)?;
        store(&op.v_cache.rows(slot..slot + 1), &load(&op.v.rows(r..r + 1))?)?;
    }
    Ok(())
}

pub(super) fn paged_attention(op: &PagedAttention<'_>) -> Done {
    let (q, k, v) = (load(&op.q)?, load(&op.k_cache)?, load(&op.v_cache)?);
    let pages = load_i32(&op.pages)?;
    let (heads, n, kv_heads) = (op.q.dim(1), op.q.dim(2), op.k_cache.dim(1));
    let per_table = op.pages.dim(1);
    let mut out = load(&op.out)?;
    for s in op.spans {
        let slot = |t: usize| {
            let page = pages[s.table * per_table + t / op.page_len] as usize;
            page * op.page_len + t % op.page_len
        };
        for i in 0..s.rows {
            for h in 0..heads {
                let shared = heads / kv_heads;
                let kv = if active(Mutant::KvHeadsInterleaved) { h % kv_heads } else { h / shared };
                let at = |t: usize| (slot(t) * kv_heads + kv) * n..(slot(t) * kv_heads + kv + 1) * n;
                let seen = (0..=s.start + i).map(|t| (&k[at(t)], &v[at(t)]));
                let row = ((s.first_row + i) * heads + h) * n;
                attend(&q[row..row + n], op.scale, seen, &mut out[row..row + n]);
            }
        }
    }
    store(&op.out, &out)
}
