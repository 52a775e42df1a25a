//! Experts that don't fit: one pool of slots for all layers.
//!
//! Which experts a token takes is known only once the router has chosen, and neighbouring tokens take many of the same
//! again. So experts are kept in one pool, whatever layer they are of ([`policy`](super::policy) says which leave); the
//! misses of a layer are asked for together as soon as the router has chosen, and read while the shared expert and the
//! hits before them compute. A prompt groups its rows by expert, so each expert is read once a chunk.
//!
//! The order of computation is ascending whatever is there, so no bit depends on the pool.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use turbospark_device::op::UseExpert;
use turbospark_device::{Buffer, DeviceError, Expert, ExpertSource};

use super::disk::{Disk, LOOK};
use super::policy::{Key, Places, Policy};
use super::reads::ExpertReads;

/// Experts that are read at once; each in parts, so that there are enough requests for a drive's queue.
const READERS: usize = 2;

/// Slots for experts of all layers, and the threads that fill them.
pub struct Pool {
    shared: Arc<Shared>,
    readers: Vec<JoinHandle<()>>,
}

struct Shared {
    disk: Arc<Disk>,
    slots: Vec<Arc<Buffer>>,
    /// By layer (in the order of their adding) and expert.
    experts: Vec<Vec<ExpertReads>>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    slots: Vec<Slot>,
    places: Places,
    wanted: VecDeque<usize>,
    /// The layer whose choice is known, and what of it is pinned, in the order of use.
    announced: Option<Announced>,
    stop: bool,
}

struct Announced {
    layer: usize,
    wanted: Vec<usize>,
    pinned: VecDeque<usize>,
}

/// What there is to know of a slot beside what is in it.
#[derive(Clone, Default)]
struct Slot {
    ready: bool,
    failed: Option<String>,
    pins: usize,
}

impl Pool {
    pub(crate) fn new(disk: Arc<Disk>, slots: Vec<Arc<Buffer>>, experts: Vec<Vec<ExpertReads>>) -> Self {
        let state = State {
            slots: vec![Slot::default(); slots.len()],
            places: Places::new(slots.len(), experts.len(), Policy::CHOSEN),
            wanted: VecDeque::new(),
            announced: None,
            stop: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { disk, slots, experts, state, changed });
        let readers = (0..READERS).filter_map(|_| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("experts".into()).spawn(move || shared.fill()).ok()
        });
        let readers = readers.collect();
        Pool { shared, readers }
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
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fill(&self) {
        let mut state = self.lock();
        loop {
            if state.stop {
                return;
            }
            let Some(at) = state.wanted.pop_front() else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let (layer, expert) = state.places.key(at).expect("a slot that is filled has a key");
            if self.disk.counters.is_cancelled() {
                state.slots[at].failed = Some(DeviceError::Cancelled.to_string());
                self.changed.notify_all();
                continue;
            }
            drop(state);
            let reads = &self.experts[layer][expert].reads;
            let read = self.disk.fill(reads, &self.slots[at]);
            self.disk.counters.expert_bytes.fetch_add(reads.bytes(), Ordering::Relaxed);
            state = self.lock();
            match read {
                Ok(true) => state.slots[at].ready = true,
                Ok(false) => state.slots[at].failed = Some(DeviceError::Cancelled.to_string()),
                Err(problem) => state.slots[at].failed = Some(problem),
            }
            self.changed.notify_all();
        }
    }

    /// Pins an expert that is there, or has it read to a slot that nobody uses; `None` while all are in use.
    fn pin(&self, state: &mut State, key: Key) -> Option<usize> {
        let counters = &self.disk.counters;
        if let Some(at) = state.places.find(key) {
            let slot = &mut state.slots[at];
            // What failed and is nobody's any more is tried again.
            let again = slot.pins == 0 && slot.failed.take().is_some();
            slot.pins += 1;
            state.places.touch(at);
            counters.asked_expert(!again);
            if again {
                state.wanted.push_back(at);
                self.changed.notify_all();
            }
            return Some(at);
        }
        let State { slots, places, .. } = state;
        let free = |at: usize| slots[at].pins == 0 && (slots[at].ready || slots[at].failed.is_some());
        let at = places.choose(|at| places.key(at).is_none() || free(at))?;
        places.put(at, key);
        slots[at] = Slot { pins: 1, ..Slot::default() };
        state.wanted.push_back(at);
        counters.asked_expert(false);
        self.changed.notify_all();
        Some(at)
    }

    /// Pins of `wanted` what there are slots for, in the order of use.
    fn pin_ahead(&self, state: &mut State, layer: usize, wanted: &[usize], pinned: &mut VecDeque<usize>) -> usize {
        let pins = wanted.iter().map_while(|&expert| self.pin(state, (layer, expert)));
        let before = pinned.len();
        pinned.extend(pins);
        pinned.len() - before
    }

    /// Waits until a pinned expert is there.
    fn wait(&self, at: usize) -> Result<(), DeviceError> {
        let mut state = self.lock();
        let began = Instant::now();
        let waits = !state.slots[at].ready;
        while !state.slots[at].ready && state.slots[at].failed.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if waits {
            self.disk.counters.waited(began.elapsed());
        }
        match &state.slots[at].failed {
            Some(problem) => Err(self.disk.failed(problem)),
            None => Ok(()),
        }
    }

    fn unpin(&self, state: &mut State, at: usize) {
        state.slots[at].pins -= 1;
        self.changed.notify_all();
    }
}

/// The experts of one layer, from the pool.
#[derive(Debug)]
pub(crate) struct PooledExperts {
    pub pool: Arc<Pool>,
    /// Its number among the layers of the pool.
    pub layer: usize,
}

impl PooledExperts {
    /// Bytes of all of them.
    pub fn bytes(&self) -> f64 {
        self.pool.shared.experts[self.layer].iter().map(|e| e.reads.bytes() as f64).sum()
    }
}

impl ExpertSource for PooledExperts {
    fn experts(&self) -> usize {
        self.pool.shared.experts[self.layer].len()
    }

    fn announce(&self, wanted: &[usize]) {
        let shared = &self.pool.shared;
        let mut state = shared.lock();
        shared.disk.counters.note(self.layer, wanted);
        // Of a pass that ended early.
        for at in state.announced.take().into_iter().flat_map(|early| early.pinned) {
            shared.unpin(&mut state, at);
        }
        state.places.visit();
        let mut pinned = VecDeque::new();
        shared.pin_ahead(&mut state, self.layer, wanted, &mut pinned);
        state.announced = Some(Announced { layer: self.layer, wanted: wanted.to_vec(), pinned });
    }

    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        let shared = &self.pool.shared;
        if self.pool.readers.is_empty() {
            return Err(DeviceError::Unsupported("no thread could be started to read weights".into()));
        }
        let is_it = |a: &mut Announced| a.layer == self.layer && a.wanted == wanted;
        let announced = shared.lock().announced.take_if(is_it);
        let Some(Announced { mut pinned, .. }) = announced else {
            self.announce(wanted);
            return self.with(wanted, each);
        };
        let mut ahead = pinned.len();
        let mut result = Ok(());
        for &e in wanted {
            ahead += shared.pin_ahead(&mut shared.lock(), self.layer, &wanted[ahead..], &mut pinned);
            while pinned.is_empty() {
                // All slots are being filled for a pass that ended early.
                let state = shared.lock();
                let mut state = shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
                ahead += shared.pin_ahead(&mut state, self.layer, &wanted[ahead..], &mut pinned);
            }
            let Some(at) = pinned.pop_front() else { break };
            result = shared.wait(at).and_then(|()| {
                let expert = &shared.experts[self.layer][e];
                let slot = &shared.slots[at];
                let (gate, up, down) = (expert.gate.weight(slot), expert.up.weight(slot), expert.down.weight(slot));
                each(e, Expert { gate, up, down, layout: expert.layout })
            });
            shared.unpin(&mut shared.lock(), at);
            if result.is_err() {
                break;
            }
        }
        let mut state = shared.lock();
        for at in pinned {
            shared.unpin(&mut state, at);
        }
        result
    }
}
