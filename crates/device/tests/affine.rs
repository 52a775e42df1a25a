//! Weights in affine groups as MLX packs them.

use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use turbospark_device::op::{AffineWeight, Gather, Matmul};
use turbospark_device::{Buffer, Device, Pass, ReferenceDevice};
use turbospark_tensor::{AffineForm, DType, widen_into};

fn dtype(t: &TensorView<'_>) -> DType {
    match t.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        _ => DType::U32,
    }
}

fn put(d: &dyn Device, t: &TensorView<'_>) -> Buffer {
    let buffer = d.alloc("test", t.data().len()).unwrap();
    d.write(buffer.bytes(), t.data()).unwrap();
    buffer
}

fn widened(t: &TensorView<'_>) -> Vec<f32> {
    let mut out = vec![0.0; t.shape().iter().product()];
    widen_into(t.data(), dtype(t), &mut out);
    out
}

#[test]
fn what_mlx_packed_is_read_as_mlx_reads_it() {
    let relative = "../../../shared/models/mlx/packing/packing.safetensors";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(relative);
    let Ok(bytes) = std::fs::read(&path) else {
        return println!("skipped: the vectors that MLX packed are not part of the project");
    };
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let d: &dyn Device = &ReferenceDevice;
    let mut cases = 0;
    for name in file.names().into_iter().filter_map(|n| n.strip_suffix(".weight")) {
        let get = |part: &str| file.tensor(&format!("{name}.{part}"));
        let (codes, scales) = (get("weight").unwrap(), get("scales").unwrap());
        let (Ok(biases), want) = (get("biases"), get("dequantised").unwrap()) else { continue };
        let &[n, k] = want.shape() else { panic!("{name}: a matrix") };
        let group = k / scales.shape()[1];
        let Some(form) = AffineForm::new(32 * codes.shape()[1] / k, group) else { continue };
        cases += 1;
        let t = dtype(&scales);
        let (c, s, b) = (put(d, &codes), put(d, &scales), put(d, &biases));
        let weight = AffineWeight {
            codes: c.view(0, DType::U32, [n, form.words(k)]),
            scales: s.view(0, t, [n, k / group]),
            biases: b.view(0, t, [n, k / group]),
            form,
        };
        let x_values = widened(&get("x").unwrap());
        let x = d.alloc("x", 4 * x_values.len()).unwrap();
        d.write_f32(x.view(0, DType::F32, [x_values.len()]), &x_values).unwrap();
        let rows = x_values.len() / k;
        let (out, all, ids) =
            (d.alloc("out", 4 * rows * n).unwrap(), d.alloc("all", 4 * n * k).unwrap(), d.alloc("ids", 4 * n).unwrap());
        d.write_i32(ids.view(0, DType::I32, [n]), &(0..n as i32).collect::<Vec<_>>()).unwrap();
        let mut pass = Pass::new(d);
        let all = all.view(0, DType::F32, [n, k]);
        let index = ids.view(0, DType::I32, [n]);
        pass.gather(Gather { table: weight.into(), index, weights: None, out: all, accumulate: false });
        let out = out.view(0, DType::F32, [rows, n]);
        pass.matmul(Matmul::new(x.view(0, DType::F32, [rows, k]), weight, out));
        pass.submit().unwrap();
        // MLX dequantises in the type of the scales: product rounded, then sum. In f32 it is what we do.
        let (got, want) = (d.read_f32(all).unwrap(), widened(&want));
        let (epsilon, exact) = match t {
            DType::F32 => (2f32.powi(-24), true),
            DType::F16 => (2f32.powi(-11), false),
            _ => (2f32.powi(-8), false),
        };
        let largest = |row: &[f32]| row.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (g, w) in got.chunks(k).zip(want.chunks(k)) {
            let most = if exact { 0.0 } else { 4.0 * epsilon * largest(w) };
            assert!(g.iter().zip(w).all(|(g, w)| (g - w).abs() <= most), "{name}: weights differ");
        }
        let (got, want) = (d.read_f32(out).unwrap(), widened(&get("x_wt").unwrap()));
        let most = if exact { 2e-5 } else { 16.0 * epsilon } * (k as f32).sqrt() * largest(&want).max(1.0);
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= most, "{name}: product {g}, MLX has {w}");
        }
    }
    assert!(cases >= 6, "{cases} cases of 4 and 8 bits");
    println!("{cases} cases");
}
