//! What was read again, and how long it was waited for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use turbospark_models::Counters;

/// What was read of weights that stay on the disk, since the model was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reads {
    /// Bytes.
    pub bytes: u64,
    /// Of them, experts.
    pub expert_bytes: u64,
    /// How long passes waited for them.
    pub stalled: Duration,
    /// Layers, blocks and parts of the head that were there when they were used.
    pub hits: u64,
    /// Those that were not.
    pub misses: u64,
    /// Experts that were in memory when a layer chose them.
    pub expert_hits: u64,
    /// Those that were not.
    pub expert_misses: u64,
    /// Experts that were read early, because the layer before theirs made them likely.
    pub guesses: u64,
    /// Of them, those that their layer chose.
    pub right_guesses: u64,
    /// Bytes read of the others.
    pub vain_bytes: u64,
}

impl Reads {
    /// As counted so far.
    pub(super) fn of(counters: &Counters) -> Self {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Reads {
            bytes: of(&counters.bytes),
            expert_bytes: of(&counters.expert_bytes),
            stalled: Duration::from_nanos(of(&counters.stalled)),
            hits: of(&counters.hits),
            misses: of(&counters.misses),
            expert_hits: of(&counters.expert_hits),
            expert_misses: of(&counters.expert_misses),
            guesses: of(&counters.guesses),
            right_guesses: of(&counters.right_guesses),
            vain_bytes: of(&counters.vain_bytes),
        }
    }

    /// What was read after `before`.
    pub fn since(&self, before: &Reads) -> Reads {
        Reads {
            bytes: self.bytes - before.bytes,
            expert_bytes: self.expert_bytes - before.expert_bytes,
            stalled: self.stalled - before.stalled,
            hits: self.hits - before.hits,
            misses: self.misses - before.misses,
            expert_hits: self.expert_hits - before.expert_hits,
            expert_misses: self.expert_misses - before.expert_misses,
            guesses: self.guesses - before.guesses,
            right_guesses: self.right_guesses - before.right_guesses,
            vain_bytes: self.vain_bytes - before.vain_bytes,
        }
    }

    /// Both together.
    pub fn and(&self, other: &Reads) -> Reads {
        Reads {
            bytes: self.bytes + other.bytes,
            expert_bytes: self.expert_bytes + other.expert_bytes,
            stalled: self.stalled + other.stalled,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            expert_hits: self.expert_hits + other.expert_hits,
            expert_misses: self.expert_misses + other.expert_misses,
            guesses: self.guesses + other.guesses,
            right_guesses: self.right_guesses + other.right_guesses,
            vain_bytes: self.vain_bytes + other.vain_bytes,
        }
    }

    /// The part of the chosen experts that was in memory; `None` where there are none.
    pub fn expert_hit_rate(&self) -> Option<f64> {
        let asked = self.expert_hits + self.expert_misses;
        (asked > 0).then(|| self.expert_hits as f64 / asked as f64)
    }
}
