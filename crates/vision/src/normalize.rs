//! From an 8-bit sample to the number the tower reads.

/// Rescaling and normalising as the checkpoint asks for it.
///
/// The reference fuses the two: `(v - mean / rescale) / (std / rescale)` in f32. Dividing by 255 first gives
/// other bits in a third of the 256 values.
#[derive(Debug, Clone, PartialEq)]
pub struct PixelScale {
    /// `image_mean`, one a channel.
    pub mean: [f32; 3],
    /// `image_std`, one a channel.
    pub std: [f32; 3],
    /// `rescale_factor`, or `None` where `do_rescale` is false.
    pub rescale: Option<f64>,
    /// `do_normalize`.
    pub normalize: bool,
}

impl PixelScale {
    /// What each of the 256 samples becomes, channel by channel.
    pub fn table(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|c| std::array::from_fn(|v| self.one(c, v as f32)))
    }

    fn one(&self, channel: usize, v: f32) -> f32 {
        let (mean, std) = (self.mean[channel], self.std[channel]);
        match (self.rescale, self.normalize) {
            (Some(factor), true) => {
                let unscale = (1.0 / factor) as f32;
                (v - mean * unscale) / (std * unscale)
            }
            (Some(factor), false) => v * factor as f32,
            (None, true) => (v - mean) / std,
            (None, false) => v,
        }
    }
}
