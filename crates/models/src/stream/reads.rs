//! Where a unit's tensors lie in a slot, and which reads bring them there.

use turbospark_device::{Buffer, LinearWeight, ScaledWeight, View, WeightLayout};
use turbospark_tensor::{DType, ScaledForm, Shape};
use turbospark_weights::{Checkpoint, DirectFile, DirectRead, FileId, Linear, Pace, Piece, Place, read_together};

use crate::Result;

/// Bytes between two tensors of a file that are read along rather than in two reads: no more than what a second read
/// would add at its ends, so that a unit never takes more than its tensors and two blocks for each.
const GAP: u64 = 2 * DirectFile::ALIGN as u64;
/// Where a tensor that is put together begins in a slot.
const MADE_ALIGN: usize = 64;

/// One direct read: `len` bytes from `offset`, of which the first `needed` must be there, to `at` in the slot.
#[derive(Clone, Debug)]
struct Run {
    file: FileId,
    offset: u64,
    len: usize,
    needed: usize,
    at: usize,
}

/// All reads of a unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    runs: Vec<Run>,
    /// Tensors that are put together, and where in the slot.
    made: Vec<(Piece, usize)>,
    /// Bytes of a slot that holds the unit.
    pub slot_bytes: usize,
}

impl Reads {
    /// Reads that bring `pieces`, and where each begins in the slot.
    pub fn lay_out(pieces: &[Piece]) -> (Self, Vec<usize>) {
        let mut reads = Reads::default();
        let mut offsets = vec![0; pieces.len()];
        let mut places: Vec<(usize, Place)> = Vec::new();
        for (i, piece) in pieces.iter().enumerate() {
            if let Piece::Place(place) = piece {
                places.push((i, *place));
            }
        }
        places.sort_by_key(|(_, p)| (p.file, p.offset));
        let align = DirectFile::ALIGN as u64;
        let mut at = 0usize;
        let mut group: Vec<(usize, Place)> = Vec::new();
        let mut flush = |group: &mut Vec<(usize, Place)>, at: &mut usize, runs: &mut Vec<Run>| {
            let (Some((_, first)), Some(end)) = (group.first(), group.iter().map(|(_, p)| p.offset + p.length).max())
            else {
                return;
            };
            let begin = first.offset / align * align;
            let len = (end - begin).next_multiple_of(align) as usize;
            for (i, p) in group.iter() {
                offsets[*i] = *at + (p.offset - begin) as usize;
            }
            runs.push(Run { file: first.file, offset: begin, len, needed: (end - begin) as usize, at: *at });
            *at += len;
            group.clear();
        };
        for (i, place) in places {
            if let Some((_, last)) = group.last()
                && (last.file != place.file || place.offset > last.offset + last.length + GAP)
            {
                flush(&mut group, &mut at, &mut reads.runs);
            }
            group.push((i, place));
        }
        flush(&mut group, &mut at, &mut reads.runs);
        for (i, piece) in pieces.iter().enumerate() {
            if let Piece::Made(made) = piece {
                at = at.next_multiple_of(MADE_ALIGN);
                offsets[i] = at;
                reads.made.push((piece.clone(), at));
                at += made.length() as usize;
            }
        }
        reads.slot_bytes = at.next_multiple_of(DirectFile::ALIGN);
        (reads, offsets)
    }

    /// Bytes that are read.
    pub fn bytes(&self) -> u64 {
        let made = self.made.iter().map(|(piece, _)| piece.stored_bytes()).sum::<u64>();
        made + self.runs.iter().map(|run| run.len as u64).sum::<u64>()
    }

    /// Brings the unit to `slot`, with several reads in flight, unless `stop` ends it: the bytes that were read, and
    /// whether that was all.
    pub fn read(
        &self,
        checkpoint: &Checkpoint,
        files: &[DirectFile],
        slot: &mut [u8],
        pace: Pace,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(u64, bool)> {
        let mut rest = &mut *slot;
        let mut at = 0;
        let mut reads = Vec::with_capacity(self.runs.len());
        // Runs lie one after the other.
        for run in &self.runs {
            let (out, later) = std::mem::take(&mut rest)[run.at - at..].split_at_mut(run.len);
            reads.push(DirectRead { file: &files[run.file.index()], offset: run.offset, needed: run.needed, out });
            (rest, at) = (later, run.at + run.len);
        }
        let needed: usize = reads.iter().map(|read| read.needed).sum();
        let read = read_together(reads, pace, stop)?;
        if read < needed as u64 {
            return Ok((read, false));
        }
        for (piece, at) in &self.made {
            checkpoint.fill(piece, &mut slot[*at..*at + piece.length() as usize])?;
        }
        Ok((self.bytes(), true))
    }
}

/// One tensor of a slot.
#[derive(Clone, Copy, Debug)]
struct Laid {
    at: usize,
    dtype: DType,
    shape: Shape,
}

impl Laid {
    fn view<'b>(&self, slot: &'b Buffer) -> View<'b> {
        slot.view(self.at, self.dtype, self.shape)
    }
}

/// What lies beside the codes of a weight.
#[derive(Clone, Copy, Debug)]
struct LaidScales {
    scales: Laid,
    biases: Option<Laid>,
    order: Option<Laid>,
    form: ScaledForm,
}

/// A linear weight of an expert in a slot.
#[derive(Clone, Debug)]
pub(crate) struct LaidMatrix {
    codes: Laid,
    /// Of a weight with scales of its own.
    scaled: Option<LaidScales>,
    /// Of a fused tensor stored `[in, out]`: the columns that are this weight.
    columns: Option<(usize, usize)>,
}

impl LaidMatrix {
    pub fn weight<'b>(&self, slot: &'b Buffer) -> LinearWeight<'b> {
        let codes = self.codes.view(slot);
        match &self.scaled {
            Some(LaidScales { scales, biases, order, form }) => {
                let [biases, order] = [biases, order].map(|part| part.as_ref().map(|part| part.view(slot)));
                ScaledWeight { codes, scales: scales.view(slot), biases, order, form: *form }.into()
            }
            None => match self.columns {
                Some((first, end)) => codes.narrow(1, first..end).into(),
                None => codes.into(),
            },
        }
    }
}

/// An expert: what is read, and the three weights in the slot.
#[derive(Clone, Debug)]
pub(crate) struct ExpertReads {
    pub reads: Reads,
    pub gate: LaidMatrix,
    pub up: LaidMatrix,
    pub down: LaidMatrix,
    pub layout: WeightLayout,
}

/// Which outputs of a stored tensor a weight of an expert is: all of them, or a range of a fused one.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The tensor; of all experts where it has three sides.
    pub source: Linear,
    /// Outputs `first..first + rows` of `all`.
    pub first: usize,
    pub rows: usize,
    pub all: usize,
}

impl ExpertReads {
    /// Expert `e` of weights that are stored as `parts`: gate, up and down.
    pub fn new(e: usize, parts: [Part; 3], layout: WeightLayout) -> Self {
        let mut pieces = Vec::new();
        let mut shapes = Vec::new();
        for part in &parts {
            let own = part.pieces(e, layout);
            shapes.push(own.len());
            pieces.extend(own);
        }
        let (reads, offsets) = Reads::lay_out(&pieces);
        let mut next = 0;
        let mut laid = parts.iter().zip(shapes).map(|(part, count)| {
            let at = |i: usize| Laid {
                at: offsets[next + i],
                dtype: pieces[next + i].dtype(),
                shape: pieces[next + i].shape(),
            };
            let scaled = match &part.source {
                Linear::Scaled(s) => Some(LaidScales {
                    scales: at(1),
                    biases: s.biases.is_some().then(|| at(2)),
                    order: s.order.is_some().then(|| at(count - 1)),
                    form: s.form,
                }),
                Linear::Piece(_) => None,
            };
            let fused = layout == WeightLayout::InOut && part.rows < part.all;
            let columns = fused.then_some((part.first, part.first + part.rows));
            let matrix = LaidMatrix { codes: at(0), scaled, columns };
            next += count;
            matrix
        });
        let mut take = || laid.next().expect("three parts");
        let (gate, up, down) = (take(), take(), take());
        drop(laid);
        ExpertReads { reads, gate, up, down, layout }
    }
}

impl Part {
    /// The pieces of expert `e`: its slices of tensors of all experts, else the tensors themselves.
    fn pieces(&self, e: usize, layout: WeightLayout) -> Vec<Piece> {
        let all: Vec<&Piece> = match &self.source {
            Linear::Piece(piece) => vec![piece],
            Linear::Scaled(s) => s.pieces().collect(),
        };
        all.into_iter().map(|piece| self.slice(piece, e, layout)).collect()
    }

    fn slice(&self, piece: &Piece, e: usize, layout: WeightLayout) -> Piece {
        let Piece::Place(place) = piece else { return piece.clone() };
        let (lead, lines, columns) = match *place.shape.dims() {
            [_, lines, columns] => (e, lines, columns),
            [lines, columns] => (0, lines, columns),
            _ => return piece.clone(),
        };
        let line = place.dtype.bytes(columns).expect("rows of whole blocks") as u64;
        // Of an `[in, out]` tensor a weight is some columns: the whole of it is read.
        let shared = self.all.div_ceil(lines.max(1)).max(1);
        let own = match layout {
            WeightLayout::InOut => 0..lines,
            WeightLayout::OutIn => self.first / shared..(self.first + self.rows).div_ceil(shared),
        };
        Piece::Place(Place {
            offset: place.offset + (lead * lines + own.start) as u64 * line,
            length: own.len() as u64 * line,
            shape: Shape::from([own.len(), columns]),
            ..*place
        })
    }
}
