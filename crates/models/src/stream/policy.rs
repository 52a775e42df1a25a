//! Which expert leaves when another needs its slot.
//!
//! A layer is asked once a token, so what was used longest ago is what the layer that comes next is about to ask for:
//! by recency alone a pool smaller than a few tokens' choices drops each expert just before its use. What tells more is
//! how often an expert was chosen lately: text stays with its subject for a while. `docs/bigger-than-memory.md` has the
//! measurement that the half-life was chosen by.

use std::collections::{HashMap, VecDeque};

use super::disk::Choice;

/// A layer, in the order in which layers were added to the pool, and one of its experts.
pub type Key = (usize, usize);

/// What makes an expert worth its slot: how often it was chosen, a choice counting half after so many passes.
///
/// 0 is recency alone, infinity frequency alone; what was chosen counts also while it is not in the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Passes.
    pub half_life: f64,
}

impl Policy {
    /// The one that pools use.
    pub const CHOSEN: Policy = Policy { half_life: 64.0 };
    /// What was used longest ago leaves.
    pub const RECENCY: Policy = Policy { half_life: 0.0 };
    /// What was used least often leaves.
    pub const FREQUENCY: Policy = Policy { half_life: f64::INFINITY };

    /// The decayed count after a choice at `now`.
    fn after(self, uses: Uses, now: f64) -> Uses {
        let decay = if self.half_life > 0.0 { (-(now - uses.at) / self.half_life).exp2() } else { 0.0 };
        Uses { count: uses.count * decay + 1.0, at: now }
    }

    /// What uses are worth: comparable with others' whenever those were chosen, since all decay alike.
    fn worth(self, uses: Uses) -> f64 {
        let since = if self.half_life > 0.0 { uses.at / self.half_life } else { uses.at };
        // Of equals, the one that was used longer ago leaves.
        uses.count.log2() + since + uses.at * 1e-9
    }
}

/// How often an expert was chosen, when it was last.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    count: f64,
    at: f64,
}

/// What is in which slot, and who leaves next.
#[derive(Debug)]
pub struct Places {
    policy: Policy,
    keys: Vec<Option<Key>>,
    /// Of what is in each slot.
    worth: Vec<f64>,
    place: HashMap<Key, usize>,
    uses: HashMap<Key, Uses>,
    layers: usize,
    /// How often any layer was asked.
    asked: u64,
}

impl Places {
    /// `slots` empty ones, for experts of `layers` layers.
    pub fn new(slots: usize, layers: usize, policy: Policy) -> Self {
        let (keys, worth) = (vec![None; slots], vec![f64::NEG_INFINITY; slots]);
        let (place, uses) = (HashMap::new(), HashMap::new());
        Places { policy, keys, worth, place, uses, layers: layers.max(1), asked: 0 }
    }

    /// What is in a slot.
    pub fn key(&self, slot: usize) -> Option<Key> {
        self.keys[slot]
    }

    /// Where an expert is.
    pub fn find(&self, key: Key) -> Option<usize> {
        self.place.get(&key).copied()
    }

    /// A layer begins to ask.
    pub fn visit(&mut self) {
        self.asked += 1;
    }

    /// An expert is used that is in a slot.
    pub fn touch(&mut self, slot: usize) {
        let Some(key) = self.keys[slot] else { return };
        let now = self.asked as f64 / self.layers as f64;
        let uses = self.uses.entry(key).or_default();
        *uses = self.policy.after(*uses, now);
        self.worth[slot] = self.policy.worth(*uses);
    }

    /// The slot to put another into, of those that `free` allows: an empty one, else that of the least worth.
    pub fn choose(&self, free: impl Fn(usize) -> bool) -> Option<usize> {
        let slots = (0..self.keys.len()).filter(|&slot| free(slot));
        slots.min_by(|&a, &b| self.worth[a].total_cmp(&self.worth[b]))
    }

    /// Puts an expert that is used now into a slot, in place of what is there.
    pub fn put(&mut self, slot: usize, key: Key) {
        self.put_unused(slot, key);
        self.touch(slot);
    }

    /// Puts an expert that may be used soon into a slot, in place of what is there.
    pub fn put_unused(&mut self, slot: usize, key: Key) {
        self.vacate(slot);
        self.keys[slot] = Some(key);
        self.place.insert(key, slot);
        self.worth[slot] = self.uses.get(&key).map_or(f64::NEG_INFINITY, |&uses| self.policy.worth(uses));
    }

    /// Leaves a slot empty.
    pub fn vacate(&mut self, slot: usize) {
        if let Some(old) = self.keys[slot].take() {
            self.place.remove(&old);
        }
        self.worth[slot] = f64::NEG_INFINITY;
    }
}

/// What a pool of `slots` would read for a recorded routing: how many experts were asked for, and how many of them were
/// not there. `each` hears the misses of every choice.
///
/// `routing` has a layer and the distinct experts that it was asked for, in the order of asking.
pub fn replay(routing: &[Choice], slots: usize, policy: Policy, each: &mut dyn FnMut(usize)) -> (u64, u64) {
    let layers = routing.iter().map(|(layer, _)| layer + 1).max().unwrap_or(0);
    let mut places = Places::new(slots, layers, policy);
    let (mut asked, mut missed) = (0, 0);
    // Slots of what a layer has asked for and not used yet, in the order of use.
    let mut pinned = VecDeque::new();
    for (layer, experts) in routing {
        places.visit();
        let mut misses = 0;
        pinned.clear();
        for &expert in experts {
            let key = (*layer, expert);
            let at = match places.find(key) {
                Some(at) => {
                    places.touch(at);
                    Some(at)
                }
                None => {
                    misses += 1;
                    if pinned.len() == slots {
                        pinned.pop_front();
                    }
                    let at = places.choose(|slot| !pinned.contains(&slot));
                    at.inspect(|&at| places.put(at, key))
                }
            };
            pinned.extend(at);
        }
        asked += experts.len() as u64;
        missed += misses as u64;
        each(misses);
    }
    (asked, missed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers, asked in turn.
    fn routing(choices: &[[usize; 2]]) -> Vec<Choice> {
        choices.iter().enumerate().map(|(i, pair)| (i % 2, pair.to_vec())).collect()
    }

    fn missed(trace: &[Choice], slots: usize, policy: Policy) -> u64 {
        let mut heard = 0;
        let (asked, missed) = replay(trace, slots, policy, &mut |n| heard += n);
        assert_eq!(asked, 2 * trace.len() as u64);
        assert_eq!(missed, heard as u64);
        missed
    }

    const ALL: [Policy; 3] = [Policy::RECENCY, Policy::FREQUENCY, Policy::CHOSEN];

    #[test]
    fn what_fits_is_read_once() {
        ALL.iter().for_each(|&policy| assert_eq!(missed(&routing(&[[0, 1]; 20]), 4, policy), 4, "{policy:?}"));
    }

    #[test]
    fn fewer_slots_than_a_layer_asks_for_work() {
        ALL.iter().for_each(|&policy| assert_eq!(missed(&routing(&[[0, 1]; 20]), 1, policy), 40, "{policy:?}"));
    }

    #[test]
    fn what_is_chosen_often_outlives_one_other_choice() {
        // One layer: 0 and 1 always, then 2 once, then 0 and 1 again.
        let mut trace: Vec<Choice> = vec![(0, vec![0, 1]); 8];
        trace.push((0, vec![2, 3]));
        trace.push((0, vec![0, 1]));
        // With three slots one of the two leaves for good; the other stays by frequency only.
        assert_eq!(missed(&trace, 3, Policy::RECENCY), 6);
        assert_eq!(missed(&trace, 3, Policy::FREQUENCY), 5);
        assert_eq!(missed(&trace, 3, Policy::CHOSEN), 5);
    }

    #[test]
    fn a_change_of_subject_is_followed() {
        let mut trace: Vec<Choice> = vec![(0, vec![0, 1]); 400];
        trace.extend(vec![(0, vec![2, 3]); 400]);
        assert!(missed(&trace, 2, Policy::CHOSEN) <= 4);
    }
}
