//! `NVFP4` blocks, taken apart into codes and scales.
//!
//! A block of 36 bytes holds 64 elements: four scales, one for 16 elements each, then for each sixteen eight bytes with
//! the first eight codes in their low halves and the other eight in their high ones. A code is an E2M1 float, but that
//! its zero has no sign; a scale is E4M3 whose sign is ignored, `0x7f` is zero. What goes wrong unseen is the scale of the
//! whole matrix (or of each expert), which lies in a tensor of its own, `NAME.scale`: without it a model is off by powers
//! of two.
//!
//! No op takes scales among codes, so the two are parted while a weight is brought; they are the codes and scales of
//! other NVFP4 folders then, with their kernels.

use turbospark_tensor::{Code, DType, ScaledForm, Shape, e4m3_to_f32};

use super::GgufTensor;
use crate::checkpoint::FileId;
use crate::{Made, Piece, Place, Scaled};

/// The name of the type.
pub(super) const NAME: &str = "NVFP4";

/// Elements and bytes of a block.
pub(super) const BLOCK: (u64, u64) = (64, 36);

const BYTES: usize = BLOCK.1 as usize;

/// Rows of the matrices in a tensor of such blocks, counted through; `whole` holds a scale for all matrices, or for each.
/// `None` where the shapes are no weight's.
pub(super) fn rows(
    file: FileId,
    tensor: &GgufTensor,
    whole: Option<Place>,
    first: usize,
    rows: usize,
) -> Option<Scaled> {
    let sides: Option<Vec<usize>> = tensor.dims.iter().map(|&side| usize::try_from(side).ok()).collect();
    let sides = sides?;
    let &[.., each, inner] = sides.as_slice() else { return None };
    let matrices: usize = sides[..sides.len() - 2].iter().product();
    if rows == 0 || inner == 0 {
        return None;
    }
    let whole = match whole {
        Some(all) if all.dtype != DType::F32 || ![1, matrices].contains(&all.shape.elements()) => return None,
        // The one of the matrix.
        Some(all) => {
            let at = if all.shape.elements() == 1 { 0 } else { first / each };
            Some(Place { offset: all.offset + 4 * at as u64, length: 4, shape: Shape::from([1]), ..all })
        }
        None => None,
    };
    let row = inner / BLOCK.0 as usize * BYTES;
    let (offset, length) = (tensor.offset + (first * row) as u64, (rows * row) as u64);
    let blocks = Place { file, offset, length, dtype: DType::U8, shape: Shape::from([rows, row]) };
    let codes = Made::new("codes of blocks", vec![blocks], DType::U8, Shape::from([rows, inner / 2]), |parts, out| {
        for (block, out) in parts[0].chunks_exact(BYTES).zip(out.chunks_exact_mut(32)) {
            for (codes, out) in block[4..].chunks_exact(8).zip(out.chunks_exact_mut(8)) {
                let (low, high) = out.split_at_mut(4);
                for ((pair, low), high) in codes.as_chunks().0.iter().zip(low).zip(high) {
                    let [a, b] = pair.map(unsigned);
                    *low = a & 15 | b << 4;
                    *high = a >> 4 | b & 0xf0;
                }
            }
        }
    });
    let grid = Shape::from([rows, inner / 16]);
    let scales = match whole {
        // Four bits of mantissa: bf16 holds them all.
        None => Made::new("scales of blocks", vec![blocks], DType::BF16, grid, |parts, out| {
            for (scale, o) in scales(&parts[0]).zip(out.as_chunks_mut::<2>().0) {
                o.copy_from_slice(&scale.to_bits().to_le_bytes()[2..]);
            }
        }),
        Some(whole) => Made::new("with the scale of all", vec![blocks, whole], DType::F32, grid, |parts, out| {
            let whole = f32::from_le_bytes(*parts[1].first_chunk().expect("a scale of four bytes"));
            for (scale, o) in scales(&parts[0]).zip(out.as_chunks_mut().0) {
                *o = (scale * whole).to_le_bytes();
            }
        }),
    };
    let form = ScaledForm::new(Code::E2M1, 16, 1).expect("a form that there is");
    let (shape, [codes, scales]) = (Shape::from([rows, inner]), [codes, scales].map(Piece::Made));
    Some(Scaled { shape, codes, scales, biases: None, order: None, form })
}

/// Two codes without the sign of a zero.
fn unsigned(pair: u8) -> u8 {
    let low = if pair & 0x0f == 0x08 { 0 } else { pair & 0x0f };
    let high = if pair & 0xf0 == 0x80 { 0 } else { pair & 0xf0 };
    low | high
}

fn scales(blocks: &[u8]) -> impl Iterator<Item = f32> {
    blocks.chunks_exact(BYTES).flat_map(|block| &block[..4]).map(|&byte| match byte {
        0x7f => 0.0,
        // All ones after the sign, which elsewhere is no number.
        0xff => 480.0,
        byte => e4m3_to_f32(byte & 0x7f),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dims: &[u64], length: usize) -> GgufTensor {
        let (name, type_name) = ("x.weight".into(), NAME.into());
        GgufTensor { name, dtype: None, type_name, dims: dims.to_vec(), offset: 0, length: length as u64 }
    }

    fn scale(n: usize, dtype: DType) -> Option<Place> {
        Some(Place { file: FileId::nth(0), offset: 0, length: 4 * n as u64, dtype, shape: Shape::from([n]) })
    }

    /// What rows stand for; `bytes` are those of the blocks, and then of the scale.
    fn widened(scaled: &Scaled, bytes: &[Vec<u8>]) -> Vec<f32> {
        let fill = |piece: &Piece| match piece {
            Piece::Made(made) => {
                let mut out = vec![0; made.length() as usize];
                made.fill(bytes, &mut out);
                out
            }
            Piece::Place(_) => unreachable!(),
        };
        let mut out = vec![0f32; scaled.shape.elements()];
        let (inner, dtype) = (scaled.shape.dims()[1], scaled.scales.dtype());
        scaled.form.widen_matrix(&fill(&scaled.codes), &fill(&scaled.scales), None, dtype, inner, &mut out);
        out
    }

    #[test]
    fn random_blocks_give_the_bits_of_the_public_implementation() {
        // The digest is that of the Python package gguf 0.19.0 (scripts/golden_blocks.py --digests) on the same blocks.
        let mut state = 7u64;
        let mut random = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ z >> 31) >> 56) as u8
        };
        let blocks: Vec<u8> = (0..512 * BYTES).map(|_| random()).collect();
        let whole = tensor(&[128, 256], blocks.len());
        let out = widened(&rows(FileId::nth(0), &whole, None, 0, 128).unwrap(), std::slice::from_ref(&blocks));
        let digest = out
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        assert_eq!(digest, 0x4ac5_3abb_a24f_3707);
        // The second of two matrices, with a scale of its own.
        let stack = tensor(&[2, 64, 256], blocks.len());
        let second = rows(FileId::nth(0), &stack, scale(2, DType::F32), 64, 64).unwrap();
        let Piece::Made(made) = &second.scales else { unreachable!() };
        assert_eq!((made.parts[0].offset, made.parts[1].offset), (blocks.len() as u64 / 2, 4));
        let half = blocks[blocks.len() / 2..].to_vec();
        let scaled = widened(&second, &[half, 4f32.to_le_bytes().to_vec()]);
        assert!(scaled.iter().zip(&out[out.len() / 2..]).all(|(s, o)| *s == 4.0 * o));
    }

    #[test]
    fn a_scale_of_another_shape_is_none() {
        let of = |dims: &[u64], n: usize, dtype: DType| rows(FileId::nth(0), &tensor(dims, 72), scale(n, dtype), 0, 1);
        assert!(of(&[2, 64], 1, DType::F32).is_some() && of(&[2, 1, 64], 2, DType::F32).is_some());
        assert!(of(&[2, 64], 2, DType::F32).is_none() && of(&[2, 64], 1, DType::F16).is_none());
        assert!(rows(FileId::nth(0), &tensor(&[64], 36), None, 0, 1).is_none());
    }
}
