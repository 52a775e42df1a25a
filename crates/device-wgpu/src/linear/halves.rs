//! Rows of x as matrix units take them.

use turbospark_device::DeviceError;

use super::Rows;
use crate::kernel::{Form, Source};
use crate::plan::{Place, Plan, Window, word};

const HALVES: Source = Source { name: "halves", text: include_str!("../shaders/linear/halves.wgsl"), includes: &[] };

/// Rows in f16, each scaled by a power of two, in work space.
#[derive(Clone, Debug)]
pub(super) struct Halves {
    pub rows: Window,
    /// f32: what a row's sums are multiplied by.
    pub unscale: Window,
    /// Elements from a row to the next.
    pub row: u32,
}

impl Halves {
    /// The first `rows` rows of `x`.
    pub fn new(plan: &mut Plan<'_>, x: &Rows, k: usize, rows: usize) -> Result<Self, DeviceError> {
        let row = k.next_multiple_of(32);
        let halves = plan.temp((2 * rows * row) as u64)?;
        let unscale = plan.temp((4 * rows) as u64)?;
        let words = [word(rows)?, word(k)?, x.at.at, x.row, word(row)?];
        plan.kernel(&HALVES)
            .with_f16(true)
            .read("x", Form::F32, &x.at.window)
            .write("halves", Form::Half4, &halves)
            .write("unscale", Form::F32, &unscale)
            .over(&words, rows as u64)?;
        Ok(Halves { rows: halves, unscale, row: word(row)? })
    }
}

/// The rows that the last layer converted.
///
/// Layers that follow each other often read the same rows (for queries, keys and values): they are converted once. That
/// holds as long as nothing but layers of this very x was planned since: each leaves its own x alone, and nothing else
/// has written it, or taken its work space.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    of: Option<Of>,
    halves: Option<Halves>,
    /// Where the work space ends, and how many dispatches there were.
    end: u64,
    dispatches: usize,
}

/// An x: the number and offset of its buffer, first element, step, rows, those of prompts, and inner side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Of([u64; 7]);

impl Kept {
    /// A layer of `x` begins.
    pub(super) fn begin(plan: &mut Plan<'_>, x: &Rows, [rows, prompt, k]: [usize; 3]) {
        let of = match &x.at.window.place {
            Place::Buffer(id, _) => {
                let [rows, prompt, k] = [rows, prompt, k].map(|n| n as u64);
                Some(Of([*id, x.at.window.offset, x.at.at.into(), x.row.into(), rows, prompt, k]))
            }
            _ => None,
        };
        let kept = &plan.kept;
        let lasts = of.is_some() && kept.of == of && kept.dispatches == plan.dispatches.len();
        if lasts {
            let end = kept.end;
            plan.take_over(end);
        } else {
            plan.kept = Kept { of, ..Kept::default() };
        }
    }

    /// What the layer's x is in f16.
    pub(super) fn halves(plan: &mut Plan<'_>, x: &Rows, k: usize, rows: usize) -> Result<Halves, DeviceError> {
        if let Some(halves) = &plan.kept.halves {
            return Ok(halves.clone());
        }
        let halves = Halves::new(plan, x, k, rows)?;
        plan.kept.halves = Some(halves.clone());
        plan.kept.end = plan.taken();
        Ok(halves)
    }

    /// The layer is planned.
    pub(super) fn end(plan: &mut Plan<'_>) {
        plan.kept.dispatches = plan.dispatches.len();
    }
}
