//! Floats of 16 bits and fewer, widened exactly.
//!
//! None of these branches: each case is a select, so that a loop over them becomes vector code on any CPU. (For f16,
//! the `half` crate asks at run time what the CPU has, in a call for each element.)

/// The upper half of a binary32. A NaN keeps its bits.
#[inline]
pub const fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// IEEE 754 binary16 by its bits. A NaN stays one, made quiet.
#[inline]
pub const fn f16_to_f32(bits: u16) -> f32 {
    let size = (bits & 0x7fff) as u32;
    let wide = if size < 0x400 {
        // A subnormal is its mantissa in units of 2^-24.
        (size as f32 * (1.0 / 16_777_216.0)).to_bits()
    } else if size < 0x7c00 {
        (size << 13) + ((127 - 15) << 23)
    } else {
        size << 13 | 0x7f80_0000 | ((size > 0x7c00) as u32) << 22
    };
    f32::from_bits(wide | ((bits & 0x8000) as u32) << 16)
}

/// E4M3 without infinities: sign, four bits of exponent with bias 7, three of mantissa. The largest is 448; all
/// ones after the sign are NaN.
#[inline]
pub const fn e4m3_to_f32(byte: u8) -> f32 {
    let size = (byte & 0x7f) as u32;
    let wide = if size < 8 {
        // A subnormal is its mantissa in units of 2^-9.
        (size as f32 * (1.0 / 512.0)).to_bits()
    } else if size < 0x7f {
        (size << 20) + ((127 - 7) << 23)
    } else {
        0x7fc0_0000
    };
    f32::from_bits(wide | ((byte & 0x80) as u32) << 24)
}

/// E8M0, a power of two: `2^(byte - 127)`, and NaN for 255. Byte 0 is 2^-127, a subnormal f32 and no zero.
#[inline]
pub const fn e8m0_to_f32(byte: u8) -> f32 {
    f32::from_bits(match byte {
        0 => 1 << 22,
        255 => 0x7fc0_0000,
        exponent => (exponent as u32) << 23,
    })
}

/// E2M1, the low four bits of `nibble`: a sign over 0, 0.5, 1, 1.5, 2, 3, 4 or 6. The upper four are ignored.
#[inline]
pub const fn e2m1_to_f32(nibble: u8) -> f32 {
    let size = (nibble & 7) as u32;
    let wide = if size < 2 { (size as f32 * 0.5).to_bits() } else { (size << 22) + ((127 - 1) << 23) };
    f32::from_bits(wide | ((nibble & 8) as u32) << 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a float of `exponent` and `mantissa` bits by the definition, in f64; no special cases.
    fn by_definition(bits: u32, exponent: u32, mantissa: u32) -> f64 {
        let bias = (1 << (exponent - 1)) - 1;
        let (e, m) = ((bits >> mantissa & ((1 << exponent) - 1)) as i32, bits & ((1 << mantissa) - 1));
        let fraction = f64::from(m) / f64::from(1u32 << mantissa);
        let size = if e == 0 { fraction * 2f64.powi(1 - bias) } else { (1.0 + fraction) * 2f64.powi(e - bias) };
        if bits >> (exponent + mantissa) & 1 == 1 { -size } else { size }
    }

    fn same(got: f32, want: f64, what: impl std::fmt::Display) {
        assert_eq!(f64::from(got).to_bits(), want.to_bits(), "{what}: {got:e}, not {want:e}");
    }

    #[test]
    fn every_f16_is_widened_by_the_definition() {
        for bits in 0..=u16::MAX {
            let got = f16_to_f32(bits);
            match bits & 0x7fff {
                0x7c00 => same(got, if bits > 0x7fff { f64::NEG_INFINITY } else { f64::INFINITY }, bits),
                0x7c01.. => assert!(got.is_nan() && got.to_bits() >> 22 & 1 == 1, "{bits:#x}"),
                _ => same(got, by_definition(bits.into(), 5, 10), bits),
            }
        }
    }

    #[test]
    fn every_e4m3_is_widened_by_the_definition() {
        for byte in 0..=u8::MAX {
            match byte & 0x7f {
                0x7f => assert!(e4m3_to_f32(byte).is_nan()),
                _ => same(e4m3_to_f32(byte), by_definition(byte.into(), 4, 3), byte),
            }
        }
        assert_eq!(e4m3_to_f32(0x7e), 448.0);
        assert_eq!(e4m3_to_f32(0x81), -0.001_953_125);
    }

    #[test]
    fn every_e8m0_is_a_power_of_two() {
        for byte in 0..255u8 {
            same(e8m0_to_f32(byte), 2f64.powi(i32::from(byte) - 127), byte);
        }
        assert!(e8m0_to_f32(255).is_nan());
    }

    #[test]
    fn every_e2m1_is_widened_by_the_definition() {
        for byte in 0..=u8::MAX {
            same(e2m1_to_f32(byte), by_definition(u32::from(byte) & 15, 2, 1), byte);
        }
        assert_eq!([0u8, 1, 2, 3, 4, 5, 6, 15].map(e2m1_to_f32), [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -6.0]);
    }
}
