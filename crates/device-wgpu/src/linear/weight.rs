//! A weight as kernels get it.

use std::ops::Range;

use turbospark_device::op::{LinearWeight, WeightLayout};
use turbospark_device::{DeviceError, View};
use turbospark_tensor::DType;

use super::format::Format;
use crate::kernel::Form;
use crate::plan::{Plan, Run, Window, word};

/// Where a weight lies and how it is read.
#[derive(Clone, Debug)]
pub(super) struct Weight {
    pub format: Format,
    /// The bytes at whose multiples its rows, and blocks in them, start: 1, 2, 4, 8 or 16.
    pub align: u32,
    windows: Vec<Window>,
    /// First byte, bytes of a row, places of scales and biases, and scales of a row.
    pub at: u32,
    pub row: u32,
    pub scales: u32,
    pub biases: u32,
    pub groups: u32,
    /// Bytes from an expert to the next, of codes and of scales.
    pub step: u32,
    pub scales_step: u32,
}

impl Weight {
    /// A weight of inner side `k`; of experts, with an axis of them in front.
    pub fn of(plan: &Plan<'_>, weight: &LinearWeight<'_>, layout: WeightLayout, k: usize) -> Result<Self, DeviceError> {
        // The step between indices of the first of three axes.
        let step = |v: &View<'_>| match v.shape().rank() {
            3 => word(v.dtype().bytes(v.stride(0)).unwrap_or(0)),
            _ => Ok(0),
        };
        match weight {
            LinearWeight::View(v) => {
                let format = Format::Plain(v.dtype());
                let row = match layout {
                    WeightLayout::OutIn => format.row_bytes(k),
                    WeightLayout::InOut => v.stride(v.shape().rank() - 2) * v.dtype().size(),
                };
                let at = plan.stored(v)?;
                let (row, step) = (word(row)?, step(v)?);
                let align = alignment(format, at.at | row | step);
                let (scales, biases, groups, scales_step) = (0, 0, 0, 0);
                let windows = vec![at.window];
                Ok(Weight { format, align, windows, at: at.at, row, scales, biases, groups, step, scales_step })
            }
            LinearWeight::Scaled(w) => {
                let scales = w.scales.dtype();
                let format = Format::Scaled { form: w.form, scales, biased: w.biases.is_some() };
                let (codes, scales_at) = (plan.stored(&w.codes)?, plan.stored(&w.scales)?);
                let row = word(w.codes.shape().last() * w.codes.dtype().size())?;
                let (step, scales_step) = (step(&w.codes)?, step(&w.scales)?);
                let align = alignment(format, codes.at | row | step);
                let mut windows = vec![codes.window, scales_at.window];
                let mut biases = 0;
                if let Some(b) = &w.biases {
                    let at = plan.stored(b)?;
                    biases = at.at;
                    windows.push(at.window);
                }
                let groups = word(w.scales.shape().last())?;
                let (at, scales) = (codes.at, scales_at.at);
                Ok(Weight { format, align, windows, at, row, scales, biases, groups, step, scales_step })
            }
        }
    }

    /// Binds it, under names of a gate's or an up projection's.
    pub fn bind<'p, 'd>(&self, mut run: Run<'p, 'd>, names: [&'static str; 3]) -> Run<'p, 'd> {
        for (i, (name, window)) in names.into_iter().zip(&self.windows).enumerate() {
            let wide = i == 0 && self.format.is_wide(self.align);
            run = run.read(name, if wide { Form::UVec4 } else { Form::U32 }, window);
        }
        run
    }
}

/// What bindings of the first and the second weight are called.
pub(super) const A: [&str; 3] = ["a_words", "a_scales_words", "a_biases_words"];
pub(super) const B: [&str; 3] = ["b_words", "b_scales_words", "b_biases_words"];

/// The same of more weights.
pub(super) const MORE: [[&str; 3]; 3] = [["c_words", "", ""], ["d_words", "", ""], ["e_words", "", ""]];

/// The alignment that all of `places` and the blocks of a format have.
fn alignment(format: Format, places: u32) -> u32 {
    let blocks = match format {
        // Eights of floats are asked for, and they start at as many bytes.
        Format::Plain(DType::F32 | DType::F16 | DType::BF16) => 16,
        other => other.block_bytes() as u32,
    };
    1 << (places | blocks | 16).trailing_zeros()
}

/// The outputs of weights in parts that fit into bindings, all of them in one where that may be.
pub(super) fn parts(
    plan: &Plan<'_>,
    weights: &[&LinearWeight<'_>],
    layout: WeightLayout,
    n: usize,
    k: usize,
) -> Vec<Range<usize>> {
    let mut most = n;
    for weight in weights {
        let (row, shared) = match weight {
            LinearWeight::View(v) => (v.dtype().bytes(k).unwrap_or(0), 1),
            LinearWeight::Scaled(w) => (w.codes.shape().last() * w.codes.dtype().size(), w.form.rows()),
        };
        if layout == WeightLayout::OutIn && weight.views().any(|v| plan.stored(v).is_err()) {
            let room = weight.views().filter_map(|v| plan.most(v).ok()).min().unwrap_or(0);
            most = most.min(rows_of_a_part(room, row, shared));
        }
    }
    (0..n).step_by(most.max(1)).map(|from| from..(from + most).min(n)).collect()
}

/// Rows of `row` bytes that a window of `room` bytes may hold: a whole number of those that share a scale, unless all do.
fn rows_of_a_part(room: u64, row: usize, shared: usize) -> usize {
    // A window starts before its first byte, where that isn't aligned, and ends after its last.
    let room = (room as usize).saturating_sub(1024);
    let rows = (room / row.max(1)).max(1);
    if shared >= usize::MAX / 2 || rows < shared { rows } else { rows / shared * shared }
}
