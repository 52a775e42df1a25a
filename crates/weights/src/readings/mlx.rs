//! Folders that `mlx-vlm` and `mlx-lm` wrote.
//!
//! `w = scale q + bias` with unsigned codes (affine, 2 to 8 bits), or `w = value(q) scale` with small floats (`mxfp4`,
//! `mxfp8`, `nvfp4`). A module is quantised where `NAME.scales` is there, whatever the configuration says; the
//! configuration gives bits, group and mode, which must agree with the shapes. About half of all scales are negative.
//!
//! Besides: `language_model.` and `vision_tower.` for the two halves, experts stacked as `switch_mlp`, the patch
//! embedding with channels last, and in Qwen3.5 the convolution turned and norms as `1 + w`, for which the turned
//! convolution is the mark.

use std::collections::BTreeMap;

use serde_json::Value;
use turbospark_tensor::{Code, DType, Shape};

use super::{FLOATS, Object, Raw, bad, expect, filled, form};
use crate::checkpoint::{Conventions, Entry, Table};
use crate::{Error, Made, Piece, Place, Result, Scaled};

/// Whether a name is one that only these folders have.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with("language_model.") || name.starts_with("vision_tower.")
}

pub(super) fn read(raw: &mut Raw<'_>, quant: &Object) -> Result<Conventions> {
    let default = Settings::read("quantization", quant)?;
    // Some writers name modules here as the checkpoint did that they converted.
    let own: BTreeMap<String, &Object> =
        quant.iter().filter_map(|(name, own)| Some((published(name), own.as_object()?))).collect();
    for stem in raw.stems(".scales") {
        let weight = format!("{stem}.weight");
        if raw.place(&weight).is_none_or(|place| place.dtype != DType::U32) {
            continue;
        }
        let settings = match own.get(&published(&stem)) {
            Some(own) => Settings::read(&stem, own)?,
            None => default,
        };
        let codes = raw.take(&weight)?;
        let scales = raw.take(&format!("{stem}.scales"))?;
        let biases = raw.take_if_any(&format!("{stem}.biases"))?;
        let scaled = settings.scaled(&weight, codes, scales, biases)?;
        raw.put(weight, scaled)?;
    }
    let mut conventions = Conventions::default();
    let mut table = Table::new();
    for (name, entry) in std::mem::take(&mut raw.table) {
        let name = published(&name);
        let entry = match entry {
            Entry::Place(place) if name.ends_with("patch_embed.proj.weight") => channels_first(place),
            Entry::Place(place) if name.ends_with("linear_attn.conv1d.weight") => {
                if let &[channels, kernel, 1] = place.shape.dims() {
                    conventions.norms_hold_one = true;
                    Entry::Place(Place { shape: Shape::from([channels, 1, kernel]), ..place })
                } else {
                    Entry::Place(place)
                }
            }
            other => other,
        };
        if table.insert(name.clone(), entry).is_some() {
            return Err(bad(&name, "stored under two names that mean the same".into()));
        }
    }
    raw.table = table;
    Ok(conventions)
}

/// `language_model.model.X` -> `model.language_model.X`, and so on.
fn published(name: &str) -> String {
    let name = if let Some(rest) = name.strip_prefix("language_model.model.") {
        format!("model.language_model.{rest}")
    } else if let Some(rest) = name.strip_prefix("language_model.") {
        rest.to_owned()
    } else if let Some(rest) = name.strip_prefix("vision_tower.") {
        format!("model.visual.{rest}")
    } else {
        name.to_owned()
    };
    name.replace(".mlp.switch_mlp.", ".mlp.experts.")
}

/// `[out, t, h, w, c]` -> `[out, c, t, h, w]`, where channels are last.
fn channels_first(place: Place) -> Entry {
    let &[out, t, h, w, c] = place.shape.dims() else { return Entry::Place(place) };
    if c != 3 {
        return Entry::Place(place);
    }
    let (size, inner) = (place.dtype.size(), t * h * w);
    let shape = Shape::from([out, c, t, h, w]);
    Entry::Made(Made::new("channels first", vec![place], place.dtype, shape, move |parts, bytes| {
        for (from, to) in parts[0].chunks_exact(inner * c * size).zip(bytes.chunks_exact_mut(inner * c * size)) {
            for (i, channel) in (0..inner).flat_map(|i| (0..c).map(move |channel| (i, channel))) {
                let to = &mut to[(channel * inner + i) * size..][..size];
                to.copy_from_slice(&from[(i * c + channel) * size..][..size]);
            }
        }
    }))
}

#[derive(Clone, Copy)]
enum Mode {
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

/// How modules are quantised unless they have settings of their own.
#[derive(Clone, Copy)]
struct Settings {
    mode: Mode,
    bits: usize,
    group: usize,
}

impl Settings {
    /// `own` may leave out what the mode has a default for; without a mode it is affine, whatever the folder's is.
    fn read(at: &str, own: &Object) -> Result<Self> {
        let mode = match own.get("mode").and_then(Value::as_str) {
            None | Some("affine") => Mode::Affine,
            Some("mxfp4") => Mode::Mxfp4,
            Some("mxfp8") => Mode::Mxfp8,
            Some("nvfp4") => Mode::Nvfp4,
            Some(other) => {
                return Err(Error::Quantisation(format!(
                    "{at}: mode {other:?} is not read; modes are affine, mxfp4, mxfp8 and nvfp4"
                )));
            }
        };
        let (bits, group) = match mode {
            Mode::Affine => (4, 64),
            Mode::Mxfp4 => (4, 32),
            Mode::Mxfp8 => (8, 32),
            Mode::Nvfp4 => (4, 16),
        };
        let bits = super::count(own, &["bits"]).unwrap_or(bits);
        Ok(Settings { mode, bits, group: super::count(own, &["group_size"]).unwrap_or(group) })
    }

    fn scaled(&self, name: &str, codes: Place, scales: Place, biases: Option<Place>) -> Result<Scaled> {
        let (&[.., out, words], Some((&groups, _))) = (codes.shape.dims(), scales.shape.dims().split_last()) else {
            return Err(bad(name, format!("shape {}, expected rows of words", codes.shape)));
        };
        filled(name, &codes)?;
        let Some(inner) = groups.checked_mul(self.group) else {
            return Err(bad(name, format!("groups of {} are no size", self.group)));
        };
        if Some(32 * words) != inner.checked_mul(self.bits) || groups == 0 {
            return Err(bad(
                name,
                format!(
                    "rows of {words} words and {groups} scales disagree with {} bits in groups of {} from config.json",
                    self.bits, self.group
                ),
            ));
        }
        let lead = &codes.shape.dims()[..codes.shape.rank() - 2];
        let sides = |last: usize| [lead, &[out, last]].concat();
        let scale_name = name.replace(".weight", ".scales");
        let code = match self.mode {
            Mode::Affine => Code::Unsigned(self.bits),
            Mode::Mxfp4 | Mode::Nvfp4 if self.bits == 4 => Code::E2M1,
            Mode::Mxfp8 if self.bits == 8 => Code::E4M3,
            _ => return Err(bad(name, format!("{} bits do not fit its mode", self.bits))),
        };
        let form = form(name, code, self.group, 1)?;
        let shape = Shape::new(&sides(inner));
        let codes = Piece::Place(codes);
        let (dtype, biases) = match self.mode {
            Mode::Affine => {
                expect(&scale_name, &scales, &FLOATS, &sides(groups))?;
                let bias_name = name.replace(".weight", ".biases");
                let biases = biases.ok_or_else(|| bad(&bias_name, "missing, and its scales are there".into()))?;
                expect(&bias_name, &biases, &[scales.dtype], &sides(groups))?;
                (scales.dtype, Some(Piece::Place(biases)))
            }
            mode => {
                expect(&scale_name, &scales, &[DType::U8], &sides(groups))?;
                (if matches!(mode, Mode::Nvfp4) { DType::F8_E4M3 } else { DType::F8_E8M0 }, None)
            }
        };
        let scales = Piece::Place(scales).seen_as(dtype, scales.shape);
        Ok(Scaled { shape, codes, scales, biases, order: None, form })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_the_published_ones() {
        for (name, expected) in [
            (
                "language_model.model.layers.0.mlp.switch_mlp.up_proj.weight",
                "model.language_model.layers.0.mlp.experts.up_proj.weight",
            ),
            ("language_model.lm_head.weight", "lm_head.weight"),
            ("vision_tower.blocks.0.norm1.bias", "model.visual.blocks.0.norm1.bias"),
            ("model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
        ] {
            assert_eq!(published(name), expected);
        }
    }
}
