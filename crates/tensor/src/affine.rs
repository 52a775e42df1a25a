//! Affine groups: `w = scale q + bias` with one scale and one bias for 32, 64 or 128 elements of a row.
//!
//! The form in which MLX stores quantised weights, three tensors: codes `[out, in bits / 32]` u32, little-endian, the
//! first element in the low bits; scales and biases `[out, in / group]`, bf16, f16 or f32. Scales may be negative.
//! With 16-bit scales the product is exact in f32 and the sum rounds once; f32 scales round twice.

use half::{bf16, f16};

use crate::quant::{QuantError, affine_group};
use crate::{DType, f32_to_bf16, f32_to_f16, widen_into};

/// Bits of a code and elements of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffineForm {
    bits: usize,
    group: usize,
}

impl AffineForm {
    /// `None` unless `bits` is 4 or 8 and `group` 32, 64 or 128.
    pub const fn new(bits: usize, group: usize) -> Option<Self> {
        if matches!(bits, 4 | 8) && matches!(group, 32 | 64 | 128) { Some(AffineForm { bits, group }) } else { None }
    }

    /// Bits of a code.
    pub const fn bits(self) -> usize {
        self.bits
    }

    /// Elements that share a scale and a bias.
    pub const fn group(self) -> usize {
        self.group
    }

    /// The largest code.
    pub const fn top(self) -> u32 {
        (1 << self.bits) - 1
    }

    /// u32 words of a row of `elements`, a multiple of the group.
    pub const fn words(self, elements: usize) -> usize {
        elements / self.group * (self.group * self.bits / 32)
    }

    /// Dequantises whole groups.
    ///
    /// # Panics
    /// When the lengths disagree or `dtype`, that of scales and biases, is no float type.
    pub fn widen_into(self, codes: &[u8], scales: &[u8], biases: &[u8], dtype: DType, out: &mut [f32]) {
        let groups = out.len() / self.group;
        assert_eq!(out.len(), groups * self.group, "whole groups");
        assert_eq!(codes.len(), 4 * self.words(out.len()), "codes and elements differ in number");
        let (mut s, mut b) = (vec![0.0; groups], vec![0.0; groups]);
        widen_into(scales, dtype, &mut s);
        widen_into(biases, dtype, &mut b);
        let groups = out.chunks_exact_mut(self.group).zip(codes.chunks_exact(self.group * self.bits / 8));
        for ((out, codes), (s, b)) in groups.zip(s.into_iter().zip(b)) {
            // Low bits first in little-endian words: a byte after the other, its low half first.
            match self.bits {
                4 => {
                    for (pair, &q) in out.chunks_exact_mut(2).zip(codes) {
                        pair[0] = s * f32::from(q & 15) + b;
                        pair[1] = s * f32::from(q >> 4) + b;
                    }
                }
                _ => out.iter_mut().zip(codes).for_each(|(o, &q)| *o = s * f32::from(q) + b),
            }
        }
    }

    /// Quantises whole groups by least squares, to scales and biases of `dtype`, which are rounded before the codes
    /// are chosen.
    ///
    /// # Errors
    /// [`QuantError`], with the element.
    ///
    /// # Panics
    /// As [`AffineForm::widen_into`].
    pub fn quantise(
        self,
        x: &[f32],
        dtype: DType,
        codes: &mut [u8],
        scales: &mut [u8],
        biases: &mut [u8],
    ) -> Result<(), QuantError> {
        assert!(dtype.is_float(), "{dtype} is no float type");
        let (groups, size) = (x.len() / self.group, dtype.size());
        assert_eq!(x.len(), groups * self.group, "whole groups");
        assert_eq!(codes.len(), 4 * self.words(x.len()), "codes and elements differ in number");
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
        let per_group = self.group * self.bits / 8;
        for (g, (x, codes)) in x.chunks_exact(self.group).zip(codes.chunks_exact_mut(per_group)).enumerate() {
            let (s, b, q) = affine_group(x, self.top() as f32, dtype, round).map_err(|e| e.after(g * self.group))?;
            store(s, &mut scales[g * size..(g + 1) * size]);
            store(b, &mut biases[g * size..(g + 1) * size]);
            match self.bits {
                4 => codes.iter_mut().zip(q.as_chunks::<2>().0).for_each(|(c, [low, high])| *c = low | high << 4),
                _ => codes.copy_from_slice(&q[..self.group]),
            }
        }
        Ok(())
    }
}
