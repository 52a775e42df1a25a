use std::{fmt, str::FromStr};

use half::{bf16, f16};

use crate::block::{self, Block};
use crate::small_floats::{bf16_to_f32, e4m3_to_f32, e8m0_to_f32, f16_to_f32};

/// How the elements of a tensor are stored. All are little-endian.
///
/// A plain type stores each on its own; a block type stores 32 or 256 of a row together, as [`block`] has it.
#[allow(non_camel_case_types, reason = "the formats' public names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned byte.
    U8,
    /// Blocks of 32: a scale and signed bytes.
    Q8_0,
    /// Blocks of 32: a scale and four-bit codes.
    Q4_0,
    /// Blocks of 256: four-bit codes, scales and mins of 32.
    Q4_K,
    /// Blocks of 256: five-bit codes, scales and mins of 32.
    Q5_K,
    /// Blocks of 256: six-bit codes, scales of 16.
    Q6_K,
    /// Blocks of 32: a scale, a min and four-bit codes.
    Q4_1,
    /// Blocks of 32: a scale and five-bit codes.
    Q5_0,
    /// Blocks of 32: a scale, a min and five-bit codes.
    Q5_1,
    /// Blocks of 256: two-bit codes, scales and mins of 16.
    Q2_K,
    /// Blocks of 256: three-bit codes, scales of 16.
    Q3_K,
    /// Blocks of 32: a scale and four-bit indices into a curve.
    IQ4_NL,
    /// Blocks of 256: four-bit indices into the same curve, scales of 32.
    IQ4_XS,
    /// Blocks of 256: 3.44 bits, a grid of fours.
    IQ3_S,
    /// Blocks of 256: 3.06 bits, a grid of fours.
    IQ3_XXS,
    /// Blocks of 256: 2.56 bits, a grid of eights.
    IQ2_S,
    /// Blocks of 256: 2.31 bits, a grid of eights.
    IQ2_XS,
    /// Blocks of 256: 2.06 bits, a grid of eights.
    IQ2_XXS,
    /// Blocks of 256: 1.75 bits, a ternary grid of eights.
    IQ1_M,
    /// Blocks of 256: 1.56 bits, a ternary grid of eights.
    IQ1_S,
    /// Blocks of 256: ternary, five to a byte.
    TQ1_0,
    /// Blocks of 256: ternary, four to a byte.
    TQ2_0,
    /// Blocks of 32: a power of two as scale and four-bit floats (E2M1), as GGUF orders them.
    MXFP4,
    /// Signed byte.
    I8,
    /// A float of eight bits: sign, four of exponent with bias 7, three of mantissa; no infinity, largest 448.
    F8_E4M3,
    /// A power of two: `2^(byte - 127)`; 255 is NaN.
    F8_E8M0,
}

impl DType {
    /// The block types.
    pub const BLOCKS: [DType; 22] = [
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q2_K,
        DType::Q3_K,
        DType::IQ4_NL,
        DType::IQ4_XS,
        DType::IQ3_S,
        DType::IQ3_XXS,
        DType::IQ2_S,
        DType::IQ2_XS,
        DType::IQ2_XXS,
        DType::IQ1_M,
        DType::IQ1_S,
        DType::TQ1_0,
        DType::TQ2_0,
        DType::MXFP4,
    ];

    /// The unit in which elements are stored; for a plain type a single one.
    pub const fn block(self) -> Block {
        let (elements, bytes) = match self {
            DType::I64 => (1, 8),
            DType::F32 | DType::I32 | DType::U32 => (1, 4),
            DType::F16 | DType::BF16 => (1, 2),
            DType::U8 | DType::I8 | DType::F8_E4M3 | DType::F8_E8M0 => (1, 1),
            DType::Q8_0 => (32, 34),
            DType::Q4_0 => (32, 18),
            DType::Q4_K => (256, 144),
            DType::Q5_K => (256, 176),
            DType::Q6_K => (256, 210),
            DType::Q4_1 => (32, 20),
            DType::Q5_0 => (32, 22),
            DType::Q5_1 => (32, 24),
            DType::Q2_K => (256, 84),
            DType::Q3_K => (256, 110),
            DType::IQ4_NL => (32, 18),
            DType::IQ4_XS => (256, 136),
            DType::IQ3_S => (256, 110),
            DType::IQ3_XXS => (256, 98),
            DType::IQ2_S => (256, 82),
            DType::IQ2_XS => (256, 74),
            DType::IQ2_XXS => (256, 66),
            DType::IQ1_M => (256, 56),
            DType::IQ1_S => (256, 50),
            DType::TQ1_0 => (256, 54),
            DType::TQ2_0 => (256, 66),
            DType::MXFP4 => (32, 17),
        };
        Block { elements, bytes }
    }

    /// Size of one element in bytes.
    ///
    /// # Panics
    /// For a block type, whose elements have no bytes of their own: use [`DType::bytes`].
    pub const fn size(self) -> usize {
        let Block { elements, bytes } = self.block();
        assert!(elements == 1, "an element of a block type has no size of its own");
        bytes
    }

    /// Whether each element is a float: any op may take such a tensor.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether elements are stored in quantised blocks: linear weights and tables may be.
    pub const fn is_block(self) -> bool {
        self.block().elements > 1
    }

    /// Whether a linear weight or a table may have this type: a float or a block type.
    pub const fn is_weight(self) -> bool {
        self.is_float() || self.is_block()
    }

    /// Bytes that `elements` take, or `None` where they are no whole number of blocks or the size leaves `usize`.
    pub const fn bytes(self, elements: usize) -> Option<usize> {
        let block = self.block();
        if !elements.is_multiple_of(block.elements) {
            return None;
        }
        (elements / block.elements).checked_mul(block.bytes)
    }
}

/// A type name that this build doesn't read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "element type {0:?} is not supported; this build reads F32, F16, BF16, F8_E4M3, F8_E8M0, I64, I32, U32, I8 and U8"
)]
pub struct UnknownDType(pub String);

impl FromStr for DType {
    type Err = UnknownDType;

    /// The spelling of a safetensors header.
    fn from_str(name: &str) -> Result<Self, UnknownDType> {
        Ok(match name {
            "F32" => DType::F32,
            "F16" => DType::F16,
            "BF16" => DType::BF16,
            "I64" => DType::I64,
            "I32" => DType::I32,
            "U32" => DType::U32,
            "U8" => DType::U8,
            "I8" => DType::I8,
            "F8_E4M3" => DType::F8_E4M3,
            "F8_E8M0" => DType::F8_E8M0,
            other => return Err(UnknownDType(other.to_owned())),
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::I64 => "I64",
            DType::I32 => "I32",
            DType::U32 => "U32",
            DType::U8 => "U8",
            DType::Q8_0 => "Q8_0",
            DType::Q4_0 => "Q4_0",
            DType::Q4_K => "Q4_K",
            DType::Q5_K => "Q5_K",
            DType::Q6_K => "Q6_K",
            DType::Q4_1 => "Q4_1",
            DType::Q5_0 => "Q5_0",
            DType::Q5_1 => "Q5_1",
            DType::Q2_K => "Q2_K",
            DType::Q3_K => "Q3_K",
            DType::IQ4_NL => "IQ4_NL",
            DType::IQ4_XS => "IQ4_XS",
            DType::IQ3_S => "IQ3_S",
            DType::IQ3_XXS => "IQ3_XXS",
            DType::IQ2_S => "IQ2_S",
            DType::IQ2_XS => "IQ2_XS",
            DType::IQ2_XXS => "IQ2_XXS",
            DType::IQ1_M => "IQ1_M",
            DType::IQ1_S => "IQ1_S",
            DType::TQ1_0 => "TQ1_0",
            DType::TQ2_0 => "TQ2_0",
            DType::MXFP4 => "MXFP4",
            DType::I8 => "I8",
            DType::F8_E4M3 => "F8_E4M3",
            DType::F8_E8M0 => "F8_E8M0",
        })
    }
}

/// Rounds to nearest, ties to even; a NaN stays a NaN.
pub fn f32_to_bf16(x: f32) -> u16 {
    bf16::from_f32(x).to_bits()
}

/// Rounds to nearest, ties to even; too large becomes infinity.
pub fn f32_to_f16(x: f32) -> u16 {
    f16::from_f32(x).to_bits()
}

/// One element at `index` of a float type or a byte float, widened exactly.
///
/// # Panics
/// When `dtype` is neither or the element lies outside `bytes`: both are invariants of a checked view.
pub fn widen_one(bytes: &[u8], dtype: DType, index: usize) -> f32 {
    let at = |n: usize| &bytes[index * n..index * n + n];
    match dtype {
        DType::F32 => f32::from_le_bytes(at(4).try_into().expect("four bytes")),
        DType::F16 => f16_to_f32(u16::from_le_bytes(at(2).try_into().expect("two bytes"))),
        DType::BF16 => bf16_to_f32(u16::from_le_bytes(at(2).try_into().expect("two bytes"))),
        DType::F8_E4M3 => e4m3_to_f32(bytes[index]),
        DType::F8_E8M0 => e8m0_to_f32(bytes[index]),
        other => panic!("{other} is no float type"),
    }
}

/// Widens `bytes` into `out` exactly, blocks by the formulas of [`block`]; `bytes` may be unaligned.
///
/// Byte floats are taken too. Any bytes are some weights: a scale that is NaN or infinite spreads over its block and
/// nothing else happens.
///
/// # Panics
/// When `dtype` is an integer or the lengths disagree.
pub fn widen_into(bytes: &[u8], dtype: DType, out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.bytes(out.len()), "source and target differ in length");
    match dtype {
        DType::F32 => {
            for (o, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *o = f32::from_le_bytes(b);
            }
        }
        DType::F16 => {
            for (o, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *o = f16_to_f32(u16::from_le_bytes(b));
            }
        }
        DType::BF16 => {
            for (o, &b) in out.iter_mut().zip(bytes.as_chunks().0) {
                *o = bf16_to_f32(u16::from_le_bytes(b));
            }
        }
        DType::F8_E4M3 => {
            for (o, &b) in out.iter_mut().zip(bytes) {
                *o = e4m3_to_f32(b);
            }
        }
        DType::F8_E8M0 => {
            for (o, &b) in out.iter_mut().zip(bytes) {
                *o = e8m0_to_f32(b);
            }
        }
        dtype if dtype.is_block() => block::widen_blocks(dtype, bytes, out),
        other => panic!("{other} is an integer, no weight"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even() {
        // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7; the even mantissa is 1.
        assert_eq!(f32_to_bf16(1.0 + 2f32.powi(-8)), 0x3f80);
        assert_eq!(f32_to_bf16(1.0 + 3.0 * 2f32.powi(-8)), 0x3f82);
        assert!(bf16::from_bits(f32_to_bf16(f32::NAN)).to_f32().is_nan());
    }

    #[test]
    fn widening_is_exact_for_every_16_bit_pattern() {
        for bits in 0..=u16::MAX {
            let bytes = bits.to_le_bytes();
            let b = widen_one(&bytes, DType::BF16, 0);
            assert!(b.is_nan() || f32_to_bf16(b) == bits);
            let h = widen_one(&bytes, DType::F16, 0);
            assert!(h.is_nan() || f32_to_f16(h) == bits);
        }
    }

    #[test]
    fn names_go_there_and_back() {
        let all = [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U32, DType::U8, DType::I8];
        for d in all.into_iter().chain([DType::F8_E4M3, DType::F8_E8M0]) {
            assert_eq!(d.to_string().parse::<DType>().unwrap(), d);
        }
        assert!("F4".parse::<DType>().unwrap_err().to_string().contains("F4"));
    }
}
