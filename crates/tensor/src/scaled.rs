//! Codes in one tensor, their scales in another: `w = value(code) scale`, or `value(code) scale + bias`.
//!
//! The form of MLX (affine groups, mxfp4, mxfp8, nvfp4), of FP8 blocks, and of AWQ, GPTQ and compressed-tensors once
//! their words are put in order. A scale serves `group` elements along a row, and as many `rows` below each other: of
//! an `[out, in]` weight there are `[ceil(out / rows), ceil(in / group)]`, and as many biases if any. Scales may be
//! negative. What goes wrong unseen: the order of codes. Those of a row are one little-endian stream of bits, the
//! first element in the lowest bits of the first byte; with 3, 5 and 6 bits they cross bytes and words.
//!
//! Rounding: values and scales are widened exactly. A product is exact in f32 where the scale has 16 or 8 bits, else
//! it rounds once; with a bias the sum rounds once more. The two are not fused, so that f32 scales give the same bits
//! everywhere.

use std::fmt;

use half::{bf16, f16};

use crate::quant::{QuantError, affine_group};
use crate::small_floats::{e2m1_to_f32, e4m3_to_f32, e8m0_to_f32};
use crate::{DType, f32_to_bf16, f32_to_f16, widen_one};

/// What a code stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// A whole number of 2, 3, 4, 5, 6 or 8 bits.
    Unsigned(usize),
    /// A signed byte.
    Signed8,
    /// A float of four bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negative.
    E2M1,
    /// A float of eight bits, as [`DType::F8_E4M3`].
    E4M3,
}

impl Code {
    /// Bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            Code::Unsigned(bits) => bits,
            Code::E2M1 => 4,
            Code::Signed8 | Code::E4M3 => 8,
        }
    }

    /// The value of a code in the low bits of a byte.
    pub const fn value(self, code: u8) -> f32 {
        match self {
            Code::Unsigned(_) => code as f32,
            Code::Signed8 => code as i8 as f32,
            Code::E2M1 => e2m1_to_f32(code),
            Code::E4M3 => e4m3_to_f32(code),
        }
    }

    /// The code of element `i` of a row.
    fn at(self, row: &[u8], i: usize) -> u8 {
        let bits = self.bits();
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        let next = if shift + bits > 8 { row[byte + 1] } else { 0 };
        ((u16::from_le_bytes([row[byte], next]) >> shift) & ((1 << bits) - 1)) as u8
    }
}

/// Codes, and how many elements share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ScaledForm {
    code: Code,
    group: usize,
    rows: usize,
}

impl fmt::Display for ScaledForm {
    /// For people: `4-bit g64`, `FP8 128x128`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Code::Unsigned(bits) => write!(f, "{bits}-bit")?,
            Code::Signed8 => f.write_str("INT8")?,
            Code::E2M1 => f.write_str("FP4")?,
            Code::E4M3 => f.write_str("FP8")?,
        }
        match self.rows {
            1 => write!(f, " g{}", self.group),
            rows => write!(f, " {rows}x{}", self.group),
        }
    }
}

impl ScaledForm {
    /// `None` unless the code is one that there is, `group` a positive multiple of 16, and `rows` positive.
    ///
    /// A row may end within a group, and a group may be longer than the row: there is then one. `usize::MAX` rows are
    /// all rows.
    pub const fn new(code: Code, group: usize, rows: usize) -> Option<Self> {
        let known = !matches!(code, Code::Unsigned(bits) if !matches!(bits, 2..=6 | 8));
        if known && group > 0 && group.is_multiple_of(16) && rows > 0 {
            Some(ScaledForm { code, group, rows })
        } else {
            None
        }
    }

    /// What a code stands for.
    pub const fn code(self) -> Code {
        self.code
    }

    /// Elements of a row that share a scale.
    pub const fn group(self) -> usize {
        self.group
    }

    /// Rows, from a multiple of as many on, that share a scale.
    pub const fn rows(self) -> usize {
        self.rows
    }

    /// Bytes of the codes of a row of `elements`, the last one perhaps in part.
    pub const fn bytes(self, elements: usize) -> usize {
        (elements * self.code.bits()).div_ceil(8)
    }

    /// Sides of the scales of an `[out, inner]` weight.
    pub const fn grid(self, out: usize, inner: usize) -> [usize; 2] {
        [out.div_ceil(self.rows), inner.div_ceil(self.group)]
    }

    /// Whether scales may have this type; biases have it too, and are of a float type.
    pub const fn takes(scales: DType) -> bool {
        scales.is_float() || matches!(scales, DType::F8_E8M0 | DType::F8_E4M3)
    }

    /// Dequantises the first `out.len()` elements of a row from its codes, scales and biases.
    ///
    /// # Panics
    /// When one of them is too short, or `dtype` is no type of scales.
    pub fn widen_row(self, codes: &[u8], scales: &[u8], biases: Option<&[u8]>, dtype: DType, out: &mut [f32]) {
        for (g, out) in out.chunks_mut(self.group).enumerate() {
            let scale = match dtype {
                DType::F8_E8M0 => e8m0_to_f32(scales[g]),
                DType::F8_E4M3 => e4m3_to_f32(scales[g]),
                float => widen_one(scales, float, g),
            };
            for (i, o) in out.iter_mut().enumerate() {
                *o = self.code.value(self.code.at(codes, g * self.group + i)) * scale;
            }
            if let Some(biases) = biases {
                let bias = widen_one(biases, dtype, g);
                out.iter_mut().for_each(|o| *o += bias);
            }
        }
    }

    /// Dequantises the dense rows of a whole `[out, in]` weight.
    ///
    /// # Panics
    /// As [`ScaledForm::widen_row`].
    pub fn widen_matrix(
        self,
        codes: &[u8],
        scales: &[u8],
        biases: Option<&[u8]>,
        dtype: DType,
        inner: usize,
        out: &mut [f32],
    ) {
        let rows = out.len() / inner.max(1);
        let (row, groups) = (codes.len() / rows.max(1), inner.div_ceil(self.group) * dtype.size());
        for (r, out) in out.chunks_exact_mut(inner.max(1)).enumerate() {
            let of = |bytes: &'_ [u8]| r / self.rows * groups..(r / self.rows * groups + groups).min(bytes.len());
            let biases = biases.map(|b| &b[of(b)]);
            self.widen_row(&codes[r * row..(r + 1) * row], &scales[of(scales)], biases, dtype, out);
        }
    }

    /// Quantises whole groups by least squares to unsigned codes, and to scales and biases of `dtype`, which are
    /// rounded before the codes are chosen.
    ///
    /// # Errors
    /// [`QuantError`], with the element.
    ///
    /// # Panics
    /// When codes are not unsigned, groups are longer than 128, `dtype` is no float type, or the lengths disagree.
    pub fn quantise(
        self,
        x: &[f32],
        dtype: DType,
        codes: &mut [u8],
        scales: &mut [u8],
        biases: &mut [u8],
    ) -> Result<(), QuantError> {
        let Code::Unsigned(bits) = self.code else { panic!("nothing is quantised to {:?}", self.code) };
        assert!(dtype.is_float(), "{dtype} is no float type");
        assert!(self.group <= 128, "groups of {} are too long", self.group);
        let (groups, size) = (x.len() / self.group, dtype.size());
        assert_eq!(x.len(), groups * self.group, "whole groups");
        assert_eq!(codes.len(), self.bytes(x.len()), "codes and elements differ in number");
        assert_eq!((scales.len(), biases.len()), (groups * size, groups * size), "scales and groups differ in number");
        let round = |v: f32| match dtype {
            DType::BF16 => bf16::from_f32(v).to_f32(),
            DType::F16 => f16::from_f32(v).to_f32(),
            _ => v,
        };
        let store = |v: f32, out: &mut [u8]| match dtype {
            DType::BF16 => out.copy_from_slice(&f32_to_bf16(v).to_le_bytes()),
            DType::F16 => out.copy_from_slice(&f32_to_f16(v).to_le_bytes()),
            _ => out.copy_from_slice(&v.to_le_bytes()),
        };
        codes.fill(0);
        let top = ((1 << bits) - 1) as f32;
        for (g, (x, codes)) in x.chunks_exact(self.group).zip(codes.chunks_exact_mut(self.group * bits / 8)).enumerate()
        {
            let (s, b, q) = affine_group(x, top, dtype, round).map_err(|e| e.after(g * self.group))?;
            store(s, &mut scales[g * size..(g + 1) * size]);
            store(b, &mut biases[g * size..(g + 1) * size]);
            for (i, &q) in q[..self.group].iter().enumerate() {
                let [low, high] = (u16::from(q) << (i * bits % 8)).to_le_bytes();
                codes[i * bits / 8] |= low;
                if high > 0 {
                    codes[i * bits / 8 + 1] |= high;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_one_stream_of_bits() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let form = ScaledForm::new(Code::Unsigned(bits), 16, 1).unwrap();
            let want: Vec<u8> = (0..37).map(|i| (i * 7 + 3) as u8 & ((1u16 << bits) - 1) as u8).collect();
            let mut codes = vec![0u8; form.bytes(37)];
            for (i, q) in want.iter().enumerate() {
                (0..bits)
                    .filter(|b| q >> b & 1 == 1)
                    .for_each(|b| codes[(i * bits + b) / 8] |= 1 << ((i * bits + b) % 8));
            }
            let (scales, biases) = ([2f32, 3.0, -1.0], [0.5f32, 1.0, 1.5]);
            let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
            let mut out = [0.0; 37];
            form.widen_row(&codes, &bytes(&scales), Some(&bytes(&biases)), DType::F32, &mut out);
            for (i, (o, q)) in out.iter().zip(&want).enumerate() {
                assert_eq!(*o, f32::from(*q) * scales[i / 16] + biases[i / 16], "{bits} bits, element {i}");
            }
        }
    }

    #[test]
    fn only_what_there_is_has_a_form() {
        assert!(
            ScaledForm::new(Code::Unsigned(7), 32, 1).is_none() && ScaledForm::new(Code::Unsigned(1), 32, 1).is_none()
        );
        assert!(ScaledForm::new(Code::E2M1, 24, 1).is_none() && ScaledForm::new(Code::E2M1, 0, 1).is_none());
        let all = ScaledForm::new(Code::E4M3, 128, usize::MAX).unwrap();
        assert_eq!(all.grid(300, 200), [1, 2]);
        assert_eq!(ScaledForm::new(Code::E4M3, 128, 128).unwrap().grid(300, 256), [3, 2]);
        assert_eq!(ScaledForm::new(Code::Unsigned(3), 16, 1).unwrap().bytes(17), 7);
    }
}
