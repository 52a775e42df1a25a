//! Folders that other programs wrote, under the published names.
//!
//! A quantising program keeps the names of a checkpoint or changes them in its own way, and puts codes, scales and
//! zero points beside each other. What a loader sees is the same in all cases: the published names, and under each a
//! float tensor or a [`Scaled`] weight. Codes stay where they lie wherever a kernel can read them there; the rest is
//! put together as it is brought to a device ([`Made`](crate::Made)).
//!
//! What goes wrong unseen: a scale along the wrong axis, a zero point one off, a nibble order. Each reading therefore
//! states its formula, and shapes are held against what the configuration says before anything is believed.

mod awq;
mod bits;
mod compressed;
mod fp8;
mod fused;
mod gptq;
mod mlx;
mod modelopt;
mod order;

use serde_json::{Map, Value};
use turbospark_tensor::mutant::{Mutant, active};
use turbospark_tensor::{Code, DType, ScaledForm, Shape};

use crate::checkpoint::{Conventions, Entry, Table};
use crate::error::shorten;
use crate::{Error, Made, Piece, Place, Result, Scaled};

/// An object of a configuration file.
type Object = Map<String, Value>;

/// Fills bytes from a place.
pub(crate) type ReadPlace<'a> = dyn Fn(&Place, &mut [u8]) -> Result<()> + 'a;

/// The published names for a folder's tensors, by what its `config.json` says of quantisation and by the names
/// themselves. `older` is what a file beside it holds, which older folders
/// have instead.
pub(crate) fn read(
    table: Table,
    config: Option<&Value>,
    older: Option<&Value>,
    bytes: &ReadPlace<'_>,
) -> Result<(Table, Conventions)> {
    let mut raw = Raw { table, bytes };
    let empty = Object::new();
    let found = config.and_then(quantisation).or(older.and_then(older_settings));
    let quant = found.unwrap_or(&empty);
    let mut conventions = Conventions::default();
    match quant.get("quant_method").and_then(Value::as_str) {
        None if found.is_none() && !raw.table.keys().any(|name| mlx::is_name(name)) => {}
        // An older folder doesn't say whose it is.
        None if quant.contains_key("desc_act") => gptq::read(&mut raw, quant)?,
        None if quant.contains_key("w_bit") => awq::read(&mut raw, quant)?,
        None if quant.contains_key("quant_algo") => modelopt::read(&mut raw, quant)?,
        None => conventions = mlx::read(&mut raw, quant)?,
        Some("fp8") => fp8::read(&mut raw, quant)?,
        Some("awq") => awq::read(&mut raw, quant)?,
        Some("gptq") => gptq::read(&mut raw, quant)?,
        Some("compressed-tensors") => compressed::read(&mut raw, quant)?,
        Some("modelopt" | "modelopt_fp4") => modelopt::read(&mut raw, quant)?,
        Some("auto-round" | "intel/auto-round") => auto_round(&mut raw, quant)?,
        Some(other) => {
            return Err(Error::Quantisation(format!(
                "quant_method {:?} is not read; this build reads fp8, awq, gptq, auto-round, compressed-tensors, modelopt, MLX folders and GGUF: take the model in one of these, or unquantised",
                shorten(other)
            )));
        }
    }
    Ok((with_model(raw.table), conventions))
}

/// AutoRound stores what one of two others reads.
fn auto_round(raw: &mut Raw<'_>, quant: &Object) -> Result<()> {
    match text(quant, "packing_format").unwrap_or("auto_round:auto_gptq") {
        "auto_round:auto_gptq" | "auto_gptq" => gptq::read(raw, quant),
        "auto_round:auto_awq" | "auto_awq" => awq::read(raw, quant),
        other => Err(Error::Quantisation(format!(
            "AutoRound packing_format {:?} is not read; auto_round:auto_gptq and auto_round:auto_awq are",
            shorten(other)
        ))),
    }
}

/// The names of a tower with the `model.` that some writers leave out.
fn with_model(table: Table) -> Table {
    if table.keys().any(|name| name.starts_with("model.visual.")) {
        return table;
    }
    let full = |name: String| if name.starts_with("visual.") { format!("model.{name}") } else { name };
    table.into_iter().map(|(name, entry)| (full(name), entry)).collect()
}

/// ModelOpt's older file has an object in it, the others are one.
fn older_settings(older: &Value) -> Option<&Object> {
    older.get("quantization").and_then(Value::as_object).or(older.as_object())
}

/// What a configuration says of quantisation, at its top or in its text half. `quantization` is MLX's own key: what
/// stands beside it may be left over from the checkpoint that was converted.
fn quantisation(config: &Value) -> Option<&Object> {
    const KEYS: [&str; 3] = ["quantization", "quantization_config", "compression_config"];
    let places = [Some(config), config.get("text_config")];
    places.into_iter().flatten().find_map(|at| KEYS.iter().find_map(|key| at.get(key)?.as_object()))
}

/// The tensors of a folder while a reading goes over them.
struct Raw<'a> {
    table: Table,
    bytes: &'a ReadPlace<'a>,
}

impl Raw<'_> {
    /// The names that end in `suffix`, without it.
    fn stems(&self, suffix: &str) -> Vec<String> {
        self.table.keys().filter_map(|name| name.strip_suffix(suffix)).map(str::to_owned).collect()
    }

    /// Where a tensor lies, if it is there and can be read.
    fn place(&self, name: &str) -> Option<Place> {
        match self.table.get(name) {
            Some(Entry::Place(place)) => Some(*place),
            _ => None,
        }
    }

    /// Takes a tensor out of the table.
    fn take(&mut self, name: &str) -> Result<Place> {
        self.take_if_any(name)?.ok_or_else(|| bad(name, "missing, and the weight beside it needs it".into()))
    }

    fn take_if_any(&mut self, name: &str) -> Result<Option<Place>> {
        match self.table.remove(name) {
            None => Ok(None),
            Some(Entry::Place(place)) => Ok(Some(place)),
            Some(other) => Err(bad(name, format!("{} is not read here", other.describe()))),
        }
    }

    /// A tensor's bytes; for small ones.
    fn read(&self, place: &Place) -> Result<Vec<u8>> {
        let mut out = vec![0; place.length as usize];
        (self.bytes)(place, &mut out)?;
        Ok(out)
    }

    /// Puts a weight under its published name.
    fn put(&mut self, name: String, scaled: Scaled) -> Result<()> {
        self.put_entry(name, Entry::Scaled(scaled))
    }

    fn put_entry(&mut self, name: String, entry: Entry) -> Result<()> {
        match self.table.contains_key(&name) {
            true => Err(bad(&name, "stored twice, plain and quantised".into())),
            false => {
                self.table.insert(name, entry);
                Ok(())
            }
        }
    }

    /// Drops tensors that are for speed alone, such as scales of activations.
    fn drop_suffixes(&mut self, suffixes: &[&str]) {
        self.table.retain(|name, _| !suffixes.iter().any(|s| name.ends_with(s)));
    }
}

/// A refusal about one tensor.
fn bad(name: &str, problem: String) -> Error {
    Error::Reading { name: shorten(name), problem }
}

/// Refuses a tensor without elements.
fn filled(name: &str, place: &Place) -> Result<()> {
    match place.shape.elements() {
        0 => Err(bad(name, format!("shape {}, which holds nothing", place.shape))),
        _ => Ok(()),
    }
}

/// The two sides of a matrix.
fn matrix(name: &str, place: &Place) -> Result<[usize; 2]> {
    filled(name, place)?;
    <[usize; 2]>::try_from(place.shape.dims())
        .map_err(|_| bad(name, format!("shape {}, expected two dimensions", place.shape)))
}

/// Refuses a tensor of another shape or type than the weight beside it needs.
fn expect(name: &str, place: &Place, dtypes: &[DType], dims: &[usize]) -> Result<()> {
    if place.shape.dims() != dims {
        return Err(bad(name, format!("shape {}, expected {dims:?} by the weight beside it", place.shape)));
    }
    if !dtypes.contains(&place.dtype) {
        let list: Vec<_> = dtypes.iter().map(DType::to_string).collect();
        return Err(bad(name, format!("element type {}, expected {}", place.dtype, list.join(" or "))));
    }
    Ok(())
}

/// The form, or a refusal.
fn form(name: &str, code: Code, group: usize, rows: usize) -> Result<ScaledForm> {
    ScaledForm::new(code, group, rows)
        .ok_or_else(|| bad(name, format!("{code:?} in groups of {group} is not read; groups are multiples of 16")))
}

/// A number of the configuration.
fn count(quant: &Object, keys: &[&str]) -> Option<usize> {
    keys.iter().find_map(|key| quant.get(*key)?.as_u64()).and_then(|n| usize::try_from(n).ok())
}

fn text<'a>(quant: &'a Object, key: &str) -> Option<&'a str> {
    quant.get(key)?.as_str()
}

/// Scales of a cache of 8 bits, which serve speed alone.
const CACHE_SCALES: [&str; 3] = [".q_scale", ".k_scale", ".v_scale"];

const FLOATS: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

/// Scales `[groups, out]` as F32 `[out, groups]`.
fn turned_scales(place: Place, groups: usize, out: usize) -> Piece {
    let shape = Shape::from([out, groups]);
    Piece::Made(Made::new("turned", vec![place], DType::F32, shape, move |parts, bytes| {
        let scales = floats(&parts[0], place.dtype);
        if active(Mutant::ScalesNotTurned) {
            return write_floats(bytes, scales.into_iter());
        }
        write_floats(bytes, (0..out).flat_map(|o| (0..groups).map(move |g| (o, g))).map(|(o, g)| scales[g * out + o]));
    }))
}

/// Float bytes as f32.
fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() / dtype.size()];
    turbospark_tensor::widen_into(bytes, dtype, &mut out);
    out
}

fn write_floats(out: &mut [u8], values: impl Iterator<Item = f32>) {
    for (o, v) in out.chunks_exact_mut(4).zip(values) {
        o.copy_from_slice(&v.to_le_bytes());
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| u32::from_le_bytes(b)).collect()
}
