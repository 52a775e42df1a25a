//! Weights in the formats of quantising programs, written plainly, with what they mean.

use half::bf16;
use safetensors::Dtype;
use turbospark_tensor::{e2m1_to_f32, e4m3_to_f32};
use turbospark_testkit::RawTensor;

/// A quantised matrix.
pub struct Packed {
    /// What a folder stores, by full name.
    pub tensors: Vec<(String, RawTensor)>,
    /// The weights that it stands for, `[out, in]`.
    pub meaning: Vec<f32>,
}

/// Quantises `[out, in]` under a module's name; `None` where the format leaves such a matrix alone.
pub type Packer = Box<dyn Fn(&str, &[f32], usize, usize) -> Option<Packed>>;

fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn f16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect()
}

fn f16(v: f32) -> f32 {
    half::f16::from_f32(v).to_f32()
}

/// Fields of `bits`, the first in the lowest bits of a stream.
fn stream(fields: &[u8], bits: usize) -> Vec<u8> {
    let mut out = vec![0u8; (fields.len() * bits).div_ceil(32) * 4];
    for (i, &f) in fields.iter().enumerate() {
        for b in 0..bits {
            out[(i * bits + b) / 8] |= (f >> b & 1) << ((i * bits + b) % 8);
        }
    }
    out
}

/// Codes, scale and bias of a group, rounded to `round`; every other group has a negative scale.
fn affine(x: &[f32], bits: usize, flip: bool, round: fn(f32) -> f32) -> (Vec<u8>, f32, f32) {
    let top = ((1u32 << bits) - 1) as f32;
    let (lo, hi) = x.iter().fold((f32::MAX, f32::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let step = ((hi - lo) / top).max(1e-7);
    let (scale, bias) = if flip { (round(-step), round(hi)) } else { (round(step), round(lo)) };
    let codes = x.iter().map(|&v| ((v - bias) / scale).round().clamp(0.0, top) as u8).collect();
    (codes, scale, bias)
}

/// MLX's affine groups, scales in bf16.
pub fn mlx(bits: usize, group: usize) -> Packer {
    Box::new(move |stem, w, out, inner| {
        if !inner.is_multiple_of(group) {
            return None;
        }
        let round = |v: f32| bf16::from_f32(v).to_f32();
        let (mut codes, mut scales, mut biases, mut meaning) = (vec![], vec![], vec![], vec![]);
        for row in w.chunks_exact(inner) {
            let mut fields = vec![];
            for (g, x) in row.chunks_exact(group).enumerate() {
                let (q, s, b) = affine(x, bits, g % 2 == 1, round);
                meaning.extend(q.iter().map(|&q| s * f32::from(q) + b));
                fields.extend(q);
                scales.push(s);
                biases.push(b);
            }
            codes.extend(stream(&fields, bits));
        }
        let groups = [out, inner / group];
        let tensors = vec![
            (format!("{stem}.weight"), RawTensor::new(Dtype::U32, &[out, inner * bits / 32], codes)),
            (format!("{stem}.scales"), RawTensor::bf16(&groups, &scales)),
            (format!("{stem}.biases"), RawTensor::bf16(&groups, &biases)),
        ];
        Some(Packed { tensors, meaning })
    })
}

/// The code whose value is nearest.
fn nearest(x: f32, value: fn(u8) -> f32, codes: std::ops::RangeInclusive<u8>) -> u8 {
    let near = |&c: &u8| (value(c) - x).abs();
    codes.filter(|&c| value(c).is_finite()).min_by(|a, b| near(a).total_cmp(&near(b))).unwrap()
}

/// MLX's small floats: `mxfp4`, `mxfp8` or `nvfp4`.
pub fn mlx_floats(mode: &'static str) -> Packer {
    let group = if mode == "nvfp4" { 16 } else { 32 };
    Box::new(move |stem, w, out, inner| {
        if !inner.is_multiple_of(group) {
            return None;
        }
        let (mut codes, mut scales, mut meaning) = (vec![], vec![], vec![]);
        for row in w.chunks_exact(inner) {
            let mut fields = vec![];
            for x in row.chunks_exact(group) {
                let most = x.iter().fold(1e-9f32, |m, v| m.max(v.abs()));
                let (byte, scale) = if mode == "nvfp4" {
                    let byte = nearest(most / 6.0, e4m3_to_f32, 1..=126);
                    (byte, e4m3_to_f32(byte))
                } else {
                    let top = if mode == "mxfp4" { 2 } else { 8 };
                    let e = (most.log2().floor() as i32 - top).clamp(-126, 126);
                    ((e + 127) as u8, 2f32.powi(e))
                };
                scales.push(byte);
                for &v in x {
                    let (code, value) = if mode == "mxfp8" {
                        let c = nearest(v / scale, e4m3_to_f32, 0..=255);
                        (c, e4m3_to_f32(c))
                    } else {
                        let c = nearest(v / scale, e2m1_to_f32, 0..=15);
                        (c, e2m1_to_f32(c))
                    };
                    fields.push(code);
                    meaning.push(value * scale);
                }
            }
            codes.extend(stream(&fields, if mode == "mxfp8" { 8 } else { 4 }));
        }
        let row = codes.len() / 4 / out;
        let tensors = vec![
            (format!("{stem}.weight"), RawTensor::new(Dtype::U32, &[out, row], codes)),
            (format!("{stem}.scales"), RawTensor::new(Dtype::U8, &[out, inner / group], scales)),
        ];
        Some(Packed { tensors, meaning })
    })
}

/// E4M3 codes with a scale for blocks of `rows` x `columns`; sides of 0 are the whole side.
pub fn fp8(sides: [usize; 2], suffix: &'static str) -> Packer {
    Box::new(move |stem, w, out, inner| {
        let [rows, columns] =
            [if sides[0] == 0 { out } else { sides[0] }, if sides[1] == 0 { inner } else { sides[1] }];
        let (gr, gc) = (out.div_ceil(rows), inner.div_ceil(columns));
        let mut most = vec![1e-9f32; gr * gc];
        for (i, v) in w.iter().enumerate() {
            let at = i / inner / rows * gc + i % inner / columns;
            most[at] = most[at].max(v.abs());
        }
        let scales: Vec<f32> = most.iter().map(|m| m / 448.0).collect();
        let scale = |i: usize| scales[i / inner / rows * gc + i % inner / columns];
        let codes: Vec<u8> = w.iter().enumerate().map(|(i, v)| nearest(v / scale(i), e4m3_to_f32, 0..=255)).collect();
        let meaning = codes.iter().enumerate().map(|(i, &c)| e4m3_to_f32(c) * scale(i)).collect();
        let tensors = vec![
            (format!("{stem}.weight"), RawTensor::new(Dtype::F8_E4M3, &[out, inner], codes)),
            (format!("{stem}.{suffix}"), RawTensor::f32(&[gr, gc], &scales)),
        ];
        Some(Packed { tensors, meaning })
    })
}

/// Signed bytes with a scale a row.
pub fn int8() -> Packer {
    Box::new(|stem, w, out, inner| {
        let scales: Vec<f32> =
            w.chunks_exact(inner).map(|r| r.iter().fold(1e-9f32, |m, v| m.max(v.abs())) / 127.0).collect();
        let codes: Vec<i8> = w.iter().enumerate().map(|(i, v)| (v / scales[i / inner]).round() as i8).collect();
        let meaning = codes.iter().enumerate().map(|(i, &c)| f32::from(c) * scales[i / inner]).collect();
        let bytes = codes.iter().map(|&c| c as u8).collect();
        let tensors = vec![
            (format!("{stem}.weight"), RawTensor::new(Dtype::I8, &[out, inner], bytes)),
            (format!("{stem}.weight_scale"), RawTensor::f32(&[out, 1], &scales)),
        ];
        Some(Packed { tensors, meaning })
    })
}

/// Signed bytes with a scale and a zero point a row.
pub fn int8_zeros() -> Packer {
    Box::new(|stem, w, out, inner| {
        let (mut codes, mut scales, mut zeros, mut meaning) = (vec![], vec![], vec![], vec![]);
        for row in w.chunks_exact(inner) {
            let (low, high) = row.iter().fold((0f32, 1e-9f32), |(l, h), &v| (l.min(v), h.max(v)));
            let scale = (high - low) / 255.0;
            let zero = (-128.0 - low / scale).round().clamp(-128.0, 127.0);
            let row = row.iter().map(|v| (v / scale + zero).round().clamp(-128.0, 127.0));
            let row: Vec<f32> = row.collect();
            codes.extend(row.iter().map(|&q| q as i8 as u8));
            meaning.extend(row.iter().map(|q| (q - zero) * scale));
            scales.push(scale);
            zeros.push(zero as i8 as u8);
        }
        let tensors = vec![
            (format!("{stem}.weight"), RawTensor::new(Dtype::I8, &[out, inner], codes)),
            (format!("{stem}.weight_scale"), RawTensor::f32(&[out, 1], &scales)),
            (format!("{stem}.weight_zero_point"), RawTensor::new(Dtype::I8, &[out, 1], zeros)),
        ];
        Some(Packed { tensors, meaning })
    })
}

/// Codes and zero points by group, `w = (q - z) s`, scales in f16; symmetric ones have the middle as zero point.
struct Grouped {
    q: Vec<u8>,
    z: Vec<u8>,
    s: Vec<f32>,
    meaning: Vec<f32>,
}

fn grouped(w: &[f32], inner: usize, group_of: &[usize], groups: usize, bits: usize, symmetric: bool) -> Grouped {
    let top = ((1u32 << bits) - 1) as f32;
    let mut all = Grouped { q: vec![], z: vec![], s: vec![], meaning: vec![] };
    for row in w.chunks_exact(inner) {
        let mut range = vec![(0f32, 0f32); groups];
        for (i, &v) in row.iter().enumerate() {
            let r = &mut range[group_of[i]];
            *r = (r.0.min(v), r.1.max(v));
        }
        let pairs: Vec<(f32, f32)> = range
            .iter()
            .map(|&(lo, hi)| match symmetric {
                true => (f16((2.0 * lo.abs().max(hi) / top).max(1e-4)), (1u32 << (bits - 1)) as f32),
                false => {
                    let s = f16(((hi - lo) / top).max(1e-4));
                    (s, (-lo / s).round().clamp(0.0, top))
                }
            })
            .collect();
        for (i, &v) in row.iter().enumerate() {
            let (s, z) = pairs[group_of[i]];
            let q = (v / s + z).round().clamp(0.0, top);
            all.q.push(q as u8);
            all.meaning.push((q - z) * s);
        }
        all.s.extend(pairs.iter().map(|p| p.0));
        all.z.extend(pairs.iter().map(|p| p.1 as u8));
    }
    all
}

/// `[a, b]` as `[b, a]`.
fn turned<T: Copy>(x: &[T], a: usize, b: usize) -> Vec<T> {
    (0..b).flat_map(|j| (0..a).map(move |i| i * b + j)).map(|at| x[at]).collect()
}

/// AWQ in its `gemm` packing.
pub fn awq(group: usize) -> Packer {
    Box::new(move |stem, w, out, inner| {
        if !inner.is_multiple_of(group) || !out.is_multiple_of(8) {
            return None;
        }
        let groups = inner / group;
        let of: Vec<usize> = (0..inner).map(|i| i / group).collect();
        let g = grouped(w, inner, &of, groups, 4, false);
        const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7]; // the column in field k
        let pack = |rows: &[u8], n: usize| {
            let all = turned(rows, out, n); // [n, out]
            words(all.chunks_exact(8).map(|c| (0..8).map(|k| u32::from(c[ORDER[k]]) << (4 * k)).sum()))
        };
        let tensors = vec![
            (format!("{stem}.qweight"), RawTensor::new(Dtype::I32, &[inner, out / 8], pack(&g.q, inner))),
            (format!("{stem}.qzeros"), RawTensor::new(Dtype::I32, &[groups, out / 8], pack(&g.z, groups))),
            (format!("{stem}.scales"), RawTensor::new(Dtype::F16, &[groups, out], f16s(&turned(&g.s, out, groups)))),
        ];
        Some(Packed { tensors, meaning: g.meaning })
    })
}

/// AWQ in its `gemv` packing.
pub fn awq_gemv(group: usize) -> Packer {
    Box::new(move |stem, w, out, inner| {
        if !inner.is_multiple_of(group) {
            return None;
        }
        let groups = inner / group;
        let of: Vec<usize> = (0..inner).map(|i| i / group).collect();
        let g = grouped(w, inner, &of, groups, 4, false);
        let padded = groups.div_ceil(8).next_multiple_of(match group {
            64 => 2,
            32 => 4,
            _ => 1,
        });
        let wide = |row: &[f32]| [row, &vec![0.0; 8 * padded - groups]].concat();
        let scales: Vec<f32> = g.s.chunks_exact(groups).flat_map(wide).collect();
        let zeros = |row: &[u8]| stream(&[row, &vec![0; 8 * padded - groups]].concat(), 4);
        let tensors = vec![
            (
                format!("{stem}.qweight"),
                RawTensor::new(
                    Dtype::I32,
                    &[out, inner / 8],
                    g.q.chunks_exact(inner).flat_map(|r| stream(r, 4)).collect(),
                ),
            ),
            (
                format!("{stem}.qzeros"),
                RawTensor::new(Dtype::I32, &[out, padded], g.z.chunks_exact(groups).flat_map(zeros).collect()),
            ),
            (format!("{stem}.scales"), RawTensor::new(Dtype::F16, &[out, 8 * padded], f16s(&scales))),
        ];
        Some(Packed { tensors, meaning: g.meaning })
    })
}

/// How a GPTQ folder is written.
#[derive(Clone, Copy)]
pub struct Gptq {
    pub bits: usize,
    pub group: usize,
    /// The first format, whose zeros are stored less one.
    pub less_one: bool,
    pub symmetric: bool,
    /// Groups are scattered over a row.
    pub act_order: bool,
    /// Fields of which each 32 lie in planes of bits.
    pub planes: bool,
}

/// GPTQ.
pub fn gptq(of: Gptq) -> Packer {
    let Gptq { bits, group, less_one, symmetric, act_order, planes } = of;
    Box::new(move |stem, w, out, inner| {
        let whole = !planes || (inner.is_multiple_of(32) && out.is_multiple_of(32));
        if !inner.is_multiple_of(group)
            || !(inner * bits).is_multiple_of(32)
            || !(out * bits).is_multiple_of(32)
            || !whole
        {
            return None;
        }
        let groups = inner / group;
        // 7 has no factor in common with widths made of 2, 3 and 5; an order for each module.
        let step = [7, 11, 13][stem.len() % 3];
        let of: Vec<usize> = (0..inner).map(|i| if act_order { i * step % inner / group } else { i / group }).collect();
        let g = grouped(w, inner, &of, groups, bits, symmetric);
        let pack = |fields: &[u8]| if planes { in_planes(fields, bits) } else { stream(fields, bits) };
        let columns: Vec<u8> = g.q.chunks_exact(inner).flat_map(pack).collect(); // [out, words]
        let column_words: Vec<[u8; 4]> = columns.as_chunks::<4>().0.to_vec();
        let rows = inner * bits / 32;
        let zeros = turned(&g.z, out, groups);
        let constant = [0, 0, 0x5555_5555, 0, 0x1111_1111, 0, 0, 0, 0x0101_0101u32][bits];
        let zeros: Vec<u8> = if less_one && constant == 0 {
            let less: Vec<u8> = zeros.iter().map(|z| z.wrapping_sub(1) & ((1u16 << bits) - 1) as u8).collect();
            less.chunks_exact(out).flat_map(pack).collect()
        } else {
            let zeros: Vec<u8> = zeros.chunks_exact(out).flat_map(pack).collect();
            let word = |b: &[u8; 4]| u32::from_le_bytes(*b).wrapping_sub(if less_one { constant } else { 0 });
            words(zeros.as_chunks::<4>().0.iter().map(word))
        };
        let order = words(of.iter().map(|&g| g as u32));
        let tensors = vec![
            (
                format!("{stem}.qweight"),
                RawTensor::new(Dtype::I32, &[rows, out], turned(&column_words, out, rows).concat()),
            ),
            (format!("{stem}.qzeros"), RawTensor::new(Dtype::I32, &[groups, out * bits / 32], zeros)),
            (format!("{stem}.scales"), RawTensor::new(Dtype::F16, &[groups, out], f16s(&turned(&g.s, out, groups)))),
            (format!("{stem}.g_idx"), RawTensor::new(Dtype::I32, &[inner], order)),
        ];
        Some(Packed { tensors, meaning: g.meaning })
    })
}

/// Fields of which each 32 lie in planes of 4, 2 and 1 bits.
fn in_planes(fields: &[u8], bits: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for block in fields.chunks(32) {
        let mut at = 0;
        for width in [4, 2, 1].into_iter().filter(|width| bits & width != 0) {
            let plane: Vec<u8> = block.iter().map(|f| f >> at & ((1 << width) - 1)).collect();
            out.extend(stream(&plane, width));
            at += width;
        }
    }
    out
}

/// Bits and groups that differ from module to module, as GPTQ's `dynamic` has them.
pub fn gptq_dynamic() -> Packer {
    let of =
        |bits, group| gptq(Gptq { bits, group, less_one: true, symmetric: false, act_order: bits == 8, planes: false });
    let (down, value, others) = (of(8, 32), of(2, 16), of(4, 32));
    Box::new(move |stem, w, out, inner| match stem.rsplit('.').next() {
        Some("down_proj") => down(stem, w, out, inner),
        Some("v_proj") => value(stem, w, out, inner),
        Some("o_proj") => None,
        _ => others(stem, w, out, inner),
    })
}

/// compressed-tensors' packed integers; a `group` of 0 is a whole row, `dense` the newer packing of odd widths.
pub fn compressed(bits: usize, group: usize, symmetric: bool, dense: bool, act_order: bool) -> Packer {
    Box::new(move |stem, w, out, inner| {
        let group = if group == 0 { inner } else { group };
        if !inner.is_multiple_of(group) {
            return None;
        }
        let groups = inner / group;
        let of: Vec<usize> = (0..inner).map(|i| if act_order { i * 7 % inner / group } else { i / group }).collect();
        let g = grouped(w, inner, &of, groups, bits, symmetric);
        let pack = |fields: &[u8]| match dense {
            true => stream(fields, bits),
            false => words(
                fields.chunks(32 / bits).map(|c| c.iter().enumerate().map(|(k, &f)| u32::from(f) << (k * bits)).sum()),
            ),
        };
        let codes: Vec<u8> = g.q.chunks_exact(inner).flat_map(pack).collect();
        let row = codes.len() / 4 / out;
        let shape = [out as u64, inner as u64].iter().flat_map(|n| n.to_le_bytes()).collect();
        let mut tensors = vec![
            (format!("{stem}.weight_packed"), RawTensor::new(Dtype::I32, &[out, row], codes)),
            (format!("{stem}.weight_scale"), RawTensor::new(Dtype::F16, &[out, groups], f16s(&g.s))),
            (format!("{stem}.weight_shape"), RawTensor::new(Dtype::I64, &[2], shape)),
        ];
        if !symmetric {
            let columns = turned(&g.z, out, groups); // [groups, out]
            let packed: Vec<Vec<[u8; 4]>> =
                columns.chunks_exact(out).map(|c| pack(c).as_chunks::<4>().0.to_vec()).collect();
            let rows = packed[0].len();
            let zeros = (0..rows).flat_map(|r| packed.iter().map(move |c| c[r])).collect::<Vec<_>>().concat();
            tensors.push((format!("{stem}.weight_zero_point"), RawTensor::new(Dtype::I32, &[rows, groups], zeros)));
        }
        if act_order {
            let order = words(of.iter().map(|&g| g as u32));
            tensors.push((format!("{stem}.weight_g_idx"), RawTensor::new(Dtype::I32, &[inner], order)));
        }
        Some(Packed { tensors, meaning: g.meaning })
    })
}

/// Four bits whose zero points are signed bytes, as older versions have them.
pub fn compressed_plain_zeros(group: usize) -> Packer {
    let packer = compressed(4, group, false, true, false);
    Box::new(move |stem, w, out, inner| {
        let mut packed = packer(stem, w, out, inner)?;
        let zeros = packed.tensors.iter_mut().find(|(name, _)| name.ends_with("zero_point"))?;
        let groups = zeros.1.dims[1];
        let words: Vec<u32> = zeros.1.bytes.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b)).collect();
        let zero = |o: usize, g: usize| (words[o / 8 * groups + g] >> (4 * (o % 8)) & 15) as u8;
        let bytes = (0..out).flat_map(|o| (0..groups).map(move |g| (o, g))).map(|(o, g)| zero(o, g).wrapping_sub(8));
        zeros.1 = RawTensor::new(Dtype::I8, &[out, groups], bytes.collect());
        Some(packed)
    })
}

/// compressed-tensors' `nvfp4`.
pub fn nvfp4() -> Packer {
    Box::new(|stem, w, out, inner| {
        if !inner.is_multiple_of(16) {
            return None;
        }
        let global = 64.0f32;
        let (mut bytes, mut scales, mut meaning) = (vec![], vec![], vec![]);
        for x in w.chunks_exact(16) {
            let most = x.iter().fold(1e-9f32, |m, v| m.max(v.abs()));
            let byte = nearest(most / 6.0 * global, e4m3_to_f32, 1..=126);
            let scale = e4m3_to_f32(byte) / global;
            scales.push(byte);
            let codes: Vec<u8> = x.iter().map(|v| nearest(v / scale, e2m1_to_f32, 0..=15)).collect();
            meaning.extend(codes.iter().map(|&c| e2m1_to_f32(c) * scale));
            bytes.extend(codes.chunks_exact(2).map(|c| c[0] | c[1] << 4));
        }
        let tensors = vec![
            (format!("{stem}.weight_packed"), RawTensor::new(Dtype::U8, &[out, inner / 2], bytes)),
            (format!("{stem}.weight_scale"), RawTensor::new(Dtype::F8_E4M3, &[out, inner / 16], scales)),
            (format!("{stem}.weight_global_scale"), RawTensor::f32(&[1], &[global])),
        ];
        Some(Packed { tensors, meaning })
    })
}

/// compressed-tensors' `mxfp4` and `mxfp8`: MLX's, in bytes and under other names.
pub fn compressed_floats(mode: &'static str) -> Packer {
    let inner = mlx_floats(mode);
    Box::new(move |stem, w, out, columns| {
        let Packed { mut tensors, meaning } = inner(stem, w, out, columns)?;
        let (scales, codes) = (tensors.pop()?.1, tensors.pop()?.1);
        let (name, dtype) = if mode == "mxfp4" { ("weight_packed", Dtype::U8) } else { ("weight", Dtype::F8_E4M3) };
        let codes = RawTensor::new(dtype, &[out, codes.bytes.len() / out], codes.bytes);
        let tensors = vec![(format!("{stem}.{name}"), codes), (format!("{stem}.weight_scale"), scales)];
        Some(Packed { tensors, meaning })
    })
}

/// ModelOpt's `NVFP4`: as compressed-tensors', with the scale of all multiplied.
pub fn modelopt() -> Packer {
    let inner = nvfp4();
    Box::new(move |stem, w, out, columns| {
        let Packed { mut tensors, meaning } = inner(stem, w, out, columns)?;
        let global = tensors[2].1.values()[0];
        tensors[0].0 = format!("{stem}.weight");
        tensors[2] = (format!("{stem}.weight_scale_2"), RawTensor::f32(&[1], &[1.0 / global]));
        tensors.push((format!("{stem}.input_scale"), RawTensor::f32(&[1], &[0.5])));
        Some(Packed { tensors, meaning })
    })
}
