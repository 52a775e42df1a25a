//! Moving rows.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use turbospark_device::op::{Copy, Gather, StoreKv, WeightLayout, Zero};
use turbospark_tensor::DType;
use turbospark_tensor::quant::quantise_q8_0;

use super::{Done, Engine};
use crate::memory::{Tensor, refused};
use crate::scratch::local;
use crate::simd::stored::{Stored, Weight, with_stored};
use crate::simd::{Simd, Task};

pub(super) fn gather(engine: &mut Engine, op: &Gather<'_>) -> Done {
    let mut a = engine.access();
    let table = a.linear("table", &op.table, WeightLayout::OutIn)?;
    let index = a.read("index", &op.index)?;
    let weights = op.weights.as_ref().map(|w| a.read("weights", w)).transpose()?;
    let out = a.write("out", &op.out)?;
    a.finish()?;
    let m = op.table.views().next().map_or(0, |v| v.dim(0));
    let (n, rows) = (out.dim(1), out.dim(0));
    let taps = weights.map_or(1, |w| w.dim(1));
    // SAFETY: a dense i32 tensor, locked, apart from `out`.
    let index = unsafe { index.i32s() };
    for (r, ids) in index.chunks_exact(taps.max(1)).enumerate().filter(|(_, ids)| ids[0] >= 0) {
        if let Some(id) = ids.iter().find(|&&id| usize::try_from(id).map_or(true, |id| id >= m)) {
            return Err(refused(format!("row {r} asks for row {id} of a table of {m}")));
        }
    }
    engine.split(rows, n * taps, |rows| {
        engine.kernels.run(Pick { table, index, weights, taps, out, accumulate: op.accumulate, rows });
    });
    Ok(())
}

struct Pick<'a> {
    table: Weight,
    index: &'a [i32],
    weights: Option<Tensor>,
    taps: usize,
    out: Tensor,
    accumulate: bool,
    rows: Range<usize>,
}

impl Task for Pick<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.out.dim(1);
        if self.table.is_quantised() {
            return self.quantised(s);
        }
        with_stored!(self.table.dtype, T => {
            for r in self.rows {
                let ids = &self.index[r * self.taps..(r + 1) * self.taps];
                if ids.first().is_some_and(|&id| id < 0) {
                    continue;
                }
                let out = self.out.row(r);
                for j in (0..n).step_by(S::LANES) {
                    let some = S::LANES.min(n - j);
                    // SAFETY: ids lie in the table (checked in `gather`); the row of `out` is this part's alone.
                    unsafe {
                        let mut v = if self.accumulate { s.load_some(out.add(j), some) } else { s.splat(0.0) };
                        for (t, &id) in ids.iter().enumerate() {
                            let from = self.table.ptr.wrapping_add((id as usize * n + j) * T::SIZE);
                            let x = if some == S::LANES { T::load(s, from) } else { T::load_some(s, from, some) };
                            v = match self.weights {
                                Some(w) => s.fma(s.splat(*w.row(r).add(t)), x, v),
                                None => s.add(v, x),
                            };
                        }
                        s.store_some(out.add(j), v, some);
                    }
                }
            }
        })
    }
}

impl Pick<'_> {
    /// The same from a quantised table: each row is dequantised, its columns put in the order of the inputs, then added.
    #[inline(always)]
    fn quantised<S: Simd>(self, s: S) {
        let n = self.out.dim(1);
        let order = self.table.order();
        let mut local = local(if order.is_some() { 2 * n } else { n });
        let (wide, ordered) = local.all().split_at_mut(n);
        for r in self.rows {
            let ids = &self.index[r * self.taps..(r + 1) * self.taps];
            if ids.first().is_some_and(|&id| id < 0) {
                continue;
            }
            let out = self.out.row(r);
            for (t, &id) in ids.iter().enumerate() {
                // SAFETY: ids lie in the table (checked in `gather`).
                unsafe { self.table.dequantise(s, id as usize, 0, wide) };
                let wide = match order {
                    Some(order) => {
                        for (j, &x) in wide.iter().enumerate() {
                            // SAFETY: an input of the row for each column (checked in `Access::linear`).
                            unsafe { *ordered.get_unchecked_mut(*order.add(j) as usize) = x };
                        }
                        &*ordered
                    }
                    None => &*wide,
                };
                for j in (0..n).step_by(S::LANES) {
                    let some = S::LANES.min(n - j);
                    // SAFETY: the row of `out` is this part's alone; `some` elements are left in both.
                    unsafe {
                        let x = s.load_some(wide.as_ptr().add(j), some);
                        let v = if self.accumulate || t > 0 { s.load_some(out.add(j), some) } else { s.splat(0.0) };
                        let v = match self.weights {
                            Some(w) => s.fma(s.splat(*w.row(r).add(t)), x, v),
                            None => s.add(v, x),
                        };
                        s.store_some(out.add(j), v, some);
                    }
                }
            }
        }
    }
}

/// Rounds to nearest even and stores.
///
/// # Safety
/// The element at `to` is writable; `dtype` is a float type.
#[inline(always)]
unsafe fn store_one(to: *mut u8, dtype: DType, x: f32) {
    // SAFETY: the caller's promise; the writes are unaligned.
    unsafe {
        match dtype {
            DType::BF16 => to.cast::<u16>().write_unaligned(bf16::from_f32(x).to_bits()),
            DType::F16 => to.cast::<u16>().write_unaligned(f16::from_f32(x).to_bits()),
            _ => to.cast::<f32>().write_unaligned(x),
        }
    }
}

/// Converts `n` elements between float types, or copies them where the types are the same.
///
/// # Safety
/// The elements are readable and writable, and lie apart.
unsafe fn convert(from: *const u8, from_type: DType, to: *mut u8, to_type: DType, n: usize) {
    if from_type == to_type {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, n * to_type.size()) };
    }
    let (wide, narrow) = (from.cast::<f32>(), to.cast::<f16>());
    if (from_type, to_type) == (DType::F32, DType::F16) && wide.is_aligned() && narrow.is_aligned() {
        // With the CPU's own instructions, which a loop compiled for any CPU can't use.
        // SAFETY: the caller's promise; both are aligned.
        let (to, from) = unsafe { (std::slice::from_raw_parts_mut(narrow, n), std::slice::from_raw_parts(wide, n)) };
        return to.convert_from_f32_slice(from);
    }
    let size = to_type.size();
    with_stored!(from_type, T => {
        // A loop a type, so that the compiler can vectorise each.
        macro_rules! each {
            ($t:expr) => {
                for i in 0..n {
                    // SAFETY: the caller's promise.
                    unsafe { store_one(to.add(i * size), $t, T::one(from.add(i * T::SIZE))) };
                }
            };
        }
        match to_type {
            DType::BF16 => each!(DType::BF16),
            DType::F16 => each!(DType::F16),
            _ => each!(DType::F32),
        }
    })
}

pub(super) fn copy(engine: &mut Engine, op: &Copy<'_>) -> Done {
    let mut a = engine.access();
    let from = a.weight("from", &op.from)?;
    let to = a.write_bytes("to", &op.to)?;
    a.finish()?;
    engine.split(from.lines(), from.last(), |lines| {
        for line in lines {
            let (source, target) = (from.byte(from.line(line)), to.byte(to.line(line)));
            // SAFETY: lines of as many elements; that of `to` is this part's alone and apart from `from`.
            unsafe { convert(source, from.dtype, target, to.dtype, from.last()) };
        }
    });
    Ok(())
}

pub(super) fn zero(engine: &mut Engine, op: &Zero<'_>) -> Done {
    let mut a = engine.access();
    let out = a.write_bytes("out", &op.out)?;
    a.finish()?;
    let bytes = out.dims().iter().product::<usize>() * out.dtype.size();
    let first = out.byte(0);
    let first = super::Shared(first);
    engine.split(bytes.div_ceil(4096), 1024, |pages| {
        let range = pages.start * 4096..bytes.min(pages.end * 4096);
        // SAFETY: dense, so these bytes are the view's; the range is this part's alone.
        unsafe { std::ptr::write_bytes(first.at(range.start), 0, range.len()) };
    });
    Ok(())
}

pub(super) fn store_kv(engine: &mut Engine, op: &StoreKv<'_>) -> Done {
    let mut a = engine.access();
    let k = a.read("k", &op.k)?;
    let v = a.read("v", &op.v)?;
    let slots = a.read("slots", &op.slots)?;
    let k_cache = a.write_bytes("k_cache", &op.k_cache)?;
    let v_cache = a.write_bytes("v_cache", &op.v_cache)?;
    a.finish()?;
    let (rows, heads, n, capacity) = (k.dim(0), k.dim(1), k.dim(2), k_cache.dim(0));
    // SAFETY: a dense i32 tensor, locked, apart from the caches.
    let slots = unsafe { slots.i32s() };
    for (r, &slot) in slots.iter().enumerate() {
        if usize::try_from(slot).map_or(true, |slot| slot >= capacity) {
            return Err(refused(format!("row {r} goes to slot {slot} of {capacity}")));
        }
    }
    // Split by heads: two rows may go to one slot (then the later one stays), so rows can't be split.
    if k_cache.dtype.is_block() {
        engine.split(heads, 2 * rows * n, |heads| {
            for (x, cache) in [(k, k_cache), (v, v_cache)] {
                engine.kernels.run(StoreBlocks { x, cache, slots, heads: heads.clone() });
            }
        });
        return Ok(());
    }
    engine.split(heads, 2 * rows * n, |heads_here| {
        for (r, &slot) in slots.iter().enumerate() {
            for h in heads_here.clone() {
                let at = (slot as usize * heads + h) * n;
                // SAFETY: slots lie in the caches (checked above); head `h` of them is this part's alone.
                unsafe {
                    convert(k.head(r, h).cast(), DType::F32, k_cache.byte(at), k_cache.dtype, n);
                    convert(v.head(r, h).cast(), DType::F32, v_cache.byte(at), v_cache.dtype, n);
                }
            }
        }
    });
    Ok(())
}

/// Quantises some heads of keys or values into a cache of `Q8_0` blocks.
struct StoreBlocks<'a> {
    x: Tensor,
    cache: Tensor,
    slots: &'a [i32],
    heads: Range<usize>,
}

impl Task for StoreBlocks<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let n = self.x.dim(2);
        let (head, slot) = (self.cache.bytes(n), self.cache.bytes(self.x.dim(1) * n));
        for h in self.heads {
            for (r, &place) in self.slots.iter().enumerate() {
                let from = self.x.head(r, h).cast_const();
                let to = self.cache.first().cast_mut().wrapping_add(place as usize * slot + h * head);
                for i in 0..n / 32 {
                    // SAFETY: slots lie in the cache (checked in `store_kv`), heads are whole blocks (checked by
                    // the op), and these heads of the cache are this part's alone.
                    unsafe {
                        let x = &*from.add(32 * i).cast();
                        to.add(34 * i).cast::<[u8; 34]>().write(quantise_q8_0(x));
                    }
                }
            }
        }
    }
}
