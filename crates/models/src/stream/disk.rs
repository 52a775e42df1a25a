use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use turbospark_device::{Buffer, Device, DeviceError};
use turbospark_weights::{Checkpoint, DirectFile, Pace};

use super::reads::Reads;
use crate::Result;

/// A layer, and the distinct experts that rows of one pass chose in it.
pub type Choice = (usize, Vec<usize>);

/// A layer that had to read some of the experts that its router had chosen, from the choice to the last of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visit {
    /// Bytes that nobody had begun to read when they were chosen.
    pub bytes: u64,
    /// What was not waited.
    pub computing: Duration,
    /// Of that, what the last expert took, if it was read: nothing can be read beside it.
    pub last: Duration,
    /// What was waited.
    pub stalled: Duration,
}

/// What was read, and how long passes waited for it.
#[derive(Debug, Default)]
pub struct Counters {
    /// Bytes read.
    pub bytes: AtomicU64,
    /// Of them, experts.
    pub expert_bytes: AtomicU64,
    /// Nanoseconds that passes waited.
    pub stalled: AtomicU64,
    /// Layers, blocks and parts of the head that were there when they were asked for.
    pub hits: AtomicU64,
    /// Those that had to be waited for.
    pub misses: AtomicU64,
    /// Experts that were in the pool when they were asked for.
    pub expert_hits: AtomicU64,
    /// Those that had to be read, or were being read.
    pub expert_misses: AtomicU64,
    /// Experts that were read because the layer before theirs made them likely.
    pub guesses: AtomicU64,
    /// Of them, those that their layer chose.
    pub right_guesses: AtomicU64,
    /// Bytes read of the others.
    pub vain_bytes: AtomicU64,
    /// What layers asked the pool for, where somebody wants to know.
    routing: Mutex<Option<Vec<Choice>>>,
    /// Layers that had to read, where somebody wants to know.
    visits: Mutex<Option<Vec<Visit>>>,
    /// Ends reading from outside.
    cancel: Mutex<Option<Arc<AtomicBool>>>,
}

impl Counters {
    /// Counts a unit that was asked for.
    pub(crate) fn asked(&self, was_there: bool) {
        let counter = if was_there { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an expert that was asked for.
    pub(crate) fn asked_expert(&self, was_there: bool) {
        let counter = if was_there { &self.expert_hits } else { &self.expert_misses };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.stalled.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Begins to note what layers ask the pool of experts for, or ends it; what was noted so far.
    pub fn note_routing(&self, on: bool) -> Vec<Choice> {
        let mut routing = self.routing.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *routing, on.then(Vec::new)).unwrap_or_default()
    }

    pub(crate) fn note(&self, layer: usize, wanted: &[usize]) {
        if let Some(routing) = &mut *self.routing.lock().unwrap_or_else(PoisonError::into_inner) {
            routing.push((layer, wanted.to_vec()));
        }
    }

    /// Begins to note layers that have to read experts, or ends it; what was noted so far.
    pub fn note_visits(&self, on: bool) -> Vec<Visit> {
        let mut visits = self.visits.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *visits, on.then(Vec::new)).unwrap_or_default()
    }

    pub(crate) fn visited(&self, visit: Visit) {
        if let Some(visits) = &mut *self.visits.lock().unwrap_or_else(PoisonError::into_inner) {
            visits.push(visit);
        }
    }

    /// The switch that ends the reads of the pass that runs; `None` once it is over.
    pub fn cancel_by(&self, cancel: Option<Arc<AtomicBool>>) {
        *self.cancel.lock().unwrap_or_else(PoisonError::into_inner) = cancel;
    }

    /// Whether the pass that runs is wanted no longer.
    pub(crate) fn is_cancelled(&self) -> bool {
        let cancel = self.cancel.lock().unwrap_or_else(PoisonError::into_inner);
        cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// How often a pass that waits looks whether it is wanted still.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

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

    /// Reads a unit to its slot: the bytes that were read, and whether that was all; fewer where the pass or, as `stop`
    /// says, the unit is wanted no longer. The error is in words, since several may have to be told it.
    pub fn fill(
        &self,
        reads: &Reads,
        slot: &Buffer,
        pace: Pace,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<(u64, bool), String> {
        let stop = || self.counters.is_cancelled() || stop();
        let mut done = (0, true);
        let read = self.device.fill(slot.bytes(), &mut |out| {
            done = reads.read(&self.checkpoint, &self.files, out, pace, &stop).map_err(std::io::Error::other)?;
            Ok(())
        });
        self.counters.bytes.fetch_add(done.0, Ordering::Relaxed);
        match read {
            Ok(()) => Ok(done),
            Err(DeviceError::Weights(source)) => Err(source.to_string()),
            Err(other) => Err(other.to_string()),
        }
    }

    /// The error that tells a pass what `fill` met.
    pub fn failed(&self, problem: &str) -> DeviceError {
        if self.counters.is_cancelled() {
            return DeviceError::Cancelled;
        }
        DeviceError::Weights(std::io::Error::other(problem.to_owned()))
    }
}
