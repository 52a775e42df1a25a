//! Goldens, tolerances and checkpoints for the tests.
//!
//! [`Index`] is a fixture set's table of tolerances, [`Index::compare`] holds a program's tensors against the
//! goldens by the rules of the set's own `compare.py`. A comparison that finds nothing to compare passes, so
//! whoever asks also looks at [`Compared::absent`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod checkpoint;
mod gguf;
mod golden;
mod tensors;
mod tiny;

use std::path::PathBuf;

pub use checkpoint::{RawTensor, pack, read_raw};
pub use gguf::GgufWriter;
pub use golden::{Class, Compared, Failure, Index};
pub use tensors::{FileError, Tensor, Tensors, Values, read, write};
pub use tiny::{ExpertLayout, random_checkpoint};

/// The repository's `assets` folder.
pub fn assets() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets"))
}

/// The fixture set of the reference.
pub fn fixtures() -> PathBuf {
    assets().join("fixtures")
}

/// A file of the folder `shared` beside the repository, or `None` where it is not there: then the test prints
/// `skipped:` and why.
pub fn shared(relative: &str) -> Option<PathBuf> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared")).join(relative);
    path.exists().then_some(path)
}

/// Numbers for tests that want the same ones each time: SplitMix64 (Steele et al., 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same seed, the same numbers.
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A number from -1 to 1.
    pub fn signed(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
