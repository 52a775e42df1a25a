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

/// The weight in a tensor of such blocks; `whole` holds a scale for all of it, or for each matrix of a stack. `None` where
/// the shapes are no weight's.
pub(super) fn scaled(file: FileId, tensor: &GgufTensor, whole: Option<Place>) -> Option<Scaled> {
    let sides: Option<Vec<usize>> = tensor.dims.iter().map(|&side| usize::try_from(side).ok()).collect();
    let sides = sides.filter(|sides| sides.len() >= 2 && !sides.contains(&0))?;
    let (&inner, lead) = sides.split_last()?;
    let rows: usize = lead.iter().product();
    let matrices = rows / lead[lead.len() - 1];
    if let Some(whole) = whole
        && (whole.dtype != DType::F32 || ![1, matrices].contains(&whole.shape.elements()))
    {
        return None;
    }
    let bytes = Shape::try_new(&[usize::try_from(tensor.length).ok()?]).ok()?;
    let blocks = Place { file, offset: tensor.offset, length: tensor.length, dtype: DType::U8, shape: bytes };
    let shape = Shape::try_new(&sides).ok()?;
    let of_rows = |last: usize| Shape::new(&[lead, &[last]].concat());
    let codes = Made::new("codes of blocks", vec![blocks], DType::U8, of_rows(inner / 2), |parts, out| {
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
    let grid = of_rows(inner / 16);
    let scales = match whole {
        // Four bits of mantissa: bf16 holds them all.
        None => Made::new("scales of blocks", vec![blocks], DType::BF16, grid, |parts, out| {
            for (scale, o) in scales(&parts[0]).zip(out.as_chunks_mut::<2>().0) {
                o.copy_from_slice(&scale.to_bits().to_le_bytes()[2..]);
            }
        }),
        Some(whole) => Made::new("with the scale of all", vec![blocks, whole], DType::F32, grid, move |parts, out| {
            let all: Vec<f32> = parts[1].as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            let out = out.as_chunks_mut::<4>().0;
            let each = out.len() / all.len();
            for (i, (scale, o)) in scales(&parts[0]).zip(out).enumerate() {
                o.copy_from_slice(&(scale * all[i / each]).to_le_bytes());
            }
        }),
    };
    let form = ScaledForm::new(Code::E2M1, 16, 1).expect("a form that there is");
    let [codes, scales] = [codes, scales].map(Piece::Made);
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

    /// The bits of the blocks' elements.
    fn widened(blocks: &[u8], dims: &[u64], whole: Option<&[f32]>) -> Vec<f32> {
        let tensor = GgufTensor {
            name: "x.weight".into(),
            dtype: None,
            type_name: NAME.into(),
            dims: dims.to_vec(),
            offset: 0,
            length: blocks.len() as u64,
        };
        let file = FileId::nth(0);
        let scale = whole.map(|all| {
            let (offset, length, shape) = (0, 4 * all.len() as u64, Shape::from([all.len()]));
            Place { file, offset, length, dtype: DType::F32, shape }
        });
        let scaled = scaled(file, &tensor, scale).unwrap();
        let whole: Vec<u8> = whole.unwrap_or_default().iter().flat_map(|v| v.to_le_bytes()).collect();
        let fill = |piece: &Piece| match piece {
            Piece::Made(made) => {
                let mut out = vec![0; made.length() as usize];
                made.fill(&[blocks.to_vec(), whole.clone()], &mut out);
                out
            }
            Piece::Place(_) => unreachable!(),
        };
        let mut out = vec![0f32; scaled.shape.elements()];
        let inner = *scaled.shape.dims().last().unwrap();
        let dtype = scaled.scales.dtype();
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
        let out = widened(&blocks, &[128, 256], None);
        let digest = out
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        assert_eq!(digest, 0x4ac5_3abb_a24f_3707);
        // Each matrix of a stack has a scale of its own.
        let scaled = widened(&blocks, &[2, 64, 256], Some(&[0.5, 4.0]));
        let half = out.len() / 2;
        assert!(scaled.iter().zip(&out).enumerate().all(|(i, (s, o))| *s == o * if i < half { 0.5 } else { 4.0 }));
    }

    #[test]
    fn a_scale_of_another_shape_is_none() {
        let tensor = |dims: &[u64]| GgufTensor {
            name: "x.weight".into(),
            dtype: None,
            type_name: NAME.into(),
            dims: dims.to_vec(),
            offset: 0,
            length: 72,
        };
        let file = FileId::nth(0);
        let place = |n: usize, dtype: DType| Some(Place { file, offset: 0, length: 0, dtype, shape: Shape::from([n]) });
        assert!(scaled(file, &tensor(&[2, 64]), place(1, DType::F32)).is_some());
        assert!(scaled(file, &tensor(&[2, 1, 64]), place(2, DType::F32)).is_some());
        assert!(scaled(file, &tensor(&[2, 64]), place(2, DType::F32)).is_none());
        assert!(scaled(file, &tensor(&[2, 64]), place(1, DType::F16)).is_none());
        assert!(scaled(file, &tensor(&[128]), None).is_none());
    }
}
