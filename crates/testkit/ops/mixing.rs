//! Ops that mix rows, against the reference device on drawn shapes. Each device runs these with its own `common`.

use crate::common::*;
use proptest::prelude::*;
use turbospark_device::op::*;
use turbospark_device::{Buffer, Device, DeviceError, Pass, ReferenceDevice, Snapshot};
use turbospark_tensor::DType;

fn cases() -> ProptestConfig {
    ProptestConfig { cases: fewer(60), failure_persistence: None, ..ProptestConfig::default() }
}

fn submit<'a>(device: &'a dyn Device, record: impl FnOnce(&mut Pass<'a>)) {
    let mut pass = Pass::new(device);
    record(&mut pass);
    pass.submit().unwrap();
}

/// Experts in one buffer, as a fused tensor holds them.
struct Fused {
    buffer: Buffer,
    dtype: DType,
    layout: WeightLayout,
    hidden: usize,
    width: usize,
    experts: usize,
}

impl ExpertSource for Fused {
    fn experts(&self) -> usize {
        self.experts
    }

    fn with(
        &self,
        wanted: &[usize],
        each: &mut (dyn FnMut(usize, Expert<'_>) -> Result<(), DeviceError> + '_),
    ) -> Result<(), DeviceError> {
        let (h, i, layout) = (self.hidden, self.width, self.layout);
        assert!(wanted.windows(2).all(|w| w[0] < w[1]));
        for &e in wanted {
            let at = e * 3 * h * i * self.dtype.size();
            let rest = at + 2 * h * i * self.dtype.size();
            let [gate, up] = match layout {
                WeightLayout::OutIn => {
                    let both = self.buffer.view(at, self.dtype, [2 * i, h]);
                    [both.rows(0..i), both.rows(i..2 * i)]
                }
                WeightLayout::InOut => {
                    let both = self.buffer.view(at, self.dtype, [h, 2 * i]);
                    [both.narrow(1, 0..i), both.narrow(1, i..2 * i)]
                }
            };
            let down = self.buffer.view(rest, self.dtype, if layout == WeightLayout::OutIn { [h, i] } else { [i, h] });
            each(e, Expert { gate: gate.into(), up: up.into(), down: down.into(), layout })?;
        }
        Ok(())
    }
}

#[test]
fn a_row_that_is_not_finite_makes_its_blocks_nan_and_no_others() {
    let (rows, kv_heads, n) = (3, 2, 64);
    let store = |d: &dyn Device| {
        let mut k = random(1, rows * kv_heads * n);
        let v = k.clone();
        // Row 0 head 1, second block; row 1 head 0, first block; row 2 head 1, first block.
        for (at, bad) in [(n + 40, f32::NAN), (2 * n + 3, f32::INFINITY), (5 * n + 31, -3e7)] {
            k[at] = bad;
        }
        let [k, v] = [k, v].map(|x| put_f32(d, &x));
        let slots = put_i32(d, &[2, 0, 1]);
        let caches = [0, 1].map(|_| put(d, DType::Q8_0, &vec![0.0; rows * kv_heads * n]));
        let [k_cache, v_cache] = caches.each_ref().map(|c| c.view(0, DType::Q8_0, [rows, kv_heads, n]));
        let (k, v) = (k.view(0, DType::F32, [rows, kv_heads, n]), v.view(0, DType::F32, [rows, kv_heads, n]));
        submit(d, |pass| pass.store_kv(StoreKv { k, v, slots: slots.view(0, DType::I32, [rows]), k_cache, v_cache }));
        caches.map(|c| get_as(d, DType::Q8_0, &c))
    };
    let want = store(&ReferenceDevice);
    let blocks: Vec<usize> = want[0].chunks(32).enumerate().filter(|(_, b)| b[0].is_nan()).map(|(i, _)| i).collect();
    assert_eq!(blocks, [0, 6, 11], "slots 0, 1 and 2 hold rows 1, 2 and 0");
    assert!(want[0].chunks(32).enumerate().all(|(i, b)| b.iter().all(|x| x.is_nan() == blocks.contains(&i))));
    for d in all() {
        assert!(bits(&store(d)) == bits(&want), "{}", d.name());
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn experts_agree(
        rows in 1usize..30, hidden in 1usize..90, width in 1usize..50, experts in 1usize..9, k in 1usize..5,
        prompt in 0usize..30, dtype in 0usize..3, in_out in any::<bool>(), residual in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(sum_of(hidden) * 8.0 * (hidden as f32).sqrt(), |d| {
            let (k, t) = (k.min(experts), float(dtype));
            let source = Fused {
                buffer: put(d, t, &random(seed, experts * 3 * hidden * width)),
                dtype: t,
                layout: if in_out { WeightLayout::InOut } else { WeightLayout::OutIn },
                hidden,
                width,
                experts,
            };
            let x = put_f32(d, &random(seed + 1, rows * hidden));
            // A random first one, then the next; all distinct.
            let firsts = random(seed + 2, rows);
            let ids: Vec<i32> = (0..rows * k)
                .map(|i| (((firsts[i / k] + 1.0) / 2.0 * experts as f32) as usize + i % k) as i32 % experts as i32)
                .collect();
            let ids = put_i32(d, &ids);
            let weights = put_f32(d, &random(seed + 3, rows * k));
            let r = put_f32(d, &random(seed + 4, rows * hidden));
            let out = put_f32(d, &random(seed + 4, rows * hidden));
            let sides = [rows, hidden];
            let out_view = out.view(0, DType::F32, sides);
            submit(d, |pass| pass.experts(Experts {
                x: x.view(0, DType::F32, sides),
                ids: ids.view(0, DType::I32, [rows, k]),
                weights: weights.view(0, DType::F32, [rows, k]),
                source: &source,
                width,
                residual: [None, Some(r.view(0, DType::F32, sides)), Some(out_view)][residual],
                out: out_view,
                prompt_rows: prompt.min(rows),
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn attention_agrees(
        lengths in prop::collection::vec(0usize..150, 1..4), heads in 1usize..4, n in 1usize..90, seed in 0u64..1 << 32,
    ) {
        check(1e-5, |d| {
            let mut cu_seqlens = vec![0];
            lengths.iter().for_each(|l| cu_seqlens.push(cu_seqlens[cu_seqlens.len() - 1] + l));
            let rows = cu_seqlens[cu_seqlens.len() - 1];
            // Fused q, k, v rows, so that the views are strided.
            let qkv: Vec<f32> = random(seed, (rows + 1) * 3 * heads * n).iter().map(|x| 3.0 * x).collect();
            let qkv = put_f32(d, &qkv);
            let out = put_f32(d, &vec![0.0; rows * heads * n]);
            let fused = qkv.view(0, DType::F32, [rows, 3 * heads * n]);
            let part = |i: usize| fused.narrow(1, i * heads * n..(i + 1) * heads * n).split_last(n);
            submit(d, |pass| pass.attention(Attention {
                q: part(0),
                k: part(1),
                v: part(2),
                cu_seqlens: &cu_seqlens,
                scale: (n as f32).powf(-0.5),
                out: out.view(0, DType::F32, [rows, heads, n]),
            }));
            vec![get(d, &out)]
        });
    }

    #[test]
    fn the_paged_cache_agrees(
        lengths in prop::collection::vec((0usize..330, 1usize..70, any::<bool>()), 1..4), kv_heads in 1usize..3,
        group in 1usize..6, n in 1usize..70, page_len in 1usize..40, dtype in 0usize..4, seed in 0u64..1 << 32,
    ) {
        let (t, n) = cached(dtype, n);
        check(1e-5, |d| {
            let pages_each = 420usize.div_ceil(page_len);
            let tables = lengths.len();
            let capacity = tables * pages_each * page_len;
            let heads = kv_heads * group;
            let rows: usize = lengths.iter().map(|l| l.1).sum();
            // Pages dealt out in turn, from the last one down.
            let pages: Vec<i32> = (0..tables * pages_each)
                .map(|i| (tables * pages_each - 1 - (i % pages_each * tables + i / pages_each)) as i32)
                .collect();
            let mut spans = Vec::new();
            let mut slots = Vec::new();
            for (table, &(start, len, decode)) in lengths.iter().enumerate() {
                spans.push(span(slots.len(), len, start, decode, table));
                slots.extend((start..start + len).map(|i| {
                    pages[table * pages_each + i / page_len] * page_len as i32 + (i % page_len) as i32
                }));
            }
            let [k_cache, v_cache] = [1, 2].map(|i| put(d, t, &random(seed + i, capacity * kv_heads * n)));
            let [k, v] = [3, 4].map(|i| put_f32(d, &random(seed + i, rows * kv_heads * n)));
            let q: Vec<f32> = random(seed, rows * heads * n).iter().map(|x| 3.0 * x).collect();
            let (q, out) = (put_f32(d, &q), put_f32(d, &vec![0.0; rows * heads * n]));
            let (pages, slots) = (put_i32(d, &pages), put_i32(d, &slots));
            let cache = [capacity, kv_heads, n];
            submit(d, |pass| {
                pass.store_kv(StoreKv {
                    k: k.view(0, DType::F32, [rows, kv_heads, n]),
                    v: v.view(0, DType::F32, [rows, kv_heads, n]),
                    slots: slots.view(0, DType::I32, [rows]),
                    k_cache: k_cache.view(0, t, cache),
                    v_cache: v_cache.view(0, t, cache),
                });
                pass.paged_attention(PagedAttention {
                    q: q.view(0, DType::F32, [rows, heads, n]),
                    k_cache: k_cache.view(0, t, cache),
                    v_cache: v_cache.view(0, t, cache),
                    pages: pages.view(0, DType::I32, [tables, pages_each]),
                    page_len,
                    spans: &spans,
                    scale: (n as f32).powf(-0.5),
                    out: out.view(0, DType::F32, [rows, heads, n]),
                });
            });
            vec![get(d, &out), get_as(d, t, &k_cache), get_as(d, t, &v_cache)]
        });
    }

    #[test]
    fn the_convolution_agrees(
        lengths in prop::collection::vec((1usize..20, any::<bool>(), 1usize..20), 1..4), channels in 1usize..150,
        kernel in 1usize..6, dtype in 0usize..3, seed in 0u64..1 << 32,
    ) {
        check(1e-6, |d| {
            let slots = 2 * lengths.len();
            let mut rows = 0;
            let mut spans = Vec::new();
            for (i, &(len, decode, after)) in lengths.iter().enumerate() {
                let mut s = span(rows, len, 7, decode, i);
                s.snapshots.push(Snapshot { after: after.min(len), slot: lengths.len() + i });
                rows += len;
                spans.push(s);
            }
            let x = put_f32(d, &random(seed, rows * (channels + 1)));
            let w = put(d, float(dtype), &random(seed + 1, channels * kernel));
            let state = put_f32(d, &random(seed + 2, slots * channels * kernel));
            let out = put_f32(d, &vec![0.0; rows * channels]);
            submit(d, |pass| pass.causal_conv(CausalConv {
                x: x.view(0, DType::F32, [rows, channels + 1]).narrow(1, 1..channels + 1),
                weight: w.view(0, float(dtype), [channels, kernel]),
                state: state.view(0, DType::F32, [slots, channels, kernel]),
                spans: &spans,
                out: out.view(0, DType::F32, [rows, channels]),
            }));
            vec![get(d, &out), get(d, &state)]
        });
    }

    #[test]
    fn the_delta_rule_agrees(
        lengths in prop::collection::vec((1usize..150, 0usize..100, any::<bool>(), 1usize..150), 1..3),
        key_heads in 1usize..3, group in 1usize..3, kn in 1usize..40, vn in 1usize..140, decay in 0.0f32..8.0,
        seed in 0u64..1 << 32,
    ) {
        check(1e-5, |d| {
            let (slots, heads) = (2 * lengths.len(), key_heads * group);
            let mut rows = 0;
            let mut spans = Vec::new();
            for (i, &(len, start, decode, after)) in lengths.iter().enumerate() {
                let mut s = span(rows, len, start, decode, i);
                s.snapshots.push(Snapshot { after: after.min(len), slot: lengths.len() + i });
                rows += len;
                spans.push(s);
            }
            let [q, k] = [0, 1].map(|i| put_f32(d, &random(seed + i, rows * key_heads * kn)));
            let v = put_f32(d, &random(seed + 2, rows * heads * vn));
            let g: Vec<f32> = random(seed + 3, rows * heads).iter().map(|x| -decay * x * x).collect();
            let beta: Vec<f32> = random(seed + 4, rows * heads).iter().map(|x| x.abs()).collect();
            let (g, beta) = (put_f32(d, &g), put_f32(d, &beta));
            let state = put_f32(d, &random(seed + 5, slots * heads * kn * vn));
            let out = put_f32(d, &vec![0.0; rows * heads * vn]);
            submit(d, |pass| pass.delta_scan(DeltaScan {
                q: q.view(0, DType::F32, [rows, key_heads, kn]),
                k: k.view(0, DType::F32, [rows, key_heads, kn]),
                v: v.view(0, DType::F32, [rows, heads, vn]),
                g: g.view(0, DType::F32, [rows, heads]),
                beta: beta.view(0, DType::F32, [rows, heads]),
                state: state.view(0, DType::F32, [slots, heads, kn, vn]),
                tiled: seed % 2 == 1, spans: &spans,
                out: out.view(0, DType::F32, [rows, heads, vn]),
            }));
            vec![get(d, &out), get(d, &state)]
        });
    }
}
