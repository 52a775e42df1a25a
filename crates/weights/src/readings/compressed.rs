//! compressed-tensors: packed integers, whole bytes and small floats, as `llm-compressor` writes them.
//!
//! Packed: fields are signed values plus `2^(bits - 1)`, zero points too, so the offsets cancel:
//! `w[o, i] = (field[o, i] - zero[o, g]) * weight_scale[o, g]`, where a symmetric weight's zero is `2^(bits - 1)`.
//! `weight_packed [out, ceil(in bits / 32)]` runs along the inputs, `weight_zero_point [ceil(out bits / 32), groups]`
//! along the outputs. Newer versions pack 3, 5, 6 and 7 bits densely, older ones leave the top of a word empty; only
//! the width tells.
//!
//! Others: `weight` int8 or F8_E4M3 times `weight_scale`; `nvfp4` codes times `weight_scale / weight_global_scale`, `mxfp4`
//! codes times a power of two.

use serde_json::Value;
use turbospark_tensor::{Code, DType, Shape};

use super::order;
use super::{CACHE_SCALES, FLOATS, Object, Raw, bad, bits, expect, floats, form, fp8, matrix, words, write_floats};
use crate::checkpoint::Entry;
use crate::{Error, Made, Piece, Place, Result, Scaled};

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    raw.drop_suffixes(&[".input_scale", ".input_zero_point", ".input_global_scale", ".output_scale"]);
    raw.drop_suffixes(&CACHE_SCALES);
    let known = known(quant)?;
    for stem in raw.stems(".weight_packed") {
        let codes = raw.take(&format!("{stem}.weight_packed"))?;
        let entry = match codes.dtype {
            DType::U8 => Entry::Scaled(small_floats(raw, &stem, codes)?),
            _ => packed(raw, &stem, codes, &known)?,
        };
        raw.put_entry(format!("{stem}.weight"), entry)?;
    }
    for stem in raw.stems(".weight_scale") {
        let (weight, scale) = (format!("{stem}.weight"), format!("{stem}.weight_scale"));
        let zero = format!("{stem}.weight_zero_point");
        let zeros = match raw.take_if_any(&zero)? {
            Some(place) if raw.read(&place)?.iter().any(|&b| b != 0) => Some(place),
            _ => None,
        };
        let codes = raw.take(&weight)?;
        let scales = raw.take(&scale)?;
        if let Some(zeros) = zeros {
            raw.put(weight, asymmetric(&zero, codes, scales, zeros)?)?;
            continue;
        }
        let sides = block_sides(quant);
        let scaled = fp8::scaled(&weight, codes, &scale, scales, sides)?;
        raw.put(weight, scaled)?;
    }
    Ok(())
}

/// Whole bytes with a zero point a row or one for all, as unsigned ones: `w = (code + 128) scale - (zero + 128) scale`.
fn asymmetric(name: &str, codes: Place, scales: Place, zeros: Place) -> Result<Scaled> {
    let [out, inner] = matrix(name, &codes)?;
    let fits = |place: &Place| [1, out].contains(&place.shape.elements());
    let bytes = codes.dtype == DType::I8 && zeros.dtype == DType::I8;
    if !bytes || !FLOATS.contains(&scales.dtype) || !fits(&scales) || !fits(&zeros) || !inner.is_multiple_of(4) {
        let [c, s, z] = [&codes, &scales, &zeros].map(|p| format!("{} {}", p.dtype, p.shape));
        return Err(bad(name, format!("{z} with codes {c} and scales {s}: read are I8 with a scale and a zero a row")));
    }
    let form = form(name, Code::Unsigned(8), inner.next_multiple_of(16), 1)?;
    let codes = Made::new("unsigned", vec![codes], DType::U32, Shape::from([out, inner / 4]), |parts, bytes| {
        bytes.iter_mut().zip(&parts[0]).for_each(|(to, from)| *to = from ^ 0x80);
    });
    let (dtype, column) = (scales.dtype, Shape::from([out, 1]));
    let each = move |parts: &[Vec<u8>]| floats(&parts[0], dtype).into_iter().cycle().take(out);
    let wide = Made::new("widened", vec![scales], DType::F32, column, move |parts, bytes| {
        write_floats(bytes, each(parts));
    });
    let biases = Made::new("biases of zeros", vec![scales, zeros], DType::F32, column, move |parts, bytes| {
        let zeros = parts[1].iter().map(|&z| f32::from(z as i8) + 128.0).cycle();
        write_floats(bytes, each(parts).zip(zeros).map(|(s, z)| -z * s));
    });
    let [codes, scales, biases] = [codes, wide, biases].map(Piece::Made);
    Ok(Scaled { shape: Shape::from([out, inner]), codes, scales, biases: Some(biases), order: None, form })
}

/// What some group of the configuration has.
struct Known {
    /// Bits of packed integers.
    widths: Vec<usize>,
    /// Inputs that share a scale.
    sizes: Vec<usize>,
}

fn known(quant: &Object) -> Result<Known> {
    let groups = quant.get("config_groups").and_then(Value::as_object);
    let weights: Vec<&Object> =
        groups.into_iter().flatten().filter_map(|(_, g)| g.get("weights")?.as_object()).collect();
    let of = |key: &'static str| weights.iter().filter_map(move |group| super::count(group, &[key]));
    let mut widths: Vec<usize> = of("num_bits").collect();
    widths.sort_unstable();
    widths.dedup();
    match widths.iter().find(|bits| !(2..=8).contains(*bits) && **bits != 16) {
        Some(bits) => Err(Error::Quantisation(format!("config_groups: num_bits {bits} is not read"))),
        None => Ok(Known { sizes: of("group_size").filter(|&size| size > 0).collect(), widths }),
    }
}

fn block_sides(quant: &Object) -> Option<[usize; 2]> {
    let groups = quant.get("config_groups")?.as_object()?;
    groups.values().find_map(|group| {
        let sides = group.get("weights")?.get("block_structure")?;
        let side = |i: usize| sides.get(i)?.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        Some([side(0)?, side(1)?])
    })
}

/// How fields lie in a row of words.
#[derive(Clone, Copy)]
struct Packing {
    bits: usize,
    /// Fields cross words.
    dense: bool,
}

impl Packing {
    fn words(self, fields: usize) -> usize {
        if self.dense { (fields * self.bits).div_ceil(32) } else { fields.div_ceil(32 / self.bits) }
    }

    /// `count` fields of a row.
    fn fields(self, row: &[u8], count: usize) -> Vec<u8> {
        if self.dense {
            return bits::stream(row, self.bits).take(count).collect();
        }
        let each = 32 / self.bits;
        let field = |w: &u32, k: usize| (w >> (k * self.bits)) as u8 & bits::mask(self.bits);
        words(row).iter().flat_map(|w| (0..each).map(move |k| field(w, k))).take(count).collect()
    }
}

/// The one width and packing that a row of `words` for `inner` inputs can have.
fn packing(name: &str, widths: &[usize], inner: usize, row: usize) -> Result<Packing> {
    let all = widths.iter().filter(|bits| **bits <= 8).flat_map(|&bits| {
        // Where no field crosses a word the two are one.
        let both = if 32 % bits == 0 { &[true][..] } else { &[true, false][..] };
        both.iter().map(move |&dense| Packing { bits, dense })
    });
    let fitting: Vec<Packing> = all.filter(|p| p.words(inner) == row).collect();
    match fitting[..] {
        [one] => Ok(one),
        [] => Err(bad(name, format!("{row} words a row hold {inner} fields of none of {widths:?} bits"))),
        _ => Err(bad(name, format!("{row} words a row hold {inner} fields in more than one packing"))),
    }
}

fn packed(raw: &mut Raw<'_>, stem: &str, codes: Place, known: &Known) -> Result<Entry> {
    let part = |suffix: &str| format!("{stem}.{suffix}");
    let name = part("weight_packed");
    let [out, row] = matrix(&name, &codes)?;
    let sides = raw.take(&part("weight_shape"))?;
    let inner = match (sides.dtype, raw.read(&sides)?) {
        (DType::I64, bytes) if bytes.len() == 16 => {
            let side = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("eight bytes"));
            if side(0) != out as u64 || side(1) == 0 || side(1) > 32 * row as u64 {
                return Err(bad(&part("weight_shape"), format!("[{}, {}], with {out} rows packed", side(0), side(1))));
            }
            side(1) as usize
        }
        _ => return Err(bad(&part("weight_shape"), format!("{} {}, expected I64 [2]", sides.dtype, sides.shape))),
    };
    let packing = packing(&name, &known.widths, inner, row)?;
    expect(&name, &codes, &[DType::I32], &[out, row])?;
    let scales = raw.take(&part("weight_scale"))?;
    let [scale_rows, groups] = matrix(&part("weight_scale"), &scales).or_else(|e| match scales.shape.elements() {
        1 => Ok([1, 1]),
        n if n == out => Ok([out, 1]),
        _ => Err(e),
    })?;
    if groups == 0 || !(scale_rows == out || (scale_rows, groups) == (1, 1)) || !FLOATS.contains(&scales.dtype) {
        return Err(bad(&part("weight_scale"), format!("{} {} for {out} rows", scales.dtype, scales.shape)));
    }
    let zeros = raw.take_if_any(&part("weight_zero_point"))?;
    let bits = packing.bits;
    // Older versions left zero points as they are: signed, one a group.
    let plain = zeros.as_ref().is_some_and(|zeros| zeros.dtype == DType::I8);
    match &zeros {
        Some(zeros) if plain && zeros.shape.dims() != [out, groups] => {
            let found = format!("I8 {}, expected [{out}, {groups}]", zeros.shape);
            return Err(bad(&part("weight_zero_point"), found));
        }
        Some(zeros) if !plain => {
            expect(&part("weight_zero_point"), zeros, &[DType::I32], &[packing.words(out), groups])?;
        }
        _ => {}
    }
    let stored_order = raw.take_if_any(&part("weight_g_idx"))?;
    let group = known.sizes.iter().copied().find(|&size| inner.div_ceil(size) == groups);
    let group = group.unwrap_or_else(|| inner.div_ceil(groups));
    let order = order::read(raw, &part("weight_g_idx"), stored_order, inner, groups, group)?;
    let combine = Combine { packing, out, groups, scale_rows, dtype: scales.dtype, plain };
    let parts: Vec<Place> = [Some(scales), zeros].into_iter().flatten().collect();
    let shape = Shape::from([out, inner]);
    if !order.even || !inner.is_multiple_of(32) {
        let order = order.groups(inner);
        let parts = [vec![codes], parts].concat();
        return Ok(Entry::Made(Made::new("dequantised", parts, DType::F32, shape, move |parts, bytes| {
            let (scales, zeros) = combine.read(&parts[1..]);
            let row = parts[0].len() / out;
            for (o, bytes) in bytes.chunks_exact_mut(4 * inner).enumerate() {
                let fields = packing.fields(&parts[0][o * row..(o + 1) * row], inner);
                write_floats(
                    bytes,
                    fields.iter().zip(&order).map(|(&q, &g)| {
                        let at = o * groups + g as usize;
                        (f32::from(q) - zeros[at]) * scales[at]
                    }),
                );
            }
        })));
    }
    // Seven bits have no code of their own.
    let wide = if bits == 7 { 8 } else { bits };
    let form = form(&name, Code::Unsigned(wide), order.group, 1)?;
    let row_words = inner * wide / 32;
    let sorted = stored_order.filter(|_| order.scattered.is_some());
    let codes = if packing.dense && wide == bits && sorted.is_none() {
        Piece::Place(codes).seen_as(DType::U32, codes.shape)
    } else {
        let parts = [Some(codes), sorted].into_iter().flatten().collect();
        Piece::Made(Made::new("packed", parts, DType::U32, Shape::from([out, row_words]), move |parts, bytes| {
            let inputs = parts.get(1).map(|order| order::inputs(order, groups));
            let rows = parts[0].chunks_exact(4 * row).zip(bytes.chunks_exact_mut(4 * row_words));
            rows.for_each(|(from, to)| {
                let fields = packing.fields(from, inner);
                match &inputs {
                    Some(inputs) => bits::pack(inputs.iter().map(|&i| fields[i as usize]), wide, to),
                    None => bits::pack(fields.into_iter(), wide, to),
                }
            });
        }))
    };
    let grid = Shape::from([out, groups]);
    let made = |name, biases: bool| {
        Piece::Made(Made::new(name, parts.clone(), DType::F32, grid, move |parts, bytes| {
            let (scales, zeros) = combine.read(parts);
            let values = scales.iter().zip(&zeros).map(|(s, z)| if biases { -z * s } else { *s });
            write_floats(bytes, values);
        }))
    };
    let biases = Some(made("biases of zeros", true));
    let order = sorted.map(|place| order::piece(place, inner, groups));
    Ok(Entry::Scaled(Scaled { shape, codes, scales: made("widened", false), biases, order, form }))
}

/// Scales and zero points of a packed weight.
#[derive(Clone, Copy)]
struct Combine {
    packing: Packing,
    out: usize,
    groups: usize,
    scale_rows: usize,
    dtype: DType,
    /// Zero points are signed bytes.
    plain: bool,
}

impl Combine {
    /// Both as `[out, groups]` from the bytes of scales and, if there are any, of zero points.
    fn read(self, parts: &[Vec<u8>]) -> (Vec<f32>, Vec<f32>) {
        let Combine { packing, out, groups, scale_rows, dtype, plain } = self;
        let mut scales = floats(&parts[0], dtype);
        if scale_rows == 1 && out > 1 {
            scales = vec![scales[0]; out * groups];
        }
        let middle = (1u32 << (packing.bits - 1)) as f32;
        let mut zeros = vec![middle; out * groups];
        if let Some(bytes) = parts.get(1).filter(|_| plain) {
            zeros.iter_mut().zip(bytes).for_each(|(z, &b)| *z += f32::from(b as i8));
        } else if let Some(bytes) = parts.get(1) {
            let all = words(bytes); // [words of out, groups]
            for g in 0..groups {
                let column: Vec<u8> = all.iter().skip(g).step_by(groups).flat_map(|w| w.to_le_bytes()).collect();
                for (o, z) in packing.fields(&column, out).into_iter().enumerate() {
                    zeros[o * groups + g] = f32::from(z);
                }
            }
        }
        (scales, zeros)
    }
}

/// `nvfp4`, `w = e2m1 * weight_scale / weight_global_scale`, or `mxfp4`, `w = e2m1 * 2^(weight_scale - 127)`.
fn small_floats(raw: &mut Raw<'_>, stem: &str, codes: Place) -> Result<Scaled> {
    let part = |suffix: &str| format!("{stem}.{suffix}");
    let scales = raw.take(&part("weight_scale"))?;
    let global = raw.take_if_any(&part("weight_global_scale"))?;
    let names = [part("weight_packed"), part("weight_scale"), part("weight_global_scale")];
    match global {
        Some(global) => nvfp4(&names, codes, scales, global, |scale, global| scale / global),
        None => {
            let [out, row] = matrix(&names[0], &codes)?;
            expect(&names[1], &scales, &[DType::U8, DType::F8_E8M0], &[out, (2 * row).div_ceil(32)])?;
            let form = form(&names[0], Code::E2M1, 32, 1)?;
            let scales = Piece::Place(scales).seen_as(DType::F8_E8M0, scales.shape);
            let shape = Shape::from([out, 2 * row]);
            Ok(Scaled { shape, codes: Piece::Place(codes), scales, biases: None, order: None, form })
        }
    }
}

/// Codes of four bits, a scale for 16 of them, and one for all, which `combine` puts together. The names are those of
/// the three.
pub(super) fn nvfp4(
    names: &[String; 3],
    codes: Place,
    scales: Place,
    global: Place,
    combine: fn(f32, f32) -> f32,
) -> Result<Scaled> {
    let [out, row] = matrix(&names[0], &codes)?;
    expect(&names[0], &codes, &[DType::U8], &[out, row])?;
    let (inner, groups) = (2 * row, row.div_ceil(8));
    expect(&names[1], &scales, &[DType::F8_E4M3], &[out, groups])?;
    if global.dtype != DType::F32 || global.shape.elements() != 1 {
        let found = format!("{} {}, expected F32 [1]", global.dtype, global.shape);
        return Err(bad(&names[2], found));
    }
    let form = form(&names[0], Code::E2M1, 16, 1)?;
    let grid = Shape::from([out, groups]);
    let scales = Made::new("with the scale of all", vec![scales, global], DType::F32, grid, move |parts, bytes| {
        let global = floats(&parts[1], DType::F32)[0];
        write_floats(bytes, parts[0].iter().map(|&b| combine(turbospark_tensor::e4m3_to_f32(b), global)));
    });
    let codes = Piece::Place(codes);
    Ok(Scaled { shape: Shape::from([out, inner]), codes, scales: Piece::Made(scales), biases: None, order: None, form })
}
