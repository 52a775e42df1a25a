//! Bringing one tensor to a device: the file's own pages, a copy, or quantised blocks.

use std::ops::{Deref, Range};
use std::sync::Arc;

use turbospark_device::{Buffer, DeviceError, WeightLayout};
use turbospark_tensor::quant::requantise;
use turbospark_tensor::{DType, Shape};
use turbospark_weights::{FileId, Linear, Mapping, Pace, Piece, Scaled};

use super::{Loader, Planned};
use crate::quant::{Quant, Role, requantise_transposed};
use crate::stream::{MIN_SLOT, Reads, direct_files};
use crate::weight::{Matrix, ScaledTensors, Weight};
use crate::{ModelError, Result};

impl Loader<'_> {
    /// Lists a tensor where there is a plan.
    pub(super) fn planned(
        &mut self,
        name: &str,
        source: &Linear,
        target: Option<DType>,
        in_out: bool,
    ) -> Result<Option<Matrix>> {
        let Some(plan) = &mut self.plan else { return Ok(None) };
        plan.push(Planned { name: name.to_owned(), source: source.clone(), target, in_out });
        let nothing = Arc::new(self.device.alloc(name, 0)?);
        Ok(Some(Matrix::Plain(Weight::new(nothing, 0, DType::F32, source.shape()))))
    }

    /// A tensor of floats, such as a norm.
    pub(super) fn take(&mut self, name: &str, dims: &[usize]) -> Result<Weight> {
        let piece = self.claims.take(name, Shape::new(dims))?;
        match self.planned(name, &Linear::Piece(piece.clone()), None, false)? {
            Some(Matrix::Plain(weight)) => Ok(weight),
            _ => self.bring(name, &piece),
        }
    }

    fn bring(&mut self, name: &str, piece: &Piece) -> Result<Weight> {
        if let Some((home, at)) = self.streamed.as_ref().and_then(|s| s.place(piece)) {
            return Ok(Weight::at(home, at, piece.dtype(), piece.shape()));
        }
        let checkpoint = self.claims.checkpoint();
        if let Piece::Place(place) = piece
            && !self.loaded
            && let Some(buffer) = self.adopted(place.file)?
        {
            let offset = usize::try_from(place.offset).map_err(|_| too_large(name))?;
            return Ok(Weight::new(buffer, offset, place.dtype, place.shape));
        }
        let bytes = usize::try_from(piece.length()).map_err(|_| too_large(name))?;
        if let Piece::Place(place) = piece
            && self.loaded
            && bytes >= MIN_SLOT
            && !checkpoint.is_cached(place)
        {
            return self.bring_directly(name, piece);
        }
        let buffer = self.device.alloc(name, bytes)?;
        let fill = |out: &mut [u8]| checkpoint.fill(piece, out).map_err(std::io::Error::other);
        self.device.fill(buffer.bytes(), &mut { fill })?;
        Ok(Weight::new(Arc::new(buffer), 0, piece.dtype(), piece.shape()))
    }

    /// Reads a tensor past the page cache, several parts at a time: faster from a disk, and a ceiling on memory that is
    /// held from outside counts no pages of the file beside the copy.
    fn bring_directly(&mut self, name: &str, piece: &Piece) -> Result<Weight> {
        let checkpoint = self.claims.checkpoint();
        let (reads, offsets) = Reads::lay_out(std::slice::from_ref(piece));
        let buffer = self.device.alloc(name, reads.slot_bytes)?;
        let files = match &self.direct {
            Some(files) => files,
            None => self.direct.insert(direct_files(checkpoint)?),
        };
        self.device.fill(buffer.bytes(), &mut |out| {
            reads.read(checkpoint, files, out, Pace::Full, &|| false).map(drop).map_err(std::io::Error::other)
        })?;
        Ok(Weight::new(Arc::new(buffer), offsets[0], piece.dtype(), piece.shape()))
    }

    /// A file's own pages, where the device can use them.
    fn adopted(&mut self, file: FileId) -> Result<Option<Arc<Buffer>>> {
        if let Some(known) = self.files.get(&file) {
            return Ok(known.clone());
        }
        let mapping: turbospark_device::Mapping = self.claims.checkpoint().map(file)?;
        let adopted = self.device.adopt(mapping)?.map(Arc::new);
        self.files.insert(file, adopted.clone());
        Ok(adopted)
    }

    /// Claims a linear weight as it is stored, or widened where its columns are in an order that the device doesn't take.
    pub(super) fn claim(&mut self, name: &str, dims: &[usize]) -> Result<Linear> {
        Ok(match self.claims.take_linear(name, Shape::new(dims))? {
            Linear::Scaled(s) if s.order.is_some() && (self.how.widen_ordered || !self.device.takes_order()) => {
                Linear::Piece(self.claims.take(name, Shape::new(dims))?)
            }
            linear => linear,
        })
    }

    /// A linear weight or table `[out, in]`, quantised where that is asked for and its rows are whole blocks.
    pub(super) fn linear(&mut self, name: &str, dims: &[usize], role: Role) -> Result<Matrix> {
        self.linear_as(name, dims, self.how.quant, role)
    }

    pub(super) fn linear_as(&mut self, name: &str, dims: &[usize], quant: Option<Quant>, role: Role) -> Result<Matrix> {
        let linear = self.claim(name, dims)?;
        let Some(dtype) = self.format(&linear, quant, role, dims[dims.len() - 1]) else {
            return self.bring_linear(name, &linear);
        };
        let linear = match linear {
            // A plan leaves it to whoever quantises how much is widened at a time.
            Linear::Scaled(_) if self.plan.is_none() => Linear::Piece(self.claims.take(name, Shape::new(dims))?),
            linear => linear,
        };
        self.quantised(name, &linear, dtype, linear.shape(), false)
    }

    /// A linear weight in the form that it is stored in.
    pub(super) fn stored(&mut self, name: &str, dims: &[usize]) -> Result<Matrix> {
        let linear = self.claim(name, dims)?;
        self.bring_linear(name, &linear)
    }

    pub(super) fn bring_linear(&mut self, name: &str, linear: &Linear) -> Result<Matrix> {
        self.bring_laid_out(name, linear, WeightLayout::OutIn)
    }

    pub(super) fn bring_laid_out(&mut self, name: &str, linear: &Linear, layout: WeightLayout) -> Result<Matrix> {
        if let Some(planned) = self.planned(name, linear, None, layout == WeightLayout::InOut)? {
            return Ok(planned);
        }
        match linear {
            Linear::Piece(piece) => Ok(Matrix::Plain(self.bring(name, piece)?)),
            Linear::Scaled(Scaled { shape, codes, scales, biases, order, form }) => {
                Ok(Matrix::Scaled(Box::new(ScaledTensors {
                    shape: *shape,
                    codes: self.bring(name, codes)?,
                    scales: self.bring(name, scales)?,
                    biases: biases.as_ref().map(|b| self.bring(name, b)).transpose()?,
                    order: order.as_ref().map(|o| self.bring(name, o)).transpose()?,
                    form: *form,
                })))
            }
        }
    }

    /// A linear weight of the tower of which ops take ranges of `part` outputs: those that share a scale across such a
    /// border are widened.
    pub(super) fn in_parts(&mut self, name: &str, dims: &[usize], part: usize) -> Result<Matrix> {
        match self.claim(name, dims)? {
            Linear::Scaled(s) if s.form.rows() > 1 && !part.is_multiple_of(s.form.rows()) => {
                let piece = self.claims.take(name, Shape::new(dims))?;
                self.bring_linear(name, &Linear::Piece(piece))
            }
            _ => self.linear_as(name, dims, self.how.vision_quant, Role::Linear),
        }
    }

    /// What a tensor with rows of `row` is quantised to.
    pub(super) fn format(&self, linear: &Linear, quant: Option<Quant>, role: Role, row: usize) -> Option<DType> {
        let float = matches!(linear, Linear::Piece(piece) if piece.dtype().is_float());
        quant.filter(|_| float || self.how.requantise)?.of(role, row)
    }

    /// The tensor as blocks of `dtype`, with `shape`; `transposed` when its columns become rows.
    pub(super) fn quantised(
        &mut self,
        name: &str,
        linear: &Linear,
        dtype: DType,
        shape: Shape,
        transposed: bool,
    ) -> Result<Matrix> {
        if let Some(planned) = self.planned(name, linear, Some(dtype), transposed)? {
            return Ok(planned);
        }
        let Linear::Piece(piece) = linear else { unreachable!("only one tensor is quantised") };
        let checkpoint = self.claims.checkpoint();
        let len = dtype.bytes(shape.elements()).ok_or_else(|| too_large(name))?;
        let bytes = self.bytes(name, piece)?;
        let (from, sides) = (piece.dtype(), piece.shape());
        let threads = self.how.threads.or_else(|| std::thread::available_parallelism().ok().map(|n| n.get()));
        let threads = threads.unwrap_or(1);
        let buffer = self.device.alloc(name, len)?;
        let mut refused = None;
        let filled = self.device.fill(buffer.bytes(), &mut |out| {
            let done = match transposed {
                true => requantise_transposed(&bytes, from, sides, dtype, threads, out),
                false => requantise(&bytes, from, dtype, threads, out),
            };
            done.map_err(|e| {
                refused = Some(e);
                std::io::Error::other("not quantised")
            })
        });
        if let Some(source) = refused {
            return Err(ModelError::Quant { name: name.to_owned(), source });
        }
        filled?;
        if let Piece::Place(place) = piece {
            // Else all of the file would be in memory by the end.
            drop(bytes);
            checkpoint.give_back(place);
        }
        Ok(Matrix::Plain(Weight::new(Arc::new(buffer), 0, dtype, shape)))
    }

    /// A tensor's bytes, in place where it lies in a file.
    fn bytes(&self, name: &str, piece: &Piece) -> Result<Bytes> {
        let checkpoint = self.claims.checkpoint();
        let Piece::Place(place) = piece else {
            let mut bytes = vec![0; usize::try_from(piece.length()).map_err(|_| too_large(name))?];
            checkpoint.fill(piece, &mut bytes)?;
            return Ok(Bytes::Made(bytes));
        };
        let mapping = checkpoint.map(place.file)?;
        let range = || Some(usize::try_from(place.offset).ok()?..usize::try_from(place.offset + place.length).ok()?);
        let whole = <Mapping as AsRef<[u8]>>::as_ref(&mapping).len();
        let range = range().filter(|r| r.end <= whole).ok_or_else(|| too_large(name))?;
        Ok(Bytes::Mapped(mapping, range))
    }
}

/// A tensor's bytes.
enum Bytes {
    Mapped(Arc<Mapping>, Range<usize>),
    Made(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(mapping, range) => &(**mapping).as_ref()[range.clone()],
            Bytes::Made(bytes) => bytes,
        }
    }
}

fn too_large(name: &str) -> ModelError {
    ModelError::Device(DeviceError::Unsupported(format!("tensor {name:?} does not fit this machine's address space")))
}
