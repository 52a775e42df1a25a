//! Weights whose scales lie apart, against the reference device.

mod common;

use common::*;
use proptest::prelude::*;
use turbospark_device::op::*;
use turbospark_device::{Buffer, Device, Pass};
use turbospark_tensor::{Code, DType, ScaledForm};

const CODES: [Code; 9] = [
    Code::Unsigned(2),
    Code::Unsigned(3),
    Code::Unsigned(4),
    Code::Unsigned(5),
    Code::Unsigned(6),
    Code::Unsigned(8),
    Code::Signed8,
    Code::E2M1,
    Code::E4M3,
];

const SCALES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8_E8M0, DType::F8_E4M3];

/// An `[n, k]` weight; its parts lie `shift` bytes into their buffers.
#[derive(Clone, Debug)]
struct Case {
    form: ScaledForm,
    codes: DType,
    scales: DType,
    biases: bool,
    n: usize,
    k: usize,
    shift: usize,
    /// Whether columns are in an order of their own.
    ordered: bool,
    seed: u64,
}

impl Case {
    /// Elements of `codes` in a row.
    fn width(&self) -> usize {
        self.form.bytes(self.k).div_ceil(self.codes.size())
    }

    fn codes(&self) -> Vec<u8> {
        let n = self.n * self.width() * self.codes.size();
        let bytes = random(self.seed + 1, n).into_iter().map(|x| (x * 128.0) as i8 as u8);
        // No NaN, which the comparison would not take.
        bytes.map(|b| if self.form.code() == Code::E4M3 && b & 0x7f == 0x7f { b & 0xfe } else { b }).collect()
    }

    /// Scales that make weights of about one, half of them negative where their type has a sign.
    fn scales(&self, seed: u64, size: f32) -> Vec<u8> {
        let [rows, columns] = self.form.grid(self.n, self.k);
        let values: Vec<f32> = random(self.seed + seed, rows * columns).iter().map(|x| x * size).collect();
        match self.scales {
            DType::F8_E8M0 => values.iter().map(|x| (x.abs().max(1e-9).log2().floor() + 127.0) as u8).collect(),
            DType::F8_E4M3 => values.iter().map(|&x| nearest_e4m3(x)).collect(),
            float => encode(float, &values),
        }
    }

    fn scales_and_biases(&self) -> [Vec<u8>; 2] {
        let largest = match self.form.code() {
            Code::Unsigned(bits) => (1 << bits) as f32,
            Code::Signed8 => 128.0,
            Code::E2M1 => 6.0,
            Code::E4M3 => 448.0,
        };
        [self.scales(2, 1.0 / largest), self.scales(3, 0.5)]
    }

    /// The input of each column.
    fn order(&self) -> Vec<i32> {
        let mut order: Vec<i32> = (0..self.k as i32).collect();
        if self.ordered {
            let keys = random(self.seed + 4, self.k);
            order.sort_by(|&a, &b| keys[a as usize].total_cmp(&keys[b as usize]));
        }
        order
    }

    fn put(&self, d: &dyn Device) -> [Buffer; 4] {
        let [scales, biases] = self.scales_and_biases();
        let [codes, scales, biases] = [self.codes(), scales, biases].map(|bytes| {
            let mut all = vec![0; self.shift];
            all.extend(bytes);
            put_bytes(d, &all)
        });
        [codes, scales, biases, put_i32(d, &self.order())]
    }

    fn weight<'a>(&self, [codes, scales, biases, order]: &'a [Buffer; 4]) -> ScaledWeight<'a> {
        let grid = self.form.grid(self.n, self.k);
        ScaledWeight {
            codes: codes.view(self.shift, self.codes, [self.n, self.width()]),
            scales: scales.view(self.shift, self.scales, grid),
            biases: self.biases.then(|| biases.view(self.shift, self.scales, grid)),
            order: self.ordered.then(|| order.view(0, DType::I32, [self.k])),
            form: self.form,
        }
    }

    /// All weights.
    fn wide(&self) -> Vec<f32> {
        let (codes, [scales, biases]) = (self.codes(), self.scales_and_biases());
        let (row, of) = (self.width() * self.codes.size(), self.form.grid(self.n, self.k)[1] * self.scales.size());
        let mut out = vec![0.0; self.n * self.k];
        for (r, out) in out.chunks_mut(self.k).enumerate() {
            let at = r / self.form.rows() * of..(r / self.form.rows() + 1) * of;
            let biases = self.biases.then(|| &biases[at.clone()]);
            let mut sorted = vec![0.0; self.k];
            self.form.widen_row(&codes[r * row..(r + 1) * row], &scales[at.clone()], biases, self.scales, &mut sorted);
            self.order().iter().zip(sorted).for_each(|(&i, x)| out[i as usize] = x);
        }
        out
    }

    /// Outputs `outputs` of `rows` decoded rows of `x`.
    fn decoded(&self, d: &dyn Device, x: &[f32], outputs: std::ops::Range<usize>) -> Vec<f32> {
        let (rows, n) = (x.len() / self.k, outputs.len());
        let (x, parts, out) = (put_f32(d, x), self.put(d), put_f32(d, &vec![0.0; rows * n]));
        let (x, out_view) = (x.view(0, DType::F32, [rows, self.k]), out.view(0, DType::F32, [rows, n]));
        let weight = self.weight(&parts).rows(outputs);
        submit(d, |pass| pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, weight, out_view) }));
        get(d, &out)
    }

    /// Where a weight may be cut in two: near its middle, where another scale begins.
    fn middle(&self) -> usize {
        if self.form.rows() > self.n { self.n / 2 } else { self.n / 2 / self.form.rows() * self.form.rows() }
    }
}

fn nearest_e4m3(x: f32) -> u8 {
    let distance = |&c: &u8| (turbospark_tensor::e4m3_to_f32(c) - x).abs();
    (0..=255u8).filter(|c| c & 0x7f != 0x7f).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap()
}

/// All codes and types of scales; groups that divide superblocks, that don't, and that are longer than the row.
fn cases() -> impl Strategy<Value = Case> {
    let form = (
        prop::sample::select(CODES.to_vec()),
        prop::sample::select(vec![16usize, 32, 48, 64, 128, 160, 256, 512, 4096]),
        prop::sample::select(vec![1usize, 1, 1, 5, 128, usize::MAX]),
    );
    let types = (prop::sample::select(SCALES.to_vec()), any::<bool>(), 0usize..4, prop::bool::weighted(0.2));
    let sides = (1usize..70, prop_oneof![1usize..700, (1usize..20).prop_map(|k| 64 * k)], 0usize..4);
    (form, types, sides, 0u64..1 << 32).prop_map(
        |((code, group, rows), (scales, biases, codes, ordered), (n, k, shift), seed)| {
            let form = ScaledForm::new(code, group, rows).unwrap();
            let codes = [DType::U32, DType::U8, DType::I8, DType::F8_E4M3][codes];
            Case { form, codes, scales, biases: biases && scales.is_float(), n, k, shift, ordered, seed }
        },
    )
}

fn submit<'a>(device: &'a dyn Device, record: impl FnOnce(&mut Pass<'a>)) {
    let mut pass = Pass::new(device);
    record(&mut pass);
    pass.submit().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn linear_layers_agree(case in cases(), rows in 1usize..20, prompt in 0usize..20, tail in any::<bool>(), seed in 0u64..1 << 32) {
        let (n, k, cut) = (case.n, case.k, case.middle());
        check(4.0 * sum_of(k), |d| {
            let x = put_f32(d, &random(seed, rows * k));
            let parts = case.put(d);
            let weight = LinearWeight::from(case.weight(&parts));
            let b = put_f32(d, &random(seed + 1, n));
            let out = put_f32(d, &random(seed + 2, rows * n));
            let (x, outs) = (x.view(0, DType::F32, [rows, k]), out.view(0, DType::F32, [rows, n]));
            submit(d, |pass| {
                for part in [0..cut, cut..n] {
                    let out = outs.narrow(1, part.clone());
                    let bias = tail.then(|| b.view(0, DType::F32, [n]).rows(part.clone()));
                    let residual = tail.then_some(out);
                    let layer = Matmul::new(x, weight.rows(part), out);
                    pass.matmul(Matmul { bias, residual, prompt_rows: prompt.min(rows), ..layer });
                }
            });
            vec![get(d, &out)]
        });
    }

    #[test]
    fn gated_layers_agree(case in cases(), rows in 0usize..20, prompt in 0usize..20, plain in 0usize..3, seed in 0u64..1 << 32) {
        let (n, k) = (case.n, case.k);
        check(sum_of(k) * 4.0 * (k as f32).sqrt(), |d| {
            let x = put_f32(d, &random(seed, rows * k));
            let other = Case { seed: case.seed + 9, ..case.clone() };
            let (gates, ups) = (case.put(d), other.put(d));
            let f16 = put(d, DType::F16, &random(seed + 1, n * k));
            let f16 = LinearWeight::from(f16.view(0, DType::F16, [n, k]));
            let (gate, up) = (LinearWeight::from(case.weight(&gates)), LinearWeight::from(other.weight(&ups)));
            let out = put_f32(d, &vec![0.0; rows * n]);
            submit(d, |pass| pass.gated_matmul(GatedMatmul {
                x: x.view(0, DType::F32, [rows, k]),
                gate: if plain == 1 { f16 } else { gate },
                up: if plain == 2 { f16 } else { up },
                layout: WeightLayout::OutIn,
                out: out.view(0, DType::F32, [rows, n]),
                prompt_rows: prompt.min(rows),
            }));
            vec![get(d, &out)]
        });
    }

    /// To the bit, which nothing but dequantising as the reference does would give.
    #[test]
    fn tables_agree(case in cases(), weighted in any::<bool>(), accumulate in any::<bool>(), seed in 0u64..1 << 32) {
        let (n, k) = (case.n, case.k);
        check(if weighted { 1e-6 } else { 0.0 }, |d| {
            let parts = case.put(d);
            let ids = put_i32(d, &[0, -1, n as i32 - 1, n as i32 / 2]);
            let weights = put_f32(d, &random(seed, 4));
            let out = put_f32(d, &random(seed + 1, 4 * k));
            submit(d, |pass| pass.gather(Gather {
                table: case.weight(&parts).into(),
                index: if weighted { ids.view(0, DType::I32, [4, 1]) } else { ids.view(0, DType::I32, [4]) },
                weights: weighted.then(|| weights.view(0, DType::F32, [4, 1])),
                out: out.view(0, DType::F32, [4, k]),
                accumulate,
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn decoded_rows_are_those_of_rounded_activations(case in cases(), rows in 1usize..6) {
        let (n, k) = (case.n, case.k);
        let x = random(case.seed + 5, rows * k);
        // Activations are rounded in the order of the columns.
        let (order, mut nearest) = (case.order(), x.clone());
        let of = |row: &[f32]| order.iter().map(|&i| row[i as usize]).collect::<Vec<_>>();
        let sorted = rounded(&x.chunks(k).flat_map(of).collect::<Vec<_>>(), k);
        for (nearest, sorted) in nearest.chunks_mut(k).zip(sorted.chunks(k)) {
            order.iter().zip(sorted).for_each(|(&i, &x)| nearest[i as usize] = x);
        }
        let w = case.wide();
        for d in rounding_devices().iter().map(|kind| &kind[0]) {
            // Codes that are no numbers are not multiplied in integers, and plain Rust multiplies none.
            let as_they_are = case.form.code() == Code::E4M3 || d.name().contains("portable");
            let used = if as_they_are { &x } else { &nearest };
            for (i, got) in case.decoded(d, &x, 0..n).into_iter().enumerate() {
                let (x, w) = (&used[i / n * k..][..k], &w[i % n * k..][..k]);
                let want: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                // Codes and biases are summed apart.
                let size: f64 = x.iter().zip(w).map(|(&x, &w)| f64::from(x.abs()) * (f64::from(w.abs()) + 2.0)).sum();
                prop_assert!((f64::from(got) - want).abs() <= 1e-6 * size, "{}: {i}: {got}, expected {want}", d.name());
            }
        }
    }

    #[test]
    fn no_bit_depends_on_company(case in cases(), rows in 1usize..6, row in 0usize..6) {
        let (n, k, cut, row) = (case.n, case.k, case.middle(), row % rows);
        let x = random(case.seed + 5, rows * k);
        for kind in rounding_devices().iter().chain(devices()) {
            let all = case.decoded(&kind[0], &x, 0..n);
            for d in &kind[1..] {
                prop_assert!(bits(&[case.decoded(d, &x, 0..n)]) == bits(std::slice::from_ref(&all)), "{}", d.name());
            }
            let alone = case.decoded(&kind[0], &x[row * k..][..k], 0..n);
            prop_assert!(bits(&[alone]) == bits(&[all[row * n..][..n].to_vec()]), "{}: row {row} alone", kind[0].name());
            let rest: Vec<f32> = all.chunks(n).flat_map(|row| row[cut..].to_vec()).collect();
            prop_assert!(bits(&[case.decoded(&kind[2], &x, cut..n)]) == bits(&[rest]), "{}: from {cut} on", kind[0].name());
            let moved = Case { shift: case.shift + 61, ..case.clone() };
            prop_assert!(bits(&[moved.decoded(&kind[0], &x, 0..n)]) == bits(&[all]), "{}: moved", kind[0].name());
        }
    }
}
