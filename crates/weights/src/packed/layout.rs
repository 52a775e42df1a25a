use serde::{Deserialize, Serialize};
use turbospark_tensor::{Code, DType, ScaledForm, Shape};

use super::{FILE_BYTES, TENSOR_ALIGNMENT, UNIT_ALIGNMENT};

/// One tensor of a unit, before it has a place.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The published name.
    pub name: String,
    /// The sides of the weight itself.
    pub shape: Shape,
    /// What it is made of: one part, or codes, scales, perhaps biases and perhaps the order of the columns.
    pub parts: Vec<Part>,
    /// How the parts of a weight with scales of its own combine.
    pub form: Option<ScaledForm>,
}

/// Bytes of one type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Part {
    /// How an element is stored.
    pub dtype: DType,
    /// The part's own sides.
    pub shape: Shape,
}

impl Part {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes(self.shape.elements()).expect("whole blocks") as u64
    }
}

/// What is used, and so read, together.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// For people: `layers.3`, `layers.3.experts.17`, `visual.blocks.0`.
    pub name: String,
    /// Its tensors in the order of use.
    pub tensors: Vec<Spec>,
}

/// A unit with its place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacedUnit {
    pub name: String,
    /// Index into the manifest's files.
    pub file: usize,
    pub offset: u64,
    /// To the end of the last tensor.
    pub bytes: u64,
    pub tensors: Vec<PlacedTensor>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// Codes, scales, biases and order; or the tensor itself.
    pub parts: Vec<PlacedPart>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub form: Option<PlacedForm>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacedPart {
    pub dtype: String,
    pub shape: Vec<usize>,
    /// Counted from the file's beginning.
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlacedForm {
    /// `u2` to `u8`, `i8`, `e2m1` or `e4m3`.
    pub code: String,
    pub group: usize,
    pub rows: usize,
}

impl PlacedForm {
    pub fn of(form: ScaledForm) -> Self {
        let code = match form.code() {
            Code::Unsigned(bits) => format!("u{bits}"),
            Code::Signed8 => "i8".to_owned(),
            Code::E2M1 => "e2m1".to_owned(),
            Code::E4M3 => "e4m3".to_owned(),
        };
        PlacedForm { code, group: form.group(), rows: form.rows() }
    }

    pub fn form(&self) -> Option<ScaledForm> {
        let code = match self.code.as_str() {
            "i8" => Code::Signed8,
            "e2m1" => Code::E2M1,
            "e4m3" => Code::E4M3,
            other => Code::Unsigned(other.strip_prefix('u')?.parse().ok()?),
        };
        ScaledForm::new(code, self.group, self.rows)
    }
}

/// Units with their places, and the length of each file.
pub(super) fn place(units: &[Unit]) -> (Vec<PlacedUnit>, Vec<u64>) {
    let (mut placed, mut files) = (Vec::new(), vec![0u64]);
    for unit in units {
        if *files.last().expect("one at least") >= FILE_BYTES {
            files.push(0);
        }
        let file = files.len() - 1;
        let offset = files[file].next_multiple_of(UNIT_ALIGNMENT);
        let mut end = offset;
        let tensors = unit.tensors.iter().map(|spec| {
            let parts = spec.parts.iter().map(|part| {
                let offset = end.next_multiple_of(TENSOR_ALIGNMENT);
                end = offset + part.bytes();
                let (dtype, shape) = (part.dtype.to_string(), part.shape.dims().to_vec());
                PlacedPart { dtype, shape, offset, bytes: part.bytes() }
            });
            PlacedTensor {
                name: spec.name.clone(),
                shape: spec.shape.dims().to_vec(),
                parts: parts.collect(),
                form: spec.form.map(PlacedForm::of),
            }
        });
        let tensors = tensors.collect();
        placed.push(PlacedUnit { name: unit.name.clone(), file, offset, bytes: end - offset, tensors });
        // Padded to the end, so that a direct read of the last unit doesn't end past the file.
        files[file] = end.next_multiple_of(UNIT_ALIGNMENT);
    }
    (placed, files)
}
