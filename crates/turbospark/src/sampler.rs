//! From logits to a token.
//!
//! Order, as the reference has it: repetition penalty, (presence and frequency penalties,) temperature,
//! top-k, top-p, min-p, softmax. Taking top-p before top-k, or the temperature after the cuts, samples from
//! another distribution that reads just as well.

use std::collections::HashMap;

use turbospark_text::GenerationConfig;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest logit and ignores what follows but the penalties.
    pub temperature: f32,
    /// Keeps this many of the largest logits; 0 keeps all.
    pub top_k: u32,
    /// Keeps the likeliest tokens that together reach this probability.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the likeliest.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the answer; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the answer.
    pub presence_penalty: f32,
    /// Subtracted once for each time a token is in the answer.
    pub frequency_penalty: f32,
    /// Makes sampling repeatable; `None` draws one.
    pub seed: Option<u64>,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: None,
        }
    }
}

impl Sampling {
    /// What the checkpoint asks for. As in the reference, a checkpoint that doesn't sample is greedy, and one
    /// that samples without saying how keeps the 50 largest.
    pub fn from_checkpoint(config: &GenerationConfig) -> Self {
        let samples = config.do_sample.unwrap_or(false);
        Sampling {
            temperature: if samples { config.temperature.unwrap_or(1.0) } else { 0.0 },
            top_k: config.top_k.unwrap_or(50),
            top_p: config.top_p.unwrap_or(1.0),
            min_p: config.min_p.unwrap_or(0.0),
            repetition_penalty: config.repetition_penalty.unwrap_or(1.0),
            presence_penalty: config.presence_penalty.unwrap_or(0.0),
            frequency_penalty: config.frequency_penalty.unwrap_or(0.0),
            seed: None,
        }
    }

    /// What is wrong with the settings, if anything.
    pub fn check(&self) -> Result<(), String> {
        let ok = |good: bool, name: &str, value: f32, range: &str| {
            if good { Ok(()) } else { Err(format!("{name} is {value}, expected {range}")) }
        };
        let finite = |x: f32| x.is_finite();
        ok(finite(self.temperature) && self.temperature >= 0.0, "temperature", self.temperature, "0 or more")?;
        ok((0.0..=1.0).contains(&self.top_p), "top_p", self.top_p, "0 to 1")?;
        ok((0.0..=1.0).contains(&self.min_p), "min_p", self.min_p, "0 to 1")?;
        let r = self.repetition_penalty;
        ok(finite(r) && r > 0.0, "repetition_penalty", r, "more than 0")?;
        ok(finite(self.presence_penalty), "presence_penalty", self.presence_penalty, "a number")?;
        ok(finite(self.frequency_penalty), "frequency_penalty", self.frequency_penalty, "a number")
    }

    fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

/// Chooses tokens for one sequence.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    /// Ids of the prompt and the answer, and how often each is in the answer.
    seen: HashMap<u32, u32>,
    random: Random,
}

impl Sampler {
    /// A sampler for an answer to a prompt with these ids.
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let seen = if sampling.penalises() { prompt.iter().map(|&id| (id, 0)).collect() } else { HashMap::new() };
        let random = Random::new(sampling.seed.unwrap_or_else(drawn_seed));
        Sampler { sampling, seen, random }
    }

    /// The next token. `logits` is changed.
    pub fn sample(&mut self, logits: &mut [f32]) -> u32 {
        self.penalise(logits);
        let id = if self.sampling.temperature == 0.0 {
            argmax(logits)
        } else {
            let kept = self.distribution(logits);
            let total: f64 = kept.iter().map(|&(_, p)| p as f64).sum();
            let mut left = self.random.unit() * total;
            let drawn = kept.iter().find(|&&(_, p)| {
                left -= p as f64;
                left < 0.0
            });
            drawn.or(kept.last()).map_or(0, |&(id, _)| id)
        };
        if self.sampling.penalises() {
            *self.seen.entry(id).or_default() += 1;
        }
        id
    }

    fn penalise(&self, logits: &mut [f32]) {
        let s = &self.sampling;
        for (&id, &times) in &self.seen {
            let Some(l) = logits.get_mut(id as usize) else { continue };
            *l = if *l < 0.0 { *l * s.repetition_penalty } else { *l / s.repetition_penalty };
            if times > 0 {
                *l -= s.presence_penalty + s.frequency_penalty * times as f32;
            }
        }
    }

    /// The tokens that are left and their probabilities, by descending probability.
    fn distribution(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let s = &self.sampling;
        let scaled = |(id, &l): (usize, &f32)| (id as u32, l / s.temperature);
        let mut kept: Vec<(u32, f32)> = logits.iter().enumerate().map(scaled).filter(|(_, l)| !l.is_nan()).collect();
        let descending = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = if s.top_k == 0 { kept.len() } else { (s.top_k as usize).min(kept.len()) };
        if k > 0 && k < kept.len() {
            kept.select_nth_unstable_by(k - 1, descending);
            // The reference keeps every logit that equals the smallest kept one.
            let least = kept[k - 1].1;
            let ties: Vec<(u32, f32)> = kept[k..].iter().filter(|t| t.1 == least).copied().collect();
            kept.truncate(k);
            kept.extend(ties);
        }
        kept.sort_unstable_by(descending);
        softmax(&mut kept);
        if s.top_p < 1.0 {
            // Ascending cumulative probability of at most 1 - p goes; the likeliest stays in any case.
            let mut below = 0f32;
            let mut cut = kept.len();
            while cut > 1 {
                below += kept[cut - 1].1;
                if below > 1.0 - s.top_p {
                    break;
                }
                cut -= 1;
            }
            kept.truncate(cut);
            let total: f32 = kept.iter().map(|t| t.1).sum();
            kept.iter_mut().for_each(|t| t.1 /= total);
        }
        if s.min_p > 0.0
            && let Some(&(_, top)) = kept.first()
        {
            kept.retain(|t| t.1 >= s.min_p * top);
            let total: f32 = kept.iter().map(|t| t.1).sum();
            kept.iter_mut().for_each(|t| t.1 /= total);
        }
        kept
    }
}

/// The distribution that a token after `history` is drawn from, `[vocab]`.
pub fn probabilities(sampling: &Sampling, history: &[u32], logits: &[f32]) -> Vec<f32> {
    let sampler = Sampler::new(Sampling { seed: Some(0), ..sampling.clone() }, history);
    let mut logits = logits.to_vec();
    sampler.penalise(&mut logits);
    let mut out = vec![0.0; logits.len()];
    for (id, p) in sampler.distribution(&logits) {
        out[id as usize] = p;
    }
    out
}

/// The largest logit; of equal ones the first.
pub fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] || logits[best].is_nan() {
            best = i;
        }
    }
    best as u32
}

fn softmax(kept: &mut [(u32, f32)]) {
    let Some(&(_, top)) = kept.first() else { return };
    let mut total = 0.0;
    for (_, l) in kept.iter_mut() {
        *l = (*l - top).exp();
        total += *l;
    }
    kept.iter_mut().for_each(|(_, p)| *p /= total);
}

fn drawn_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// PCG-XSH-RR 64/32 (O'Neill 2014): small, and the same everywhere for the same seed.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    const MULTIPLIER: u64 = 6364136223846793005;
    const INCREMENT: u64 = 1442695040888963407;

    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_add(Self::INCREMENT));
        random.next();
        random
    }

    fn next(&mut self) -> u32 {
        let old = self.0;
        self.0 = old.wrapping_mul(Self::MULTIPLIER).wrapping_add(Self::INCREMENT);
        let mixed = (((old >> 18) ^ old) >> 27) as u32;
        mixed.rotate_right((old >> 59) as u32)
    }

    /// In [0, 1), 53 bits.
    fn unit(&mut self) -> f64 {
        let bits = (self.next() as u64) << 21 ^ (self.next() as u64) >> 11;
        bits as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same_tokens_and_all_likely_ones_occur() {
        let sampling = Sampling { temperature: 1.0, seed: Some(7), ..Sampling::default() };
        let draw = || {
            let mut s = Sampler::new(sampling.clone(), &[]);
            (0..200).map(|_| s.sample(&mut [0.0, 1.0, 0.5, -20.0])).collect::<Vec<_>>()
        };
        let first = draw();
        assert_eq!(first, draw());
        assert!([0, 1, 2].iter().all(|id| first.contains(id)) && !first.contains(&3));
    }

    #[test]
    fn presence_and_frequency_count_the_answer_only() {
        let sampling = Sampling { presence_penalty: 1.0, frequency_penalty: 1.0, ..Sampling::default() };
        let mut s = Sampler::new(sampling, &[0]);
        assert_eq!(s.sample(&mut [5.0, 4.5]), 0); // in the prompt: not penalised
        assert_eq!(s.sample(&mut [5.0, 4.5]), 1); // 5 - 2
        assert_eq!(s.sample(&mut [5.0, 4.5]), 0); // 5 - 2 against 4.5 - 2
    }

    #[test]
    fn settings_that_make_no_sense_are_named() {
        let bad = Sampling { top_p: 1.5, ..Sampling::default() };
        assert_eq!(bad.check().unwrap_err(), "top_p is 1.5, expected 0 to 1");
    }
}
