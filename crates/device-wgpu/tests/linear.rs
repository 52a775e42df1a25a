//! Weights in every format, wherever they start, and rows in any company.

mod common;

use common::*;
use turbospark_device::op::*;
use turbospark_device::{Buffer, Device, DeviceError, Pass};
use turbospark_tensor::{Code, DType, ScaledForm, f32_to_bf16, f32_to_f16, widen_into};

fn submit<'a>(device: &'a dyn Device, record: impl FnOnce(&mut Pass<'a>)) {
    let mut pass = Pass::new(device);
    record(&mut pass);
    pass.submit().unwrap();
}

/// Bits of every element, where a float's subnormals may be zeros and a NaN is a NaN.
fn same(got: &[f32], want: &[f32], what: &str) {
    let tiny = |x: f32| x.abs() < f32::MIN_POSITIVE;
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let fits = g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()) || (tiny(*g) && tiny(*w) && *w != 0.0);
        assert!(fits, "{what}, element {i}: {g} ({:#x}), expected {w} ({:#x})", g.to_bits(), w.to_bits());
    }
}

/// The rows of a table, as they are read from it one by one.
fn gathered(d: &dyn Device, table: LinearWeight<'_>, m: usize, n: usize) -> Vec<f32> {
    let index = put_i32(d, &(0..m as i32).collect::<Vec<_>>());
    let out = d.alloc("out", 4 * m * n).unwrap();
    submit(d, |pass| {
        pass.gather(Gather {
            table,
            index: index.view(0, DType::I32, [m]),
            weights: None,
            out: out.view(0, DType::F32, [m, n]),
            accumulate: false,
        });
    });
    get(d, &out)
}

fn noise(seed: u64, n: usize) -> Vec<u8> {
    random(seed, n).iter().map(|x| (x * 128.0) as i8 as u8).collect()
}

#[test]
fn every_format_is_widened_to_the_bit_wherever_it_starts() {
    for d in all() {
        let plain = [DType::F32, DType::F16, DType::BF16].into_iter().chain(DType::BLOCKS);
        for (i, dtype) in plain.enumerate() {
            // Any bytes are some weights: their scales are of all sizes, and some are no numbers.
            let (m, n) = (5, if dtype.is_block() { 512 } else { 203 });
            // Each is compiled for what it is aligned to; half of the formats see half of that.
            for at in [[1, 4], [2, 16]][i % 2] {
                let mut bytes = noise(i as u64, at + dtype.bytes(m * n).unwrap());
                bytes[..at].fill(0xff);
                let mut want = vec![0.0; m * n];
                widen_into(&bytes[at..], dtype, &mut want);
                let table = put_bytes(d, &bytes);
                let got = gathered(d, table.view(at, dtype, [m, n]).into(), m, n);
                same(&got, &want, &format!("{dtype} from byte {at}"));
            }
        }
    }
}

#[test]
fn ids_that_lead_out_of_a_table_read_zeros() {
    for d in all() {
        let table = put_f32(d, &random(1, 3 * 12));
        let index = put_i32(d, &[2, 3, -1, i32::MAX]);
        let out = put_f32(d, &[7.0; 4 * 12]);
        submit(d, |pass| {
            pass.gather(Gather {
                table: table.view(0, DType::F32, [3, 12]).into(),
                index: index.view(0, DType::I32, [4]),
                weights: None,
                out: out.view(0, DType::F32, [4, 12]),
                accumulate: false,
            });
        });
        let want = [&random(1, 3 * 12)[24..], &[0.0; 12], &[7.0; 12], &[0.0; 12]].concat();
        assert_eq!(get(d, &out), want);
    }
}

/// A weight with scales apart, its codes and the others each behind some bytes.
struct Apart {
    parts: [Buffer; 3],
    form: ScaledForm,
    scales: DType,
    biased: bool,
    m: usize,
    n: usize,
    at: usize,
}

impl Apart {
    fn new(
        d: &dyn Device,
        seed: u64,
        form: ScaledForm,
        scales: DType,
        biased: bool,
        [m, n, at]: [usize; 3],
    ) -> (Self, Vec<f32>) {
        let mut codes = noise(seed, m * form.bytes(n));
        if form.code() == Code::E4M3 {
            // No NaN: sums of rows are compared.
            codes.iter_mut().for_each(|c| *c &= 0xbf);
        }
        let [rows, groups] = form.grid(m, n);
        let numbers = |seed| -> Vec<u8> {
            let values = random(seed, rows * groups);
            values
                .iter()
                .flat_map(|&x| match scales {
                    DType::F32 => x.to_le_bytes().to_vec(),
                    DType::F16 => f32_to_f16(x).to_le_bytes().to_vec(),
                    DType::BF16 => f32_to_bf16(x).to_le_bytes().to_vec(),
                    DType::F8_E8M0 => vec![(127.0 + 20.0 * x) as u8],
                    _ => vec![(x * 128.0) as i8 as u8 & 0xbf],
                })
                .collect()
        };
        let (s, b) = (numbers(seed + 1), numbers(seed + 2));
        let mut want = vec![0.0; m * n];
        form.widen_matrix(&codes, &s, biased.then_some(&b[..]), scales, n, &mut want);
        let behind = |bytes: &[u8]| put_bytes(d, &[&vec![0xff; at][..], bytes].concat());
        (Apart { parts: [behind(&codes), behind(&s), behind(&b)], form, scales, biased, m, n, at }, want)
    }

    fn weight(&self) -> LinearWeight<'_> {
        let [rows, groups] = self.form.grid(self.m, self.n);
        ScaledWeight {
            order: None,
            codes: self.parts[0].view(self.at, DType::U8, [self.m, self.form.bytes(self.n)]),
            scales: self.parts[1].view(self.at, self.scales, [rows, groups]),
            biases: self.biased.then(|| self.parts[2].view(self.at, self.scales, [rows, groups])),
            form: self.form,
        }
        .into()
    }
}

fn forms() -> impl Iterator<Item = (ScaledForm, DType, bool)> {
    let codes = [2, 3, 4, 5, 6, 8].map(Code::Unsigned).into_iter().chain([Code::Signed8, Code::E2M1, Code::E4M3]);
    codes.enumerate().flat_map(|(i, code)| {
        let scales = [DType::F32, DType::F16, DType::BF16, DType::F8_E8M0, DType::F8_E4M3];
        scales.into_iter().enumerate().map(move |(j, scales)| {
            let form = ScaledForm::new(code, [16, 48, 1024][(i + j) % 3], [1, 2, usize::MAX][j % 3]).unwrap();
            (form, scales, scales.is_float() && (i + j) % 4 > 0)
        })
    })
}

#[test]
fn scales_apart_are_applied_to_the_bit() {
    for d in all() {
        for (i, (form, scales, biased)) in forms().enumerate() {
            let at = [0, 1, 2, 4][i % 4];
            let (weight, want) = Apart::new(d, i as u64, form, scales, biased, [5, 133, at]);
            let got = gathered(d, weight.weight(), 5, 133);
            same(&got, &want, &format!("{form} with scales {scales} from byte {at}"));
        }
    }
}

#[test]
fn scales_apart_agree_in_layers() {
    for (i, (form, scales, biased)) in forms().enumerate().step_by(4) {
        let [n, k, rows] = [19, 150, 6];
        check(sum_of(k) * 600.0, |d| {
            let (weight, _) = Apart::new(d, i as u64, form, scales, biased, [n, k, 1]);
            let (up, _) = Apart::new(d, i as u64 + 7, form, scales, biased, [n, k, 0]);
            let x = put_f32(d, &random(3, rows * k));
            let [out, gated] = [0, 1].map(|_| d.alloc("out", 4 * rows * n).unwrap());
            let (x, y) = (x.view(0, DType::F32, [rows, k]), out.view(0, DType::F32, [rows, n]));
            let z = gated.view(0, DType::F32, [rows, n]);
            submit(d, |pass| {
                pass.matmul(Matmul { prompt_rows: 3, ..Matmul::new(x, weight.weight(), y) });
                let (gate, up, layout) = (weight.weight(), up.weight(), WeightLayout::OutIn);
                pass.gated_matmul(GatedMatmul { x, gate, up, layout, out: z, prompt_rows: 3 });
            });
            vec![get(d, &out), get(d, &gated)]
        });
    }
}

#[test]
fn a_row_has_the_same_bits_in_any_company() {
    let (k, n) = (515, 37);
    for d in all() {
        for (dtype, layout) in
            [(DType::F16, WeightLayout::OutIn), (DType::BF16, WeightLayout::InOut), (DType::Q4_K, WeightLayout::OutIn)]
        {
            let k = if dtype.is_block() { 512 } else { k };
            let w = if dtype.is_block() {
                put_bytes(d, &random_blocks(1, dtype, n * k))
            } else {
                put(d, dtype, &random(1, n * k))
            };
            let sides = if layout == WeightLayout::OutIn { [n, k] } else { [k, n] };
            let x = put_f32(d, &random(2, 150 * k));
            let run = |rows: std::ops::Range<usize>, prompt: bool, gated: bool| {
                let out = d.alloc("out", 4 * rows.len() * n).unwrap();
                let (x, y) =
                    (x.view(0, DType::F32, [150, k]).rows(rows.clone()), out.view(0, DType::F32, [rows.len(), n]));
                let weight = w.view(0, dtype, sides);
                let prompt_rows = if prompt { rows.len() } else { 0 };
                submit(d, |pass| {
                    if gated {
                        let (gate, up) = (weight.into(), weight.into());
                        pass.gated_matmul(GatedMatmul { x, gate, up, layout, out: y, prompt_rows });
                    } else {
                        pass.matmul(Matmul { layout, prompt_rows, ..Matmul::new(x, weight, y) });
                    }
                });
                get(d, &out)
            };
            for gated in [false, true] {
                let alone = run(3..4, false, gated);
                for rows in [3..5, 0..4, 0..7, 0..9, 2..18, 1..22] {
                    let at = (3 - rows.start) * n;
                    assert_eq!(
                        run(rows.clone(), false, gated)[at..at + n],
                        alone,
                        "decoded, {dtype} {layout:?} {rows:?}"
                    );
                }
                let alone = run(3..4, true, gated);
                for rows in [0..20, 3..40, 0..70, 0..140] {
                    let at = (3 - rows.start) * n;
                    assert_eq!(
                        run(rows.clone(), true, gated)[at..at + n],
                        alone,
                        "prompt, {dtype} {layout:?} {rows:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn layers_of_the_same_rows_give_the_same_bits_together() {
    let (k, rows) = (512, 3);
    let formats = [(DType::F16, 37), (DType::Q4_K, 24), (DType::BF16, 5)];
    for d in all() {
        let weights: Vec<Buffer> = formats
            .iter()
            .map(|&(dtype, n)| match dtype.is_block() {
                true => put_bytes(d, &random_blocks(1, dtype, n * k)),
                false => put(d, dtype, &random(n as u64, n * k)),
            })
            .collect();
        let x = put_f32(d, &random(2, rows * k));
        let run = |together: bool| {
            let out = put_f32(d, &vec![7.0; rows * 70]);
            let mut pass = Pass::new(d);
            let mut at = 0;
            for ((dtype, n), weight) in formats.iter().zip(&weights) {
                if !together {
                    std::mem::replace(&mut pass, Pass::new(d)).submit().unwrap();
                }
                let y = out.view(4 * at, DType::F32, [rows, *n]);
                let x = x.view(0, DType::F32, [rows, k]);
                pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, weight.view(0, *dtype, [*n, k]), y) });
                at += rows * n;
            }
            pass.submit().unwrap();
            get(d, &out)
        };
        assert_eq!(bits(&[run(true)]), bits(&[run(false)]));
    }
}

/// Experts in three tensors with a gap after each expert's.
struct Stacked {
    buffers: [Buffer; 3],
    dtype: DType,
    sides: [usize; 3],
    layout: WeightLayout,
    together: bool,
}

impl Stacked {
    fn all(&self) -> Expert<'_> {
        let [experts, i, h] = self.sides;
        let of = |at: usize, n: usize, k: usize| -> LinearWeight<'_> {
            let sides = if self.layout == WeightLayout::OutIn { [experts, n + 1, k] } else { [experts, k + 1, n] };
            let view = self.buffers[at].view(0, self.dtype, sides);
            view.narrow(1, 0..sides[1] - 1).into()
        };
        Expert { gate: of(0, i, h), up: of(1, i, h), down: of(2, h, i), layout: self.layout }
    }
}

impl ExpertSource for Stacked {
    fn experts(&self) -> usize {
        self.sides[0]
    }

    fn stacked(&self) -> Option<Expert<'_>> {
        self.together.then(|| self.all())
    }

    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        let all = self.all();
        let one = |w: LinearWeight<'_>, e: usize| -> LinearWeight<'_> {
            let LinearWeight::View(v) = w else { unreachable!() };
            let [n, k] = [v.dim(1), v.dim(2)];
            let at = v.offset_bytes() + self.dtype.bytes(e * v.stride(0)).unwrap();
            self.buffers.iter().find(|b| std::ptr::eq(*b, v.buffer())).unwrap().view(at, self.dtype, [n, k]).into()
        };
        wanted.iter().try_for_each(|&e| {
            let (gate, up, down) = (one(all.gate, e), one(all.up, e), one(all.down, e));
            each(e, Expert { gate, up, down, layout: self.layout })
        })
    }
}

#[test]
fn experts_agree_whether_they_lie_together_or_come_one_by_one() {
    let (experts, top) = (7, 3);
    for (dtype, layout, i, h) in
        [(DType::BF16, WeightLayout::InOut, 22, 51), (DType::Q8_0, WeightLayout::OutIn, 64, 96)]
    {
        for (rows, prompt) in [(40, 40), (33, 30)] {
            let run = |d: &dyn Device, together: bool, some: std::ops::Range<usize>| {
                let random_weights = |seed, outer: usize, inner: usize| {
                    if dtype.is_block() {
                        return put_bytes(d, &random_blocks(seed, dtype, experts * (outer + 1) * inner));
                    }
                    put(d, dtype, &random(seed, experts * (outer + 1) * inner))
                };
                let [n, k] = if layout == WeightLayout::OutIn { [i, h] } else { [h, i] };
                let buffers = [random_weights(1, n, k), random_weights(2, n, k), random_weights(3, k, n)];
                let source = Stacked { buffers, dtype, sides: [experts, i, h], layout, together };
                let x = put_f32(d, &random(4, rows * h));
                let ids: Vec<i32> = (0..rows * top).map(|s| ((s / top * 5 + s % top * 3) % experts) as i32).collect();
                let (ids, weights) = (put_i32(d, &ids), put_f32(d, &random(6, rows * top)));
                let out = put_f32(d, &random(7, some.len() * h));
                let out_view = out.view(0, DType::F32, [some.len(), h]);
                submit(d, |pass| {
                    pass.experts(Experts {
                        x: x.view(0, DType::F32, [rows, h]).rows(some.clone()),
                        ids: ids.view(0, DType::I32, [rows, top]).rows(some.clone()),
                        weights: weights.view(0, DType::F32, [rows, top]).rows(some.clone()),
                        source: &source,
                        width: i,
                        residual: Some(out_view),
                        out: out_view,
                        prompt_rows: prompt.min(some.len()),
                    });
                });
                vec![get(d, &out)]
            };
            let tolerance = sum_of(h) * 8.0 * (h as f32).sqrt();
            check(tolerance, |d| run(d, true, 0..rows));
            for d in all() {
                let together = run(d, true, 0..rows);
                assert_eq!(bits(&together), bits(&run(d, false, 0..rows)), "{dtype} {layout:?} {rows} rows");
            }
        }
    }
}

#[test]
fn weights_longer_than_a_binding_are_taken_in_parts() {
    // More than the 128 MiB that software adapters bind; hardware takes it whole.
    let (m, n) = (33_000, 1056);
    for d in all() {
        let values = random(1, 4096);
        let bytes: Vec<u8> = (0..m * n).flat_map(|i| values[(i * 7 + i / n) % 4096].to_le_bytes()).collect();
        let table = put_bytes(d, &bytes);
        let at = |r: usize, c: usize| values[((r * n + c) * 7 + r) % 4096];
        let view = table.view(0, DType::F32, [m, n]);
        let ids = [0, m - 1, 31_774, 31_775, 15_000];
        let index = put_i32(d, &ids.map(|i| i as i32));
        let rows = d.alloc("rows", 4 * 5 * n).unwrap();
        let x = put_f32(d, &random(2, n));
        let logits = d.alloc("logits", 4 * m).unwrap();
        submit(d, |pass| {
            let rows = rows.view(0, DType::F32, [5, n]);
            let index = index.view(0, DType::I32, [5]);
            pass.gather(Gather { table: view.into(), index, weights: None, out: rows, accumulate: false });
            let (x, out) = (x.view(0, DType::F32, [1, n]), logits.view(0, DType::F32, [1, m]));
            pass.matmul(Matmul { prompt_rows: 0, ..Matmul::new(x, view, out) });
        });
        let got = get(d, &rows);
        for (r, &id) in ids.iter().enumerate() {
            assert!((0..n).all(|c| got[r * n + c] == at(id, c)), "row {id}");
        }
        let (got, x) = (get(d, &logits), random(2, n));
        for &id in &ids {
            let want: f64 = (0..n).map(|c| f64::from(at(id, c)) * f64::from(x[c])).sum();
            assert!((f64::from(got[id]) - want).abs() < f64::from(sum_of(n)) * 4.0, "{id}: {} {want}", got[id]);
        }
    }
}
