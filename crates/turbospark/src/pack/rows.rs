//! Rows of a checkpoint's tensors, some at a time.

use std::ops::Range;

use turbospark_tensor::DType;
use turbospark_weights::{Checkpoint, Linear, Piece, Scaled};

use super::units::{Expert, Job};
use crate::Result;

/// Reads tensors as matrices of rows.
pub(super) struct Rows<'a> {
    checkpoint: &'a Checkpoint,
    /// What was put together of the tensor that is being read: its parts follow each other.
    made: (String, Vec<(Piece, Vec<u8>)>),
    /// The last expert that was turned.
    turned: (String, Vec<u8>),
}

impl<'a> Rows<'a> {
    pub fn new(checkpoint: &'a Checkpoint) -> Self {
        Rows { checkpoint, made: Default::default(), turned: Default::default() }
    }

    /// The type in which [`Rows::read`] gives a tensor.
    pub fn dtype(linear: &Linear) -> DType {
        match linear {
            Linear::Piece(piece) => piece.dtype(),
            Linear::Scaled(_) => DType::F32,
        }
    }

    /// Appends some of a job's rows.
    pub fn read(&mut self, job: &Job<'_>, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        match (&job.planned.source, &job.expert) {
            (Linear::Piece(piece), Some(e)) if job.planned.in_out => {
                if self.turned.0 != job.name {
                    self.turned = (job.name.clone(), self.turn(job, piece, e)?);
                }
                let line = piece.dtype().size() * e.inner;
                out.extend(&self.turned.1[rows.start * line..rows.end * line]);
                Ok(())
            }
            (Linear::Piece(piece), expert) => {
                let columns = piece.shape().dims().last().copied().unwrap_or(1);
                let line = piece.dtype().bytes(columns).expect("rows of whole blocks");
                let first = expert.as_ref().map_or(0, |e| e.index * e.all + e.first);
                self.bytes(job, piece, (first + rows.start) * line..(first + rows.end) * line, out)
            }
            (Linear::Scaled(scaled), expert) => {
                let first = expert.as_ref().map_or(0, |e| e.index * e.all + e.first);
                self.widened(job, scaled, first + rows.start..first + rows.end, out)
            }
        }
    }

    /// Appends some of a piece's bytes.
    pub fn bytes(&mut self, job: &Job<'_>, piece: &Piece, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        if let Piece::Place(place) = piece {
            let from = out.len();
            out.resize(from + range.len(), 0);
            return Ok(self.checkpoint.read_at(place.file, place.offset + range.start as u64, &mut out[from..])?);
        }
        let (name, pieces) = &mut self.made;
        if *name != job.planned.name {
            pieces.clear();
            name.clone_from(&job.planned.name);
        }
        let at = match pieces.iter().position(|(known, _)| known == piece) {
            Some(at) => at,
            None => {
                let mut bytes = vec![0; piece.length() as usize];
                self.checkpoint.fill(piece, &mut bytes)?;
                pieces.push((piece.clone(), bytes));
                pieces.len() - 1
            }
        };
        out.extend(&pieces[at].1[range]);
        Ok(())
    }

    /// Appends rows of codes and scales as F32. `rows` count through all matrices of a stack.
    fn widened(&mut self, job: &Job<'_>, s: &Scaled, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let &[.., out_dim, inner] = s.shape.dims() else { unreachable!("a scaled weight has rows") };
        let matrices = (s.shape.elements() / (out_dim * inner).max(1)).max(1);
        let each = s.codes.length() as usize / (matrices * out_dim).max(1);
        let lines = out_dim.div_ceil(s.form.rows());
        let line = |row: usize| row / out_dim * lines + row % out_dim / s.form.rows();
        let dtype = s.scales.dtype();
        let width = s.scales.length() as usize / (matrices * lines).max(1);
        let first = line(rows.start);
        let grid = first * width..(line(rows.end - 1) + 1) * width;
        let (mut codes, mut scales, mut biases, mut order) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        self.bytes(job, &s.codes, rows.start * each..rows.end * each, &mut codes)?;
        self.bytes(job, &s.scales, grid.clone(), &mut scales)?;
        if let Some(piece) = &s.biases {
            self.bytes(job, piece, grid, &mut biases)?;
        }
        if let Some(piece) = &s.order {
            self.bytes(job, piece, 0..4 * inner, &mut order)?;
        }
        let (mut wide, mut ordered) = (vec![0f32; inner], vec![0f32; inner]);
        for (row, codes) in rows.zip(codes.chunks_exact(each)) {
            let at = (line(row) - first) * width..(line(row) - first + 1) * width;
            let biases = s.biases.is_some().then(|| &biases[at.clone()]);
            s.form.widen_row(codes, &scales[at], biases, dtype, &mut wide);
            if s.order.is_some() {
                let inputs = order.as_chunks().0.iter().map(|&i| i32::from_le_bytes(i) as usize);
                inputs.zip(&wide).for_each(|(i, &v)| ordered.get_mut(i).map_or((), |o| *o = v));
                wide.copy_from_slice(&ordered);
            }
            out.extend(bytemuck::cast_slice::<f32, u8>(&wide));
        }
        Ok(())
    }

    /// An expert's outputs of a tensor that is stored `[experts, in, out]`, as `[out, in]`.
    fn turn(&mut self, job: &Job<'_>, piece: &Piece, e: &Expert) -> Result<Vec<u8>> {
        let size = piece.dtype().size();
        let whole = e.inner * e.all * size;
        let mut bytes = Vec::new();
        self.bytes(job, piece, e.index * whole..(e.index + 1) * whole, &mut bytes)?;
        let mut out = vec![0; e.rows * e.inner * size];
        for (r, line) in out.chunks_exact_mut(e.inner * size).enumerate() {
            for (i, to) in line.chunks_exact_mut(size).enumerate() {
                let from = (i * e.all + e.first + r) * size;
                to.copy_from_slice(&bytes[from..from + size]);
            }
        }
        Ok(out)
    }
}
