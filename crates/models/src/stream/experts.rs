//! Experts that don't fit: what a layer asks the [pool](super::pool) for.
//!
//! Which experts a token takes is known only once the router has chosen, and neighbouring tokens take many of the same
//! again. So experts are kept in one pool, whatever layer they are of ([`policy`](super::policy) says which leave); the
//! misses of a layer are asked for together as soon as the router has chosen, and read while the shared expert and those
//! that are there compute. A prompt groups its rows by expert, so each expert is read once a chunk.
//!
//! Contributions are added in ascending order of experts whatever is there, so no bit depends on the pool.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use turbospark_device::op::{UseExpert, UseExperts};
use turbospark_device::{DeviceError, Expert, ExpertSource};

use super::disk::{LOOK, Visit};
use super::guess::{Guesses, Seen};
use super::pool::{Announced, Pool, Shared};

/// The experts of one layer, from the pool.
#[derive(Debug)]
pub(crate) struct PooledExperts {
    pool: Arc<Pool>,
    /// Its number among the layers of the pool.
    layer: usize,
    /// Where the layer before says what this one is likely to choose, from its mixer's output and from its own.
    guesses: [Guesses; 2],
}

impl PooledExperts {
    pub fn new(pool: Arc<Pool>, layer: usize) -> Self {
        let guesses = [Seen::Mixer, Seen::Layer].map(|seen| Guesses { pool: pool.clone(), layer, seen });
        PooledExperts { guesses, pool, layer }
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> f64 {
        self.pool.shared.experts[self.layer].iter().map(|e| e.reads.bytes() as f64).sum()
    }

    /// Where to say what this layer is likely to choose; `None` where nothing is read a second time, and on a device
    /// that doesn't announce choices.
    pub fn guesses(&self, seen: Seen) -> Option<&Guesses> {
        (!self.pool.holds_all() && self.pool.heard.load(Ordering::Relaxed)).then_some(&self.guesses[seen as usize])
    }

    /// Begins to read what is missing.
    fn ask(&self, wanted: &[usize]) {
        let (shared, at) = (&self.pool.shared, Instant::now());
        let mut state = shared.lock();
        shared.disk.counters.note(self.layer, wanted);
        let right = shared.settle_guess(&mut state, self.layer, wanted);
        // Of a pass that ended early.
        for at in state.announced.take().into_iter().flat_map(|early| early.pinned) {
            shared.unpin(&mut state, at);
        }
        state.places.visit();
        let before = state.asked_bytes;
        let pinned = shared.pin_all(&mut state, self.layer, wanted);
        let bytes = state.asked_bytes - before;
        state.announced = Some(Announced { layer: self.layer, wanted: wanted.to_vec(), pinned, at, bytes });
        for at in right {
            shared.unpin(&mut state, at);
        }
        shared.next_guess(&mut state);
    }

    /// Calls `some` with every expert of `wanted`, those before others that are there before them, or one by one
    /// `in_order`.
    fn serve(&self, wanted: &[usize], in_order: bool, some: &mut UseExperts<'_>) -> Result<(), DeviceError> {
        if !self.pool.has_readers() {
            return Err(DeviceError::Unsupported("no thread could be started to read weights".into()));
        }
        let shared = &*self.pool.shared;
        let is_it = |a: &mut Announced| a.layer == self.layer && a.wanted == wanted;
        let mut announced = shared.lock().announced.take_if(is_it);
        if announced.is_none() {
            self.ask(wanted);
            announced = shared.lock().announced.take_if(is_it);
        }
        let (at, asked) = announced.as_ref().map_or((Instant::now(), 0), |a| (a.at, a.bytes));
        let mut visit = Visit { bytes: asked, ..Visit::default() };
        // Experts and their slots, in ascending order.
        let pinned = announced.map(|a| a.pinned).unwrap_or_default();
        let mut given = pinned.len();
        let mut open: Vec<(usize, usize)> = wanted.iter().copied().zip(pinned).collect();
        let mut result = Ok(());
        while result.is_ok() && (given < wanted.len() || !open.is_empty()) {
            let (there, waited) = self.next(shared, wanted, in_order, &mut given, &mut open, &mut visit.bytes);
            let began = Instant::now();
            let failed = {
                let state = shared.lock();
                there.iter().find_map(|&(_, at)| state.slots[at].failed.clone())
            };
            result = match failed {
                Some(problem) => Err(shared.disk.failed(&problem)),
                None => some(&there.iter().map(|&(expert, at)| (expert, self.expert(expert, at))).collect::<Vec<_>>()),
            };
            let mut state = shared.lock();
            there.iter().for_each(|&(_, at)| shared.unpin(&mut state, at));
            drop(state);
            visit.stalled += waited.unwrap_or_default();
            visit.last = waited.map_or(Duration::ZERO, |_| began.elapsed());
        }
        if visit.bytes > 0 && result.is_ok() {
            visit.computing = at.elapsed().saturating_sub(visit.stalled);
            shared.disk.counters.visited(visit);
        }
        let mut state = shared.lock();
        state.owed = 0;
        for (_, at) in open {
            shared.unpin(&mut state, at);
        }
        result
    }

    fn expert(&self, expert: usize, at: usize) -> Expert<'_> {
        let shared = &self.pool.shared;
        let (reads, slot) = (&shared.experts[self.layer][expert], &shared.slots[at]);
        let (gate, up, down) = (reads.gate.weight(slot), reads.up.weight(slot), reads.down.weight(slot));
        Expert { gate, up, down, layout: reads.layout }
    }

    /// Takes from `open` those that are there, or only the first `in_order`, and says how long they were waited for, if
    /// they were; `given` are those that have or had a slot, and to `asked` is added what had to be read for that.
    fn next(
        &self,
        shared: &Shared,
        wanted: &[usize],
        in_order: bool,
        given: &mut usize,
        open: &mut Vec<(usize, usize)>,
        asked: &mut u64,
    ) -> (Vec<(usize, usize)>, Option<Duration>) {
        let mut began: Option<Instant> = None;
        let mut state = shared.lock();
        loop {
            let before = state.asked_bytes;
            let more = shared.pin_all(&mut state, self.layer, &wanted[*given..]);
            *asked += state.asked_bytes - before;
            *given += more.len();
            open.extend(wanted[*given - more.len()..].iter().copied().zip(more));
            let first = if in_order { 1.min(open.len()) } else { open.len() };
            let there: Vec<_> = open.extract_if(..first, |&mut (_, at)| state.slots[at].is_settled()).collect();
            if !there.is_empty() {
                let waited = began.map(|began| began.elapsed());
                waited.iter().for_each(|&waited| shared.disk.counters.waited(waited));
                return (there, waited);
            }
            began.get_or_insert_with(Instant::now);
            // All slots may be being filled for a pass that ended early, and nobody tells of that.
            state = shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl ExpertSource for PooledExperts {
    fn experts(&self) -> usize {
        self.pool.shared.experts[self.layer].len()
    }

    fn announce(&self, ids: &[i32], _: usize) {
        self.pool.heard.store(true, Ordering::Relaxed);
        let mut wanted: Vec<usize> = ids.iter().map(|&e| e as usize).collect();
        wanted.sort_unstable();
        wanted.dedup();
        self.ask(&wanted);
    }

    fn with(&self, wanted: &[usize], each: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        self.serve(wanted, true, &mut |some| some.iter().try_for_each(|&(e, expert)| each(e, expert)))
    }

    fn as_ready(&self, wanted: &[usize], some: &mut UseExperts<'_>) -> Result<(), DeviceError> {
        self.serve(wanted, false, some)
    }
}
