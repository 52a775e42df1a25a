//! The reference device's private memory and how ops read and write it.

use std::sync::Mutex;

use turbospark_tensor::quant::quantise_q8_0;
use turbospark_tensor::{DType, f32_to_bf16, f32_to_f16, widen_into, widen_one};

use super::NAME;
use crate::{DeviceError, LinearWeight, View};

/// Bytes behind a lock; nothing here needs to be fast.
#[derive(Debug)]
pub(super) struct Memory(Mutex<Vec<u8>>);

impl Memory {
    pub(super) fn zeroed(bytes: usize) -> Option<Self> {
        let mut v = Vec::new();
        v.try_reserve_exact(bytes).ok()?;
        v.resize(bytes, 0);
        Some(Memory(Mutex::new(v)))
    }

    /// Runs `f` on the first `len` bytes of a dense view.
    pub(super) fn with<R>(
        &self,
        view: &View<'_>,
        len: usize,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, DeviceError> {
        let mut m = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let (offset, total) = (view.offset_bytes(), m.len());
        let end = offset.saturating_add(len);
        let within = view.is_dense() && view.end_bytes().is_some_and(|e| end <= e);
        match m.get_mut(offset..end) {
            Some(slice) if within => Ok(f(slice)),
            _ => Err(DeviceError::OutOfBounds { offset, end, len: total }),
        }
    }
}

pub(super) fn of<'a>(view: &View<'a>) -> Result<&'a Memory, DeviceError> {
    view.buffer().storage().ok_or_else(|| DeviceError::ForeignBuffer(NAME.into()))
}

/// Bytes of a dense view.
pub(super) fn len(view: &View<'_>) -> Result<usize, DeviceError> {
    let (offset, len) = (view.offset_bytes(), view.buffer().len());
    view.len_bytes().ok_or(DeviceError::OutOfBounds { offset, end: usize::MAX, len })
}

/// Element offsets of a view in row-major order of its sides.
fn offsets(view: &View<'_>) -> impl Iterator<Item = usize> {
    let dims = view.dims().to_vec();
    let strides: Vec<usize> = (0..dims.len()).map(|i| view.stride(i)).collect();
    (0..view.shape().elements()).map(move |mut i| {
        let mut at = 0;
        for (d, s) in dims.iter().zip(&strides).rev() {
            at += i % d * s;
            i /= d;
        }
        at
    })
}

/// All elements, widened, in row-major order.
pub(super) fn load(view: &View<'_>) -> Result<Vec<f32>, DeviceError> {
    let m = of(view)?.0.lock().unwrap_or_else(|e| e.into_inner());
    let bytes = &m[view.offset_bytes()..];
    if view.dtype().is_block() {
        // Checked: dense, and rows of whole blocks.
        let mut out = vec![0.0; view.shape().elements()];
        widen_into(&bytes[..view.len_bytes().expect("whole blocks")], view.dtype(), &mut out);
        return Ok(out);
    }
    Ok(offsets(view).map(|i| widen_one(bytes, view.dtype(), i)).collect())
}

/// All weights of an `[out, k]` or table in rows of `k`, dequantised, in row-major order.
pub(super) fn load_weight(w: &LinearWeight<'_>, k: usize) -> Result<Vec<f32>, DeviceError> {
    let w = match w {
        LinearWeight::View(v) => return load(v),
        LinearWeight::Scaled(w) => w,
    };
    let bytes = |v: &View<'_>| of(v)?.with(v, len(v)?, |m| m.to_vec());
    let (codes, scales) = (bytes(&w.codes)?, bytes(&w.scales)?);
    let biases = w.biases.as_ref().map(bytes).transpose()?;
    let order = w.order.as_ref().map(load_i32).transpose()?;
    let (n, dtype) = (w.codes.dim(0), w.scales.dtype());
    let (row, grid_row) = (w.codes.dim(1) * w.codes.dtype().size(), w.scales.dim(1) * dtype.size());
    let mut out = vec![0.0; n * k];
    for (r, out) in out.chunks_exact_mut(k.max(1)).enumerate() {
        let at = r / w.form.rows() * grid_row..(r / w.form.rows() + 1) * grid_row;
        let biases = biases.as_ref().map(|b| &b[at.clone()]);
        w.form.widen_row(&codes[r * row..(r + 1) * row], &scales[at.clone()], biases, dtype, out);
    }
    if let Some(order) = order {
        let bad = |i: i32| DeviceError::Op {
            scope: String::new(),
            op: "",
            message: format!("the order of the columns names input {i} of {k}"),
        };
        if let Some(&i) = order.iter().find(|&&i| usize::try_from(i).map_or(true, |i| i >= k)) {
            return Err(bad(i));
        }
        for out in out.chunks_exact_mut(k.max(1)) {
            let row = out.to_vec();
            order.iter().zip(&row).for_each(|(&i, &v)| out[i as usize] = v);
        }
    }
    Ok(out)
}

/// All elements of an optional view.
pub(super) fn load_some(view: &Option<View<'_>>) -> Result<Option<Vec<f32>>, DeviceError> {
    view.as_ref().map(load).transpose()
}

/// All elements of an i32 view.
pub(super) fn load_i32(view: &View<'_>) -> Result<Vec<i32>, DeviceError> {
    let m = of(view)?.0.lock().unwrap_or_else(|e| e.into_inner());
    let bytes = &m[view.offset_bytes()..];
    let at = |i: usize| i32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("four bytes"));
    Ok(offsets(view).map(at).collect())
}

/// Rounds `values` to the view's type and stores them.
pub(super) fn store(view: &View<'_>, values: &[f32]) -> Result<(), DeviceError> {
    let mut m = of(view)?.0.lock().unwrap_or_else(|e| e.into_inner());
    let bytes = &mut m[view.offset_bytes()..];
    if view.dtype() == DType::Q8_0 {
        // Checked: dense, and whole blocks.
        for (b, x) in bytes.chunks_exact_mut(34).zip(values.chunks_exact(32)) {
            b.copy_from_slice(&quantise_q8_0(x.try_into().expect("32 elements")));
        }
        return Ok(());
    }
    for (i, &x) in offsets(view).zip(values) {
        match view.dtype() {
            DType::F32 => bytes[4 * i..4 * i + 4].copy_from_slice(&x.to_le_bytes()),
            DType::BF16 => bytes[2 * i..2 * i + 2].copy_from_slice(&f32_to_bf16(x).to_le_bytes()),
            DType::F16 => bytes[2 * i..2 * i + 2].copy_from_slice(&f32_to_f16(x).to_le_bytes()),
            other => unreachable!("checked: {other} is no float type"),
        }
    }
    Ok(())
}

/// Stores i32 values.
pub(super) fn store_i32(view: &View<'_>, values: &[i32]) -> Result<(), DeviceError> {
    of(view)?.with(view, 4 * values.len(), |m| {
        for (b, v) in m.chunks_exact_mut(4).zip(values) {
            b.copy_from_slice(&v.to_le_bytes());
        }
    })
}

pub(super) fn copy(from: &View<'_>, to: &View<'_>) -> Result<(), DeviceError> {
    if from.dtype().is_float() {
        return store(to, &load(from)?);
    }
    let size = from.dtype().size();
    let source = {
        let m = of(from)?.0.lock().unwrap_or_else(|e| e.into_inner());
        let bytes = &m[from.offset_bytes()..];
        offsets(from).flat_map(|i| bytes[i * size..(i + 1) * size].to_vec()).collect::<Vec<u8>>()
    };
    let mut m = of(to)?.0.lock().unwrap_or_else(|e| e.into_inner());
    let bytes = &mut m[to.offset_bytes()..];
    for (i, element) in offsets(to).zip(source.chunks_exact(size)) {
        bytes[i * size..(i + 1) * size].copy_from_slice(element);
    }
    Ok(())
}
