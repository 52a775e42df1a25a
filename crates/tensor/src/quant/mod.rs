//! f32 rows to the block formats of [`block`](crate::block).
//!
//! `Q8_0` is the public rule to the bit: `d = max |x| / 127`, codes `x / d` rounded half away from zero with the
//! unrounded `d`, which is stored as f16 rounded to nearest even. The others look for the codes and scales with the
//! least squared error, in two steps: candidates for each group, improved by least squares (`search.rs`), then for
//! `K` formats the shared scales of the block and the integers of its groups together (`k.rs`, `q6.rs`). That leaves
//! 3 to 23 % less squared error than the public quantisers, which `tests/quality.rs` holds.
//!
//! Affine groups ([`ScaledForm::quantise`](crate::ScaledForm::quantise)) are searched in the same way, and `Q4_1` and
//! `Q5_1` are such groups with a scale and a bias in f16 (`legacy.rs`).
//!
//! What goes wrong unseen: codes chosen for a scale before it was rounded to f16. But for `Q8_0`, scales are rounded
//! first and the codes are those nearest, ties to even. A block whose scale is below the least f16 becomes zeros.

mod k;
mod legacy;
mod q6;
mod search;

use half::f16;

use crate::{DType, widen_into};

/// The formats that checkpoints are quantised to.
pub const FORMATS: [DType; 5] = [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K];

/// The formats that [`quantise`] writes: these and others that public files have.
pub const WRITTEN: [DType; 8] =
    [DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::Q4_1, DType::Q5_0, DType::Q5_1];

/// Why values can't be quantised.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A NaN or an infinity.
    #[error("element {index} is {value}; only finite weights are quantised")]
    NotFinite {
        /// The first such element.
        index: usize,
        /// What it is.
        value: f32,
    },
    /// A block needs a scale that its type doesn't hold.
    #[error("elements from {index} on are too large for a scale of {dtype}; the largest is {value}")]
    TooLarge {
        /// The format, or the type of an affine group's scale.
        dtype: DType,
        /// The block's first element.
        index: usize,
        /// The block's largest element in size.
        value: f32,
    },
}

impl QuantError {
    /// The same with indices counted from `first` elements earlier.
    pub(crate) fn after(mut self, first: usize) -> Self {
        match &mut self {
            QuantError::NotFinite { index, .. } | QuantError::TooLarge { index, .. } => *index += first,
        }
        self
    }
}

/// Quantises `values` (whole rows, so whole blocks) to `dtype`.
///
/// # Errors
/// [`QuantError`], with the element.
///
/// # Panics
/// When `dtype` is none of [`WRITTEN`], or `out` is not as long as the values take.
pub fn quantise(values: &[f32], dtype: DType, out: &mut [u8]) -> Result<(), QuantError> {
    assert!(WRITTEN.contains(&dtype), "nothing is quantised to {dtype}");
    assert_eq!(Some(out.len()), dtype.bytes(values.len()), "values and blocks differ in length");
    let block = dtype.block();
    for (i, (x, b)) in values.chunks_exact(block.elements).zip(out.chunks_exact_mut(block.bytes)).enumerate() {
        let first = i * block.elements;
        if let Some(bad) = x.iter().position(|v| !v.is_finite()) {
            return Err(QuantError::NotFinite { index: first + bad, value: x[bad] });
        }
        let fits = match dtype {
            DType::Q8_0 => q8_0(x, b),
            DType::Q4_0 => legacy::symmetric(x, 8.0, b),
            DType::Q5_0 => legacy::symmetric(x, 16.0, b),
            DType::Q4_1 => legacy::with_min(x, 15.0, b),
            DType::Q5_1 => legacy::with_min(x, 31.0, b),
            DType::Q4_K => k::quantise(x, 15.0, b),
            DType::Q5_K => k::quantise(x, 31.0, b),
            _ => q6::quantise(x, b),
        };
        if fits.is_none() {
            return Err(QuantError::TooLarge { dtype, index: first, value: largest(x) });
        }
    }
    Ok(())
}

/// Quantises stored weights of a float or block type, `threads` shares at a time. The number of threads changes no
/// bit.
///
/// # Errors
/// [`QuantError`], with the first element that is refused.
///
/// # Panics
/// When `from` is neither a float nor a block type, or as [`quantise`].
pub fn requantise(bytes: &[u8], from: DType, dtype: DType, threads: usize, out: &mut [u8]) -> Result<(), QuantError> {
    assert!(from.is_weight(), "{from} is no weight");
    assert!(WRITTEN.contains(&dtype), "nothing is quantised to {dtype}");
    let block = dtype.block();
    assert!(out.len().is_multiple_of(block.bytes), "a part of a block");
    let elements = out.len() / block.bytes * block.elements;
    assert_eq!(Some(bytes.len()), from.bytes(elements), "source and target differ in length");
    // A piece is a whole number of blocks of both types, and small enough for the first cache.
    let pieces = elements.div_ceil(PIECE);
    let share = pieces.div_ceil(threads.max(1)).max(1) * PIECE;
    let run = |first: usize, out: &mut [u8]| {
        let mut wide = [0f32; PIECE];
        let whole = PIECE / block.elements * block.bytes;
        for (i, out) in out.chunks_mut(whole).enumerate() {
            let first = first + i * PIECE;
            let x = &mut wide[..out.len() / block.bytes * block.elements];
            let at = |n: usize| from.bytes(n).expect("whole blocks: the lengths agree");
            widen_into(&bytes[at(first)..at(first + x.len())], from, x);
            quantise(x, dtype, out).map_err(|e| e.after(first))?;
        }
        Ok(())
    };
    let shares = out.chunks_mut(share / block.elements * block.bytes).enumerate();
    let run = &run;
    std::thread::scope(|scope| {
        let started: Vec<_> = shares.map(|(i, out)| scope.spawn(move || run(i * share, out))).collect();
        // In order, so that the first element is named whichever thread finds one first.
        started.into_iter().try_for_each(|t| t.join().expect("a share does not panic"))
    })
}

/// Scale, bias and codes (the first `x.len()`) of an affine group, the first two as `round` leaves them.
///
/// Candidates are the least squares fit, its neighbours a step of bf16 away, and the public rule: the end of larger
/// size kept exact, and zero. The one that leaves the least error wins, so it is never worse than the public rule.
pub(crate) fn affine_group(
    x: &[f32],
    top: f32,
    dtype: DType,
    round: impl Fn(f32) -> f32,
) -> Result<(f32, f32, [u8; 128]), QuantError> {
    if let Some(bad) = x.iter().position(|v| !v.is_finite()) {
        return Err(QuantError::NotFinite { index: bad, value: x[bad] });
    }
    let inverse = |s: f32| if s == 0.0 { 0.0 } else { 1.0 / s };
    let mut best = (f32::INFINITY, 0.0, 0.0);
    let mut candidate = |s: f32, b: f32| {
        let inverse = inverse(s);
        let [e] = search::sums(x, |v| {
            let e = s * search::nearest((v - b) * inverse, 0.0, top) + b - v;
            [e * e]
        });
        if e < best.0 && s.is_finite() && b.is_finite() {
            best = (e, s, b);
        }
    };
    let (fit, min) = search::scale_and_min(x, top, true);
    for step in [1.0, 1.0 - 1.0 / 256.0, 1.0 + 1.0 / 256.0] {
        let s = round(fit * step);
        let inverse = inverse(s);
        let [n, sum] = search::sums(x, |v| [search::nearest((v + min) * inverse, 0.0, top), v]);
        candidate(s, round((sum - s * n) / x.len() as f32));
    }
    let (low, high) = x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    let s = ((high - low) / top).max(1e-7);
    let (s, edge) = if low.abs() > high.abs() { (s, low) } else { (-s, high) };
    let n = (edge / s).round_ties_even();
    let (s, b) = if n == 0.0 { (s, 0.0) } else { (edge / n, edge) };
    candidate(round(s), round(b));
    let (error, s, b) = best;
    if error == f32::INFINITY {
        return Err(QuantError::TooLarge { dtype, index: 0, value: largest(x) });
    }
    let mut codes = [0; 128];
    for (q, &v) in codes.iter_mut().zip(x) {
        *q = search::nearest((v - b) * inverse(s), 0.0, top) as u8;
    }
    Ok((s, b, codes))
}

/// Elements widened at a time.
const PIECE: usize = 2048;

/// The element that is largest in size, with its sign.
fn largest(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |m: f32, &v| if v.abs() > m.abs() { v } else { m })
}

/// `x` as f16 and what that is; `None` where it is too large.
fn to_f16(x: f32) -> Option<(f16, f32)> {
    let d = f16::from_f32(x);
    d.is_finite().then(|| (d, d.to_f32()))
}

fn q8_0(x: &[f32], out: &mut [u8]) -> Option<()> {
    let block = quantise_q8_0(x.try_into().expect("32 elements"));
    out.copy_from_slice(&block);
    f16::from_le_bytes([block[0], block[1]]).is_finite().then_some(())
}

/// One block of `Q8_0`, for values that are not known to be finite, such as activations: where [`quantise`] refuses
/// a block, its scale is NaN, and so is every element that it is widened to.
///
/// Inlined into loops that are compiled for an instruction set, so it calls nothing but the rounding of the scale.
#[inline(always)]
pub fn quantise_q8_0(x: &[f32; 32]) -> [u8; 34] {
    // As integers, sizes are in order, and infinities and NaNs above all numbers.
    let largest = x.iter().fold(0, |m, v| m.max(v.to_bits() & 0x7fff_ffff));
    let d = f32::from_bits(largest) / 127.0;
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let scale = f16::from_f32(d);
    let scale = if scale.is_finite() { scale } else { f16::NAN };
    let mut block = [0; 34];
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (q, &v) in block[2..].iter_mut().zip(x) {
        let scaled = v * inverse;
        // Half away from zero: the largest number below a half, so that what lies just below one stays below.
        *q = (scaled + 0.499_999_97_f32.copysign(scaled)) as i8 as u8;
    }
    block
}
