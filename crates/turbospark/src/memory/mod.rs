//! The memory plan: what of a model stays in memory under a ceiling, and what is read again.
//!
//! Everything that the process touches counts: the program itself, caches, scratch, image buffers, weights. What is left
//! of the ceiling after the fixed terms goes to weights in the order of what reading again would cost: layers of the
//! trunk (each token reads them), experts (each token reads some), vision blocks (each image reads them once). The
//! part of the layers that stays is a fixed set, spread evenly over the pass, so that reads and computing go side by
//! side; never a cache that a cyclic pass would empty just before it is used.
//!
//! Without a ceiling of the user's the system says what is free ([`free`](free::free)); a model that fits is mapped.
//! Nothing here changes a bit of what is computed.

pub(crate) mod disk;
mod free;
mod plan;
mod process;
#[cfg(test)]
mod tests;
mod work;

use turbospark_models::Residency;

pub use disk::DiskSpeed;
pub use free::{Free, free};
pub(crate) use plan::{Demand, PROGRAM_STEP};
pub use process::{peak_bytes, resident_bytes};

/// What the user says about where weights live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResidencyChoice {
    /// What the ceiling allows; where all fits into what the system has free, the file's own pages.
    #[default]
    Auto,
    /// The file's own pages, which the system reads and drops as it likes.
    Mapped,
    /// Copies in memory.
    Loaded,
    /// Everything that can be is read again for each use.
    Streamed,
}

impl std::str::FromStr for ResidencyChoice {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Ok(match name {
            "auto" => ResidencyChoice::Auto,
            "mapped" => ResidencyChoice::Mapped,
            "loaded" => ResidencyChoice::Loaded,
            "streamed" => ResidencyChoice::Streamed,
            _ => return Err(format!("unknown residency {name:?}; choose auto, mapped, loaded or streamed")),
        })
    }
}

/// One term of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// What it is for.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// Whether they are of a graphics adapter's own memory, and not of the machine's.
    pub on_adapter: bool,
}

/// What memory is used for, and what a token costs in reads.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryPlan {
    /// The ceiling; `None` where there is none: all fits into what the system has free.
    pub ceiling: Option<u64>,
    /// How much of its own memory a graphics adapter may use; `None` of a device that uses the machine's, and where the
    /// adapter doesn't tell.
    pub adapter: Option<u64>,
    /// What the system had free, where the ceiling comes from that and not from the user.
    pub free: Option<Free>,
    /// Every term.
    pub terms: Vec<Term>,
    /// What stays on the disk.
    pub residency: Residency,
    /// Tokens that a sequence may have.
    pub context: usize,
    /// Most patches that the images of a prompt have together.
    pub most_patches: usize,
    /// Most bytes that decoding an image file takes.
    pub most_decode_bytes: u64,
    /// Bytes that a decoded token reads while no image is in work; of experts what differs if each token drew anew.
    pub read_per_token: u64,
    /// The same while the room of images is theirs, and not [lent](MemoryPlan::lent_bytes).
    pub read_beside_images: u64,
    /// Bytes that encoding an image reads, or several at once.
    pub read_per_image: u64,
    /// Bytes of the room of images that hold weights while there are none, as far as the residency says.
    pub lent_bytes: u64,
}

impl MemoryPlan {
    /// The sum of all terms in the machine's memory.
    pub fn total(&self) -> u64 {
        self.sum(false)
    }

    /// The sum of all terms in a graphics adapter's own memory; 0 where it has none.
    pub fn adapter_total(&self) -> u64 {
        self.sum(true)
    }

    fn sum(&self, on_adapter: bool) -> u64 {
        self.terms.iter().filter(|t| t.on_adapter == on_adapter).map(|t| t.bytes).sum()
    }

    /// Most patches that the images of a prompt may have together, where memory bounds them.
    pub(crate) fn patches(&self) -> Option<usize> {
        (self.ceiling.is_some() || self.adapter.is_some()).then_some(self.most_patches)
    }

    /// Whether anything is read again.
    pub fn streams(&self) -> bool {
        let r = &self.residency;
        !r.layers.is_empty() || r.head || r.vision || r.expert_slots > 0
    }
}
