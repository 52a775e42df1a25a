use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use turbospark_device::{Buffer, Device, DeviceError};
use turbospark_weights::{Checkpoint, DirectFile};

use super::reads::Reads;
use crate::Result;

/// What was read, and how long passes waited for it.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes read.
    pub bytes: AtomicU64,
    /// Nanoseconds that passes waited.
    pub stalled: AtomicU64,
    /// Units or experts that were there when they were asked for.
    pub hits: AtomicU64,
    /// Those that had to be waited for or read.
    pub misses: AtomicU64,
}

impl Counters {
    /// Counts a unit that was asked for.
    pub(crate) fn asked(&self, was_there: bool) {
        let counter = if was_there { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.stalled.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// What brings units to slots: the files of a checkpoint, the device whose slots they are, and the account of it.
pub(crate) struct Disk {
    device: Arc<dyn Device>,
    checkpoint: Arc<Checkpoint>,
    files: Vec<DirectFile>,
    pub counters: Arc<Counters>,
}

impl Disk {
    pub fn new(device: Arc<dyn Device>, checkpoint: Arc<Checkpoint>, counters: Arc<Counters>) -> Result<Self> {
        let files = super::direct_files(&checkpoint)?;
        Ok(Disk { device, checkpoint, files, counters })
    }

    /// Reads a unit to its slot; the error is in words, since several may have to be told it.
    pub fn fill(&self, reads: &Reads, slot: &Buffer) -> Result<(), String> {
        let read = self.device.fill(slot.bytes(), &mut |out| {
            reads.read(&self.checkpoint, &self.files, out).map_err(std::io::Error::other)
        });
        self.counters.bytes.fetch_add(reads.bytes(), Ordering::Relaxed);
        read.map_err(|error| match error {
            DeviceError::Weights(source) => source.to_string(),
            other => other.to_string(),
        })
    }
}

/// The error that tells a pass what `fill` met.
pub(crate) fn failed(problem: &str) -> DeviceError {
    DeviceError::Weights(std::io::Error::other(problem.to_owned()))
}
