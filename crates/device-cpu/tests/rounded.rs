//! Matrix products whose inputs may be rounded: on inputs that bf16 holds exactly, nothing but the order of the
//! sums differs from the reference.

mod common;

use common::*;
use proptest::prelude::*;
use turbospark_device::op::*;
use turbospark_device::{Device, Pass};
use turbospark_tensor::DType;

fn cases() -> ProptestConfig {
    ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() }
}

fn submit<'a>(device: &'a dyn Device, record: impl FnOnce(&mut Pass<'a>)) {
    let mut pass = Pass::new(device);
    record(&mut pass);
    pass.submit().unwrap();
}

/// Weights of attention are rounded too: 2^-9 of each, and a cubic for the exponential.
const WEIGHTS: f32 = 4e-3;

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn matmul_agrees(
        rows in 1usize..70, k in 1usize..1300, n in 1usize..100, dtype in 0usize..3, in_out in any::<bool>(),
        activation in any::<bool>(), decoded in any::<bool>(), seed in 0u64..1 << 32,
    ) {
        check_on(rounding_devices(), sum_of(k), |d| {
            let x = put_f32(d, &random_bf16(seed, rows * (k + 3)));
            let w = put(d, float(dtype), &random_bf16(seed + 1, n * k * 2));
            let b = put_f32(d, &random(seed + 2, n));
            let r = put_f32(d, &random(seed + 3, rows * n));
            let out = put_f32(d, &vec![0.0; rows * n]);
            submit(d, |pass| pass.matmul(Matmul {
                x: x.view(0, DType::F32, [rows, k + 3]).narrow(1, 2..k + 2),
                weight: if in_out {
                    w.view(0, float(dtype), [k, 2 * n]).narrow(1, n..2 * n).into()
                } else {
                    w.view(n * k * float(dtype).size(), float(dtype), [n, k]).into()
                },
                layout: if in_out { WeightLayout::InOut } else { WeightLayout::OutIn },
                bias: Some(b.view(0, DType::F32, [n])),
                activation: activation.then_some(Activation::Silu),
                residual: Some(r.view(0, DType::F32, [rows, n])),
                out: out.view(0, DType::F32, [rows, n]),
                prompt_rows: if decoded { 0 } else { rows },
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn gated_matmul_agrees(
        rows in 1usize..40, k in 1usize..700, n in 1usize..70, decoded in any::<bool>(), seed in 0u64..1 << 32,
    ) {
        // Two sums are multiplied.
        check_on(rounding_devices(), sum_of(k) * (k as f32).sqrt(), |d| {
            let x = put_f32(d, &random_bf16(seed, rows * k));
            let w = put(d, DType::BF16, &random(seed + 1, 2 * n * k));
            let out = put_f32(d, &vec![0.0; rows * n]);
            submit(d, |pass| pass.gated_matmul(GatedMatmul {
                x: x.view(0, DType::F32, [rows, k]),
                gate: w.view(0, DType::BF16, [n, k]).into(),
                up: w.view(2 * n * k, DType::BF16, [n, k]).into(),
                layout: WeightLayout::OutIn,
                out: out.view(0, DType::F32, [rows, n]),
                prompt_rows: if decoded { 0 } else { rows },
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn attention_agrees(
        a in 1usize..150, b in 0usize..150, heads in 1usize..4, n in 1usize..130, seed in 0u64..1 << 32,
    ) {
        check_on(rounding_devices(), WEIGHTS, |d| {
            let rows = a + b;
            let qkv = put_f32(d, &random_bf16(seed, 3 * rows * heads * n));
            let out = put_f32(d, &vec![0.0; rows * heads * n]);
            let fused = qkv.view(0, DType::F32, [rows, 3 * heads * n]);
            let cu_seqlens = [0, a, rows];
            let part = |i: usize| fused.narrow(1, i * heads * n..(i + 1) * heads * n).split_last(n);
            submit(d, |pass| pass.attention(Attention {
                q: part(0),
                k: part(1),
                v: part(2),
                cu_seqlens: &cu_seqlens,
                scale: 2.0 / (n as f32).sqrt(),
                out: out.view(0, DType::F32, [rows, heads, n]),
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn paged_attention_agrees(
        start in 0usize..200, rows in 1usize..90, kv_heads in 1usize..3, group in 1usize..5, n in 1usize..140,
        blocks in any::<bool>(), seed in 0u64..1 << 32,
    ) {
        let (t, n) = if blocks { (DType::Q8_0, n.next_multiple_of(32)) } else { (DType::F16, n) };
        check_on(rounding_devices(), WEIGHTS, |d| {
            let (heads, pages) = (kv_heads * group, (start + rows).div_ceil(64));
            let q = put_f32(d, &random_bf16(seed, rows * heads * n));
            let size = pages * 64 * kv_heads * n;
            // bf16 holds the elements of random blocks exactly too.
            let [k, v] = [1, 2].map(|i| match t {
                DType::Q8_0 => put_bytes(d, &random_blocks(seed + i, t, size)),
                _ => put(d, t, &random_bf16(seed + i, size)),
            });
            let table = put_i32(d, &(0..pages as i32).rev().collect::<Vec<_>>());
            let out = put_f32(d, &vec![0.0; rows * heads * n]);
            let cache = [pages * 64, kv_heads, n];
            let spans = [span(0, rows, start, false, 0)];
            submit(d, |pass| pass.paged_attention(PagedAttention {
                q: q.view(0, DType::F32, [rows, heads, n]),
                k_cache: k.view(0, t, cache),
                v_cache: v.view(0, t, cache),
                pages: table.view(0, DType::I32, [1, pages]),
                page_len: 64,
                spans: &spans,
                scale: 2.0 / (n as f32).sqrt(),
                out: out.view(0, DType::F32, [rows, heads, n]),
            }));
            vec![get(d, &out)]
        });
    }
}
