//! The quantisers against the public ones, and on what is no ordinary weight.

use proptest::prelude::*;
use turbospark_tensor::quant::{QuantError, WRITTEN, quantise, quantise_q8_0, requantise};
use turbospark_tensor::{Code, DType, ScaledForm, f32_to_bf16, f32_to_f16, widen_into};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Twelve uniforms less six: nearly normal, and the same bits in any language.
    fn normal(&mut self) -> f64 {
        (0..12).fold(-6.0, |s, _| s + (self.next() >> 40) as f64 / 16_777_216.0)
    }
}

const N: usize = 1 << 15;

fn normal() -> Vec<f32> {
    let mut r = Random(11);
    (0..N).map(|_| (0.02 * r.normal()) as f32).collect()
}

/// Student's t with three degrees of freedom.
fn heavy() -> Vec<f32> {
    let mut r = Random(12);
    let mut one = || {
        let [a, b, c, d] = [r.normal(), r.normal(), r.normal(), r.normal()];
        (0.02 * a / ((b * b + c * c + d * d) / 3.0 + 1e-9).sqrt()) as f32
    };
    (0..N).map(|_| one()).collect()
}

/// Groups of several sizes, none about zero.
fn shifted() -> Vec<f32> {
    let mut r = Random(13);
    (0..N).map(|i| (0.01 * (1 + i / 64 % 7) as f64 * r.normal() + 0.02) as f32).collect()
}

fn blocks(x: &[f32], dtype: DType) -> Vec<u8> {
    let mut out = vec![0; dtype.bytes(x.len()).unwrap()];
    quantise(x, dtype, &mut out).unwrap();
    out
}

fn back(blocks: &[u8], dtype: DType, n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    widen_into(blocks, dtype, &mut out);
    out
}

fn error(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2)).sum::<f64>() / x.len() as f64
}

#[test]
fn the_error_is_no_larger_than_the_public_quantisers() {
    // Mean squared errors of ggml 0.25.3 (`quantize_q8_0`, ..) on these numbers, without an importance matrix.
    // Those of Q4_1, Q5_0 and Q5_1 are of `quantize` of the Python package gguf 0.19.0, which on Q8_0 and Q4_0 gives
    // the others' numbers. Measured for ours: Q8_0 the same; Q4_0 88 to 94 %, Q4_K 95 to 97 %, Q5_K and Q6_K 91 to 93 %,
    // Q4_1 and Q5_1 77 to 81 %, Q5_0 87 to 95 % of them. The linear weights of two small trained models give the first
    // five the same picture: 100, 88, 96, 92, 91 %.
    let public: [(&str, Vec<f32>, [f64; 8]); 3] = [
        (
            "normal",
            normal(),
            [1.083163e-8, 2.817213e-6, 1.962638e-6, 5.041206e-7, 1.213105e-7, 2.373949e-6, 6.942344e-7, 5.582399e-7],
        ),
        (
            "heavy",
            heavy(),
            [8.086794e-8, 1.929626e-5, 9.783146e-6, 2.450646e-6, 7.299298e-7, 1.127633e-5, 5.055454e-6, 2.635754e-6],
        ),
        (
            "shifted",
            shifted(),
            [6.744637e-8, 1.723235e-5, 1.030735e-5, 2.613146e-6, 7.570544e-7, 1.229483e-5, 4.271161e-6, 2.880326e-6],
        ),
    ];
    for (name, x, public) in public {
        for (dtype, public) in WRITTEN.into_iter().zip(public) {
            let ours = error(&x, &back(&blocks(&x, dtype), dtype, N));
            println!("{name} {dtype}: {ours:.6e}, {:.3} of the public one", ours / public);
            assert!(ours <= 1.01 * public, "{name} {dtype}: {ours:e}, the public quantiser leaves {public:e}");
        }
    }
}

#[test]
fn q8_0_has_the_bits_of_the_public_one() {
    let x = [normal(), heavy(), shifted()].concat();
    let hash = |b: Vec<u8>| {
        b.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    };
    assert_eq!(hash(blocks(&x[..N], DType::Q8_0)), 0x10b4_db03_0525_dc21);
    assert_eq!(hash(blocks(&x[N..2 * N], DType::Q8_0)), 0x43d9_b79b_9f3d_762f);
    assert_eq!(hash(blocks(&x[2 * N..], DType::Q8_0)), 0x1b20_8189_3472_891c);
}

#[test]
fn what_no_block_holds_is_refused_by_its_place() {
    for dtype in WRITTEN {
        let mut out = vec![0; dtype.bytes(1024).unwrap()];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![0.5; 1024];
            (x[700], x[900]) = (bad, bad);
            let said = quantise(&x, dtype, &mut out).unwrap_err();
            assert!(matches!(said, QuantError::NotFinite { index: 700, .. }), "{said}");
        }
        for large in [1e12, -f32::MAX] {
            let mut x = vec![0.5; 1024];
            x[600] = large;
            let first = 600 / dtype.block().elements * dtype.block().elements;
            let said = quantise(&x, dtype, &mut out).unwrap_err();
            assert_eq!(said, QuantError::TooLarge { dtype, index: first, value: large }, "{said}");
        }
    }
    let bytes: Vec<u8> =
        (0..20_000).flat_map(|i| f32_to_bf16(if i == 17_000 { f32::NAN } else { 1.0 }).to_le_bytes()).collect();
    let mut out = vec![0; DType::Q8_0.bytes(20_000).unwrap()];
    let said = requantise(&bytes, DType::BF16, DType::Q8_0, 3, &mut out).unwrap_err().to_string();
    assert_eq!(said, "element 17000 is NaN; only finite weights are quantised");
}

#[test]
fn a_block_that_q8_0_does_not_hold_becomes_nan() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e7, f32::MAX] {
        let mut x = [0.5; 32];
        x[7] = bad;
        let y = back(&quantise_q8_0(&x), DType::Q8_0, 32);
        assert!(y.iter().all(|v| v.is_nan()), "{bad}: {y:?}");
    }
    assert_eq!(back(&quantise_q8_0(&[0.0; 32]), DType::Q8_0, 32), [0.0; 32]);
}

#[test]
fn q8_0_rounds_halves_away_from_zero_and_nothing_else() {
    // A largest element of 127 makes the scale one.
    for half in -253..=253 {
        let x = half as f32 / 2.0;
        for x in [x.next_down(), x, x.next_up()] {
            let block = quantise_q8_0(&std::array::from_fn(|i| if i == 0 { 127.0 } else { x }));
            assert_eq!(f32::from(block[9] as i8), x.round(), "{x:e}");
        }
    }
}

#[test]
fn blocks_at_the_edges_stay_near() {
    let ramp = |scale: f32| (0..256).map(|i| scale * (i as f32 - 100.0)).collect::<Vec<f32>>();
    let cases = [
        ("zeros", vec![0.0; 256], 0.0),
        ("negative zeros", vec![-0.0; 256], 0.0),
        ("negative", (0..256).map(|i| -1.0 - (i % 7) as f32 / 7.0).collect(), 0.15),
        ("positive", (0..256).map(|i| 1.0 + (i % 7) as f32 / 7.0).collect(), 0.15),
        ("one constant", vec![-0.7; 256], 0.01),
        ("one spike", (0..256).map(|i| if i == 77 { 3.0 } else { 0.0 }).collect(), 0.01),
        // The scale is a denormal f16 with few bits, and then none: at most the values themselves are lost.
        ("tiny", ramp(1e-8), 1.6e-6),
        ("nothing", ramp(1e-30), 1.6e-28),
        ("denormal", ramp(1e-41), 1.6e-39),
    ];
    for (name, x, most) in cases {
        for dtype in WRITTEN {
            let y = back(&blocks(&x, dtype), dtype, 256);
            let worst = x.iter().zip(&y).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst <= most, "{name} {dtype}: off by {worst:e}");
        }
    }
}

/// The public rule for an affine group, by its description: the end of larger size kept exact, and zero.
fn public_affine(x: &[f32], top: f32, round: impl Fn(f32) -> f32) -> Vec<f32> {
    let (low, high) = x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    let s = ((high - low) / top).max(1e-7);
    let (s, edge) = if low.abs() > high.abs() { (s, low) } else { (-s, high) };
    let q0 = (edge / s).round_ties_even();
    let (s, b) = if q0 == 0.0 { (s, 0.0) } else { (edge / q0, edge) };
    let q = x.iter().map(|v| ((v - b) / s).round_ties_even().clamp(0.0, top)).collect::<Vec<f32>>();
    q.iter().map(|q| round(s) * q + round(b)).collect()
}

#[test]
fn affine_groups_leave_no_more_error_than_the_public_rule() {
    for (name, x) in [("normal", normal()), ("heavy", heavy()), ("shifted", shifted())] {
        for (bits, group, dtype) in [
            (3, 64, DType::BF16),
            (4, 32, DType::BF16),
            (4, 64, DType::F16),
            (6, 128, DType::F16),
            (8, 64, DType::BF16),
            (8, 128, DType::F32),
        ] {
            let form = ScaledForm::new(Code::Unsigned(bits), group, 1).unwrap();
            let n = N / group * dtype.size();
            let (mut codes, mut scales, mut biases) = (vec![0; form.bytes(N)], vec![0; n], vec![0; n]);
            form.quantise(&x, dtype, &mut codes, &mut scales, &mut biases).unwrap();
            let mut y = vec![0.0; N];
            form.widen_row(&codes, &scales, Some(&biases), dtype, &mut y);
            let round = |v: f32| {
                let mut out = [0.0];
                let bytes = match dtype {
                    DType::BF16 => f32_to_bf16(v).to_le_bytes().to_vec(),
                    DType::F16 => f32_to_f16(v).to_le_bytes().to_vec(),
                    _ => v.to_le_bytes().to_vec(),
                };
                widen_into(&bytes, dtype, &mut out);
                out[0]
            };
            let theirs: Vec<f32> =
                x.chunks(group).flat_map(|x| public_affine(x, ((1 << bits) - 1) as f32, round)).collect();
            let (ours, public) = (error(&x, &y), error(&x, &theirs));
            println!("{name} {bits} bit, {group}, {dtype}: {ours:.6e}, {:.3} of the public rule", ours / public);
            assert!(
                ours <= 1.01 * public,
                "{name} {bits} bit, groups of {group}: {ours:e}, the public rule {public:e}"
            );
        }
    }
}

#[test]
fn affine_groups_at_the_edges() {
    let form = ScaledForm::new(Code::Unsigned(4), 32, 1).unwrap();
    let run = |x: &[f32], dtype: DType| {
        let n = x.len() / 32 * dtype.size();
        let (mut codes, mut scales, mut biases) = (vec![0; form.bytes(x.len())], vec![0; n], vec![0; n]);
        form.quantise(x, dtype, &mut codes, &mut scales, &mut biases)?;
        let mut y = vec![0.0; x.len()];
        form.widen_row(&codes, &scales, Some(&biases), dtype, &mut y);
        Ok::<_, QuantError>(y)
    };
    assert_eq!(run(&[0.0; 64], DType::BF16).unwrap(), [0.0; 64]);
    assert_eq!(run(&[-0.75; 64], DType::F16).unwrap(), [-0.75; 64]);
    let mut x = [0.5; 64];
    x[40] = f32::NAN;
    assert!(matches!(run(&x, DType::F32), Err(QuantError::NotFinite { index: 40, .. })));
    x[40] = 1e9;
    let said = run(&x, DType::F16).unwrap_err();
    assert!(matches!(said, QuantError::TooLarge { dtype: DType::F16, index: 32, .. }), "{said}");
    // By hand: codes 0, 1, 2, .. in the low bits first.
    let codes: Vec<u8> = (0..16u8).map(|i| (2 * i % 16) | (((2 * i + 1) % 16) << 4)).collect();
    let mut y = vec![0.0; 32];
    form.widen_row(&codes, &(-0.5f32).to_le_bytes(), Some(&3f32.to_le_bytes()), DType::F32, &mut y);
    assert!(y.iter().enumerate().all(|(i, &v)| v == 3.0 - 0.5 * (i % 16) as f32));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_floats_are_quantised_or_refused(bits in prop::collection::vec(any::<u32>(), 256), mask in any::<u32>()) {
        for dtype in WRITTEN {
            let x: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b & mask)).collect();
            let mut out = vec![0; dtype.bytes(256).unwrap()];
            if quantise(&x, dtype, &mut out).is_ok() {
                prop_assert!(back(&out, dtype, 256).iter().all(|v| v.is_finite()));
            }
        }
    }

    #[test]
    fn threads_change_no_bit(pieces in 1usize..30, threads in 1usize..9, which in 0usize..8, seed in any::<u64>()) {
        let (dtype, mut r) = (WRITTEN[which], Random(seed));
        let n = 256 * pieces;
        let bytes: Vec<u8> = (0..n).flat_map(|_| f32_to_bf16(r.normal() as f32).to_le_bytes()).collect();
        let mut out = vec![0; dtype.bytes(n).unwrap()];
        requantise(&bytes, DType::BF16, dtype, threads, &mut out).unwrap();
        prop_assert!(out == blocks(&back(&bytes, DType::BF16, n), dtype));
    }
}
