//! One pool of slots for the experts of all layers, and the threads that fill it.
//!
//! A slot is pinned while somebody counts on what is in it: the layer whose router has chosen, or a
//! [guess](super::guess) at what the next layer will choose. What is chosen is read before what is guessed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use turbospark_device::{Buffer, Device, DeviceError};
use turbospark_weights::Pace;

use super::disk::Disk;
use super::guess::{Guess, Trusts};
use super::policy::{Key, Places, Policy};
use super::reads::ExpertReads;

/// Experts that are read at once; each in parts, so that there are enough requests for a drive's queue.
pub const READERS: usize = 2;

/// Slots for experts of all layers, and the threads that fill them.
pub struct Pool {
    pub(super) shared: Arc<Shared>,
    /// Whether choices are announced when they are made, and not when they are used.
    pub(super) heard: AtomicBool,
    readers: Vec<JoinHandle<()>>,
}

pub(super) struct Shared {
    pub disk: Arc<Disk>,
    pub slots: Vec<Arc<Buffer>>,
    /// The first so many are its own; those after them are [lent](Pool::lend), the first of them at a time.
    own: usize,
    /// Slots that it has now.
    used: AtomicUsize,
    /// By layer (in the order of their adding) and expert.
    pub experts: Vec<Vec<ExpertReads>>,
    state: Mutex<State>,
    pub changed: Condvar,
}

pub(super) struct State {
    pub slots: Vec<Slot>,
    pub places: Places,
    /// Slots to fill with what was chosen, in the order of use.
    pub wanted: VecDeque<usize>,
    /// Slots to fill with what is likely, while nothing else is to be read.
    pub likely: VecDeque<usize>,
    /// The layer whose choice is known, and what of it is pinned, in the order of use.
    pub announced: Option<Announced>,
    /// Experts of that choice for which there was no slot yet.
    pub owed: usize,
    /// Bytes of what was to be read because a layer chose it.
    pub asked_bytes: u64,
    /// What the layer after that is going to choose, and what the one after the next announcement is.
    pub guess: Option<Guess>,
    pub next_guess: Option<Guess>,
    /// In guesses, by layer.
    pub trust: Vec<Trusts>,
    /// How many readers are at work.
    reading: usize,
    stop: bool,
}

pub(super) struct Announced {
    pub layer: usize,
    pub wanted: Vec<usize>,
    pub pinned: Vec<usize>,
    /// When, and what of it had to be read.
    pub at: Instant,
    pub bytes: u64,
}

/// What there is to know of a slot beside what is in it.
#[derive(Clone, Default)]
pub(super) struct Slot {
    pub ready: bool,
    pub failed: Option<String>,
    pub pins: usize,
    /// A reader is at it.
    pub is_read: bool,
    /// Nobody wants what is being read to it.
    pub in_vain: bool,
}

impl Slot {
    /// Whether nothing is going on in it any more.
    pub fn is_settled(&self) -> bool {
        self.ready || self.failed.is_some()
    }
}

impl Pool {
    /// With slots of which the first `own` are there for good.
    pub(crate) fn new(disk: Arc<Disk>, slots: Vec<Arc<Buffer>>, own: usize, experts: Vec<Vec<ExpertReads>>) -> Self {
        let state = State {
            slots: vec![Slot::default(); slots.len()],
            places: Places::new(slots.len(), experts.len(), Policy::CHOSEN),
            wanted: VecDeque::new(),
            likely: VecDeque::new(),
            announced: None,
            owed: 0,
            asked_bytes: 0,
            guess: None,
            next_guess: None,
            trust: vec![Trusts::default(); experts.len()],
            reading: 0,
            stop: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let used = AtomicUsize::new(own);
        let shared = Arc::new(Shared { disk, slots, own, used, experts, state, changed });
        let readers = (0..READERS).filter_map(|_| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("experts".into()).spawn(move || shared.fill()).ok()
        });
        let readers = readers.collect();
        Pool { shared, heard: AtomicBool::new(false), readers }
    }

    /// Whether anything can be read.
    pub(super) fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Has `lent` slots beside its own, or as many as there are; what is in others is given up. Between passes only.
    pub(crate) fn lend(&self, lent: usize, device: &dyn Device) {
        let shared = &*self.shared;
        let used = (shared.own + lent).min(shared.slots.len());
        let mut state = shared.lock();
        let before = shared.used.swap(used, Ordering::Relaxed);
        if before <= used {
            return;
        }
        // What a pass left that ended early, and what is read for the next one.
        for at in state.announced.take().into_iter().flat_map(|early| early.pinned) {
            shared.unpin(&mut state, at);
        }
        state.next_guess = None;
        shared.settle_guess(&mut state, usize::MAX, &[]);
        state.wanted.retain(|&at| at < used);
        for at in used..before {
            while state.slots[at].is_read {
                state.slots[at].in_vain = true;
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.places.vacate(at);
            state.slots[at] = Slot::default();
            device.discard(&shared.slots[at]);
        }
    }

    /// Whether there is a slot for every expert, so that none is read twice.
    pub(super) fn holds_all(&self) -> bool {
        self.shared.used.load(Ordering::Relaxed) >= self.shared.experts.iter().map(Vec::len).sum()
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} slots)", self.shared.slots.len())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self) {
        let mut state = self.lock();
        loop {
            if state.stop {
                return;
            }
            let wanted = state.wanted.pop_front();
            // What is likely only waits less: alone, and in small pieces, so that it soon makes way.
            let calmly = wanted.is_none();
            let likely = |state: &mut State| if state.reading == 0 { state.likely.pop_front() } else { None };
            let Some(at) = wanted.or_else(|| likely(&mut state)) else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (layer, expert) = state.places.key(at).expect("a slot that is filled has a key");
            if self.disk.counters.is_cancelled() {
                state.slots[at].failed = Some(DeviceError::Cancelled.to_string());
                self.changed.notify_all();
                continue;
            }
            state.reading += 1;
            state.slots[at].is_read = true;
            drop(state);
            let in_vain = || self.lock().slots[at].in_vain;
            let pace = if calmly { Pace::Calm } else { Pace::Full };
            let read = self.disk.fill(&self.experts[layer][expert].reads, &self.slots[at], pace, &in_vain);
            state = self.lock();
            state.reading -= 1;
            let bytes = read.as_ref().map_or(0, |&(bytes, _)| bytes);
            let counters = &self.disk.counters;
            counters.expert_bytes.fetch_add(bytes, Ordering::Relaxed);
            let slot = &mut state.slots[at];
            slot.is_read = false;
            match read {
                Ok((_, true)) => slot.ready = true,
                Ok((_, false)) if counters.is_cancelled() => slot.failed = Some(DeviceError::Cancelled.to_string()),
                // Somebody wants it again.
                Ok((_, false)) if slot.pins > 0 => state.wanted.push_front(at),
                Ok((_, false)) => state.places.vacate(at),
                Err(problem) => slot.failed = Some(problem),
            }
            if std::mem::take(&mut state.slots[at].in_vain) {
                counters.vain_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            self.changed.notify_all();
        }
    }

    /// A slot for an expert that has none, of those that nobody uses; `None` while all are in use.
    pub fn free_slot(&self, state: &State) -> Option<usize> {
        let (State { slots, places, .. }, used) = (state, self.used.load(Ordering::Relaxed));
        let idle = |at: usize| slots[at].is_settled() || places.key(at).is_none();
        places.choose(|at| at < used && slots[at].pins == 0 && idle(at))
    }

    /// Pins an expert that is there, or has it read to a slot that nobody uses; `None` while all are in use.
    fn pin(&self, state: &mut State, key: Key) -> Option<usize> {
        let counters = &self.disk.counters;
        if let Some(at) = state.places.find(key) {
            let slot = &mut state.slots[at];
            // What failed and is nobody's any more is tried again.
            let again = slot.pins == 0 && slot.failed.take().is_some();
            counters.asked_expert(slot.ready);
            slot.pins += 1;
            slot.in_vain = false;
            state.places.touch(at);
            let likely = state.likely.iter().position(|&waits| waits == at);
            likely.map(|i| state.likely.remove(i));
            if again || likely.is_some() {
                state.asked_bytes += self.experts[key.0][key.1].reads.bytes();
                state.wanted.push_back(at);
                self.changed.notify_all();
            }
            return Some(at);
        }
        let at = self.free_slot(state)?;
        state.places.put(at, key);
        state.slots[at] = Slot { pins: 1, ..Slot::default() };
        state.wanted.push_back(at);
        state.asked_bytes += self.experts[key.0][key.1].reads.bytes();
        counters.asked_expert(false);
        self.changed.notify_all();
        Some(at)
    }

    /// Pins of `wanted` what there are slots for, in the order of use.
    pub fn pin_all(&self, state: &mut State, layer: usize, wanted: &[usize]) -> Vec<usize> {
        let pinned: Vec<usize> = wanted.iter().map_while(|&expert| self.pin(state, (layer, expert))).collect();
        state.owed = wanted.len() - pinned.len();
        pinned
    }

    pub fn unpin(&self, state: &mut State, at: usize) {
        state.slots[at].pins -= 1;
        self.place_guess(state);
        self.changed.notify_all();
    }
}
