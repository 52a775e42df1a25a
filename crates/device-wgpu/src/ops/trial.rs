//! Whether attention on matrix units does what it should, tried out before it is used.

use turbospark_device::op::Attention;
use turbospark_device::{Device, DeviceError, Pass};
use turbospark_tensor::DType;

use crate::WgpuDevice;

/// Rows of two segments and heads: no tile divides them.
const SIDES: [usize; 3] = [90, 40, 2];

/// Elements of a head: one subgroup has all outputs of a row, or two share them.
pub(crate) const HEADS: [usize; 2] = [72, 160];

fn number(at: usize, seed: usize) -> f32 {
    ((at * 7919 + seed * 104_729) % 2011) as f32 / 1005.5 - 1.0
}

/// What the op is, in f64.
fn expected(n: usize, q: &[f32], k: &[f32], v: &[f32], scale: f32) -> Vec<f64> {
    let [first, second, heads] = SIDES;
    let mut out = vec![0.0; q.len()];
    for segment in [0..first, first..first + second] {
        for (row, head) in segment.clone().flat_map(|row| (0..heads).map(move |h| (row, h))) {
            let at = |row: usize| (row * heads + head) * n..(row * heads + head + 1) * n;
            let score = |key: usize| -> f64 {
                let products = q[at(row)].iter().zip(&k[at(key)]).map(|(&a, &b)| f64::from(a) * f64::from(b));
                (products.sum::<f64>() * f64::from(scale)).exp()
            };
            let total: f64 = segment.clone().map(score).sum();
            for key in segment.clone() {
                let weight = score(key) / total;
                out[at(row)].iter_mut().zip(&v[at(key)]).for_each(|(o, &v)| *o += weight * f64::from(v));
            }
        }
    }
    out
}

/// Whether attention over known numbers, with heads of these sizes, comes out right up to the rounding of f16.
///
/// # Errors
/// When a kernel is refused.
pub(crate) fn attention_works(device: &WgpuDevice, heads: &[usize]) -> Result<bool, DeviceError> {
    heads.iter().try_fold(true, |works, &n| Ok(works && heads_of(n, device)?))
}

fn heads_of(n: usize, device: &dyn Device) -> Result<bool, DeviceError> {
    let [first, second, heads] = SIDES;
    let rows = first + second;
    let mut values: Vec<Vec<f32>> =
        (0..3).map(|seed| (0..rows * heads * n).map(|at| number(at, seed)).collect()).collect();
    // Scores that grow from key to key: sums are scaled anew on the way.
    for (at, k) in values[1].iter_mut().enumerate() {
        *k *= 0.5 + at as f32 / (heads * n * first) as f32;
    }
    let memory = device.alloc("trial of attention", 16 * rows * heads * n)?;
    let part = |i: usize| memory.view(4 * i * rows * heads * n, DType::F32, [rows, heads, n]);
    for (i, values) in values.iter().enumerate() {
        device.write_f32(part(i), values)?;
    }
    let cu_seqlens = [0, first, rows];
    let mut pass = Pass::new(device);
    let (q, k, v, out) = (part(0), part(1), part(2), part(3));
    pass.attention(Attention { q, k, v, cu_seqlens: &cu_seqlens, scale: 0.5, out });
    pass.submit()?;
    let want = expected(n, &values[0], &values[1], &values[2], 0.5);
    let got = device.read_f32(out)?;
    Ok(got.iter().zip(&want).all(|(&got, want)| (f64::from(got) - want).abs() <= 1e-2))
}

#[cfg(test)]
mod tests {
    use turbospark_device::op::PagedAttention;
    use turbospark_device::{ReferenceDevice, Span};

    use super::*;
    use crate::{Adapter, WgpuOptions};

    #[test]
    fn attention_without_matrix_units_passes_the_trial() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        let device = WgpuDevice::new(&adapter, WgpuOptions::default()).unwrap();
        assert!(attention_works(&device, &HEADS).unwrap());
    }

    /// Devices on which plain arithmetic stands for matrix units of 16 and of 8.
    fn emulated() -> Vec<WgpuDevice> {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            eprintln!("skipped: no Vulkan adapter");
            return Vec::new();
        };
        let options = [16, 8].map(|s| WgpuOptions { emulate_matrix_units: Some(s), ..WgpuOptions::default() });
        let mut devices: Vec<_> = options.into_iter().map(|o| WgpuDevice::new(&adapter, o).unwrap()).collect();
        // Metal's units have squares of 8 and read scalars.
        devices[1].gpu.matrix_attention = devices[1].gpu.matrix_attention.map(|_| false);
        devices.into_iter().filter(|d| d.gpu.matrix_attention.is_some() && d.gpu.subgroups.0 >= 4).collect()
    }

    fn numbers(device: &dyn Device, count: usize, seed: usize) -> turbospark_device::Buffer {
        let buffer = device.alloc("test", 4 * count).unwrap();
        let values: Vec<f32> = (0..count).map(|at| number(at, seed) * (1.0 + seed as f32)).collect();
        device.write_f32(buffer.view(0, DType::F32, [count]), &values).unwrap();
        buffer
    }

    fn near(got: &[f32], want: &[f32], what: &str) {
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((g - w).abs() <= 1e-2, "{what}, element {i}: {g}, expected {w}");
        }
    }

    /// Attention of `segments` of so many rows each.
    fn segments(device: &dyn Device, segments: usize, rows: usize, heads: usize) -> Vec<f32> {
        let (n, all) = (16, segments * rows);
        let parts = [0, 1, 2, 0].map(|seed| numbers(device, all * heads * n, seed));
        let [q, k, v, out] = parts.each_ref().map(|b| b.view(0, DType::F32, [all, heads, n]));
        let cu_seqlens: Vec<usize> = (0..=segments).map(|s| s * rows).collect();
        let mut pass = Pass::new(device);
        pass.attention(Attention { q, k, v, cu_seqlens: &cu_seqlens, scale: 0.5, out });
        pass.submit().unwrap();
        device.read_f32(out).unwrap()
    }

    /// Prompts over a cache: two sequences whose rows begin at these places, four heads to a head of keys.
    fn prompts(device: &dyn Device, starts: [usize; 2], rows: [usize; 2]) -> Vec<f32> {
        let (n, heads, kv_heads, page_len, pages_each) = (16, 8, 2, 16, 8);
        let capacity = 2 * page_len * pages_each;
        let (q, out) = (numbers(device, 120 * heads * n, 3), numbers(device, 120 * heads * n, 0));
        let caches = [1, 2].map(|seed| numbers(device, capacity * kv_heads * n, seed));
        let pages = device.alloc("pages", 8 * pages_each).unwrap();
        let order: Vec<u8> = (0..2 * pages_each as i32).rev().flat_map(i32::to_le_bytes).collect();
        device.write(pages.bytes(), &order).unwrap();
        let span = |i: usize, first_row| Span {
            first_row,
            rows: rows[i],
            start: starts[i],
            decode: false,
            table: i,
            state: 0,
            snapshots: Vec::new(),
        };
        let mut pass = Pass::new(device);
        let [k_cache, v_cache] = caches.each_ref().map(|c| c.view(0, DType::F32, [capacity, kv_heads, n]));
        // Row r of a sequence is row r of 0..60 or of 60..120, wherever its span begins.
        let spans = [span(0, starts[0]), span(1, 60 + starts[1])];
        let pages = pages.view(0, DType::I32, [2, pages_each]);
        let [q, to] = [&q, &out].map(|b| b.view(0, DType::F32, [120, heads, n]));
        pass.paged_attention(PagedAttention {
            q,
            k_cache,
            v_cache,
            pages,
            page_len,
            spans: &spans,
            scale: 0.3,
            out: to,
        });
        pass.submit().unwrap();
        device.read_f32(to).unwrap()
    }

    #[test]
    fn attention_for_matrix_units_agrees_where_plain_arithmetic_stands_for_them() {
        for device in emulated() {
            // Heads of 20 are shared by two subgroups, and end within a square.
            assert!(attention_works(&device, &[16, 20]).unwrap());
            // So many workgroups that each takes twice the rows.
            near(&segments(&device, 34, 9, 8), &segments(&ReferenceDevice, 34, 9, 8), "segments");
            let whole = prompts(&device, [0, 0], [60, 60]);
            near(&whole, &prompts(&ReferenceDevice, [0, 0], [60, 60]), "prompts");
            // No bit of a row depends on where its prompt was cut.
            let later = prompts(&device, [13, 41], [47, 19]);
            let row = 8 * 16;
            for rows in [13..60, 101..120] {
                let of =
                    |all: &[f32]| all[rows.start * row..rows.end * row].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(of(&whole) == of(&later), "rows {rows:?}");
            }
        }
    }
}
