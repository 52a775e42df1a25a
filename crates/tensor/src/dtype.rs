use std::{fmt, str::FromStr};

use half::{bf16, f16};

use crate::block::{self, Block};

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
}

impl DType {
    /// The block types.
    pub const BLOCKS: [DType; 5] = [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

    /// The unit in which elements are stored; for a plain type a single one.
    pub const fn block(self) -> Block {
        let (elements, bytes) = match self {
            DType::I64 => (1, 8),
            DType::F32 | DType::I32 | DType::U32 => (1, 4),
            DType::F16 | DType::BF16 => (1, 2),
            DType::U8 => (1, 1),
            DType::Q8_0 => (32, 34),
            DType::Q4_0 => (32, 18),
            DType::Q4_K => (256, 144),
            DType::Q5_K => (256, 176),
            DType::Q6_K => (256, 210),
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
#[error("element type {0:?} is not supported; this build reads F32, F16, BF16, I64, I32, U32 and U8")]
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

/// One element at `index` of a float type, widened exactly.
///
/// # Panics
/// When `dtype` is no float type or the element lies outside `bytes`: both are invariants of a checked view.
pub fn widen_one(bytes: &[u8], dtype: DType, index: usize) -> f32 {
    let at = |n: usize| &bytes[index * n..index * n + n];
    match dtype {
        DType::F32 => f32::from_le_bytes(at(4).try_into().expect("four bytes")),
        DType::F16 => f16::from_le_bytes(at(2).try_into().expect("two bytes")).to_f32(),
        DType::BF16 => bf16::from_le_bytes(at(2).try_into().expect("two bytes")).to_f32(),
        other => panic!("{other} is no float type"),
    }
}

/// Widens `bytes` into `out` exactly, blocks by the formulas of [`block`]; `bytes` may be unaligned.
///
/// Any bytes are some weights: a scale that is NaN or infinite spreads over its block and nothing else happens.
///
/// # Panics
/// When `dtype` is neither a float nor a block type or the lengths disagree.
pub fn widen_into(bytes: &[u8], dtype: DType, out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), dtype.bytes(out.len()), "source and target differ in length");
    match dtype {
        DType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        DType::F16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        DType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = bf16::from_le_bytes([b[0], b[1]]).to_f32();
            }
        }
        dtype if dtype.is_block() => {
            let block = dtype.block();
            for (o, b) in out.chunks_exact_mut(block.elements).zip(bytes.chunks_exact(block.bytes)) {
                block::widen_block(dtype, b, o);
            }
        }
        other => panic!("{other} is neither a float nor a block type"),
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
        for d in [DType::F32, DType::F16, DType::BF16, DType::I64, DType::I32, DType::U32, DType::U8] {
            assert_eq!(d.to_string().parse::<DType>().unwrap(), d);
        }
        assert!("F8_E4M3".parse::<DType>().unwrap_err().to_string().contains("F8_E4M3"));
    }
}
