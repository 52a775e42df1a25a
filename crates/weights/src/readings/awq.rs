//! AWQ: four-bit codes, turned and packed along the outputs in an order of their own.
//!
//! `w[o, i] = (q[i, o] - z[i / group, o]) * scales[i / group, o]`. In the `gemm` packing (nearly all published ones),
//! column `8 c + m` of `qweight [in, out / 8]` and of `qzeros [in / group, out / 8]` is field `ORDER[m]` of word `c`.
//! In `gemv`, `qweight [out, in / 8]` is packed along the inputs in natural order.
//!
//! Codes are turned to rows as they are brought, and `-z scale` becomes the bias of a group: with f32 biases every
//! dequantised weight is the same to the bit.

use turbospark_tensor::{Code, DType, Shape};

use super::{FLOATS, Object, Raw, bad, expect, floats, form, matrix, turned_scales, words, write_floats};
use crate::{Error, Made, Piece, Place, Result, Scaled};

/// The field of a word that holds column `8 c + m`.
const ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    let bits = super::count(quant, &["bits", "w_bit"]).unwrap_or(4);
    if bits != 4 {
        return Err(Error::Quantisation(format!("AWQ with {bits} bits is not read; it has four")));
    }
    // -1 is one group a row.
    let group = super::count(quant, &["group_size", "q_group_size"]);
    let version = super::text(quant, "version").unwrap_or("gemm").to_ascii_lowercase();
    for stem in raw.stems(".qweight") {
        let weight = format!("{stem}.weight");
        let codes = raw.take(&format!("{stem}.qweight"))?;
        let scales = raw.take(&format!("{stem}.scales"))?;
        let zeros = raw.take_if_any(&format!("{stem}.qzeros"))?;
        if raw.place(&format!("{stem}.g_idx")).is_some() {
            return Err(bad(&weight, "it has a g_idx, as GPTQ has and AWQ has not: quant_method is wrong".into()));
        }
        let scaled = match version.as_str() {
            "gemm" => gemm(&stem, codes, zeros, scales, group)?,
            "gemv" => gemv(&stem, codes, zeros, scales, group)?,
            other => {
                return Err(Error::Quantisation(format!(
                    "AWQ version {other:?} is not read; versions are gemm and gemv"
                )));
            }
        };
        raw.put(weight, scaled)?;
    }
    Ok(())
}

fn gemm(stem: &str, codes: Place, zeros: Option<Place>, scales: Place, group: Option<usize>) -> Result<Scaled> {
    let name = format!("{stem}.qweight");
    let [inner, columns] = matrix(&name, &codes)?;
    let (out, group) = (8 * columns, group.unwrap_or(inner));
    if group == 0 || !inner.is_multiple_of(group) || !inner.is_multiple_of(8) {
        return Err(bad(&name, format!("{inner} inputs are no whole groups of {group}")));
    }
    let groups = inner / group;
    expect(&name, &codes, &[DType::I32], &[inner, columns])?;
    expect(&format!("{stem}.scales"), &scales, &FLOATS, &[groups, out])?;
    if let Some(zeros) = &zeros {
        expect(&format!("{stem}.qzeros"), zeros, &[DType::I32], &[groups, columns])?;
    }
    let form = form(&name, Code::Unsigned(4), group, 1)?;
    let turned = Made::new("turned", vec![codes], DType::U32, Shape::from([out, inner / 8]), move |parts, bytes| {
        let from = words(&parts[0]);
        // A line of words at a time, so that what is written stays in the cache.
        const LINE: usize = 16;
        for c0 in (0..columns).step_by(LINE) {
            for i in (0..inner).step_by(2) {
                for c in c0..columns.min(c0 + LINE) {
                    let (low, high) = (from[i * columns + c], from[(i + 1) * columns + c]);
                    for (m, field) in ORDER.iter().enumerate() {
                        let at = (8 * c + m) * inner / 2 + i / 2;
                        bytes[at] = (low >> (4 * field) & 15) as u8 | ((high >> (4 * field) & 15) as u8) << 4;
                    }
                }
            }
        }
    });
    let biases = made_biases(
        zeros,
        scales,
        out,
        groups,
        move |zeros, g, o| (zeros[g * columns + o / 8] >> (4 * ORDER[o % 8]) & 15) as f32,
        move |g, o| g * out + o,
    );
    Ok(Scaled {
        shape: Shape::from([out, inner]),
        codes: Piece::Made(turned),
        scales: turned_scales(scales, groups, out),
        biases: Some(biases),
        order: None,
        form,
    })
}

fn gemv(stem: &str, codes: Place, zeros: Option<Place>, scales: Place, group: Option<usize>) -> Result<Scaled> {
    let name = format!("{stem}.qweight");
    let [out, row] = matrix(&name, &codes)?;
    let inner = 8 * row;
    let group = group.unwrap_or(inner);
    if group == 0 || !inner.is_multiple_of(group) {
        return Err(bad(&name, format!("{inner} inputs are no whole groups of {group}")));
    }
    let groups = inner / group;
    let padded = match group {
        64 => groups.div_ceil(8).next_multiple_of(2),
        32 => groups.div_ceil(8).next_multiple_of(4),
        _ => groups.div_ceil(8),
    };
    expect(&name, &codes, &[DType::I32], &[out, row])?;
    expect(&format!("{stem}.scales"), &scales, &FLOATS, &[out, 8 * padded])?;
    if let Some(zeros) = &zeros {
        expect(&format!("{stem}.qzeros"), zeros, &[DType::I32], &[out, padded])?;
    }
    let form = form(&name, Code::Unsigned(4), group, 1)?;
    let cut =
        Made::new("without padding", vec![scales], DType::F32, Shape::from([out, groups]), move |parts, bytes| {
            let all = floats(&parts[0], scales.dtype);
            write_floats(bytes, all.chunks_exact(8 * padded).flat_map(|row| row[..groups].iter().copied()));
        });
    let biases = made_biases(
        zeros,
        scales,
        out,
        groups,
        move |zeros, g, o| (zeros[o * padded + g / 8] >> (4 * (g % 8)) & 15) as f32,
        move |g, o| o * 8 * padded + g,
    );
    Ok(Scaled {
        shape: Shape::from([out, inner]),
        codes: Piece::Place(codes).seen_as(DType::U32, codes.shape),
        scales: Piece::Made(cut),
        biases: Some(biases),
        order: None,
        form,
    })
}

/// `-z scale` as F32 `[out, groups]`; without zeros they are 8, the middle.
fn made_biases(
    zeros: Option<Place>,
    scales: Place,
    out: usize,
    groups: usize,
    zero: impl Fn(&[u32], usize, usize) -> f32 + Send + Sync + 'static,
    scale_at: impl Fn(usize, usize) -> usize + Send + Sync + 'static,
) -> Piece {
    let parts = [Some(scales), zeros].into_iter().flatten().collect();
    Piece::Made(Made::new("biases of zeros", parts, DType::F32, Shape::from([out, groups]), move |parts, bytes| {
        let scales = floats(&parts[0], scales.dtype);
        let zeros = parts.get(1).map(|z| words(z));
        let each = (0..out).flat_map(|o| (0..groups).map(move |g| (g, o)));
        write_floats(bytes, each.map(|(g, o)| -zeros.as_ref().map_or(8.0, |z| zero(z, g, o)) * scales[scale_at(g, o)]));
    }))
}
