//! Whether attention on matrix units does what it should, tried out before it is used.

use turbospark_device::op::Attention;
use turbospark_device::{Device, DeviceError, Pass};
use turbospark_tensor::DType;

use crate::WgpuDevice;

/// Rows of two segments, heads, and elements of a head: no tile divides them.
const SIDES: [usize; 4] = [90, 40, 2, 72];

fn number(at: usize, seed: usize) -> f32 {
    ((at * 7919 + seed * 104_729) % 2011) as f32 / 1005.5 - 1.0
}

/// What the op is, in f64.
fn expected(q: &[f32], k: &[f32], v: &[f32], scale: f32) -> Vec<f64> {
    let [first, second, heads, n] = SIDES;
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

/// Whether attention over known numbers comes out right, up to the rounding of f16.
///
/// # Errors
/// When a kernel is refused.
pub(crate) fn attention_works(device: &WgpuDevice) -> Result<bool, DeviceError> {
    let device: &dyn Device = device;
    let [first, second, heads, n] = SIDES;
    let rows = first + second;
    let values: Vec<Vec<f32>> = (0..3).map(|seed| (0..rows * heads * n).map(|at| number(at, seed)).collect()).collect();
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
    let want = expected(&values[0], &values[1], &values[2], 0.5);
    let got = device.read_f32(out)?;
    Ok(got.iter().zip(&want).all(|(&got, want)| (f64::from(got) - want).abs() <= 1e-2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adapter, WgpuOptions};

    #[test]
    fn attention_without_matrix_units_passes_the_trial() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        let device = WgpuDevice::new(&adapter, WgpuOptions::default()).unwrap();
        assert!(attention_works(&device).unwrap());
    }
}
