//! GPTQ: codes packed along the inputs, zero points along the outputs, both in natural order.
//!
//! `w[o, i] = (q[i, o] - z[g_idx[i], o]) * scales[g_idx[i], o]` with `qweight [in bits / 32, out]`,
//! `qzeros [in / group, out bits / 32]`, `scales [in / group, out]`, `g_idx [in]`.
//!
//! In the first format (`gptq`, and where none is named) zeros are stored less one: the writer subtracted a constant
//! from whole words, so the same constant is added with wrap-around before a word is split; a field that was 0
//! borrowed from its neighbour. `gptq_v2` and `gptq_p` store `z`.
//!
//! A row's words, read down a column, are a little-endian bit stream, so turning the words is all that codes need; but
//! three bits in `gptq_p`, and 5, 6 and 7 bits always, lie in planes of bits. With activation order groups are scattered
//! over a row: columns are sorted (`order.rs`).
//!
//! A module may have bits and groups of its own (`dynamic`: regular expressions for names; `extra_config` of AutoRound).
//! Its tensors say which: zero points have as many bits as codes, scales a row for each group. So no name is matched; bits that the configuration
//! names nowhere are refused.

use serde_json::Value;
use turbospark_tensor::mutant::{Mutant, active};
use turbospark_tensor::{Code, DType, Shape};

use super::order::{self, Order};
use super::{FLOATS, Object, Raw, bad, bits, expect, floats, form, matrix, turned_scales, words, write_floats};
use crate::checkpoint::Entry;
use crate::{Error, Made, Piece, Place, Result, Scaled};

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    let format = super::text(quant, "checkpoint_format").or(super::text(quant, "format")).unwrap_or("gptq");
    if !matches!(format, "gptq" | "gptq_v2" | "gptq_p") {
        return Err(Error::Quantisation(format!(
            "GPTQ checkpoint_format {:?} is not read; formats are gptq, gptq_v2 and gptq_p",
            crate::error::shorten(format)
        )));
    }
    if quant.get("is_marlin_format").and_then(Value::as_bool) == Some(true) {
        return Err(Error::Quantisation("GPTQ in Marlin's layout is not read; take the model in a plain one".into()));
    }
    let known = Known::of(quant)?;
    let symmetric = quant.get("sym").and_then(Value::as_bool) == Some(true);
    for stem in raw.stems(".qweight") {
        let module = Module {
            codes: raw.take(&format!("{stem}.qweight"))?,
            zeros: raw.take(&format!("{stem}.qzeros"))?,
            scales: raw.take(&format!("{stem}.scales"))?,
            order: raw.take_if_any(&format!("{stem}.g_idx"))?,
            stem: stem.clone(),
        };
        let entry = module.read(raw, format, &known, symmetric)?;
        raw.put_entry(format!("{stem}.weight"), entry)?;
    }
    Ok(())
}

/// What the configuration names: for all modules first, then for some.
struct Known {
    /// Bits of a code.
    widths: Vec<usize>,
    /// Inputs of a group.
    sizes: Vec<usize>,
}

impl Known {
    fn of(quant: &Object) -> Result<Self> {
        // AutoRound's modules with more than eight bits are left dense.
        let dense = |module: &&Object| super::count(module, &["bits"]).is_none_or(|bits| bits <= 8);
        let own = |key| quant.get(key).and_then(Value::as_object).into_iter().flatten();
        let own = |key| own(key).filter_map(|(_, module)| module.as_object());
        let overrides = own("dynamic").chain(own("extra_config").filter(dense));
        let modules = || std::iter::once(quant).chain(overrides.clone());
        let mut widths: Vec<usize> = modules().filter_map(|module| super::count(module, &["bits"])).collect();
        if !quant.contains_key("bits") {
            widths.push(4);
        }
        if let Some(bits) = widths.iter().find(|bits| !(2..=8).contains(*bits)) {
            return Err(Error::Quantisation(format!("GPTQ with {bits} bits is not read; it has 2 to 8")));
        }
        let sizes = modules().filter_map(|module| super::count(module, &["group_size"])).filter(|&size| size > 0);
        Ok(Known { widths, sizes: sizes.collect() })
    }
}

struct Module {
    stem: String,
    codes: Place,
    zeros: Place,
    scales: Place,
    order: Option<Place>,
}

/// How codes and zero points lie in their words.
#[derive(Clone, Copy)]
struct Packing {
    bits: usize,
    planes: bool,
    /// Zeros are stored less one.
    less_one: bool,
}

impl Packing {
    fn fields(self, bytes: &[u8]) -> Vec<u8> {
        match self.planes {
            true => bits::planar(bytes, self.bits),
            false => bits::stream(bytes, self.bits).collect(),
        }
    }

    /// Zero points `[groups, out]`.
    fn zeros(self, bytes: &[u8], groups: usize) -> Vec<f32> {
        let constant: u32 = match self.bits {
            2 => 0x5555_5555,
            4 => 0x1111_1111,
            8 => 0x0101_0101,
            // Fields that cross words or lie in planes: one is added to each.
            _ => 0,
        };
        let less_one = self.less_one && !active(Mutant::ZeroPointOneOff);
        let whole = less_one && constant != 0;
        let whole = |w: u32| if whole { w.wrapping_add(constant) } else { w };
        let bytes: Vec<u8> = words(bytes).into_iter().flat_map(|w| whole(w).to_le_bytes()).collect();
        let each = less_one && constant == 0;
        let zero = |z: u8| f32::from(if each { (z + 1) & bits::mask(self.bits) } else { z });
        bytes.chunks_exact(bytes.len() / groups).flat_map(|row| self.fields(row)).map(zero).collect()
    }
}

impl Module {
    fn read(self, raw: &Raw<'_>, format: &str, known: &Known, symmetric: bool) -> Result<Entry> {
        let part = |suffix: &str| format!("{}.{suffix}", self.stem);
        let name = part("qweight");
        let [rows, out] = matrix(&name, &self.codes)?;
        let [groups, _] = matrix(&part("scales"), &self.scales)?;
        let [_, zero_words] = matrix(&part("qzeros"), &self.zeros)?;
        let bits = zero_words.checked_mul(32).map_or(0, |all| all / out);
        let Known { widths, sizes } = known;
        if !widths.contains(&bits) || zero_words * 32 != out * bits {
            let message = format!("{zero_words} words for {out} outputs, expected fields of {widths:?} bits");
            return Err(bad(&part("qzeros"), message));
        }
        let inner = rows * 32 / bits;
        let planes = matches!(bits, 5..=7) || (bits == 3 && format == "gptq_p");
        let whole = if planes { inner.is_multiple_of(32) && out.is_multiple_of(32) } else { true };
        if rows * 32 != inner * bits || !whole {
            return Err(bad(&name, format!("shape {} does not hold fields of {bits} bits", self.codes.shape)));
        }
        expect(&name, &self.codes, &[DType::I32], &[rows, out])?;
        expect(&part("scales"), &self.scales, &FLOATS, &[groups, out])?;
        expect(&part("qzeros"), &self.zeros, &[DType::I32], &[groups, zero_words])?;
        let packing = Packing { bits, planes, less_one: format == "gptq" };
        if symmetric && bits == 4 {
            let zeros = raw.read(&self.zeros)?;
            let (here, other) = if packing.less_one { (0x77, 0x88) } else { (0x88, 0x77) };
            if zeros.iter().all(|&b| b == other) && here != other {
                return Err(bad(
                    &part("qzeros"),
                    format!(
                        "its zeros are one off from what checkpoint_format {format:?} says: the folder is mislabelled"
                    ),
                ));
            }
        }
        let group = sizes.iter().copied().find(|&size| inner.div_ceil(size) == groups);
        let group = group.unwrap_or_else(|| inner.div_ceil(groups));
        if self.order.is_none() && inner.div_ceil(group) != groups {
            return Err(bad(&part("scales"), format!("{groups} groups for {inner} inputs")));
        }
        let order = order::read(raw, &part("g_idx"), self.order, inner, groups, group)?;
        let sides = Sides { rows, out, inner, groups };
        match order.even {
            true => self.grouped(sides, packing, order).map(Entry::Scaled),
            false => Ok(Entry::Made(self.widened(sides, packing, order.groups(inner)))),
        }
    }

    /// As F32: where groups are no multiples of 16, or differ in length.
    fn widened(self, sides: Sides, packing: Packing, of: Vec<u32>) -> Made {
        let Sides { rows, out, inner, groups } = sides;
        let Module { codes, zeros, scales, .. } = self;
        let shape = Shape::from([out, inner]);
        Made::new("dequantised", vec![codes, scales, zeros], DType::F32, shape, move |parts, bytes| {
            let mut turned = vec![0; parts[0].len()];
            bits::turn_words(&parts[0], rows, out, &mut turned);
            let scales = floats(&parts[1], scales.dtype);
            let zeros = packing.zeros(&parts[2], groups);
            let row = turned.len() / out;
            for (o, bytes) in bytes.chunks_exact_mut(4 * inner).enumerate() {
                let fields = packing.fields(&turned[o * row..(o + 1) * row]);
                let value = |(q, &g): (u8, &u32)| {
                    let at = g as usize * out + o;
                    (f32::from(q) - zeros[at]) * scales[at]
                };
                write_floats(bytes, fields.into_iter().zip(&of).map(value));
            }
        })
    }

    fn grouped(self, sides: Sides, packing: Packing, sorted: Order) -> Result<Scaled> {
        let Sides { rows, out, inner, groups } = sides;
        let Module { codes, zeros, scales, order, stem } = self;
        // Seven bits have no code of their own.
        let wide = if packing.bits == 7 { 8 } else { packing.bits };
        let form = form(&stem, Code::Unsigned(wide), sorted.group, 1)?;
        let order = order.filter(|_| sorted.scattered.is_some());
        let row = (inner * wide).div_ceil(32);
        let parts = [Some(codes), order].into_iter().flatten().collect();
        let turned = Made::new("turned", parts, DType::U32, Shape::from([out, row]), move |parts, bytes| {
            if order.is_none() && !packing.planes {
                return bits::turn_words(&parts[0], rows, out, bytes);
            }
            let mut turned = vec![0; parts[0].len()];
            bits::turn_words(&parts[0], rows, out, &mut turned);
            let inputs = parts.get(1).map(|order| order::inputs(order, groups));
            let lines = turned.chunks_exact(4 * rows).zip(bytes.chunks_exact_mut(4 * row));
            lines.for_each(|(from, to)| {
                let fields = packing.fields(from);
                match &inputs {
                    Some(inputs) => bits::pack(inputs.iter().map(|&i| fields[i as usize]), wide, to),
                    None => bits::pack(fields.into_iter(), wide, to),
                }
            });
        });
        let (parts, shape) = (vec![scales, zeros], Shape::from([out, groups]));
        let biases = Made::new("biases of zeros", parts, DType::F32, shape, move |parts, bytes| {
            let scales = floats(&parts[0], scales.dtype);
            let zeros = packing.zeros(&parts[1], groups);
            let each = (0..out).flat_map(|o| (0..groups).map(move |g| g * out + o));
            write_floats(bytes, each.map(|at| -zeros[at] * scales[at]));
        });
        Ok(Scaled {
            shape: Shape::from([out, inner]),
            codes: Piece::Made(turned),
            scales: turned_scales(scales, groups, out),
            biases: Some(Piece::Made(biases)),
            order: order.map(|place| order::piece(place, inner, groups)),
            form,
        })
    }
}

/// The sides of a module's tensors: `rows` of words, which hold `inner` inputs.
#[derive(Clone, Copy)]
struct Sides {
    rows: usize,
    out: usize,
    inner: usize,
    groups: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_point_of_zero_borrows_and_comes_back() {
        let zeros: [u8; 8] = [0, 8, 15, 0, 1, 7, 0, 3];
        let word: u32 = zeros.iter().enumerate().map(|(k, &z)| u32::from(z) << (4 * k)).sum();
        let stored = word.wrapping_sub(0x1111_1111);
        let packing = |less_one| Packing { bits: 4, planes: false, less_one };
        assert_eq!(packing(true).zeros(&stored.to_le_bytes(), 1), zeros.map(f32::from));
        assert_eq!(packing(false).zeros(&word.to_le_bytes(), 1), zeros.map(f32::from));
    }
}
