//! A ring of slots, filled ahead of use by a thread.
//!
//! Units are used in a fixed order, again and again (a *cycle*: the layers of the trunk, or the blocks of the tower), so
//! what comes next is known, also across the end of a pass: the first layers of the next token are read while the
//! last ones compute. Each unit has its slot for good, the slots in turn, so the weights of a layer are the same views in
//! every pass, and nothing is copied.
//!
//! While memory is left over, some units have a place of their own beside their slot ([`Ring::lend`]): they are read to
//! it once, and are there from then on until it is given up.
//!
//! What goes wrong unseen: a slot filled while ops still read it. A unit is only read into its slot once the unit
//! that was there before has been released, and the device's own lock of the buffer is held meanwhile.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use turbospark_device::{Buffer, Device, DeviceError, UnitSource};
use turbospark_weights::Pace;

use super::disk::{Disk, LOOK};
use super::reads::Reads;
use crate::weight::Spot;

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
    disk: Arc<Disk>,
    slots: Vec<Arc<Buffer>>,
    units: Vec<Reads>,
    cycles: Vec<Cycle>,
    /// Of each unit.
    slot: Vec<usize>,
    /// Units that may have a place of their own.
    spots: Vec<(usize, Arc<Spot>)>,
    state: Mutex<State>,
    changed: Condvar,
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
    /// The unit that is being read.
    reading: Option<usize>,
    /// By their place in `spots`.
    lent: Vec<Lent>,
    failed: Option<String>,
    stop: bool,
    /// Whether anyone has asked, and wants it still: a model that only looks reads nothing, nor one that was cancelled.
    awake: bool,
}

/// What becomes of a place that a unit may have of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lent {
    /// It holds nothing, and takes no memory.
    No,
    /// The unit is to be read to it.
    Empty,
    /// The unit is there.
    There,
}

impl Ring {
    pub(crate) fn new(
        disk: Arc<Disk>,
        slots: Vec<Arc<Buffer>>,
        units: Vec<Reads>,
        cycles: Vec<Cycle>,
        slot: Vec<usize>,
        spots: Vec<(usize, Arc<Spot>)>,
    ) -> Self {
        let state = State {
            cycle: cycles[0],
            used: 0,
            released: 0,
            begun: 0,
            loaded: 0,
            turn: 0,
            reading: None,
            lent: vec![Lent::No; spots.len()],
            failed: None,
            stop: false,
            awake: false,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { disk, slots, units, cycles, slot, spots, state, changed });
        let worker = Arc::clone(&shared);
        let reader = std::thread::Builder::new().name("weights".into()).spawn(move || worker.fill());
        Ring { shared, reader: reader.ok() }
    }

    /// Lets the first `count` units that have a place of their own use it, and no others. Between passes only.
    pub(crate) fn lend(&self, count: usize, device: &dyn Device) {
        let shared = &*self.shared;
        let mut state = shared.lock();
        let held = |state: &State, i: usize| state.lent[i] != Lent::No;
        let given_up: Vec<usize> = (count..shared.spots.len()).filter(|&i| held(&state, i)).collect();
        let taken: Vec<usize> = (0..count.min(shared.spots.len())).filter(|&i| !held(&state, i)).collect();
        let ahead = |i: &usize| (state.used..state.begun).any(|step| state.unit(step) == shared.spots[*i].0);
        if given_up.iter().chain(&taken).any(ahead) {
            // What was read ahead lies where it isn't looked for now.
            state.turn += 1;
            let next = state.used;
            (state.released, state.begun, state.loaded) = (next, next, next);
        }
        for (list, lent) in [(&given_up, Lent::No), (&taken, Lent::Empty)] {
            for &i in list {
                state.lent[i] = lent;
                shared.spots[i].1.in_own.store(lent != Lent::No, Ordering::Release);
            }
        }
        while state.reading.is_some_and(|unit| given_up.iter().any(|&i| shared.spots[i].0 == unit)) {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        given_up.iter().for_each(|&i| device.discard(&shared.spots[i].1.own));
        shared.changed.notify_all();
    }
}

impl State {
    fn unit(&self, step: u64) -> usize {
        self.cycle.first + (step % self.cycle.count as u64) as usize
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

/// The slot of each unit: in turn, but that one of `lent` shares that of the next unit, whose neighbours are others while
/// it has a place of its own.
pub(crate) fn slots_of(cycles: &[Cycle], lent: &[usize], slots: usize) -> Vec<usize> {
    let mut all = Vec::new();
    for cycle in cycles {
        let mut next = 0;
        for unit in cycle.first..cycle.first + cycle.count {
            all.push(next % slots.max(1));
            next += !lent.contains(&unit) as usize;
        }
    }
    all
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
            let own = self.own(&state, state.begun);
            let free = match own {
                // A cycle ahead at most, in which all may be there.
                Some(_) => state.begun < state.released + state.cycle.count as u64,
                None => self.is_free(&state),
            };
            if !state.awake || state.failed.is_some() || !free {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if own.is_some_and(|i| state.lent[i] == Lent::There) {
                state.begun += 1;
                state.loaded = state.begun;
                self.changed.notify_all();
                continue;
            }
            if self.disk.counters.is_cancelled() {
                // Until whoever runs the pass has noticed.
                state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
                continue;
            }
            let (step, turn) = (state.begun, state.turn);
            state.begun += 1;
            let unit = state.unit(step);
            state.reading = Some(unit);
            let to = match own {
                Some(i) => &self.spots[i].1.own,
                None => &self.slots[self.slot[unit]],
            };
            drop(state);
            let turned = || self.lock().turn != turn;
            let read = self.disk.fill(&self.units[unit], to, Pace::Full, &turned);
            state = self.lock();
            state.reading = None;
            if state.turn == turn {
                match read {
                    Ok((_, true)) => {
                        state.loaded = step + 1;
                        own.into_iter().for_each(|i| state.lent[i] = Lent::There);
                    }
                    // Read again once it is asked for again.
                    Ok((_, false)) => state.begun = step,
                    Err(problem) => state.failed = Some(problem),
                }
            }
            self.changed.notify_all();
        }
    }

    /// The place of its own that the unit of a step has now.
    fn own(&self, state: &State, step: u64) -> Option<usize> {
        let unit = state.unit(step);
        self.spots.iter().position(|(one, _)| *one == unit).filter(|&i| state.lent[i] != Lent::No)
    }

    /// Whether the slot of the next step is free: no step that was read to it waits to be released.
    fn is_free(&self, state: &State) -> bool {
        let slot = |step: u64| self.slot[state.unit(step)];
        let wanted = slot(state.begun);
        let in_use = |step: u64| slot(step) == wanted && self.own(state, step).is_none();
        !(state.released..state.begun).any(in_use)
    }
}

impl UnitSource for Ring {
    fn acquire(&self, unit: usize) -> Result<(), DeviceError> {
        if self.reader.is_none() {
            return Err(DeviceError::Unsupported("no thread could be started to read weights".into()));
        }
        let shared = &self.shared;
        let cancelled = || shared.disk.counters.is_cancelled();
        let mut state = shared.lock();
        if cancelled() {
            state.awake = false;
            return Err(DeviceError::Cancelled);
        }
        // What was used before and not released was given up by an error.
        if state.unit(state.used) != unit || state.released != state.used || state.failed.is_some() {
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
        shared.disk.counters.asked(!waits);
        let began = Instant::now();
        while state.loaded <= state.used && state.failed.is_none() && !cancelled() {
            state = shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        if waits {
            shared.disk.counters.waited(began.elapsed());
        }
        if let Some(problem) = &state.failed {
            return Err(shared.disk.failed(problem));
        }
        if state.loaded <= state.used {
            state.awake = false;
            return Err(DeviceError::Cancelled);
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
