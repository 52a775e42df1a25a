//! The bytes of a packed tensor, a few MiB at a time.

use std::ops::Range;

use turbospark_models::ModelError;
use turbospark_tensor::quant::requantise;
use turbospark_tensor::{DType, widen_into};
use turbospark_weights::packed::PackError;
use turbospark_weights::{Checkpoint, Linear, Piece};

use super::GroupQuality;
use super::units::{Expert, Job, format_of, part_of};
use crate::Result;

/// Bytes at a time.
const CHUNK: usize = 16 << 20;

type Sink<'a> = dyn FnMut(&[u8]) -> std::result::Result<(), PackError> + 'a;

/// Makes the bytes of one tensor after the other, and keeps account of what rounding cost.
pub(super) struct Filler<'a> {
    checkpoint: &'a Checkpoint,
    threads: usize,
    /// The last tensor that was put together: parts of it follow each other.
    made: Option<(String, Vec<u8>)>,
    groups: Vec<Group>,
}

struct Group {
    part: &'static str,
    format: String,
    weights: u64,
    bytes: u64,
    error: f64,
    square: f64,
}

impl<'a> Filler<'a> {
    pub fn new(checkpoint: &'a Checkpoint, threads: Option<usize>) -> Self {
        let threads = threads.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
        Filler { checkpoint, threads, made: None, groups: Vec::new() }
    }

    /// Gives the bytes of part `part` of a tensor to `sink`.
    pub fn fill(&mut self, job: &Job<'_>, part: usize, sink: &mut Sink<'_>) -> Result<()> {
        let at = self.group(job);
        let written = job.parts()[part].bytes();
        self.groups[at].bytes += written;
        if part == 0 {
            self.groups[at].weights += job.shape().elements() as u64;
        }
        match (&job.planned.source, job.planned.target) {
            (Linear::Piece(piece), Some(target)) => self.quantise(job, piece, target, at, sink),
            (Linear::Piece(piece), None) if job.planned.in_out => self.turn(job, piece, sink),
            (Linear::Piece(piece), None) => self.copy(job, piece, sink),
            (Linear::Scaled(s), None) => {
                let piece = s.pieces().nth(part).expect("a part of the weight").clone();
                self.copy(job, &piece, sink)
            }
            (Linear::Scaled(_), Some(_)) => unreachable!("weights with scales are widened before they are quantised"),
        }
    }

    fn group(&mut self, job: &Job<'_>) -> usize {
        let (part, format) = (part_of(&job.name), format_of(job));
        if let Some(at) = self.groups.iter().position(|g| g.part == part && g.format == format) {
            return at;
        }
        self.groups.push(Group { part, format, weights: 0, bytes: 0, error: 0.0, square: 0.0 });
        self.groups.len() - 1
    }

    /// The range of a piece's lines (rows of its innermost side) that a job takes, and the bytes of a line.
    fn lines(job: &Job<'_>, piece: &Piece) -> (Range<usize>, usize) {
        let dims = piece.shape();
        let columns = dims.dims().last().copied().unwrap_or(1);
        let line = piece.dtype().bytes(columns).expect("rows of whole blocks");
        match &job.expert {
            Some(e) => {
                let lines = dims.dims()[1];
                let own = job.lines(e, lines);
                (e.index * lines + own.start..e.index * lines + own.end, line)
            }
            None => (0..dims.elements() / columns.max(1), line),
        }
    }

    /// Some of a piece's bytes.
    fn read(&mut self, name: &str, piece: &Piece, range: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        out.resize(range.len(), 0);
        if let Piece::Place(place) = piece {
            return Ok(self.checkpoint.read_at(place.file, place.offset + range.start as u64, out)?);
        }
        if self.made.as_ref().is_none_or(|(known, _)| known != name) {
            let mut bytes = vec![0; piece.length() as usize];
            self.checkpoint.fill(piece, &mut bytes)?;
            self.made = Some((name.to_owned(), bytes));
        }
        let (_, bytes) = self.made.as_ref().expect("made above");
        out.copy_from_slice(&bytes[range]);
        Ok(())
    }

    /// A key for [`Filler::made`]: codes, scales and biases of a weight are different pieces of one name.
    fn key(job: &Job<'_>, piece: &Piece) -> String {
        format!("{} {} {}", job.planned.name, piece.dtype(), piece.shape())
    }

    fn copy(&mut self, job: &Job<'_>, piece: &Piece, sink: &mut Sink<'_>) -> Result<()> {
        let (lines, line) = Self::lines(job, piece);
        let (mut bytes, key) = (Vec::new(), Self::key(job, piece));
        let end = lines.end * line;
        for at in (lines.start * line..end).step_by(CHUNK) {
            self.read(&key, piece, at..end.min(at + CHUNK), &mut bytes)?;
            sink(&bytes)?;
        }
        Ok(())
    }

    fn quantise(&mut self, job: &Job<'_>, piece: &Piece, target: DType, at: usize, sink: &mut Sink<'_>) -> Result<()> {
        let inner = job.shape().last();
        let row = target.bytes(inner).expect("the plan takes rows of whole blocks");
        let refuse = |source| ModelError::Quant { name: job.planned.name.clone(), source };
        if let (true, Some(e)) = (job.planned.in_out, &job.expert) {
            let turned = self.turned(job, piece, e)?;
            let mut wide = vec![0f32; e.rows * e.inner];
            widen_into(&turned, piece.dtype(), &mut wide);
            let mut out = vec![0; e.rows * row];
            requantise(bytemuck::cast_slice(&wide), DType::F32, target, self.threads, &mut out).map_err(refuse)?;
            self.account(at, &wide, &out, target);
            return Ok(sink(&out)?);
        }
        let (lines, line) = Self::lines(job, piece);
        let (mut bytes, key) = (Vec::new(), Self::key(job, piece));
        // As many rows as take a chunk once widened.
        let some = (CHUNK / (4 * inner).max(1)).max(1);
        let (mut out, mut wide) = (Vec::new(), Vec::new());
        for first in lines.clone().step_by(some) {
            let rows = first..lines.end.min(first + some);
            self.read(&key, piece, rows.start * line..rows.end * line, &mut bytes)?;
            out.resize(rows.len() * row, 0);
            requantise(&bytes, piece.dtype(), target, self.threads, &mut out).map_err(refuse)?;
            wide.resize(rows.len() * inner, 0.0);
            widen_into(&bytes, piece.dtype(), &mut wide);
            self.account(at, &wide, &out, target);
            sink(&out)?;
        }
        Ok(())
    }

    /// An expert's outputs of a tensor that is stored `[experts, in, out]`, as `[out, in]`.
    fn turned(&mut self, job: &Job<'_>, piece: &Piece, e: &Expert) -> Result<Vec<u8>> {
        let size = piece.dtype().size();
        let whole = e.inner * e.all * size;
        let (mut bytes, key) = (Vec::new(), Self::key(job, piece));
        self.read(&key, piece, e.index * whole..(e.index + 1) * whole, &mut bytes)?;
        let mut out = vec![0; e.rows * e.inner * size];
        for (r, line) in out.chunks_exact_mut(e.inner * size).enumerate() {
            for (i, to) in line.chunks_exact_mut(size).enumerate() {
                let from = (i * e.all + e.first + r) * size;
                to.copy_from_slice(&bytes[from..from + size]);
            }
        }
        Ok(out)
    }

    fn turn(&mut self, job: &Job<'_>, piece: &Piece, sink: &mut Sink<'_>) -> Result<()> {
        let e = job.expert.as_ref().expect("only experts are stored the other way round");
        let turned = self.turned(job, piece, e)?;
        Ok(sink(&turned)?)
    }

    /// Adds what rounding did to `wide`.
    fn account(&mut self, at: usize, wide: &[f32], blocks: &[u8], target: DType) {
        let mut back = vec![0f32; wide.len()];
        widen_into(blocks, target, &mut back);
        let group = &mut self.groups[at];
        for (x, y) in wide.iter().zip(&back) {
            group.error += f64::from(x - y).powi(2);
            group.square += f64::from(*x).powi(2);
        }
    }

    /// What rounding cost, part by part.
    pub fn report(self) -> Vec<GroupQuality> {
        let quality = |g: Group| GroupQuality {
            part: g.part.to_owned(),
            format: g.format,
            weights: g.weights,
            bytes: g.bytes,
            relative_error: if g.square > 0.0 { (g.error / g.square).sqrt() } else { 0.0 },
        };
        self.groups.into_iter().map(quality).collect()
    }
}
