//! Experts that are read before their layer asks for them.
//!
//! A layer changes the residual stream little, so the router of the next layer, put to what this layer's mixer left,
//! names most of what it will choose (as AdapMoE, arXiv 2408.10284, and others found). What it names is read while this
//! layer's experts and the next mixer compute, when nothing that was chosen is to be read. Once this layer's experts are
//! added the router is asked again: it lacks the next mixer only, and what it names no longer is dropped. A wrong guess
//! ends as soon as the choice is known; yet it takes a slot, and what is in flight by then delays what is needed. So each
//! layer has its [trust](Trust) in what is named first, second and so on, and what is not trusted is only noted. No guess
//! moves a bit, since nothing is computed from it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use turbospark_device::op::UseExpert;
use turbospark_device::{DeviceError, ExpertSource};

use super::pool::{Pool, Shared, Slot, State};

/// How much of what leads to a choice a guess has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The mixer of the layer before.
    Mixer,
    /// All of the layer before.
    Layer,
}

/// What a layer is likely to choose.
pub(super) struct Guess {
    layer: usize,
    seen: Seen,
    /// What has no slot yet, the likeliest first.
    rest: VecDeque<Named>,
    /// What was in no slot when the guess could first be acted on, or is being read because it was guessed before.
    absent: Vec<Named>,
    /// The same of the guess that this one replaced.
    absent_before: Vec<Named>,
    /// Slots that it pins, and whether it had them filled.
    held: Vec<(usize, bool)>,
}

/// An expert, and how many a row that named it named before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    expert: usize,
    rank: usize,
}

/// How good guesses of one rank at a layer have been: the part of what they named, and was in no slot, that was chosen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trust {
    guesses: f64,
    right: f64,
}

impl Trust {
    /// What a guess counts for after the next: the last twenty decide.
    const KEPT: f64 = 0.95;
    /// Guesses before which there is no judgement.
    const LEAST: f64 = 3.0;
    /// The part that must have been right. A right guess saves what is read until the choice is known, a millisecond or
    /// two; a wrong one costs the pieces in flight by then, a third of that, and a slot.
    const RIGHT: f64 = 0.4;

    fn holds(self) -> bool {
        self.guesses >= Self::LEAST && self.right >= Self::RIGHT * self.guesses
    }

    /// Counts a guess of which `right` of `named` experts were chosen. One for a whole prompt counts no more than one
    /// for a token.
    fn learn(&mut self, named: usize, right: usize) {
        if named > 0 {
            self.guesses = self.guesses * Self::KEPT + 1.0;
            self.right = self.right * Self::KEPT + right as f64 / named as f64;
        }
    }
}

impl Guess {
    /// Of a router's choice, `[rows, per_row]` by descending weight.
    fn new(layer: usize, seen: Seen, ids: &[i32], per_row: usize) -> Self {
        let mut rest: VecDeque<Named> = VecDeque::new();
        for rank in 0..per_row {
            for expert in ids.iter().skip(rank).step_by(per_row).map(|&id| id as usize) {
                if rest.iter().all(|named| named.expert != expert) {
                    rest.push_back(Named { expert, rank });
                }
            }
        }
        Guess { layer, seen, rest, absent: Vec::new(), absent_before: Vec::new(), held: Vec::new() }
    }
}

/// By how much the guesses had seen, and by rank.
#[derive(Clone, Debug, Default)]
pub(super) struct Trusts([Vec<Trust>; 2]);

impl Trusts {
    fn of(&mut self, seen: Seen) -> &mut Vec<Trust> {
        &mut self.0[seen as usize]
    }
}

/// Learns from a choice (ascending) what was named rightly, rank by rank.
fn learn(trust: &mut Vec<Trust>, absent: &[Named], wanted: &[usize]) {
    let ranks = absent.iter().map(|named| named.rank + 1).max().unwrap_or(0);
    trust.resize(trust.len().max(ranks), Trust::default());
    for (rank, trust) in trust.iter_mut().enumerate() {
        let named = || absent.iter().filter(|named| named.rank == rank);
        let right = named().filter(|named| wanted.binary_search(&named.expert).is_ok()).count();
        trust.learn(named().count(), right);
    }
}

impl Shared {
    /// Turns to the guess at the layer after the one that has just chosen.
    pub fn next_guess(&self, state: &mut State) {
        if let Some(guess) = state.next_guess.take() {
            self.turn_to(state, guess);
        }
    }

    /// Turns to a guess, from an earlier one at the same layer if there is one: what both name stays.
    fn turn_to(&self, state: &mut State, mut guess: Guess) {
        let before = state.guess.take();
        let (mut held, mut begun) = (Vec::new(), Vec::new());
        if let Some(before) = before {
            let names = |layer: usize, expert: usize| {
                layer == guess.layer && guess.rest.iter().any(|named| named.expert == expert)
            };
            for (at, fetched) in before.held {
                let (layer, expert) = state.places.key(at).expect("a slot that is pinned has a key");
                if names(layer, expert) {
                    held.push((at, fetched));
                    begun.extend(fetched.then_some(expert));
                } else {
                    self.drop_guessed(state, at, fetched);
                }
            }
            if before.layer == guess.layer {
                guess.absent_before = before.absent;
            }
        }
        let there = |expert: usize| state.places.find((guess.layer, expert)).is_some() && !begun.contains(&expert);
        guess.absent = guess.rest.iter().filter(|named| !there(named.expert)).copied().collect();
        let kept = |expert: usize| held.iter().any(|&(at, _)| state.places.key(at) == Some((guess.layer, expert)));
        let trust = state.trust[guess.layer].of(guess.seen).clone();
        guess.rest.retain(|named| trust.get(named.rank).is_some_and(|trust| trust.holds()) && !kept(named.expert));
        guess.held = held;
        state.guess = Some(guess);
        self.place_guess(state);
    }

    /// Begins to read what the guess named, as far as there are slots that nobody uses.
    pub fn place_guess(&self, state: &mut State) {
        let Some(mut guess) = state.guess.take_if(|guess| !guess.rest.is_empty()) else { return };
        // What is there already stays.
        guess.rest.retain(|&Named { expert, .. }| {
            let Some(at) = state.places.find((guess.layer, expert)) else { return true };
            let slot = &mut state.slots[at];
            if slot.failed.is_none() {
                slot.pins += 1;
                slot.in_vain = false;
                guess.held.push((at, false));
            }
            false
        });
        while state.owed == 0
            && let Some(&Named { expert, .. }) = guess.rest.front()
            && let Some(at) = self.free_slot(state)
        {
            guess.rest.pop_front();
            state.places.put_unused(at, (guess.layer, expert));
            state.slots[at] = Slot { pins: 1, ..Slot::default() };
            state.likely.push_back(at);
            guess.held.push((at, true));
            self.disk.counters.guesses.fetch_add(1, Ordering::Relaxed);
        }
        state.guess = Some(guess);
        self.changed.notify_all();
    }

    /// Ends the guess, now that `layer` has chosen `wanted` (ascending): the slots of what was right, still pinned.
    pub fn settle_guess(&self, state: &mut State, layer: usize, wanted: &[usize]) -> Vec<usize> {
        let counters = &self.disk.counters;
        let mut right = Vec::new();
        let Some(guess) = state.guess.take() else { return right };
        if guess.layer == layer {
            let trust = &mut state.trust[layer];
            learn(trust.of(guess.seen), &guess.absent, wanted);
            learn(trust.of(Seen::Mixer), &guess.absent_before, wanted);
        }
        for (at, fetched) in guess.held {
            let (of, expert) = state.places.key(at).expect("a slot that is pinned has a key");
            if of == layer && wanted.binary_search(&expert).is_ok() {
                counters.right_guesses.fetch_add(fetched as u64, Ordering::Relaxed);
                right.push(at);
                continue;
            }
            self.drop_guessed(state, at, fetched);
        }
        right
    }

    /// Leaves what a guess pinned to whoever wants it, and ends its being read where nobody does.
    fn drop_guessed(&self, state: &mut State, at: usize, fetched: bool) {
        let slot = &mut state.slots[at];
        slot.pins -= 1;
        if slot.pins > 0 || slot.failed.is_some() {
            return;
        }
        if let Some(i) = state.likely.iter().position(|&waits| waits == at) {
            state.likely.remove(i);
            state.places.vacate(at);
        } else if !slot.ready {
            slot.in_vain = true;
        } else if fetched && let Some((layer, expert)) = state.places.key(at) {
            let bytes = self.experts[layer][expert].reads.bytes();
            self.disk.counters.vain_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Hears which experts the layer of this number in the pool is likely to choose.
pub(crate) struct Guesses {
    pub pool: Arc<Pool>,
    pub layer: usize,
    pub seen: Seen,
}

impl std::fmt::Debug for Guesses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Guesses(layer {})", self.layer)
    }
}

impl ExpertSource for Guesses {
    fn experts(&self) -> usize {
        self.pool.shared.experts[self.layer].len()
    }

    fn announce(&self, ids: &[i32], per_row: usize) {
        let guess = Guess::new(self.layer, self.seen, ids, per_row);
        let shared = &self.pool.shared;
        let mut state = shared.lock();
        match self.seen {
            // Kept until the layer before has announced its own, which come first.
            Seen::Mixer => state.next_guess = Some(guess),
            Seen::Layer => shared.turn_to(&mut state, guess),
        }
    }

    fn with(&self, _: &[usize], _: &mut UseExpert<'_>) -> Result<(), DeviceError> {
        Err(DeviceError::Unsupported("a guess at what a layer will choose is not its choice".into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_trusted_while_most_of_it_was_right() {
        let mut trust = Vec::new();
        let absent = Guess::new(0, Seen::Mixer, &[3, 1, 7, 3, 1, 8], 3).rest;
        let named = |expert, rank| Named { expert, rank };
        assert_eq!(absent, [named(3, 0), named(1, 1), named(7, 2), named(8, 2)]);
        let absent: Vec<Named> = absent.into();
        let holds = |trust: &[Trust]| trust.iter().map(|t| t.holds()).collect::<Vec<_>>();
        (0..3).for_each(|_| learn(&mut trust, &absent, &[3, 7, 8]));
        assert_eq!(holds(&trust), [false; 3], "too few");
        (0..4).for_each(|_| learn(&mut trust, &absent, &[3, 7, 8]));
        assert_eq!(holds(&trust), [true, false, true]);
        (0..20).for_each(|_| learn(&mut trust, &absent, &[1]));
        assert_eq!(holds(&trust), [false, true, false]);
        (0..40).for_each(|_| learn(&mut trust, &[], &[9]));
        assert_eq!(holds(&trust), [false, true, false], "nothing was learned");
    }
}
