//! The bytes of a written tensor, a few MiB at a time.

use turbospark_models::ModelError;
use turbospark_tensor::quant::requantise;
use turbospark_tensor::{DType, f32_to_bf16, f32_to_f16, widen_into};
use turbospark_weights::{Checkpoint, Linear};

use super::GroupQuality;
use super::change::{Change, Meaning, Order, Tiling};
use super::rows::Rows;
use super::units::{Job, form_of, part_of};
use crate::{Error, Result};

/// Bytes at a time, of rows as F32.
const CHUNK: usize = 16 << 20;

type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Makes the bytes of one tensor after the other, and keeps account of what rounding cost.
pub(super) struct Filler<'a> {
    rows: Rows<'a>,
    threads: usize,
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
        Filler { rows: Rows::new(checkpoint), threads, groups: Vec::new() }
    }

    /// Gives a tensor's rows, changed, to `sink`.
    pub fn fill(&mut self, job: &Job<'_>, change: &Change, sink: &mut Sink<'_>) -> Result<()> {
        let group = self.group(job, change.dtype.to_string());
        let (stored, inner) = job.matrix();
        let rows = change.rows.rows(stored);
        self.groups[group].weights += (rows * inner) as u64;
        let some = (CHUNK / (4 * inner).max(1)).max(1);
        let from = Rows::dtype(&job.planned.source);
        let (mut bytes, mut wide) = (Vec::new(), Vec::new());
        for first in (0..rows).step_by(some) {
            let last = rows.min(first + some);
            bytes.clear();
            for run in runs(&change.rows, first..last) {
                self.rows.read(job, run, &mut bytes)?;
            }
            if let Some(tiling) = change.columns {
                bytes = tiled(&bytes, from, inner, tiling);
            }
            if from != change.dtype || change.value != Meaning::Same {
                wide.resize((last - first) * inner, 0.0);
                widen_into(&bytes, from, &mut wide);
                change.value.apply(&mut wide);
                bytes = self.narrowed(job, &wide, change.dtype)?;
                self.account(group, &wide, &bytes, change.dtype);
            }
            self.groups[group].bytes += bytes.len() as u64;
            sink(&bytes)?;
        }
        Ok(())
    }

    /// Gives one part of a weight with scales of its own to `sink`, as it is stored.
    pub fn part(&mut self, job: &Job<'_>, part: usize, sink: &mut Sink<'_>) -> Result<()> {
        let Linear::Scaled(scaled) = &job.planned.source else { unreachable!("other weights have one part") };
        let piece = scaled.pieces().nth(part).expect("a part of the weight");
        let group = self.group(job, form_of(job));
        if part == 0 {
            self.groups[group].weights += job.shape().elements() as u64;
        }
        let dims = piece.shape();
        let columns = dims.dims().last().copied().unwrap_or(1);
        let line = piece.dtype().bytes(columns).expect("rows of whole blocks");
        let lines = match &job.expert {
            Some(e) => {
                let (all, own) = (dims.dims()[1], job.lines(e, dims.dims()[1]));
                e.index * all + own.start..e.index * all + own.end
            }
            None => 0..dims.elements() / columns.max(1),
        };
        let (mut bytes, end) = (Vec::new(), lines.end * line);
        for at in (lines.start * line..end).step_by(CHUNK) {
            bytes.clear();
            self.rows.bytes(job, piece, at..end.min(at + CHUNK), &mut bytes)?;
            self.groups[group].bytes += bytes.len() as u64;
            sink(&bytes)?;
        }
        Ok(())
    }

    fn group(&mut self, job: &Job<'_>, format: String) -> usize {
        let part = part_of(&job.name);
        if let Some(at) = self.groups.iter().position(|g| g.part == part && g.format == format) {
            return at;
        }
        self.groups.push(Group { part, format, weights: 0, bytes: 0, error: 0.0, square: 0.0 });
        self.groups.len() - 1
    }

    /// Values in another type.
    fn narrowed(&self, job: &Job<'_>, wide: &[f32], dtype: DType) -> Result<Vec<u8>> {
        let mut out = vec![0; dtype.bytes(wide.len()).expect("the plan takes rows of whole blocks")];
        match dtype {
            DType::F32 => out.copy_from_slice(bytemuck::cast_slice(wide)),
            DType::BF16 => {
                out.as_chunks_mut().0.iter_mut().zip(wide).for_each(|(o, v)| *o = f32_to_bf16(*v).to_le_bytes())
            }
            DType::F16 => {
                const MOST: f32 = 65_520.0; // from here on it rounds to infinity
                if let Some(v) = wide.iter().find(|v| !v.is_finite() || v.abs() >= MOST) {
                    let name = &job.planned.name;
                    return Err(Error::Unsupported(format!(
                        "tensor {name:?} holds {v}, which F16 does not; --quant q8_0 writes it"
                    )));
                }
                out.as_chunks_mut().0.iter_mut().zip(wide).for_each(|(o, v)| *o = f32_to_f16(*v).to_le_bytes());
            }
            blocks => requantise(bytemuck::cast_slice(wide), DType::F32, blocks, self.threads, &mut out)
                .map_err(|source| ModelError::Quant { name: job.planned.name.clone(), source })?,
        }
        Ok(out)
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

/// The stored rows that become `rows`, those that follow each other together.
fn runs(order: &Order, rows: std::ops::Range<usize>) -> Vec<std::ops::Range<usize>> {
    if *order == Order::Stored {
        return vec![rows];
    }
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for row in rows.map(|r| order.source(r)) {
        match runs.last_mut() {
            Some(run) if run.end == row => run.end += 1,
            _ => runs.push(row..row + 1),
        }
    }
    runs
}

/// Rows of `inner` elements with their columns in another order; a value head's columns are whole blocks.
fn tiled(bytes: &[u8], dtype: DType, inner: usize, tiling: Tiling) -> Vec<u8> {
    let line = dtype.bytes(inner).expect("rows of whole blocks");
    let width = dtype.bytes(tiling.width).expect("heads of whole blocks");
    let heads = Tiling { width: 1, ..tiling };
    let mut out = Vec::with_capacity(bytes.len());
    for row in bytes.chunks_exact(line) {
        for head in (0..line / width).map(|head| heads.source(head)) {
            out.extend(&row[head * width..(head + 1) * width]);
        }
    }
    out
}
