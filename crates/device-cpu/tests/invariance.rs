//! No bit of a row's result depends on the rows beside it, on how a prompt was cut, or on where a weight lies.

mod common;

use std::sync::Arc;

use common::*;
use turbospark_device::op::*;
use turbospark_device::{Device, Mapping, Pass, Snapshot, View};
use turbospark_device_cpu::CpuDevice;
use turbospark_tensor::DType;

/// The devices with one and with three threads.
fn some() -> impl Iterator<Item = &'static CpuDevice> {
    devices().iter().flat_map(|kind| [&kind[0], &kind[2]])
}

fn bits_of(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// A linear layer (gated where `gated`) on `rows`, the first `prompt_rows` of them a prompt's.
fn linear(
    d: &dyn Device,
    x: &[f32],
    k: usize,
    n: usize,
    prompt_rows: usize,
    gated: bool,
    layout: WeightLayout,
) -> Vec<f32> {
    let rows = x.len() / k;
    let x = put_f32(d, x);
    let w = put(d, DType::BF16, &random(5, 2 * n * k));
    let out = put_f32(d, &vec![0.0; rows * n]);
    let (x, out_view) = (x.view(0, DType::F32, [rows, k]), out.view(0, DType::F32, [rows, n]));
    let sides = if layout == WeightLayout::OutIn { [n, k] } else { [k, n] };
    let (one, two) = (w.view(0, DType::BF16, sides), w.view(2 * n * k, DType::BF16, sides));
    let mut pass = Pass::new(d);
    if gated {
        pass.gated_matmul(GatedMatmul { x, gate: one.into(), up: two.into(), layout, out: out_view, prompt_rows });
    } else {
        let activation = Some(Activation::GeluTanh);
        pass.matmul(Matmul { layout, activation, prompt_rows, ..Matmul::new(x, one, out_view) });
    }
    pass.submit().unwrap();
    get(d, &out)
}

#[test]
fn a_row_of_a_linear_layer_is_the_same_alone_and_in_company() {
    // Longer than a block of the sum, with a tail; wide enough that threads share it.
    let (k, n, rows) = (611, 143, 37);
    let x = random(1, rows * k);
    for d in some() {
        for (gated, layout) in [(false, WeightLayout::OutIn), (true, WeightLayout::OutIn), (false, WeightLayout::InOut)]
        {
            let run = |x: &[f32], prompt| linear(d, x, k, n, prompt, gated, layout);
            let prompt = run(&x, rows);
            let decoded = run(&x, 0);
            let mixed = run(&x, 20);
            assert_eq!(bits_of(&mixed[..20 * n]), bits_of(&prompt[..20 * n]));
            assert_eq!(bits_of(&mixed[20 * n..]), bits_of(&decoded[20 * n..]));
            for r in [0, 7, 13, 14, 36] {
                let row = &x[r * k..(r + 1) * k];
                assert_eq!(bits_of(&run(row, 1)), bits_of(&prompt[r * n..(r + 1) * n]), "{} prompt row {r}", d.name());
                assert_eq!(bits_of(&run(row, 0)), bits_of(&decoded[r * n..(r + 1) * n]), "{} row {r}", d.name());
            }
            for r in 0..rows - 8 {
                let some = run(&x[r * k..(r + 1 + r % 8) * k], 0);
                assert_eq!(bits_of(&some[..n]), bits_of(&decoded[r * n..(r + 1) * n]));
            }
        }
    }
}

#[test]
fn many_rows_change_no_bit_of_the_first() {
    // So many that the rows are packed in several blocks.
    let (k, n) = (2048, 40);
    let x = random(2, 1500 * k);
    for d in some() {
        let few = linear(d, &x[..3 * k], k, n, 3, false, WeightLayout::OutIn);
        let many = linear(d, &x, k, n, 1500, false, WeightLayout::OutIn);
        assert_eq!(bits_of(&few), bits_of(&many[..3 * n]));
    }
}

/// Attention, convolution and delta rule of one sequence whose rows come in pieces.
///
/// `pieces` are lengths with whether they are decoded; `beside` adds another sequence to every pass. Keys and values
/// are kept as `kv`.
fn sequence(d: &dyn Device, kv: DType, pieces: &[(usize, bool)], beside: bool) -> Vec<Vec<f32>> {
    let (heads, kv_heads, page_len, pages_each) = (4, 2, 32, 20);
    let n = if kv.is_block() { 64 } else { 40 };
    let total: usize = pieces.iter().map(|p| p.0).sum();
    let rows = total + 77;
    let f = |seed: u64, each: usize| put_f32(d, &random(seed, rows * each));
    let q = f(1, heads * n);
    let (k, v, gates) = (f(2, kv_heads * n), f(3, kv_heads * n), f(4, heads));
    let g: Vec<f32> = random(5, rows * heads).iter().map(|x| -x.abs()).collect();
    let g = put_f32(d, &g);
    let out = [heads * n, kv_heads * n, heads * n].map(|each| put_f32(d, &vec![0.0; rows * each]));
    let capacity = 2 * pages_each * page_len;
    let cache = [0, 1].map(|_| put(d, kv, &vec![0.0; capacity * kv_heads * n]));
    let pages = put_i32(d, &(0..2 * pages_each as i32).rev().collect::<Vec<_>>());
    let state = put_f32(d, &vec![0.0; 2 * heads * n * n]);
    let tail = put_f32(d, &vec![0.0; 2 * kv_heads * n * 4]);
    let w = put_f32(d, &random(6, kv_heads * n * 4));
    let place = |table: usize, t: usize| {
        let page = 2 * pages_each - 1 - (table * pages_each + t / page_len);
        (page * page_len + t % page_len) as i32
    };
    let mut first = 0;
    for &(len, decode) in pieces {
        // The other sequence's rows lie after all of this one's; they are viewed together in each pass.
        let mut spans = vec![span(first, len, first, decode, 0)];
        let mut slots: Vec<i32> = (0..rows).map(|_| place(1, pages_each * page_len - 1)).collect();
        (first..first + len).for_each(|t| slots[t] = place(0, t));
        if beside {
            spans.push(span(total, 77, 3, !decode, 1));
            (0..77).for_each(|t| slots[total + t] = place(1, 3 + t));
        }
        let slots = put_i32(d, &slots);
        let caches = cache.each_ref().map(|c| c.view(0, kv, [capacity, kv_heads, n]));
        let q_view = q.view(0, DType::F32, [rows, heads, n]);
        let k_view = k.view(0, DType::F32, [rows, kv_heads, n]);
        let v_view = v.view(0, DType::F32, [rows, kv_heads, n]);
        let mut pass = Pass::new(d);
        pass.store_kv(StoreKv {
            k: k_view,
            v: v_view,
            slots: slots.view(0, DType::I32, [rows]),
            k_cache: caches[0],
            v_cache: caches[1],
        });
        pass.paged_attention(PagedAttention {
            q: q_view,
            k_cache: caches[0],
            v_cache: caches[1],
            pages: pages.view(0, DType::I32, [2, pages_each]),
            page_len,
            spans: &spans,
            scale: 0.3,
            out: out[0].view(0, DType::F32, [rows, heads, n]),
        });
        pass.causal_conv(CausalConv {
            x: k.view(0, DType::F32, [rows, kv_heads * n]),
            weight: w.view(0, DType::F32, [kv_heads * n, 4]),
            state: tail.view(0, DType::F32, [2, kv_heads * n, 4]),
            spans: &spans,
            out: out[1].view(0, DType::F32, [rows, kv_heads * n]),
        });
        pass.delta_scan(DeltaScan {
            q: k_view,
            k: v_view,
            v: q_view,
            g: g.view(0, DType::F32, [rows, heads]),
            beta: gates.view(0, DType::F32, [rows, heads]),
            state: state.view(0, DType::F32, [2, heads, n, n]),
            tiled: false,
            spans: &spans,
            out: out[2].view(0, DType::F32, [rows, heads, n]),
        });
        pass.submit().unwrap();
        first += len;
    }
    let own = |b: &turbospark_device::Buffer, each: usize| get(d, b)[..each].to_vec();
    vec![
        own(&out[0], total * heads * n),
        own(&out[1], total * kv_heads * n),
        own(&out[2], total * heads * n),
        own(&state, heads * n * n),
        own(&tail, kv_heads * n * 4),
    ]
}

const KEPT: [DType; 2] = [DType::F32, DType::Q8_0];

#[test]
fn a_prompt_in_pieces_of_64_is_the_prompt_in_one() {
    for (d, kv) in some().flat_map(|d| KEPT.map(|kv| (d, kv))) {
        let run = |pieces: &[usize], beside| {
            let pieces: Vec<_> = pieces.iter().map(|&n| (n, false)).collect();
            bits(&sequence(d, kv, &pieces, beside))
        };
        let whole = run(&[300], false);
        assert!(run(&[64, 192, 44], false) == whole, "{} {kv}", d.name());
        assert!(run(&[128, 128, 44], true) == whole, "{} {kv}", d.name());
    }
}

#[test]
fn decoded_rows_are_the_same_one_by_one_together_and_in_company() {
    for (d, kv) in some().flat_map(|d| KEPT.map(|kv| (d, kv))) {
        let run = |decoded: &[usize], beside| {
            let pieces: Vec<_> = [(280, false)].into_iter().chain(decoded.iter().map(|&n| (n, true))).collect();
            bits(&sequence(d, kv, &pieces, beside))
        };
        let single = run(&[1; 9], false);
        assert!(run(&[9], false) == single, "{} {kv}", d.name());
        assert!(run(&[4, 5], true) == single, "{} {kv}", d.name());
    }
}

#[test]
fn attention_within_a_segment_does_not_see_the_others() {
    let (heads, n) = (2, 24);
    let qkv = random(9, 3 * 200 * heads * n);
    let part = |p: usize, rows: std::ops::Range<usize>| -> Vec<f32> {
        qkv[p * 200 * heads * n..][rows.start * heads * n..rows.end * heads * n].to_vec()
    };
    for d in some() {
        let run = |rows: std::ops::Range<usize>, cu_seqlens: &[usize]| {
            let len = rows.len();
            let [q, k, v] = [0, 1, 2].map(|p| put_f32(d, &part(p, rows.clone())));
            let out = put_f32(d, &vec![0.0; len * heads * n]);
            let view = |b| turbospark_device::Buffer::view(b, 0, DType::F32, [len, heads, n]);
            let mut pass = Pass::new(d);
            pass.attention(Attention {
                q: view(&q),
                k: view(&k),
                v: view(&v),
                cu_seqlens,
                scale: 0.4,
                out: view(&out),
            });
            pass.submit().unwrap();
            get(d, &out)
        };
        let both = run(0..200, &[0, 67, 200]);
        let alone = run(67..200, &[0, 133]);
        assert_eq!(bits_of(&both[67 * heads * n..]), bits_of(&alone));
    }
}

#[test]
fn an_adopted_unaligned_weight_gives_the_bits_of_a_loaded_one() {
    let (rows, k, n) = (11, 333, 95);
    for d in some() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let bytes = encode(dtype, &random(3, n * k));
            let mut shifted = vec![0u8; 3];
            shifted.extend_from_slice(&bytes);
            let mapping: Mapping = Arc::new(shifted);
            let adopted = d.adopt(mapping).unwrap().expect("the CPU adopts");
            let loaded = put(d, dtype, &random(3, n * k));
            let x = put_f32(d, &random(4, rows * k));
            let run = |w: View<'_>| {
                let out = put_f32(d, &vec![0.0; rows * n]);
                let op = Matmul::new(x.view(0, DType::F32, [rows, k]), w, out.view(0, DType::F32, [rows, n]));
                let mut pass = Pass::new(d);
                pass.matmul(Matmul { prompt_rows: 6, ..op });
                pass.submit().unwrap();
                get(d, &out)
            };
            let got = run(adopted.view(3, dtype, [n, k]));
            assert_eq!(bits_of(&got), bits_of(&run(loaded.view(0, dtype, [n, k]))));
            let refused = d.write(adopted.bytes().rows(0..4), &[0; 4]).unwrap_err();
            assert!(refused.to_string().contains("cannot be written"), "{refused}");
        }
    }
}

#[test]
fn a_snapshot_is_the_state_of_a_shorter_run_and_changes_nothing_else() {
    let (heads, kn, vn, channels) = (3, 32, 50, 70);
    for d in some() {
        let run = |rows: usize, decode: bool, shots: &[usize]| {
            let f = |seed: u64, each: usize| put_f32(d, &random(seed, rows * each));
            let [q, k, v] = [f(1, heads * kn), f(2, heads * kn), f(3, heads * vn)];
            let g: Vec<f32> = random(4, rows * heads).iter().map(|x| -x.abs()).collect();
            let (g, beta, x) = (put_f32(d, &g), f(5, heads), f(6, channels));
            let slots = 1 + shots.len();
            let state = put_f32(d, &random(7, heads * kn * vn).repeat(slots));
            let tail = put_f32(d, &random(8, channels * 4).repeat(slots));
            let w = put_f32(d, &random(9, channels * 4));
            let out = [heads * vn, channels].map(|each| put_f32(d, &vec![0.0; rows * each]));
            // Not at a multiple of 64, as after a cut prefix.
            let mut s = span(0, rows, 37, decode, 0);
            s.snapshots = shots.iter().enumerate().map(|(i, &after)| Snapshot { after, slot: i + 1 }).collect();
            let spans = [s];
            let mut pass = Pass::new(d);
            pass.causal_conv(CausalConv {
                x: x.view(0, DType::F32, [rows, channels]),
                weight: w.view(0, DType::F32, [channels, 4]),
                state: tail.view(0, DType::F32, [slots, channels, 4]),
                spans: &spans,
                out: out[1].view(0, DType::F32, [rows, channels]),
            });
            pass.delta_scan(DeltaScan {
                q: q.view(0, DType::F32, [rows, heads, kn]),
                k: k.view(0, DType::F32, [rows, heads, kn]),
                v: v.view(0, DType::F32, [rows, heads, vn]),
                g: g.view(0, DType::F32, [rows, heads]),
                beta: beta.view(0, DType::F32, [rows, heads]),
                state: state.view(0, DType::F32, [slots, heads, kn, vn]),
                tiled: false,
                spans: &spans,
                out: out[0].view(0, DType::F32, [rows, heads, vn]),
            });
            pass.submit().unwrap();
            let split = |b, each: usize| -> Vec<Vec<f32>> { get(d, b).chunks(each).map(<[f32]>::to_vec).collect() };
            let outputs: Vec<Vec<f32>> = out.iter().map(|b| get(d, b)).collect();
            (outputs, split(&state, heads * kn * vn), split(&tail, channels * 4))
        };
        for decode in [false, true] {
            let shots = [1, 2, 26, 27, 28, 90, 91, 92, 150];
            let (outputs, states, tails) = run(150, decode, &shots);
            let plain = run(150, decode, &[]);
            assert!(bits(&outputs) == bits(&plain.0) && bits(&states[..1]) == bits(&plain.1));
            for (i, &after) in shots.iter().enumerate() {
                let shorter = run(after, decode, &[]);
                assert!(bits_of(&states[i + 1]) == bits_of(&shorter.1[0]), "{} state after {after}", d.name());
                assert!(bits_of(&tails[i + 1]) == bits_of(&shorter.2[0]), "{} tail after {after}", d.name());
            }
        }
    }
}
