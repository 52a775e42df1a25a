use std::{fmt, str::FromStr};

use half::{bf16, f16};

/// How one element of a tensor is stored. All are little-endian.
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
}

impl DType {
    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::I64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 => 1,
        }
    }

    /// Whether an op may take a weight or activation of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Bytes that `elements` take, or `None` where the product leaves `usize`.
    pub const fn bytes(self, elements: usize) -> Option<usize> {
        elements.checked_mul(self.size())
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

/// One float element at `index`, widened exactly.
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

/// Widens `bytes` into `out` exactly; `bytes` may be unaligned.
///
/// # Panics
/// When `dtype` is no float type or the lengths disagree.
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
        other => panic!("{other} is no float type"),
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
