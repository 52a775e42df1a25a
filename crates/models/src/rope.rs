//! Rotary angles, computed on the host in f32 and uploaded, so that every device turns by the same bits.
//!
//! Two slips stay fluent: sections taken as contiguous blocks instead of interleaved, and interleaving
//! without the section's limit, which moves the tail of the frequencies to the wrong axis.

use turbospark_tensor::mutant::{Mutant, active};

use crate::config::{RopeConfig, RopeScaling};

/// `theta^(-2j/dim)` for `j < dim/2`, rounded as the reference rounds: exponent, power and reciprocal in f32.
fn inverse_frequencies(theta: f64, dim: usize) -> Vec<f32> {
    (0..dim / 2)
        .map(|j| {
            let exponent = (2 * j) as f32 / dim as f32;
            1.0 / theta.powf(exponent as f64) as f32
        })
        .collect()
}

/// What scaling divides each frequency by.
pub fn scaling_factors(rope: &RopeConfig) -> Vec<f32> {
    let plain = inverse_frequencies(rope.theta, rope.rotary_dim());
    let mut scaled = plain.clone();
    scale(&rope.scaling, &mut scaled);
    plain.iter().zip(&scaled).map(|(plain, scaled)| plain / scaled).collect()
}

/// Frequencies for longer contexts (`ROPE_INIT_FUNCTIONS` of the reference), in f32 as there.
fn scale(scaling: &RopeScaling, inv: &mut [f32]) {
    match scaling {
        RopeScaling::None => {}
        RopeScaling::Linear(factor) => inv.iter_mut().for_each(|f| *f /= *factor as f32),
        RopeScaling::Each(factors) => inv.iter_mut().zip(factors).for_each(|(f, factor)| *f /= factor),
        &RopeScaling::Llama3 { factor, low, high, original } => {
            for f in inv {
                let wavelength = std::f32::consts::TAU / *f;
                let slow = *f / factor as f32;
                if wavelength > (original / low) as f32 {
                    *f = slow;
                } else if wavelength >= (original / high) as f32 {
                    let smooth = (original as f32 / wavelength - low as f32) / (high - low) as f32;
                    *f = (1.0 - smooth) * slow + smooth * *f;
                }
            }
        }
    }
}

/// cos and sin of an f32 angle, correctly rounded.
fn turn(angle: f32) -> (f32, f32) {
    let (sin, cos) = (angle as f64).sin_cos();
    (cos as f32, sin as f32)
}

/// The trunk's rotary embedding: interleaved mrope (`apply_interleaved_mrope` of the reference).
#[derive(Clone, Debug)]
pub struct TextRope {
    inv: Vec<f32>,
    /// Which of (t, h, w) turns frequency j.
    axis: Vec<u8>,
}

impl TextRope {
    /// Angles for heads of `head_dim`, of which the configuration may turn a part.
    pub fn new(config: &RopeConfig) -> Self {
        let dim = config.rotary_dim();
        let [_, h, w] = config.mrope_section;
        let axis = (0..dim / 2).map(|j| {
            if active(Mutant::MropeContiguous) {
                let [t, h, _] = config.mrope_section;
                return (j >= t) as u8 + (j >= t + h) as u8;
            }
            let unlimited = active(Mutant::MropeNoLimit);
            match j % 3 {
                1 if unlimited || j < 3 * h => 1,
                2 if unlimited || j < 3 * w => 2,
                _ => 0,
            }
        });
        let mut inv = inverse_frequencies(config.theta, dim);
        scale(&config.scaling, &mut inv);
        TextRope { inv, axis: axis.collect() }
    }

    /// Angles a head: half the elements turned.
    pub fn half(&self) -> usize {
        self.inv.len()
    }

    /// Appends cos and sin, `[rows, half]`, for rows at the given positions.
    pub fn extend(&self, position: [u32; 3], cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        for (inv, &axis) in self.inv.iter().zip(&self.axis) {
            let (c, s) = turn(position[axis as usize] as f32 * inv);
            cos.push(c);
            sin.push(s);
        }
    }
}

/// The tower's rotary embedding: the first half of the angles turns by row, the second by column.
#[derive(Clone, Debug)]
pub struct VisionRope {
    inv: Vec<f32>,
}

impl VisionRope {
    /// Angles for heads of `head_dim`, all of which is turned.
    pub fn new(theta: f32, head_dim: usize) -> Self {
        VisionRope { inv: inverse_frequencies(theta as f64, head_dim / 2) }
    }

    /// Angles a head: half its elements.
    pub fn half(&self) -> usize {
        2 * self.inv.len()
    }

    /// Appends cos and sin, `[patches, half]`, of the patch at (row, column).
    pub fn extend(&self, row: usize, column: usize, cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        let axes = if active(Mutant::VisionRopeAxesExchanged) { [column, row] } else { [row, column] };
        for at in axes {
            for inv in &self.inv {
                let (c, s) = turn(at as f32 * inv);
                cos.push(c);
                sin.push(s);
            }
        }
    }
}
