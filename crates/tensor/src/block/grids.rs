//! The grids of the `IQ` formats: the fours and eights of values that an index can name.
//!
//! They are data: the published formats chose them by looking at many weights, and no formula gives them. Each file
//! below is one grid as codes of 16 bits, in order, whose two bits (of an eight) or four bits (of a four) say which
//! of the grid's values comes next, from the low end up. They are unpacked when the crate is compiled.

mod iq1;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;

use crate::DType;

const TERNARY: [i8; 3] = [-1, 0, 1];
const TWO_BIT: [i8; 3] = [8, 25, 43];

/// Of `IQ1_S` and `IQ1_M`.
pub static IQ1: Grid<8, 2048> = unpack(&iq1::CODES, &TERNARY);
/// Of `IQ2_XXS`.
pub static IQ2_XXS: Grid<8, 256> = unpack(&iq2_xxs::CODES, &TWO_BIT);
/// Of `IQ2_XS`.
pub static IQ2_XS: Grid<8, 512> = unpack(&iq2_xs::CODES, &TWO_BIT);
/// Of `IQ2_S`.
pub static IQ2_S: Grid<8, 1024> = unpack(&iq2_s::CODES, &TWO_BIT);
/// Of `IQ3_XXS`.
pub static IQ3_XXS: Grid<4, 256> = unpack(&iq3_xxs::CODES, &[4, 12, 20, 28, 36, 44, 52, 62]);
/// Of `IQ3_S`.
pub static IQ3_S: Grid<4, 512> = unpack(&iq3_s::CODES, &[1, 3, 5, 7, 9, 11, 13, 15]);

/// The grid of a format, its entries one after the other: fours of `IQ3`, eights of the others.
pub(super) fn of(dtype: DType) -> Option<&'static [i8]> {
    Some(match dtype {
        DType::IQ1_S | DType::IQ1_M => IQ1.0.as_flattened(),
        DType::IQ2_XXS => IQ2_XXS.0.as_flattened(),
        DType::IQ2_XS => IQ2_XS.0.as_flattened(),
        DType::IQ2_S => IQ2_S.0.as_flattened(),
        DType::IQ3_XXS => IQ3_XXS.0.as_flattened(),
        DType::IQ3_S => IQ3_S.0.as_flattened(),
        _ => return None,
    })
}

/// `N` entries of `W` values, which begin on a cache line.
#[derive(Debug)]
#[repr(align(64))]
pub struct Grid<const W: usize, const N: usize>(pub [[i8; W]; N]);

const fn unpack<const W: usize, const N: usize>(codes: &[u16; N], values: &[i8]) -> Grid<W, N> {
    let bits = 16 / W;
    let mut grid = [[0; W]; N];
    let mut at = 0;
    while at < N * W {
        let (i, k) = (at / W, at % W);
        grid[i][k] = values[codes[i] as usize >> (k * bits) & ((1 << bits) - 1)];
        at += 1;
    }
    Grid(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_ascend_so_none_stands_twice() {
        let grids: [&[u16]; 6] =
            [&iq1::CODES, &iq2_xxs::CODES, &iq2_xs::CODES, &iq2_s::CODES, &iq3_xxs::CODES, &iq3_s::CODES];
        assert!(grids.iter().all(|codes| codes.is_sorted_by(|a, b| a < b)));
    }

    #[test]
    fn codes_are_read_from_the_low_end() {
        assert_eq!(iq2_xxs::CODES[1], 0x0002);
        assert_eq!(IQ2_XXS.0[1], [43, 8, 8, 8, 8, 8, 8, 8]);
        assert_eq!(iq3_s::CODES[3], 0x0005);
        assert_eq!(IQ3_S.0[3], [11, 1, 1, 1]);
        assert_eq!(IQ1.0[2047], [1; 8]);
    }
}
