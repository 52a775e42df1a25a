//! Ops on rows alone, against the reference device on drawn shapes. Each device runs these with its own `common`.

use crate::common::*;
use proptest::prelude::*;
use turbospark_device::op::*;
use turbospark_device::{Device, Pass};
use turbospark_tensor::DType;

fn cases() -> ProptestConfig {
    ProptestConfig { cases: fewer(80), failure_persistence: None, ..ProptestConfig::default() }
}

const ACTIVATIONS: [Option<Activation>; 4] =
    [None, Some(Activation::Silu), Some(Activation::GeluErf), Some(Activation::GeluTanh)];

fn submit<'a>(device: &'a dyn Device, record: impl FnOnce(&mut Pass<'a>)) {
    let mut pass = Pass::new(device);
    record(&mut pass);
    pass.submit().unwrap();
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn matmul_agrees(
        rows in 0usize..40, k in 1usize..600, n in 1usize..100, prompt in 0usize..40, dtype in 0usize..3,
        in_out in any::<bool>(), activation in 0usize..4, bias in any::<bool>(), residual in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(sum_of(k), |d| {
            let prompt_rows = prompt.min(rows);
            let x = put_f32(d, &random(seed, (rows + 1) * (k + 3)));
            let w = put(d, float(dtype), &random(seed + 1, n * k * 2));
            let b = put(d, float(dtype + 1), &random(seed + 2, n));
            let r = put_f32(d, &random(seed + 3, rows * n));
            let out = put_f32(d, &random(seed + 3, rows * n));
            let out_view = out.view(0, DType::F32, [rows, n]);
            submit(d, |pass| pass.matmul(Matmul {
                // A part of wider rows, and half of a fused weight where that may be.
                x: x.view(0, DType::F32, [rows, k + 3]).narrow(1, 2..k + 2),
                weight: if in_out {
                    w.view(0, float(dtype), [k, 2 * n]).narrow(1, n..2 * n).into()
                } else {
                    w.view(n * k * float(dtype).size(), float(dtype), [n, k]).into()
                },
                layout: if in_out { WeightLayout::InOut } else { WeightLayout::OutIn },
                bias: bias.then(|| b.view(0, float(dtype + 1), [n])),
                activation: ACTIVATIONS[activation],
                residual: [None, Some(r.view(0, DType::F32, [rows, n])), Some(out_view)][residual],
                out: out_view,
                prompt_rows,
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn gated_matmul_agrees(
        rows in 0usize..40, k in 1usize..400, n in 1usize..70, prompt in 0usize..40, dtype in 0usize..3,
        in_out in any::<bool>(), seed in 0u64..1 << 32,
    ) {
        // The product of two sums, one of them about as large as its own size.
        check(sum_of(k) * 2.0 * (k as f32).sqrt(), |d| {
            let t = float(dtype);
            let x = put_f32(d, &random(seed, rows * k));
            let w = put(d, t, &random(seed + 1, 2 * n * k));
            let out = put_f32(d, &vec![0.0; rows * n]);
            let both = if in_out { w.view(0, t, [k, 2 * n]) } else { w.view(0, t, [2 * n, k]) };
            let axis = in_out as usize;
            submit(d, |pass| pass.gated_matmul(GatedMatmul {
                x: x.view(0, DType::F32, [rows, k]),
                gate: both.narrow(axis, 0..n).into(),
                up: both.narrow(axis, n..2 * n).into(),
                layout: if in_out { WeightLayout::InOut } else { WeightLayout::OutIn },
                out: out.view(0, DType::F32, [rows, n]),
                prompt_rows: prompt.min(rows),
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn blocks_agree(
        rows in 0usize..20, width in 1usize..4, n in 1usize..70, prompt in 0usize..20, dtype in prop::sample::select(&DType::BLOCKS[..]),
        gated in any::<bool>(), tail in any::<bool>(), seed in 0u64..1 << 32,
    ) {
        let k = width * dtype.block().elements;
        check(sum_of(k) * if gated { 4.0 * (k as f32).sqrt() } else { 4.0 }, |d| {
            let x = put_f32(d, &random(seed, rows * k));
            // The bytes before the weight make it start anywhere.
            let mut bytes = vec![0; 3];
            bytes.extend(random_blocks(seed + 1, dtype, 2 * n * k));
            let w = put_bytes(d, &bytes);
            let both = w.view(3, dtype, [2 * n, k]);
            let b = put_f32(d, &random(seed + 2, n));
            let out = put_f32(d, &random(seed + 3, rows * n));
            let x = x.view(0, DType::F32, [rows, k]);
            let (gate, up, prompt_rows) = (both.rows(0..n).into(), both.rows(n..2 * n).into(), prompt.min(rows));
            let out_view = out.view(0, DType::F32, [rows, n]);
            submit(d, |pass| {
                if gated {
                    let layout = WeightLayout::OutIn;
                    pass.gated_matmul(GatedMatmul { x, gate, up, layout, out: out_view, prompt_rows });
                } else {
                    let bias = tail.then(|| b.view(0, DType::F32, [n]));
                    let residual = tail.then_some(out_view);
                    pass.matmul(Matmul { bias, residual, prompt_rows, ..Matmul::new(x, up, out_view) });
                }
            });
            vec![get(d, &out)]
        });
    }

    #[test]
    fn rows_of_blocks_are_gathered(
        rows in 1usize..20, taps in 1usize..4, width in 1usize..3, weighted in any::<bool>(), accumulate in any::<bool>(),
        dtype in prop::sample::select(&DType::BLOCKS[..]), seed in 0u64..1 << 32,
    ) {
        let m = 5;
        let (n, taps) = (width * dtype.block().elements, if weighted { taps } else { 1 });
        check(1e-6, |d| {
            let table = put_bytes(d, &random_blocks(seed, dtype, m * n));
            let ids: Vec<i32> = random(seed + 1, rows * taps).iter().map(|x| (x.abs() * m as f32) as i32 - 1).collect();
            let ids: Vec<i32> = ids.iter().enumerate().map(|(i, &id)| if i % taps == 0 { id } else { id.max(0) }).collect();
            let index = put_i32(d, &ids);
            let weights = put_f32(d, &random(seed + 2, rows * taps));
            let out = put_f32(d, &random(seed + 3, rows * n));
            submit(d, |pass| pass.gather(Gather {
                table: table.view(0, dtype, [m, n]).into(),
                index: if weighted { index.view(0, DType::I32, [rows, taps]) } else { index.view(0, DType::I32, [rows]) },
                weights: weighted.then(|| weights.view(0, DType::F32, [rows, taps])),
                out: out.view(0, DType::F32, [rows, n]),
                accumulate,
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn rms_norm_agrees(
        rows in 1usize..20, heads in 1usize..5, n in 1usize..140, one_plus in any::<bool>(), gated in any::<bool>(),
        in_place in any::<bool>(), dtype in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(2e-6, |d| {
            let x = put_f32(d, &random(seed, rows * heads * 2 * n));
            let gate = put_f32(d, &random(seed + 1, rows * heads * n));
            let w = put(d, float(dtype), &random(seed + 2, n));
            let out = put_f32(d, &vec![0.0; rows * heads * n]);
            let x_view = x.view(0, DType::F32, [rows, heads * 2 * n]).split_last(2 * n).narrow(2, n..2 * n);
            let sides = [rows, heads, n];
            submit(d, |pass| pass.rms_norm(RmsNorm {
                x: x_view,
                weight: w.view(0, float(dtype), [n]),
                one_plus,
                eps: 1e-6,
                gate: gated.then(|| gate.view(0, DType::F32, sides)),
                out: if in_place { x_view } else { out.view(0, DType::F32, sides) },
            }));
            vec![get(d, &x), get(d, &out)]
        });
    }

    #[test]
    fn layer_norm_agrees(rows in 1usize..20, n in 1usize..1200, in_place in any::<bool>(), dtype in 0usize..3, seed in 0u64..1 << 32) {
        check(4e-6, |d| {
            // Far from zero, where a one-pass variance loses its digits.
            let x: Vec<f32> = random(seed, rows * n).iter().map(|v| v + 3.0).collect();
            let x = put_f32(d, &x);
            let (w, b) = (put(d, float(dtype), &random(seed + 1, n)), put(d, float(dtype), &random(seed + 2, n)));
            let out = put_f32(d, &vec![0.0; rows * n]);
            let x_view = x.view(0, DType::F32, [rows, n]);
            submit(d, |pass| pass.layer_norm(LayerNorm {
                x: x_view,
                weight: w.view(0, float(dtype), [n]),
                bias: b.view(0, float(dtype), [n]),
                // One element has no variance; the epsilon alone then decides, and amplifies.
                eps: if n < 8 { 1e-1 } else { 1e-6 },
                out: if in_place { x_view } else { out.view(0, DType::F32, [rows, n]) },
            }));
            vec![get(d, &x), get(d, &out)]
        });
    }

    #[test]
    fn rope_agrees(rows in 1usize..20, heads in 1usize..5, half in 1usize..70, rest in 0usize..40, seed in 0u64..1 << 32) {
        check(1e-6, |d| {
            let n = 2 * half + rest;
            let x = put_f32(d, &random(seed, rows * heads * 2 * n));
            let (cos, sin) = (put_f32(d, &random(seed + 1, rows * half)), put_f32(d, &random(seed + 2, rows * half)));
            submit(d, |pass| pass.rope(Rope {
                x: x.view(0, DType::F32, [rows, heads * 2 * n]).split_last(2 * n).narrow(2, 0..n),
                cos: cos.view(0, DType::F32, [rows, half]),
                sin: sin.view(0, DType::F32, [rows, half]),
            }));
            vec![get(d, &x)]
        });
    }

    #[test]
    fn a_norm_and_a_turn_of_the_same_heads_agree(
        rows in 1usize..20, heads in 1usize..5, half in 1usize..70, rest in 0usize..40, one_plus in any::<bool>(),
        dtype in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(3e-6, |d| {
            let n = 2 * half + rest;
            let x = put_f32(d, &random(seed, rows * heads * 2 * n));
            let w = put(d, float(dtype), &random(seed + 1, n));
            let (cos, sin) = (put_f32(d, &random(seed + 2, rows * half)), put_f32(d, &random(seed + 3, rows * half)));
            let view = x.view(0, DType::F32, [rows, heads * 2 * n]).split_last(2 * n).narrow(2, n..2 * n);
            submit(d, |pass| {
                let weight = w.view(0, float(dtype), [n]);
                pass.rms_norm(RmsNorm { x: view, weight, one_plus, eps: 1e-6, gate: None, out: view });
                pass.rope(Rope {
                    x: view,
                    cos: cos.view(0, DType::F32, [rows, half]),
                    sin: sin.view(0, DType::F32, [rows, half]),
                });
            });
            vec![get(d, &x)]
        });
    }

    #[test]
    fn gather_agrees(
        rows in 1usize..30, m in 1usize..20, n in 1usize..80, taps in 1usize..5, weighted in any::<bool>(),
        accumulate in any::<bool>(), dtype in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(1e-6, |d| {
            let taps = if weighted { taps } else { 1 };
            let table = put(d, float(dtype), &random(seed, m * n));
            let pick = random(seed + 1, rows * taps);
            let mut index: Vec<i32> = pick.iter().map(|x| ((x + 1.0) / 2.0 * m as f32) as i32).collect();
            index.iter_mut().step_by(3 * taps).for_each(|i| *i = -1);
            let index = put_i32(d, &index);
            let weights = put_f32(d, &random(seed + 2, rows * taps));
            let out = put_f32(d, &random(seed + 3, rows * n));
            submit(d, |pass| pass.gather(Gather {
                table: table.view(0, float(dtype), [m, n]).into(),
                index: if weighted { index.view(0, DType::I32, [rows, taps]) } else { index.view(0, DType::I32, [rows]) },
                weights: weighted.then(|| weights.view(0, DType::F32, [rows, taps])),
                out: out.view(0, DType::F32, [rows, n]),
                accumulate,
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn copy_and_zero_agree(rows in 1usize..20, n in 1usize..90, from in 0usize..3, to in 0usize..3, seed in 0u64..1 << 32) {
        check(0.0, |d| {
            let (from, to) = (float(from), float(to));
            let x = put(d, from, &random(seed, rows * (n + 5)));
            let out = put(d, to, &random(seed + 1, rows * (n + 2)));
            let gone = put_f32(d, &random(seed, 7 + n));
            submit(d, |pass| {
                pass.copy(Copy {
                    from: x.view(0, from, [rows, n + 5]).narrow(1, 3..n + 3),
                    to: out.view(0, to, [rows, n + 2]).narrow(1, 1..n + 1),
                });
                pass.zero(Zero { out: gone.view(8, DType::F32, [n]) });
            });
            vec![get_as(d, to, &out), get(d, &gone)]
        });
    }

    #[test]
    fn sigmoid_gate_agrees(
        rows in 1usize..20, heads in 1usize..4, n in 1usize..70, one in any::<bool>(), out in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(1e-6, |d| {
            let sides = [rows, heads, n];
            let count = rows * heads * n;
            let x = put_f32(d, &random(seed, count));
            let residual = put_f32(d, &random(seed + 1, count));
            let gate: Vec<f32> = random(seed + 2, rows * heads * 2 * n).iter().map(|v| v * 20.0).collect();
            let gate = put_f32(d, &gate);
            let other = put_f32(d, &vec![0.0; count]);
            let views = [&x, &residual, &other].map(|b| b.view(0, DType::F32, sides));
            let gates = gate.view(0, DType::F32, [rows, heads * 2 * n]).split_last(2 * n);
            submit(d, |pass| pass.sigmoid_gate(SigmoidGate {
                x: views[0],
                gate: gates.narrow(2, if one { 0..1 } else { n..2 * n }),
                residual: (out > 0).then_some(views[1]),
                out: views[out],
            }));
            vec![get(d, &x), get(d, &residual), get(d, &other)]
        });
    }

    #[test]
    fn delta_gates_agree(rows in 1usize..20, heads in 1usize..20, in_place in any::<bool>(), dtype in 0usize..3, seed in 0u64..1 << 32) {
        check(1e-6, |d| {
            let count = rows * heads;
            let a: Vec<f32> = random(seed, count).iter().map(|v| v * 30.0).collect();
            let [a, b, g, beta] = [a, random(seed + 1, count), vec![0.0; count], vec![0.0; count]].map(|v| put_f32(d, &v));
            let [a_log, dt_bias] = [2, 3].map(|i| put(d, float(dtype), &random(seed + i, heads)));
            let [a_view, b_view, g_view, beta_view] = [&a, &b, &g, &beta].map(|x| x.view(0, DType::F32, [rows, heads]));
            submit(d, |pass| pass.delta_gates(DeltaGates {
                a: a_view,
                b: b_view,
                a_log: a_log.view(0, float(dtype), [heads]),
                is_rate: in_place,
                dt_bias: dt_bias.view(0, float(dtype), [heads]),
                g: if in_place { a_view } else { g_view },
                beta: if in_place { b_view } else { beta_view },
            }));
            vec![get(d, &a), get(d, &b), get(d, &g), get(d, &beta)]
        });
    }

    #[test]
    fn router_agrees_and_ties_go_to_the_lower_index(
        rows in 1usize..20, experts in 1usize..70, k in 1usize..9, normalise in any::<bool>(), seed in 0u64..1 << 32,
    ) {
        check(1e-6, |d| {
            let k = k.min(experts);
            // Few distinct values, so that there are ties.
            let logits: Vec<f32> = random(seed, rows * experts).iter().map(|v| (v * 6.0).round()).collect();
            let logits = put_f32(d, &logits);
            let ids = put_i32(d, &vec![0; rows * k]);
            let weights = put_f32(d, &vec![0.0; rows * k]);
            submit(d, |pass| pass.router(Router {
                logits: logits.view(0, DType::F32, [rows, experts]),
                normalise,
                ids: ids.view(0, DType::I32, [rows, k]),
                weights: weights.view(0, DType::F32, [rows, k]),
            }));
            let mut chosen = vec![0i32; rows * k];
            d.read(ids.view(0, DType::I32, [rows * k]), bytemuck::cast_slice_mut(&mut chosen)).unwrap();
            vec![chosen.iter().map(|&i| i as f32).collect(), get(d, &weights)]
        });
    }
}
