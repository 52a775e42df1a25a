//! The paged cache: storing rows, prompts over it in tiles. Decoded rows are in [`decode`](super::decode).

use turbospark_device::op::{PagedAttention, StoreKv};
use turbospark_device::{DeviceError, Span, View};
use turbospark_tensor::DType;

use super::attention::{PROMPT, PROMPT_MATRIX, PROMPT_SHUFFLED, Tiles};
use super::decode::decode;
use super::{Done, WG, groups, strides};
use crate::kernel::{Form, Source};
use crate::plan::{At, Plan, word};

const STORE: Source = Source { name: "store_kv", text: include_str!("../shaders/store_kv.wgsl"), includes: &[] };
pub(super) fn store_kv(plan: &mut Plan<'_>, op: &StoreKv<'_>) -> Done {
    let (rows, heads, n) = (op.k.dim(0), op.k.dim(1), op.k.dim(2));
    let slots = plan.view(&op.slots)?;
    let format = match op.k_cache.dtype() {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 3,
    };
    let units = match format {
        0 => heads * n,
        3 => heads * n / 32,
        _ => (heads * n).div_ceil(2),
    };
    for (from, to) in [(&op.k, &op.k_cache), (&op.v, &op.v_cache)] {
        let (x, cache) = (plan.view(from)?, plan.stored(to)?);
        let [row, head] = strides(from)?;
        let words = [word(rows)?, word(heads)?, word(units)?, word(to.dim(0))?, slots.at, x.at, row, head, cache.at];
        plan.kernel(&STORE)
            .set("WG", WG)
            .set("N", word(n)?)
            .set("FORMAT", format)
            .read("slots", Form::I32, &slots.window)
            .read("x", Form::F32, &x.window)
            .write("cache", Form::Atomic, &cache.window)
            .over(&words, groups(rows * units))?;
    }
    Ok(())
}

/// A cache of keys or values, and how its elements are read.
pub(super) struct Cached {
    pub at: At,
    pub form: Form,
    pub quantised: u32,
    /// Bytes of an element that is a float.
    pub size: u32,
}

pub(super) fn cached(plan: &Plan<'_>, view: &View<'_>) -> Result<Cached, DeviceError> {
    let quantised = (view.dtype() == DType::Q8_0).into();
    // Blocks are read as bytes, and no element of another type beside them.
    let form = Form::Stored(if quantised == 1 { DType::F32 } else { view.dtype() });
    let size = if quantised == 1 { 0 } else { view.dtype().size() as u32 };
    Ok(Cached { at: plan.stored(view)?, form, quantised, size })
}

/// Whether fours of elements begin at whole words in both.
pub(super) fn aligned(k: &Cached, v: &Cached, n: usize) -> u32 {
    let whole = |c: &Cached| c.at.at.is_multiple_of(4) && (c.size as usize * n).is_multiple_of(4);
    (k.quantised == 0 && k.size == v.size && whole(k) && whole(v)).into()
}

pub(super) fn paged_attention(plan: &mut Plan<'_>, op: &PagedAttention<'_>) -> Done {
    prompt(plan, op)?;
    decode(plan, op)
}

pub(super) fn first_page(op: &PagedAttention<'_>, pages: &At, span: &Span) -> u32 {
    pages.at + (span.table * op.pages.dim(1)) as u32
}

fn prompt(plan: &mut Plan<'_>, op: &PagedAttention<'_>) -> Done {
    let (heads, n, kv_heads) = (op.q.dim(1), op.q.dim(2), op.k_cache.dim(1));
    let pages = plan.view(&op.pages)?;
    let spans = || op.spans.iter().filter(|s| !s.decode);
    let lengths: Vec<usize> = spans().map(|s| s.rows).collect();
    let tiles = Tiles::of(plan.gpu, n, heads, heads / kv_heads, &lengths);
    let mut list = Vec::new();
    for s in spans() {
        // The longest first: what is left at the end is short then.
        for r in (0..s.rows).step_by(tiles.rows).rev() {
            let of = [s.first_row + r, tiles.rows.min(s.rows - r), s.start + r].map(|n| n as u32);
            list.extend(of.into_iter().chain([first_page(op, &pages, s)]));
        }
    }
    if list.is_empty() {
        return Ok(());
    }
    let count = list.len() as u32 / 4;
    let (q, k, v, out) =
        (plan.view(&op.q)?, cached(plan, &op.k_cache)?, cached(plan, &op.v_cache)?, plan.view(&op.out)?);
    let ([q_row, q_head], [out_row, out_head]) = (strides(&op.q)?, strides(&op.out)?);
    let words = [
        plan.table(list),
        op.scale.to_bits(),
        q.at,
        q_row,
        q_head,
        k.at.at,
        v.at.at,
        word(kv_heads)?,
        word(heads / kv_heads)?,
        out.at,
        out_row,
        out_head,
    ];
    let fours = |c: &Cached| c.at.at.is_multiple_of(8) && c.form == Form::Stored(DType::F16);
    let halves = tiles.has_vectors() && n.is_multiple_of(4) && fours(&k) && fours(&v);
    let tables = plan.tables();
    tiles
        .kernel(plan, [&PROMPT, &PROMPT_SHUFFLED, &PROMPT_MATRIX], n, halves)
        .set("PAGE", word(op.page_len)?)
        .set("QUANTISED", k.quantised)
        .set("SIZE", k.size)
        .set("ALIGNED", aligned(&k, &v, n))
        .read("tables", Form::U32, &tables)
        .read("pages", Form::I32, &pages.window)
        .read("q", Form::F32, &q.window)
        .read("k_cache", if halves { Form::Half4 } else { k.form }, &k.at.window)
        .read("v_cache", if halves { Form::Half4 } else { v.form }, &v.at.window)
        .write("out", Form::F32, &out.window)
        .grid(&words, [count, word(heads / tiles.heads)?, 1])
}
