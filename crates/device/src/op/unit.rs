//! Weights that come and go while a pass runs.

use std::fmt;

use super::check::Checked;
use crate::DeviceError;

/// Where weights that are used together, a *unit*, come from: a ring of slots that is filled ahead.
pub trait UnitSource: Send + Sync {
    /// Waits until the unit's weights are in their slot.
    ///
    /// # Errors
    /// When they can't be read.
    fn acquire(&self, unit: usize) -> Result<(), DeviceError>;

    /// The slot may be filled with something else.
    fn release(&self, unit: usize);
}

/// Ops after this one find the unit's weights in their slot.
#[derive(Clone, Copy)]
pub struct Acquire<'a> {
    /// Where the unit comes from.
    pub source: &'a dyn UnitSource,
    /// Which.
    pub unit: usize,
}

/// Ops before this one were the last to use the unit's weights; a device runs it when they have finished.
#[derive(Clone, Copy)]
pub struct Release<'a> {
    /// Where the unit came from.
    pub source: &'a dyn UnitSource,
    /// Which.
    pub unit: usize,
}

impl Acquire<'_> {
    pub(super) fn check(&self) -> Checked {
        Ok(())
    }
}

impl Release<'_> {
    pub(super) fn check(&self) -> Checked {
        Ok(())
    }
}

impl fmt::Debug for Acquire<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Acquire({})", self.unit)
    }
}

impl fmt::Debug for Release<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Release({})", self.unit)
    }
}
