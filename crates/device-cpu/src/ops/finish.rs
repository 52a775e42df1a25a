//! What is done to the sums of a linear layer before they are stored.

use turbospark_device::Activation;

use super::Rows;
use crate::simd::stored::{Vector, Weight};
use crate::simd::{Simd, math};

/// A linear layer without its inputs.
#[derive(Clone, Copy)]
pub(crate) struct Linear<'a> {
    /// Length of the sums.
    pub k: usize,
    /// Number of outputs.
    pub n: usize,
    /// The weight; of a gated layer the one without activation.
    pub weight: Weight,
    /// A gated layer: `silu(x gate) * (x weight)`.
    pub gate: Option<Weight>,
    /// The rest.
    pub finish: Finish<'a>,
}

/// `out = residual + activation(sum + bias)`, or `out += scale * sum`.
#[derive(Clone, Copy)]
pub(crate) struct Finish<'a> {
    /// `[n]`.
    pub bias: Option<Vector>,
    /// Applied after the bias.
    pub activation: Option<Activation>,
    /// Added last.
    pub residual: Option<Rows<'a>>,
    /// Where it goes.
    pub out: Rows<'a>,
    /// One factor a row; then the result is added to `out`.
    pub scale: Option<&'a [f32]>,
}

/// Some outputs of one row.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub row: usize,
    /// The first of them.
    pub col: usize,
    /// How many.
    pub cols: usize,
}

impl<'a> Finish<'a> {
    /// Stores the sums as they are.
    pub(crate) fn plain(out: Rows<'a>) -> Self {
        Finish { bias: None, activation: None, residual: None, out, scale: None }
    }

    /// Finishes the outputs at a place; `sums` (and `gate`, of a gated layer) are theirs.
    ///
    /// # Safety
    /// `sums` and `gate` have a whole number of vectors that cover the place's columns, `bias` too where there is one;
    /// the rows are valid and nobody else touches these elements of `out`.
    #[inline(always)]
    pub(crate) unsafe fn row<S: Simd>(
        &self,
        s: S,
        at: Place,
        sums: *const f32,
        gate: Option<*const f32>,
        bias: &[f32],
    ) {
        let Place { row, col, cols } = at;
        let out = self.out.row(row).wrapping_add(col);
        let residual = self.residual.map(|r| r.row(row).wrapping_add(col));
        for j in (0..cols).step_by(S::LANES) {
            let some = S::LANES.min(cols - j);
            // SAFETY: the caller's promise; `some` elements are left in the rows.
            unsafe {
                let mut v = s.load(sums.add(j));
                if self.bias.is_some() {
                    v = s.add(v, s.load(bias.as_ptr().add(j)));
                }
                v = math::activate(s, self.activation, v);
                if let Some(gate) = gate {
                    v = s.mul(math::silu(s, s.load(gate.add(j))), v);
                }
                if let Some(residual) = residual {
                    v = s.add(s.load_some(residual.add(j), some), v);
                }
                if let Some(scale) = self.scale {
                    v = s.fma(s.splat(scale[row]), v, s.load_some(out.add(j), some));
                }
                s.store_some(out.add(j), v, some);
            }
        }
    }
}
