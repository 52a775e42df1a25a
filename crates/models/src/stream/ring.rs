//! A ring of slots, filled ahead of use by a thread.
//!
//! Units are used in a fixed order, again and again (a *cycle*: the layers of the trunk, or the blocks of the tower), so
//! what comes next is known, also across the end of a pass: the first layers of the next token are read while the
//! last ones compute. Each unit has its slot for good, `place in the cycle mod slots`, so the weights of a layer are
//! the same views in every pass, and nothing is copied.
//!
//! What goes wrong unseen: a slot filled while ops still read it. A unit is only read into its slot once the unit
//! that was there before has been released, and the device's own lock of the buffer is held meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use turbospark_device::{Buffer, Device, DeviceError, UnitSource};
use turbospark_weights::{Checkpoint, DirectFile};

use super::reads::Reads;

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

/// Units that are used one after the other, again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cycle {
    pub first: usize,
    pub count: usize,
}

/// A ring of slots and the thread that fills them.
pub struct Ring {
    shared: Arc<Shared>,
    reader: Option<JoinHandle<()>>,
}

struct Shared {
    device: Arc<dyn Device>,
    checkpoint: Arc<Checkpoint>,
    files: Vec<DirectFile>,
    slots: Vec<Arc<Buffer>>,
    units: Vec<Reads>,
    cycles: Vec<Cycle>,
    state: Mutex<State>,
    changed: Condvar,
    counters: Arc<Counters>,
}

/// Steps of the current cycle are counted on through its repetitions.
struct State {
    cycle: Cycle,
    /// The step that is used next.
    used: u64,
    /// Steps below are released.
    released: u64,
    /// Steps below are read, or being read.
    begun: u64,
    /// Steps below are in their slots.
    loaded: u64,
    /// Changes when the ring is turned elsewhere: what is being read then is of no use.
    turn: u64,
    failed: Option<String>,
    stop: bool,
    /// Whether anyone has asked yet: a model that only looks reads nothing.
    awake: bool,
}

impl Ring {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        checkpoint: Arc<Checkpoint>,
        files: Vec<DirectFile>,
        slots: Vec<Arc<Buffer>>,
        units: Vec<Reads>,
        cycles: Vec<Cycle>,
        counters: Arc<Counters>,
    ) -> Self {
        let state = State {
            cycle: cycles[0],
            used: 0,
            released: 0,
            begun: 0,
            loaded: 0,
            turn: 0,
            failed: None,
            stop: false,
            awake: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { device, checkpoint, files, slots, units, cycles, state, changed, counters });
        let worker = Arc::clone(&shared);
        let reader = std::thread::Builder::new().name("weights".into()).spawn(move || worker.fill());
        Ring { shared, reader: reader.ok() }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({} units in {} slots)", self.shared.units.len(), self.shared.slots.len())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// The slot of a unit, by its place in the cycle.
pub(crate) fn slot_of(cycles: &[Cycle], unit: usize, slots: usize) -> usize {
    let cycle = cycles.iter().find(|c| (c.first..c.first + c.count).contains(&unit)).expect("of a cycle");
    (unit - cycle.first) % slots
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what comes next whenever its slot is free.
    fn fill(&self) {
        let mut state = self.lock();
        loop {
            if state.stop {
                return;
            }
            if !state.awake || state.failed.is_some() || !self.is_free(&state) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let (step, turn) = (state.begun, state.turn);
            state.begun += 1;
            let place = (step % state.cycle.count as u64) as usize;
            let unit = state.cycle.first + place;
            drop(state);
            let reads = &self.units[unit];
            let slot = &self.slots[place % self.slots.len()];
            let read = self.device.fill(slot.bytes(), &mut |out| {
                reads.read(&self.checkpoint, &self.files, out).map_err(std::io::Error::other)
            });
            self.counters.bytes.fetch_add(reads.bytes(), Ordering::Relaxed);
            state = self.lock();
            if state.turn == turn {
                match read {
                    Ok(()) => state.loaded = step + 1,
                    Err(error) => state.failed = Some(error.to_string()),
                }
            }
            self.changed.notify_all();
        }
    }

    /// Whether the slot of the next step is free: the last earlier step of that slot was released.
    fn is_free(&self, state: &State) -> bool {
        let (count, slots) = (state.cycle.count as u64, self.slots.len() as u64);
        let slot = |step: u64| step % count % slots;
        let wanted = slot(state.begun);
        let earlier = (0..state.begun).rev().take(2 * self.slots.len()).find(|&step| slot(step) == wanted);
        earlier.is_none_or(|step| step < state.released)
    }
}

impl UnitSource for Ring {
    fn acquire(&self, unit: usize) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let mut state = shared.lock();
        let place = |state: &State| state.cycle.first + (state.used % state.cycle.count as u64) as usize;
        // What was used before and not released was given up by an error.
        if place(&state) != unit || state.released != state.used || state.failed.is_some() {
            let cycle = shared.cycles.iter().find(|c| (c.first..c.first + c.count).contains(&unit));
            state.cycle = *cycle.ok_or_else(|| DeviceError::Unsupported(format!("unit {unit} is not streamed")))?;
            state.turn += 1;
            let step = (unit - state.cycle.first) as u64;
            (state.used, state.released, state.begun, state.loaded) = (step, step, step, step);
            state.failed = None;
        }
        state.awake = true;
        shared.changed.notify_all();
        let waits = state.loaded <= state.used;
        let counter = if waits { &shared.counters.misses } else { &shared.counters.hits };
        counter.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        while state.loaded <= state.used && state.failed.is_none() {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if waits {
            shared.counters.stalled.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
        if let Some(problem) = &state.failed {
            return Err(DeviceError::Weights(std::io::Error::other(problem.clone())));
        }
        state.used += 1;
        Ok(())
    }

    fn release(&self, _: usize) {
        let mut state = self.shared.lock();
        state.released = state.used;
        self.shared.changed.notify_all();
    }
}
