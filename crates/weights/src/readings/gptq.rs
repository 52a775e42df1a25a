//! GPTQ: codes packed along the inputs, zero points along the outputs, both in natural order.
//!
//! `w[o, i] = (q[i, o] - z[g_idx[i], o]) * scales[g_idx[i], o]` with `qweight [in bits / 32, out]`,
//! `qzeros [in / group, out bits / 32]`, `scales [in / group, out]`, `g_idx [in]`.
//!
//! In the first format (`gptq`, and where none is named) zeros are stored less one: the writer subtracted a constant
//! from whole words, so the same constant is added with wrap-around before a word is split; a field that was 0
//! borrowed from its neighbour. `gptq_v2` stores `z`.
//!
//! A row's words, read down a column, are a little-endian bit stream, so turning the words is all that codes need. With
//! activation order, groups are scattered over a row: those weights are dequantised to F32 as they are brought.

use turbospark_tensor::{Code, DType, Shape};

use super::{FLOATS, Object, Raw, bad, bits, expect, floats, form, matrix, turned_scales, words, write_floats};
use crate::checkpoint::Entry;
use crate::{Error, Made, Piece, Place, Result, Scaled};

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    let bits = super::count(quant, &["bits"]).unwrap_or(4);
    let format = super::text(quant, "checkpoint_format").unwrap_or("gptq");
    let less_one = match format {
        "gptq" => true,
        "gptq_v2" => false,
        // Whole fields are the same in it.
        "gptq_p" if matches!(bits, 2 | 4 | 8) => false,
        other => {
            return Err(Error::Quantisation(format!(
                "GPTQ checkpoint_format {other:?} with {bits} bits is not read; formats are gptq and gptq_v2"
            )));
        }
    };
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(Error::Quantisation(format!("GPTQ with {bits} bits is not read; it has 2, 3, 4 or 8")));
    }
    let symmetric = quant.get("sym").and_then(serde_json::Value::as_bool) == Some(true);
    for stem in raw.stems(".qweight") {
        let module = Module {
            codes: raw.take(&format!("{stem}.qweight"))?,
            zeros: raw.take(&format!("{stem}.qzeros"))?,
            scales: raw.take(&format!("{stem}.scales"))?,
            order: raw.take_if_any(&format!("{stem}.g_idx"))?,
            stem: stem.clone(),
            bits,
            less_one,
        };
        let entry = module.read(raw, symmetric)?;
        raw.put_entry(format!("{stem}.weight"), entry)?;
    }
    Ok(())
}

struct Module {
    stem: String,
    codes: Place,
    zeros: Place,
    scales: Place,
    order: Option<Place>,
    bits: usize,
    less_one: bool,
}

impl Module {
    fn read(self, raw: &Raw<'_>, symmetric: bool) -> Result<Entry> {
        let Module { bits, less_one, .. } = self;
        let part = |suffix: &str| format!("{}.{suffix}", self.stem);
        let name = part("qweight");
        let [rows, out] = matrix(&name, &self.codes)?;
        let [groups, _] = matrix(&part("scales"), &self.scales)?;
        let inner = rows * 32 / bits;
        if groups == 0 || rows * 32 != inner * bits || !(out * bits).is_multiple_of(32) {
            return Err(bad(&name, format!("shape {} does not hold fields of {bits} bits", self.codes.shape)));
        }
        expect(&name, &self.codes, &[DType::I32], &[rows, out])?;
        expect(&part("scales"), &self.scales, &FLOATS, &[groups, out])?;
        expect(&part("qzeros"), &self.zeros, &[DType::I32], &[groups, out * bits / 32])?;
        if symmetric && bits == 4 {
            let zeros = raw.read(&self.zeros)?;
            let (here, other) = if less_one { (0x77, 0x88) } else { (0x88, 0x77) };
            if zeros.iter().all(|&b| b == other) && here != other {
                let said = if less_one { "gptq" } else { "gptq_v2" };
                return Err(bad(
                    &part("qzeros"),
                    format!(
                        "its zeros are one off from what checkpoint_format {said:?} says: the folder is mislabelled"
                    ),
                ));
            }
        }
        let group = inner.div_ceil(groups);
        let order = self.order(raw, inner, groups)?;
        if order.iter().enumerate().all(|(i, &g)| g as usize == i / group) && group.is_multiple_of(16) {
            return self.grouped(inner, out, groups, group).map(Entry::Scaled);
        }
        let Module { codes, zeros, scales, .. } = self;
        let shape = Shape::from([out, inner]);
        let made = Made::new("dequantised", vec![codes, scales, zeros], DType::F32, shape, move |parts, bytes| {
            let mut turned = vec![0; parts[0].len()];
            bits::turn_words(&parts[0], rows, out, &mut turned);
            let scales = floats(&parts[1], scales.dtype);
            let zeros = zeros_of(&parts[2], bits, less_one);
            let row = turned.len() / out;
            for (o, bytes) in bytes.chunks_exact_mut(4 * inner).enumerate() {
                let fields = bits::stream(&turned[o * row..(o + 1) * row], bits);
                write_floats(
                    bytes,
                    fields.zip(&order).map(|(q, &g)| {
                        let at = g as usize * out + o;
                        (f32::from(q) - zeros[at]) * scales[at]
                    }),
                );
            }
        });
        Ok(Entry::Made(made))
    }

    /// The group of each input.
    fn order(&self, raw: &Raw<'_>, inner: usize, groups: usize) -> Result<Vec<u32>> {
        let group = inner.div_ceil(groups) as u32;
        let Some(place) = self.order else { return Ok((0..inner as u32).map(|i| i / group).collect()) };
        let name = format!("{}.g_idx", self.stem);
        expect(&name, &place, &[DType::I32], &[inner])?;
        let order = words(&raw.read(&place)?);
        match order.iter().position(|&g| g as usize >= groups) {
            Some(i) => Err(bad(&name, format!("input {i} is in group {} of {groups}", order[i] as i32))),
            None => Ok(order),
        }
    }

    fn grouped(self, inner: usize, out: usize, groups: usize, group: usize) -> Result<Scaled> {
        let Module { codes, zeros, scales, bits, less_one, stem, .. } = self;
        let (rows, row) = (codes.shape.dims()[0], inner * bits / 32);
        let form = form(&stem, Code::Unsigned(bits), group, 1)?;
        let turned = Made::new("turned", vec![codes], DType::U32, Shape::from([out, row]), move |parts, bytes| {
            bits::turn_words(&parts[0], rows, out, bytes);
        });
        let (parts, shape) = (vec![scales, zeros], Shape::from([out, groups]));
        let biases = Made::new("biases of zeros", parts, DType::F32, shape, move |parts, bytes| {
            let scales = floats(&parts[0], scales.dtype);
            let zeros = zeros_of(&parts[1], bits, less_one);
            let each = (0..out).flat_map(|o| (0..groups).map(move |g| g * out + o));
            write_floats(bytes, each.map(|at| -zeros[at] * scales[at]));
        });
        Ok(Scaled {
            shape: Shape::from([out, inner]),
            codes: Piece::Made(turned),
            scales: turned_scales(scales, groups, out),
            biases: Some(Piece::Made(biases)),
            form,
        })
    }
}

/// Zero points `[groups, out]`.
fn zeros_of(bytes: &[u8], bits: usize, less_one: bool) -> Vec<f32> {
    let constant: u32 = match bits {
        2 => 0x5555_5555,
        4 => 0x1111_1111,
        8 => 0x0101_0101,
        // Fields of three bits cross words: one is added to each.
        _ => 0,
    };
    let whole = less_one && constant != 0;
    let bytes: Vec<u8> =
        words(bytes).into_iter().flat_map(|w| if whole { w.wrapping_add(constant) } else { w }.to_le_bytes()).collect();
    let each = less_one && !whole;
    bits::stream(&bytes, bits).map(|z| f32::from(if each { (z + 1) & bits::mask(bits) } else { z })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_point_of_zero_borrows_and_comes_back() {
        let zeros: [u8; 8] = [0, 8, 15, 0, 1, 7, 0, 3];
        let word: u32 = zeros.iter().enumerate().map(|(k, &z)| u32::from(z) << (4 * k)).sum();
        let stored = word.wrapping_sub(0x1111_1111);
        let back = zeros_of(&stored.to_le_bytes(), 4, true);
        assert_eq!(back, zeros.map(f32::from));
        assert_eq!(zeros_of(&word.to_le_bytes(), 4, false), zeros.map(f32::from));
    }
}
