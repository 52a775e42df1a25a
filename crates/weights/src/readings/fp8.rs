//! FP8 checkpoints: E4M3 codes with a scale for a block, a row or a tensor.
//!
//! `w[o, i] = e4m3(weight[o, i]) * weight_scale_inv[o / 128, i / 128]`. In spite of its name the factor is multiplied.
//! The last block of a row or column may be partial. Scales of activations serve speed alone and are left out.

use turbospark_tensor::{Code, DType, Shape};

use super::{FLOATS, Object, Raw, bad, filled, form};
use crate::{Error, Piece, Place, Result, Scaled};

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    let sides = match quant.get("weight_block_size") {
        None | Some(serde_json::Value::Null) => None,
        Some(value) => {
            let side = |i: usize| value.get(i)?.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            let (Some(rows), Some(columns)) = (side(0), side(1)) else {
                return Err(Error::Quantisation(format!("weight_block_size {value} is not two sides of a block")));
            };
            Some([rows, columns])
        }
    };
    raw.drop_suffixes(&[".activation_scale", ".input_scale", ".activation_scale_inv"]);
    raw.drop_suffixes(&super::CACHE_SCALES);
    for suffix in ["weight_scale_inv", "gate_up_proj_scale_inv", "down_proj_scale_inv", "weight_scale"] {
        let dotted = format!(".{suffix}");
        for stem in raw.stems(&dotted) {
            let weight = format!("{stem}.{}", suffix.trim_end_matches("_inv").trim_end_matches("_scale"));
            let name = format!("{stem}{dotted}");
            let codes = raw.take(&weight)?;
            let scales = raw.take(&name)?;
            let scaled = scaled(&weight, codes, &name, scales, sides)?;
            raw.put(weight, scaled)?;
        }
    }
    super::fused::read(raw)
}

/// Codes of one byte with one scale a block of `sides`, a row or a tensor, by the shape of the scales.
pub(super) fn scaled(
    name: &str,
    codes: Place,
    scale_name: &str,
    scales: Place,
    sides: Option<[usize; 2]>,
) -> Result<Scaled> {
    let &[.., out, inner] = codes.shape.dims() else {
        return Err(bad(name, format!("shape {}, expected at least two dimensions", codes.shape)));
    };
    filled(name, &codes)?;
    filled(scale_name, &scales)?;
    let code = match codes.dtype {
        DType::F8_E4M3 => Code::E4M3,
        DType::I8 => Code::Signed8,
        other => return Err(bad(name, format!("element type {other}, expected F8_E4M3"))),
    };
    let dtype = match scales.dtype {
        DType::U8 | DType::F8_E8M0 => DType::F8_E8M0,
        float if FLOATS.contains(&float) => float,
        other => return Err(bad(scale_name, format!("element type {other}, expected a float type or U8"))),
    };
    // One group a row, whatever its length.
    let row = inner.next_multiple_of(16);
    let lead = &codes.shape.dims()[..codes.shape.rank() - 2];
    let grid = |rows: usize, columns: usize| [lead, &[out.div_ceil(rows), inner.div_ceil(columns)]].concat();
    let dims = scales.shape.dims();
    let (rows, group) = match sides {
        Some([rows, columns]) if dims == grid(rows, columns) => (rows, columns),
        _ if dims == grid(1, row) || dims == [lead, &[out]].concat() => (1, row),
        // mxfp8: a power of two for 32.
        _ if dtype == DType::F8_E8M0 && dims == grid(1, 32) => (1, 32),
        _ if scales.shape.elements() == lead.iter().product::<usize>() => (out, row),
        _ => {
            let expected = sides.map_or(format!("[{out}, 1] or one"), |[r, c]| format!("{:?} or one", grid(r, c)));
            return Err(bad(scale_name, format!("shape {}, expected {expected} by the weight's", scales.shape)));
        }
    };
    let form = form(name, code, group, rows)?;
    let shape = codes.shape;
    let scales = Piece::Place(scales).seen_as(dtype, Shape::new(&grid(rows, group)));
    Ok(Scaled { shape, codes: Piece::Place(codes), scales, biases: None, order: None, form })
}
