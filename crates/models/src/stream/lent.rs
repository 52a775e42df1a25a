//! Memory that holds weights while what it is kept for isn't there.
//!
//! Layers that are streamed otherwise get a place of their own, and the pool of experts more slots. Nothing is read for
//! that alone: a layer is brought to its own place when it is read next, and new slots take what is missing. What is
//! given up goes back to the system at once.

use std::sync::Arc;

use turbospark_device::Device;

use super::{Pool, Ring};

/// Who can use memory that is lent.
pub(crate) struct Lender {
    device: Arc<dyn Device>,
    /// The ring, and bytes of each place that one of its units may have, in the order in which they are lent.
    ring: Option<(Arc<Ring>, Vec<u64>)>,
    /// The pool, and bytes of a slot.
    pool: Option<(Arc<Pool>, u64)>,
}

impl Lender {
    pub fn new(device: Arc<dyn Device>, ring: Option<(Arc<Ring>, Vec<u64>)>, pool: Option<(Arc<Pool>, u64)>) -> Self {
        Lender { device, ring, pool }
    }

    /// See [`Model::lend`](crate::Model::lend).
    pub fn lend(&self, bytes: u64) {
        let mut left = bytes;
        if let Some((ring, places)) = &self.ring {
            let fits = |&&place: &&u64| {
                let fits = place <= left;
                left -= if fits { place } else { 0 };
                fits
            };
            let count = places.iter().take_while(fits).count();
            ring.lend(count, &*self.device);
        }
        if let Some((pool, slot)) = &self.pool {
            pool.lend((left / (*slot).max(1)) as usize, &*self.device);
        }
    }
}

impl std::fmt::Debug for Lender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lender({:?}, {:?})", self.ring, self.pool)
    }
}
