//! Weights whose scales lie apart: as MLX packs them, and in rows that share scales.

use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use turbospark_device::op::{Gather, LinearWeight, Matmul, ScaledWeight};
use turbospark_device::{Buffer, Device, Pass, ReferenceDevice};
use turbospark_tensor::{Code, DType, ScaledForm, widen_into};

fn put(d: &dyn Device, bytes: &[u8]) -> Buffer {
    let buffer = d.alloc("test", bytes.len()).unwrap();
    d.write(buffer.bytes(), bytes).unwrap();
    buffer
}

/// All rows of a table of `[n, k]`.
fn rows(d: &dyn Device, table: impl Into<LinearWeight<'static>>, n: usize, k: usize) -> Vec<f32> {
    let (all, ids) = (d.alloc("all", 4 * n * k).unwrap(), d.alloc("ids", 4 * n).unwrap());
    d.write_i32(ids.view(0, DType::I32, [n]), &(0..n as i32).collect::<Vec<_>>()).unwrap();
    let (out, index) = (all.view(0, DType::F32, [n, k]), ids.view(0, DType::I32, [n]));
    let mut pass = Pass::new(d);
    pass.gather(Gather { table: table.into(), index, weights: None, out, accumulate: false });
    pass.submit().unwrap();
    d.read_f32(out).unwrap()
}

fn float(t: &TensorView<'_>) -> DType {
    match t.dtype() {
        Dtype::F32 => DType::F32,
        Dtype::BF16 => DType::BF16,
        Dtype::F16 => DType::F16,
        other => panic!("{other:?} is no float type"),
    }
}

fn widened(t: &TensorView<'_>) -> Vec<f32> {
    let mut out = vec![0.0; t.shape().iter().product()];
    widen_into(t.data(), float(t), &mut out);
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
    let d: &'static dyn Device = &ReferenceDevice;
    let (mut affine, mut floats) = (0, 0);
    for name in file.names().into_iter().filter_map(|n| n.strip_suffix(".weight")) {
        let get = |part: &str| file.tensor(&format!("{name}.{part}"));
        let (codes, scales, want) = (get("weight").unwrap(), get("scales").unwrap(), get("dequantised").unwrap());
        let &[n, k] = want.shape() else { panic!("{name}: a matrix") };
        let (group, bits) = (k / scales.shape()[1], 32 * codes.shape()[1] / k);
        let (code, t) = match name.split('-').next() {
            Some("mxfp4") => (Code::E2M1, DType::F8_E8M0),
            Some("mxfp8") => (Code::E4M3, DType::F8_E8M0),
            Some("nvfp4") => (Code::E2M1, DType::F8_E4M3),
            _ => (Code::Unsigned(bits), float(&scales)),
        };
        let form = ScaledForm::new(code, group, 1).unwrap();
        let biases = get("biases").ok();
        *if biases.is_some() { &mut affine } else { &mut floats } += 1;
        let leak = |t: &TensorView<'_>| -> &'static Buffer { Box::leak(Box::new(put(d, t.data()))) };
        let weight = ScaledWeight {
            codes: leak(&codes).view(0, DType::U32, [n, codes.shape()[1]]),
            scales: leak(&scales).view(0, t, [n, k / group]),
            biases: biases.map(|b| leak(&b).view(0, t, [n, k / group])),
            order: None,
            form,
        };
        // MLX dequantises in the type of the scales: product rounded, then sum. In f32 it is what we do, and the float
        // modes have neither.
        let (got, exact) = (rows(d, weight, n, k), t == DType::F32 || weight.biases.is_none());
        let epsilon = if float(&want) == DType::BF16 { 2f32.powi(-8) } else { 2f32.powi(-11) };
        let epsilon = if t == DType::F32 { 2f32.powi(-24) } else { epsilon };
        let want = widened(&want);
        let largest = |row: &[f32]| row.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (g, w) in got.chunks(k).zip(want.chunks(k)) {
            let most = if exact { 0.0 } else { 4.0 * epsilon * largest(w) };
            assert!(g.iter().zip(w).all(|(g, w)| (g - w).abs() <= most), "{name}: weights differ");
        }
        let x_values = widened(&get("x").unwrap());
        let m = x_values.len() / k;
        let (x, out) = (d.alloc("x", 4 * m * k).unwrap(), d.alloc("out", 4 * m * n).unwrap());
        let (x, out) = (x.view(0, DType::F32, [m, k]), out.view(0, DType::F32, [m, n]));
        d.write_f32(x, &x_values).unwrap();
        let mut pass = Pass::new(d);
        pass.matmul(Matmul::new(x, weight, out));
        pass.submit().unwrap();
        let product = get("x_wt").unwrap();
        let tight = float(&product) == DType::F32;
        let (got, want) = (d.read_f32(out).unwrap(), widened(&product));
        let most = if tight { 2e-5 } else { 16.0 * epsilon } * (k as f32).sqrt() * largest(&want).max(1.0);
        for (g, w) in got.iter().zip(&want) {
            assert!((g - w).abs() <= most, "{name}: product {g}, MLX has {w}");
        }
    }
    println!("{affine} affine cases, {floats} of small floats");
    assert!(affine >= 30 && floats >= 6, "{affine} affine cases, {floats} of small floats");
}

/// FP8 in blocks of 128 x 128 whose last row and column of blocks are in part there.
#[test]
fn rows_share_scales() {
    let d: &'static dyn Device = &ReferenceDevice;
    let (n, k) = (300, 200);
    let codes: Vec<u8> = (0..n * k).map(|i| if i % 127 == 126 { 0x38 } else { (i % 127) as u8 }).collect();
    let scales: Vec<u8> = (1..=6).flat_map(|s| (s as f32).to_le_bytes()).collect();
    let (c, s) = (Box::leak(Box::new(put(d, &codes))), Box::leak(Box::new(put(d, &scales))));
    let weight = |rows: usize, grid: [usize; 2]| ScaledWeight {
        codes: c.view(0, DType::F8_E4M3, [n, k]),
        scales: s.view(0, DType::F32, grid),
        biases: None,
        order: None,
        form: ScaledForm::new(Code::E4M3, 128, rows).unwrap(),
    };
    let blocks = weight(128, [3, 2]);
    let all = rows(d, blocks, n, k);
    for (i, got) in all.iter().enumerate() {
        let scale = (1 + i / k / 128 * 2 + i % k / 128) as f32;
        assert_eq!(*got, turbospark_tensor::e4m3_to_f32(codes[i]) * scale, "element {i}");
    }
    assert_eq!(rows(d, blocks.rows(128..290), 162, k), all[128 * k..290 * k]);
    assert_eq!(rows(d, blocks.rows(256..300).rows(7..20), 13, k), all[263 * k..276 * k]);
    let one = weight(usize::MAX, [1, 2]);
    assert_eq!(rows(d, one.rows(130..170), 40, k), rows(d, one, n, k)[130 * k..170 * k]);
    assert!(rows(d, one.rows(5..5), 0, k).is_empty());
}

#[test]
#[should_panic(expected = "130..170 starts among 128 outputs that share a scale")]
fn rows_do_not_begin_within_a_shared_scale() {
    let buffer = Buffer::new(1 << 20, ());
    let form = ScaledForm::new(Code::E4M3, 128, 128).unwrap();
    let (codes, scales) = (buffer.view(0, DType::F8_E4M3, [300, 200]), buffer.view(0, DType::F32, [3, 2]));
    ScaledWeight { codes, scales, biases: None, order: None, form }.rows(130..170);
}
