use std::fmt;
use std::sync::Arc;

use turbospark_tensor::{DType, ScaledForm, Shape};

use crate::{Checkpoint, Place, Result};

/// One tensor of a checkpoint: as it lies in a file, or put together from what lies there.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// As it lies.
    Place(Place),
    /// Put together as it is brought to a device.
    Made(Made),
}

impl Piece {
    /// How an element is stored.
    pub fn dtype(&self) -> DType {
        match self {
            Piece::Place(place) => place.dtype,
            Piece::Made(made) => made.dtype,
        }
    }

    /// Its sides.
    pub fn shape(&self) -> Shape {
        match self {
            Piece::Place(place) => place.shape,
            Piece::Made(made) => made.shape,
        }
    }

    /// Number of bytes of the tensor itself; a made one's parts may have more or fewer.
    pub fn length(&self) -> u64 {
        match self {
            Piece::Place(place) => place.length,
            Piece::Made(made) => made.length(),
        }
    }

    /// What it takes in its files.
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Piece::Place(place) => place.length,
            Piece::Made(made) => made.parts.iter().map(|part| part.length).sum(),
        }
    }

    /// The same bytes with other sides, or another name for the type of single bytes.
    pub(crate) fn seen_as(mut self, dtype: DType, shape: Shape) -> Self {
        let (d, s) = match &mut self {
            Piece::Place(place) => (&mut place.dtype, &mut place.shape),
            Piece::Made(made) => (&mut made.dtype, &mut made.shape),
        };
        debug_assert_eq!(d.bytes(s.elements()), dtype.bytes(shape.elements()), "{d} {s} seen as {dtype} {shape}");
        (*d, *s) = (dtype, shape);
        self
    }
}

impl From<Place> for Piece {
    fn from(place: Place) -> Self {
        Piece::Place(place)
    }
}

/// A tensor that no file holds as the model wants it: where its parts lie, and how it is made from them.
#[derive(Clone)]
pub struct Made {
    /// What is read.
    pub parts: Vec<Place>,
    /// How an element is stored once it is made.
    pub dtype: DType,
    /// Its sides once it is made.
    pub shape: Shape,
    recipe: &'static str,
    make: Arc<Make>,
}

/// Fills the tensor's bytes from those of its parts.
type Make = dyn Fn(&[Vec<u8>], &mut [u8]) + Send + Sync;

impl Made {
    /// `recipe` says for people what `make` does; `make` gets the parts' bytes in their order.
    pub(crate) fn new(
        recipe: &'static str,
        parts: Vec<Place>,
        dtype: DType,
        shape: Shape,
        make: impl Fn(&[Vec<u8>], &mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        Made { parts, dtype, shape, recipe, make: Arc::new(make) }
    }

    /// Number of bytes once it is made.
    pub fn length(&self) -> u64 {
        self.dtype.bytes(self.shape.elements()).expect("made of whole blocks") as u64
    }

    /// What is done, for people.
    pub fn recipe(&self) -> &'static str {
        self.recipe
    }

    pub(crate) fn fill(&self, parts: &[Vec<u8>], out: &mut [u8]) {
        (self.make)(parts, out);
    }
}

impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} from {:?})", self.dtype, self.shape, self.recipe, self.parts)
    }
}

impl PartialEq for Made {
    fn eq(&self, other: &Self) -> bool {
        (&self.parts, self.dtype, self.shape, self.recipe) == (&other.parts, other.dtype, other.shape, other.recipe)
    }
}

/// A linear weight or a table whose scales lie beside its codes; `form` says how they combine.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaled {
    /// The sides of the weight itself, `[.., out, in]`.
    pub shape: Shape,
    /// `[.., out, words or bytes of a row]`.
    pub codes: Piece,
    /// `[.., ceil(out / form.rows()), ceil(in / form.group())]`.
    pub scales: Piece,
    /// As `scales`, where the form has biases.
    pub biases: Option<Piece>,
    /// I32 `[in]`, where columns were sorted so that a group's lie together: column `j` belongs to input `order[j]`.
    pub order: Option<Piece>,
    /// Bits, groups and what a code means.
    pub form: ScaledForm,
}

impl Scaled {
    /// The tensors that it is made of.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        [Some(&self.codes), Some(&self.scales), self.biases.as_ref(), self.order.as_ref()].into_iter().flatten()
    }
}

/// A linear weight or a table as a checkpoint has it.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "few at a time, while a model loads")]
pub enum Linear {
    /// One tensor of a float or block type.
    Piece(Piece),
    /// Codes and scales.
    Scaled(Scaled),
}

impl Linear {
    /// The sides of the weight itself, `[.., out, in]`.
    pub fn shape(&self) -> Shape {
        match self {
            Linear::Piece(piece) => piece.shape(),
            Linear::Scaled(scaled) => scaled.shape,
        }
    }

    /// Whether another weight of the same checkpoint is stored in the same form and bytes.
    ///
    /// # Errors
    /// The system's, as the files are read.
    pub fn same_bytes(&self, other: &Linear, checkpoint: &Checkpoint) -> Result<bool> {
        let pieces = match (self, other) {
            (Linear::Piece(a), Linear::Piece(b)) => vec![(a, b)],
            (Linear::Scaled(a), Linear::Scaled(b)) if a.form == b.form && a.pieces().count() == b.pieces().count() => {
                a.pieces().zip(b.pieces()).collect()
            }
            _ => return Ok(false),
        };
        for (a, b) in pieces {
            if !same_pieces(a, b, checkpoint)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// [`Linear::same_bytes`] of two tensors.
fn same_pieces(a: &Piece, b: &Piece, checkpoint: &Checkpoint) -> Result<bool> {
    /// Bytes that are read at a time.
    const CHUNK: u64 = 1 << 20;
    if (a.dtype(), a.shape(), a.length()) != (b.dtype(), b.shape(), b.length()) {
        return Ok(false);
    }
    let (Piece::Place(left), Piece::Place(right)) = (a, b) else {
        let [mut left, mut right] = [(); 2].map(|()| vec![0; a.length() as usize]);
        checkpoint.fill(a, &mut left)?;
        checkpoint.fill(b, &mut right)?;
        return Ok(left == right);
    };
    for at in (0..left.length).step_by(CHUNK as usize) {
        let [mut l, mut r] = [(); 2].map(|()| vec![0; CHUNK.min(left.length - at) as usize]);
        checkpoint.read_at(left.file, left.offset + at, &mut l)?;
        checkpoint.read_at(right.file, right.offset + at, &mut r)?;
        if l != r {
            return Ok(false);
        }
    }
    Ok(true)
}
