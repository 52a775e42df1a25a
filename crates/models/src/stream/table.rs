//! An embedding that stays on the disk: rows are read as tokens ask for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use turbospark_tensor::{DType, ScaledForm, widen_into};
use turbospark_weights::{Checkpoint, DirectFile, Linear, Piece, Place, Scaled};

use super::disk::Counters;
use crate::{ModelError, Result};

/// A table `[rows, width]` in its file.
#[derive(Debug)]
pub(crate) struct StreamedTable {
    /// The rows; or codes, scales and biases.
    places: Vec<Place>,
    form: Option<ScaledForm>,
    width: usize,
    files: Vec<DirectFile>,
    counters: Arc<Counters>,
}

impl StreamedTable {
    /// `None` for a table that has to be put together.
    pub fn new(linear: &Linear, checkpoint: &Checkpoint, counters: Arc<Counters>) -> Result<Option<Self>> {
        let Some(places) = places(linear) else { return Ok(None) };
        let form = match linear {
            Linear::Piece(_) => None,
            Linear::Scaled(s) => Some(s.form),
        };
        let files = super::direct_files(checkpoint)?;
        Ok(Some(StreamedTable { places, form, width: linear.shape().last(), files, counters }))
    }

    /// Rows `ids` as f32, widened exactly; negative ids are rows of zeros.
    pub fn rows(&self, ids: &[i32]) -> Result<Vec<f32>> {
        let mut out = vec![0f32; ids.len() * self.width];
        let mut parts: Vec<Vec<u8>> = vec![Vec::new(); self.places.len()];
        for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.width.max(1))) {
            let Ok(row) = usize::try_from(id) else { continue };
            for (i, (place, bytes)) in self.places.iter().zip(&mut parts).enumerate() {
                // Scales may serve several rows.
                let shared = if i == 0 { 1 } else { self.form.map_or(1, ScaledForm::rows) };
                self.read(place, row / shared.max(1), bytes)?;
            }
            match self.form {
                None => widen_into(&parts[0], self.places[0].dtype, out),
                Some(form) => {
                    let scales: DType = self.places[1].dtype;
                    form.widen_row(&parts[0], &parts[1], parts.get(2).map(Vec::as_slice), scales, out);
                }
            }
        }
        Ok(out)
    }

    fn read(&self, place: &Place, row: usize, out: &mut Vec<u8>) -> Result<()> {
        let bytes = place.dtype.bytes(place.shape.last()).expect("rows of whole blocks");
        let (align, offset) = (DirectFile::ALIGN, place.offset + (row * bytes) as u64);
        let before = (offset % align as u64) as usize;
        let whole = (before + bytes).next_multiple_of(align);
        let mut memory = vec![0u8; whole + align];
        let start = memory.as_ptr().align_offset(align).min(align);
        let buffer = &mut memory[start..start + whole];
        let file = &self.files[place.file.index()];
        file.read(offset - before as u64, before + bytes, buffer).map_err(ModelError::from)?;
        self.counters.bytes.fetch_add(whole as u64, Ordering::Relaxed);
        out.clear();
        out.extend_from_slice(&buffer[before..before + bytes]);
        Ok(())
    }
}

fn places(linear: &Linear) -> Option<Vec<Place>> {
    let place = |piece: &Piece| match piece {
        Piece::Place(place) => Some(*place),
        Piece::Made(_) => None,
    };
    match linear {
        Linear::Piece(piece) => Some(vec![place(piece)?]),
        Linear::Scaled(Scaled { order: Some(_), .. }) => None,
        Linear::Scaled(s) => s.pieces().map(place).collect(),
    }
}

/// A table's rows in parts of at most `bytes`, first rows first; `None` where it can't be cut.
pub(crate) fn shards(linear: &Linear, bytes: usize) -> Option<Vec<(usize, Linear)>> {
    let places = places(linear)?;
    let &[rows, _] = linear.shape().dims() else { return None };
    let row: u64 = places.iter().map(|p| p.length).sum::<u64>().div_ceil(rows.max(1) as u64);
    let shared = match linear {
        Linear::Piece(_) => 1,
        // One scale for all rows can't be cut, nor one for more of them than a part may have.
        Linear::Scaled(s) if s.form.rows() > rows || s.form.rows() as u64 * row > (bytes as u64).max(row) => {
            return None;
        }
        Linear::Scaled(s) => s.form.rows(),
    };
    let some = (bytes as u64 / row.max(1)).max(1) as usize;
    let some = some.next_multiple_of(shared).max(shared);
    let cut = |place: &Place, first: usize, end: usize| {
        let line = place.dtype.bytes(place.shape.last()).expect("rows of whole blocks");
        let shape = turbospark_tensor::Shape::from([end - first, place.shape.last()]);
        let (offset, length) = (place.offset + (first * line) as u64, ((end - first) * line) as u64);
        Piece::Place(Place { offset, length, shape, ..*place })
    };
    let parts = (0..rows).step_by(some).map(|first| {
        let end = rows.min(first + some);
        let scales = |place: &Place| cut(place, first / shared, end.div_ceil(shared));
        let part = match linear {
            Linear::Piece(_) => Linear::Piece(cut(&places[0], first, end)),
            Linear::Scaled(s) => Linear::Scaled(Scaled {
                shape: turbospark_tensor::Shape::from([end - first, s.shape.last()]),
                codes: cut(&places[0], first, end),
                scales: scales(&places[1]),
                biases: places.get(2).map(scales),
                order: None,
                form: s.form,
            }),
        };
        (first, part)
    });
    Some(parts.collect())
}
