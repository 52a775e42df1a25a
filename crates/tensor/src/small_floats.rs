//! Floats of four and eight bits, widened exactly.

/// Sign, two bits of exponent with bias 1, one of mantissa, in the low half of a byte: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
#[inline]
pub const fn e2m1_to_f32(code: u8) -> f32 {
    const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
    VALUES[(code & 15) as usize]
}

/// Sign, four bits of exponent with bias 7, three of mantissa. No infinity: all ones are NaN, and 448 is the largest.
#[inline]
pub const fn e4m3_to_f32(code: u8) -> f32 {
    let (sign, rest) = ((code as u32 & 0x80) << 24, code as u32 & 0x7f);
    if rest == 0x7f {
        return f32::NAN;
    }
    // Exponents count from 7 and not from 127; subnormals come out right.
    let magnitude = f32::from_bits(rest << 20) * f32::from_bits((127 + 120) << 23);
    f32::from_bits(sign | magnitude.to_bits())
}

/// A power of two: `2^(code - 127)`; 255 is NaN.
#[inline]
pub const fn e8m0_to_f32(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22),
        255 => f32::NAN,
        _ => f32::from_bits((code as u32) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_is_its_formula() {
        for code in 0..=255u8 {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
            let size = match exponent {
                0 => mantissa * 2f32.powi(-9),
                _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
            };
            let want = if code & 0x7f == 0x7f { f32::NAN } else { size.copysign(if code > 127 { -1.0 } else { 1.0 }) };
            let got = e4m3_to_f32(code);
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{code:#x}: {got}, {want}");
        }
        assert_eq!((e4m3_to_f32(0x7e), e4m3_to_f32(0x81)), (448.0, -2f32.powi(-9)));
    }

    #[test]
    fn every_e2m1_is_its_formula() {
        for code in 0..8u8 {
            let mantissa = f32::from(code & 1);
            let size = if code < 2 { 0.5 * mantissa } else { (2.0 + mantissa) * 2f32.powi(i32::from(code >> 1) - 2) };
            assert_eq!((e2m1_to_f32(code), e2m1_to_f32(code | 8)), (size, -size));
        }
        assert!(e2m1_to_f32(8).is_sign_negative());
    }

    #[test]
    fn every_e8m0_is_its_power() {
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127));
        }
        assert!(e8m0_to_f32(255).is_nan());
    }
}
