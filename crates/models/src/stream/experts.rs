//! Experts that don't fit: one pool of slots for all layers.
//!
//! Which experts a token takes is known only once the router has chosen, and neighbouring tokens take many of the same
//! again. So experts are kept by recency and frequency in one pool, whatever layer they are of; the misses of a layer
//! are asked for together, and read while the hits before them compute. A prompt groups its rows by expert, so each
//! expert is read once a chunk.
//!
//! The order of computation is ascending whatever is there, so no bit depends on the pool.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use turbospark_device::op::UseExpert;
use turbospark_device::{Buffer, DeviceError, Expert, ExpertSource};

use super::disk::{Disk, failed};
use super::reads::ExpertReads;

/// Threads that read: a drive answers two requests faster than one after the other.
const READERS: usize = 2;
/// How many uses weigh as much as having been used just now: what is taken often outlives a change of subject.
const FREQUENCY: u64 = 4;

/// A layer and one of its experts.
type Key = (usize, usize);

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

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    place: HashMap<Key, usize>,
    wanted: VecDeque<usize>,
    /// Counts uses.
    clock: u64,
    stop: bool,
}

#[derive(Clone, Default)]
struct Slot {
    key: Option<Key>,
    ready: bool,
    failed: Option<String>,
    pins: usize,
    used: u64,
    uses: u64,
}

impl Pool {
    pub(crate) fn new(disk: Arc<Disk>, slots: Vec<Arc<Buffer>>, experts: Vec<Vec<ExpertReads>>) -> Self {
        let state = State { slots: vec![Slot::default(); slots.len()], ..State::default() };
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
            let (layer, expert) = state.slots[at].key.expect("a slot that is filled has a key");
            drop(state);
            let read = self.disk.fill(&self.experts[layer][expert].reads, &self.slots[at]);
            state = self.lock();
            match read {
                Ok(()) => state.slots[at].ready = true,
                Err(problem) => state.slots[at].failed = Some(problem),
            }
            self.changed.notify_all();
        }
    }

    /// Pins an expert that is there, or has it read to a slot that nobody uses; `None` while all are in use.
    fn pin(&self, state: &mut State, key: Key) -> Option<usize> {
        state.clock += 1;
        let clock = state.clock;
        if let Some(&at) = state.place.get(&key) {
            let slot = &mut state.slots[at];
            (slot.pins, slot.used, slot.uses) = (slot.pins + 1, clock, slot.uses + 1);
            self.disk.counters.asked(true);
            return Some(at);
        }
        let worth = |slot: &Slot| slot.used + FREQUENCY * slot.uses.min(1 << 16) * u64::from(slot.key.is_some());
        let free = |slot: &Slot| slot.pins == 0 && (slot.key.is_none() || slot.ready || slot.failed.is_some());
        let at = (0..state.slots.len()).filter(|&i| free(&state.slots[i])).min_by_key(|&i| worth(&state.slots[i]))?;
        if let Some(old) = state.slots[at].key {
            state.place.remove(&old);
        }
        state.slots[at] = Slot { key: Some(key), pins: 1, used: clock, uses: 1, ..Slot::default() };
        state.place.insert(key, at);
        state.wanted.push_back(at);
        self.disk.counters.asked(false);
        self.changed.notify_all();
        Some(at)
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
        match state.slots[at].failed.clone() {
            Some(problem) => Err(failed(&problem)),
            None => Ok(()),
        }
    }

    fn unpin(&self, at: usize) {
        let mut state = self.lock();
        let slot = &mut state.slots[at];
        slot.pins -= 1;
        if slot.pins == 0 && slot.failed.is_some() {
            // Read again when it is asked for again.
            let key = slot.key.take();
            *slot = Slot::default();
            if let Some(key) = key {
                state.place.remove(&key);
            }
        }
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

    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        let shared = &self.pool.shared;
        if self.pool.readers.is_empty() {
            return Err(DeviceError::Unsupported("no thread could be started to read weights".into()));
        }
        let mut pinned: VecDeque<usize> = VecDeque::new();
        let mut ahead = wanted.iter();
        let mut result = Ok(());
        for &e in wanted {
            {
                let mut state = shared.lock();
                // As many as there are slots for, in the order of use; those that are pinned are used first.
                while let Some(&next) = ahead.as_slice().first() {
                    let Some(at) = shared.pin(&mut state, (self.layer, next)) else { break };
                    pinned.push_back(at);
                    ahead.next();
                }
            }
            let Some(at) = pinned.pop_front() else {
                result = Err(DeviceError::Unsupported("the pool of experts has no free slot".into()));
                break;
            };
            result = shared.wait(at).and_then(|()| {
                let expert = &shared.experts[self.layer][e];
                let slot = &shared.slots[at];
                let (gate, up, down) = (expert.gate.weight(slot), expert.up.weight(slot), expert.down.weight(slot));
                each(e, Expert { gate, up, down, layout: expert.layout })
            });
            shared.unpin(at);
            if result.is_err() {
                break;
            }
        }
        // After an error the rest is waited for: a read that outlived this call would leave its failure to the next.
        for at in pinned {
            let _ = shared.wait(at);
            shared.unpin(at);
        }
        result
    }
}
