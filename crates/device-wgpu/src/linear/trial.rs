//! Whether matrix units do what they should, tried out before they are used.
//!
//! What drivers make of them is young, and differs between adapters: a wrong order of a square's elements would give a
//! fluent wrong model. Whole numbers of a few bits are multiplied, whose sums every kernel has to the bit.

use turbospark_device::op::{GatedMatmul, Matmul, WeightLayout};
use turbospark_device::{Device, DeviceError, Pass};
use turbospark_tensor::{DType, f32_to_f16};

use crate::WgpuDevice;

/// Sides that no tile and no step divides: rows, inner, outputs.
const SIDES: [usize; 3] = [70, 72, 75];

/// Sides that end within every tile, whose steps are whole.
#[cfg(test)]
const WHOLE: [usize; 3] = [150, 128, 140];

fn x(row: usize, i: usize) -> i32 {
    ((row * 3 + i * 7) % 15) as i32 - 7
}

fn w(o: usize, i: usize) -> i32 {
    ((o * 5 + i * 11 + o * i % 3) % 13) as i32 - 6
}

/// Whether a product of known numbers comes out right, in both layouts, alone and gated.
///
/// # Errors
/// When a kernel is refused.
pub(crate) fn matrices_work(device: &WgpuDevice) -> Result<bool, DeviceError> {
    product_works(device, SIDES, &[WeightLayout::OutIn, WeightLayout::InOut])
}

fn product_works(device: &dyn Device, [rows, k, n]: [usize; 3], layouts: &[WeightLayout]) -> Result<bool, DeviceError> {
    let want: Vec<i32> = (0..rows * n).map(|at| (0..k).map(|i| x(at / n, i) * w(at % n, i)).sum()).collect();
    let put = |bytes: Vec<u8>| {
        let buffer = device.alloc("trial of matrix units", bytes.len())?;
        device.write(buffer.bytes(), &bytes)?;
        Ok::<_, DeviceError>(buffer)
    };
    let xs = put((0..rows * k).flat_map(|at| (x(at / k, at % k) as f32).to_le_bytes()).collect())?;
    let half = |v: i32| f32_to_f16(v as f32).to_le_bytes();
    for &layout in layouts {
        let (weight, sides) = match layout {
            WeightLayout::OutIn => (put((0..n * k).flat_map(|at| half(w(at / k, at % k))).collect())?, [n, k]),
            WeightLayout::InOut => (put((0..n * k).flat_map(|at| half(w(at % n, at / n))).collect())?, [k, n]),
        };
        let outs = [put(vec![0; 4 * rows * n])?, put(vec![0; 4 * rows * n])?];
        let [y, z] = outs.each_ref().map(|b| b.view(0, DType::F32, [rows, n]));
        let (x, weight) = (xs.view(0, DType::F32, [rows, k]), weight.view(0, DType::F16, sides));
        let mut pass = Pass::new(device);
        pass.matmul(Matmul { layout, ..Matmul::new(x, weight, y) });
        let (gate, up) = (weight.into(), weight.into());
        pass.gated_matmul(GatedMatmul { x, gate, up, layout, out: z, prompt_rows: rows });
        pass.submit()?;
        let (y, z) = (device.read_f32(y)?, device.read_f32(z)?);
        let fits = |at: usize| {
            let sum = want[at] as f32;
            let gated = sum / (1.0 + (-sum).exp()) * sum;
            y[at] == sum && (z[at] - gated).abs() <= 1e-3 * (1.0 + gated.abs())
        };
        if !(0..rows * n).all(fits) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::linear::matrix::ALONE;
    use crate::{Adapter, WgpuOptions};

    #[test]
    fn kernels_without_matrix_units_pass_the_trial() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        let device = WgpuDevice::new(&adapter, WgpuOptions::default()).unwrap();
        assert!(matrices_work(&device).unwrap());
    }

    #[test]
    fn kernels_for_matrix_units_pass_it_where_plain_arithmetic_stands_for_them() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        for side in [8, 16] {
            let options = WgpuOptions { emulate_matrix_units: Some(side), ..WgpuOptions::default() };
            let device = WgpuDevice::new(&adapter, options).unwrap();
            if device.matrix_units().is_none() {
                return eprintln!("skipped: no f16");
            }
            assert!(matrices_work(&device).unwrap(), "{side}");
            // The largest tiles, with short steps and with long ones; a software adapter compiles them for seconds.
            for tiles in (1..=2).filter(|_| side == 16) {
                device.gpu.linear.tiles.store(tiles, Ordering::Relaxed);
                assert!(product_works(&device, WHOLE, &[WeightLayout::OutIn]).unwrap(), "choice {tiles} of tiles");
            }
        }
    }

    #[test]
    fn matrix_units_multiply_right_in_every_tile() {
        let Some(adapter) = Adapter::all().into_iter().next() else {
            return eprintln!("skipped: no Vulkan adapter");
        };
        let device = WgpuDevice::new(&adapter, WgpuOptions::default()).unwrap();
        if device.matrix_units().is_none() {
            return eprintln!("skipped: no matrix units");
        }
        for tiles in 1..=ALONE.len() {
            device.gpu.linear.tiles.store(tiles, Ordering::Relaxed);
            assert!(
                [WHOLE, SIDES].iter().all(|&sides| product_works(&device, sides, &[WeightLayout::OutIn]).unwrap()),
                "choice {tiles}"
            );
        }
    }
}
