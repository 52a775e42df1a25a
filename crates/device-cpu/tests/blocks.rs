//! Rows being decoded, on weights in quantised blocks.

mod common;

use common::*;
use proptest::prelude::*;
use turbospark_device::op::*;
use turbospark_device::{Device, Pass};
use turbospark_tensor::{DType, widen_into};

/// A layer without prompt rows; its weight lies `shift` bytes into a buffer.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    rows: usize,
    k: usize,
    n: usize,
    shift: usize,
    seed: u64,
}

impl Case {
    fn x(&self) -> Vec<f32> {
        random(self.seed, self.rows * self.k)
    }

    fn weight(&self) -> Vec<u8> {
        random_blocks(self.seed + 1, self.dtype, self.n * self.k)
    }

    /// Outputs `outputs` of rows `rows`.
    fn part(&self, d: &dyn Device, rows: std::ops::Range<usize>, outputs: std::ops::Range<usize>) -> Vec<f32> {
        let (m, n) = (rows.len(), outputs.len());
        let x = put_f32(d, &self.x());
        let mut bytes = vec![0; self.shift];
        bytes.extend(self.weight());
        let w = put_bytes(d, &bytes);
        let out = put_f32(d, &vec![0.0; m * n]);
        let x = x.view(0, DType::F32, [self.rows, self.k]).rows(rows);
        let weight = w.view(self.shift, self.dtype, [self.n, self.k]).rows(outputs);
        let mut pass = Pass::new(d);
        pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, weight, out.view(0, DType::F32, [m, n])) });
        pass.submit().unwrap();
        get(d, &out)
    }

    fn run(&self, d: &dyn Device) -> Vec<f32> {
        self.part(d, 0..self.rows, 0..self.n)
    }

    /// `x W^T`, and `|x| |W|^T` by which its rounding is judged, in f64.
    fn product(&self, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let mut w = vec![0.0; self.n * self.k];
        widen_into(&self.weight(), self.dtype, &mut w);
        let one = |abs: bool| {
            let of = |v: f32| if abs { f64::from(v.abs()) } else { f64::from(v) };
            let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(&x, &w)| of(x) * of(w)).sum::<f64>();
            x.chunks(self.k).flat_map(|x| w.chunks(self.k).map(|w| dot(x, w)).collect::<Vec<_>>()).collect()
        };
        (one(false), one(true))
    }
}

fn cases(formats: &'static [DType]) -> impl Strategy<Value = Case> {
    let sides = (prop::sample::select(formats), prop::sample::select(vec![32usize, 64, 96, 256, 512, 1280]));
    (sides, 1usize..10, 1usize..71, 0usize..4, 0u64..1 << 32).prop_map(|((dtype, k), rows, n, shift, seed)| Case {
        dtype,
        rows,
        k: k.next_multiple_of(dtype.block().elements),
        n,
        shift,
        seed,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_f32_blocks_are_dequantised_exactly(case in cases(&DType::BLOCKS)) {
        let (want, size) = case.product(&case.x());
        for d in devices().iter().map(|kind| &kind[0]) {
            for ((got, want), size) in case.run(d).iter().zip(&want).zip(&size) {
                prop_assert!((f64::from(*got) - want).abs() <= size * 1e-6, "{}: {got}, expected {want}", d.name());
            }
        }
    }

    #[test]
    fn else_products_are_those_of_rounded_activations(case in cases(&DType::BLOCKS)) {
        let (x, rounded) = (case.x(), rounded(&case.x(), case.k));
        let (want, size) = case.product(&rounded);
        let exact = case.product(&x).0;
        // At most half a unit in each element, the unit being at most 1 / 127.
        let ones: Vec<f32> = vec![0.5 / 127.0; x.len()];
        let bound = case.product(&ones).1;
        for d in rounding_devices().iter().map(|kind| &kind[0]) {
            // It has no products of integers.
            let want = if d.name().contains("portable") { &exact } else { &want };
            for (i, got) in case.run(d).into_iter().enumerate() {
                let got = f64::from(got);
                prop_assert!((got - want[i]).abs() <= size[i] * 1e-6, "{}: {got}, expected {}", d.name(), want[i]);
                prop_assert!((got - exact[i]).abs() <= bound[i] * 1.001 + size[i] * 1e-6);
            }
        }
    }

    #[test]
    fn no_bit_depends_on_company(case in cases(&DType::BLOCKS), row in 0usize..9, cut in 0usize..70) {
        let (row, cut) = (row % case.rows, cut % case.n);
        for kind in rounding_devices().iter().chain(devices()) {
            let all = case.run(&kind[0]);
            for d in &kind[1..] {
                prop_assert!(bits(&[case.run(d)]) == bits(std::slice::from_ref(&all)), "{} differs from one thread", d.name());
            }
            let of = |r: usize, outputs: std::ops::Range<usize>| all[r * case.n..][outputs].to_vec();
            let alone = case.part(&kind[0], row..row + 1, 0..case.n);
            prop_assert!(bits(&[alone]) == bits(&[of(row, 0..case.n)]), "{}: row {row} alone", kind[0].name());
            let rest: Vec<f32> = (0..case.rows).flat_map(|r| of(r, cut..case.n)).collect();
            let part = case.part(&kind[2], 0..case.rows, cut..case.n);
            prop_assert!(bits(&[part]) == bits(&[rest]), "{}: outputs from {cut} on", kind[0].name());
            let moved = Case { shift: case.shift + 61, ..case.clone() };
            prop_assert!(bits(&[moved.run(&kind[0])]) == bits(std::slice::from_ref(&all)), "{}: moved", kind[0].name());
        }
    }
}

/// Errors of 1 / 440 in size, half a percent of the outputs'. Independent from row to row only: the outputs of a row
/// share its rounding, so it takes many rows to see.
#[test]
fn rounding_activations_costs_half_a_percent() {
    for dtype in DType::BLOCKS {
        for (k, seed) in [(256, 1), (512, 2), (1280, 3)] {
            let case = Case { dtype, rows: 64, k, n: 20, shift: 0, seed };
            let (exact, size) = case.product(&case.x());
            for d in rounding_devices().iter().map(|kind| &kind[0]) {
                let error: f64 = case.run(d).iter().zip(&exact).map(|(&got, e)| (f64::from(got) - e).powi(2)).sum();
                let total: f64 = size.iter().map(|s| s.powi(2) / k as f64).sum();
                assert!(error.sqrt() <= 0.01 * total.sqrt(), "{}, {dtype} of {k}: {error} of {total}", d.name());
            }
        }
    }
}

/// Blocks of every value that codes and scales can have, signs and extremes among them.
#[test]
fn extreme_codes_are_right() {
    for dtype in DType::BLOCKS {
        let case = Case { dtype, rows: 2, k: 512, n: 8, shift: 1, seed: 1 };
        let block = dtype.block();
        for byte in [0x00, 0x7f, 0x80, 0xff] {
            let mut weight = vec![byte; dtype.bytes(case.n * case.k).unwrap()];
            weight.chunks_exact_mut(block.bytes).for_each(|b| set_scales(dtype, b, 0x2c00));
            let mut wide = vec![0.0; case.n * case.k];
            widen_into(&weight, dtype, &mut wide);
            // Codes of 127 and -127 only.
            let x: Vec<f32> = (0..2 * case.k).map(|i| if i / case.k == 0 || i % 3 == 0 { 1.0 } else { -1.0 }).collect();
            for d in rounding_devices().iter().map(|kind| &kind[0]) {
                let (xs, w) = (put_f32(d, &x), put_bytes(d, &weight));
                let out = put_f32(d, &vec![0.0; 2 * case.n]);
                let xs = xs.view(0, DType::F32, [2, case.k]);
                let mut pass = Pass::new(d);
                let w = w.view(0, dtype, [case.n, case.k]);
                pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(xs, w, out.view(0, DType::F32, [2, case.n])) });
                pass.submit().unwrap();
                for (i, got) in get(d, &out).into_iter().enumerate() {
                    let (x, w) = (&x[i / case.n * case.k..], &wide[i % case.n * case.k..][..case.k]);
                    let want: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                    let size: f64 = w.iter().map(|&w| f64::from(w.abs())).sum();
                    assert!((f64::from(got) - want).abs() <= 1e-6 * size, "{} {dtype}: {got}, {want}", d.name());
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for dtype in DType::BLOCKS {
        let case = Case { dtype, rows: 2, k: 512, n: 5, shift: 0, seed: 3 };
        for d in rounding_devices().iter().map(|kind| &kind[0]) {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = case.x();
                x[300] = bad;
                let (x, w) = (put_f32(d, &x), put_bytes(d, &case.weight()));
                let out = put_f32(d, &[0.0; 10]);
                let (x, out_view) = (x.view(0, DType::F32, [2, case.k]), out.view(0, DType::F32, [2, 5]));
                let mut pass = Pass::new(d);
                pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, w.view(0, dtype, [5, case.k]), out_view) });
                pass.submit().unwrap();
                let out = get(d, &out);
                assert!(out[..5].iter().all(|y| !y.is_finite()), "{} {dtype}: {out:?}", d.name());
                assert!(out[5..].iter().all(|y| y.is_finite()), "{} {dtype}: {out:?}", d.name());
            }
        }
    }
}
