//! How fast a model would decode on a machine that isn't here.
//!
//! The memory plan is the real one, made for the shape and the machine's memory; recorded choices of experts are replayed
//! through the real policy of eviction; time is counted with two numbers, what the disk gives and what memory gives.
//! A layer's experts are known only once its router has chosen: what is there computes while the rest is read, and what
//! is read computes as it comes. Layers that are streamed are read ahead, and share the disk with experts. Guesses are
//! left out, since how good they are depends on the weights: they make a trained mixture faster than is said here.
//!
//! What a large model's router would choose is not known here. [`like`] makes choices that repeat themselves and prefer
//! some experts as much as recorded ones of a small trained model do; [`uniform`] makes those that do neither, which
//! is what random weights choose, and the worst that a pool can meet.

use turbospark_device::MemoryKind;
use turbospark_models::policy::{Policy, replay};
use turbospark_models::{CacheShape, Choice};
use turbospark_tensor::DType;

use crate::bench::{self, Random};
use crate::config::{Config, MoeConfig};
use crate::memory::{Demand, ResidencyChoice};
use crate::{MemoryPlan, Result};

/// Rows of a prompt that the CPU takes at a time.
const ROWS: usize = 512;

/// What a machine gives.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Bytes that the program may use.
    pub memory: u64,
    /// Bytes a second at which weights in memory are read while decoding.
    pub ram: f64,
    /// Threads that compute.
    pub threads: usize,
}

/// A model's sizes.
#[derive(Clone, Debug)]
pub struct Subject {
    /// What `config.json` says.
    pub config: Config,
    /// Bits a weight of linear layers, and of embedding and head: 16, or what a quantised format comes to.
    pub bits: [f64; 2],
    /// Tokens that a sequence may have.
    pub context: usize,
    /// Most patches of an image.
    pub most_patches: usize,
    /// Bytes of the program with its tokenizer.
    pub program: u64,
}

/// What is to be expected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Prediction {
    /// What stays and what is read again.
    pub plan: MemoryPlan,
    /// The part of the chosen experts that is in memory; `None` where all are.
    pub hit_rate: Option<f64>,
    /// Bytes that a token reads.
    pub bytes_per_token: f64,
    /// Of them, experts.
    pub expert_bytes: f64,
    /// Seconds that a token computes.
    pub computing_s: f64,
    /// Bytes of an expert, and seconds that it computes.
    expert: (f64, f64),
    /// Experts that a layer takes.
    per_token: usize,
    /// By the number of experts that a layer had to read: how many layers of a token read so many.
    visits: Vec<f64>,
}

impl Prediction {
    /// Tokens a second, on a disk that gives so many bytes a second.
    pub fn tokens_per_s(&self, disk: f64) -> f64 {
        let (bytes, computing) = self.expert;
        let layers = self.visits.iter().enumerate().skip(1).map(|(misses, visits)| {
            // The last that comes computes alone.
            let read = misses as f64 * bytes / disk + computing;
            visits * (read - self.per_token as f64 * computing).max(0.0)
        });
        let waited = self.computing_s + layers.sum::<f64>();
        1.0 / waited.max(self.bytes_per_token / disk)
    }
}

/// The part of a recording that fills the pool before anything is counted.
const WARM_UP: usize = 4;

/// What `subject` would do on `machine`, if its layers were asked for experts as in `routing`: one choice a layer and
/// token, the layers in turn.
///
/// # Errors
/// A memory that is too small, as the plan says it.
pub fn predict(subject: &Subject, machine: &Machine, routing: &[Choice]) -> Result<Prediction> {
    let text = &subject.config.text;
    let cache = CacheShape::for_sequences(1, subject.context, DType::F16);
    let demand = Demand {
        config: subject.config.clone(),
        sizes: bench::unit_sizes(&subject.config, subject.bits),
        ceiling: Some(machine.memory),
        free: None,
        kind: MemoryKind::Host,
        adapter: None,
        choice: ResidencyChoice::Auto,
        program: subject.program,
        peak: 0,
        contexts: vec![(subject.context, cache.bytes(text) as u64)],
        rows: ROWS,
        sequences: 1,
        threads: machine.threads,
        most_patches: subject.most_patches,
        keep_vision: false,
        gives_back: true,
    };
    let plan = demand.plan()?;
    let sizes = &demand.sizes;
    let layers: usize = sizes.layers.iter().sum();
    let per_token = text.moe.as_ref().map_or(0, |m| m.num_experts_per_tok);
    let routed = if sizes.experts > 0 { text.num_hidden_layers } else { 0 };
    let chosen = (routed * per_token * sizes.expert) as f64;
    let computing_s = (layers as f64 + sizes.head as f64 + chosen) / machine.ram;
    let head = if plan.residency.head { sizes.head } else { 0 };
    let bytes = |layers: &[usize]| layers.iter().map(|&i| sizes.layers[i] as u64).sum::<u64>();
    let streamed = bytes(&plan.residency.layers) - bytes(&plan.residency.lent_layers) + head;

    let slots = plan.residency.expert_slots + plan.residency.lent_experts;
    let mut missed = Vec::new();
    if slots > 0 {
        replay(routing, slots, Policy::CHOSEN, &mut |misses| missed.push(misses));
    }
    let counted = &missed[missed.len() / WARM_UP..];
    let tokens = counted.len() as f64 / routed.max(1) as f64;
    let asked: usize = routing[routing.len() - counted.len()..].iter().map(|(_, experts)| experts.len()).sum();
    let misses: usize = counted.iter().sum();
    let per = |n: usize| if tokens > 0.0 { n as f64 / tokens } else { 0.0 };
    let expert_bytes = per(misses) * sizes.expert as f64;
    let mut visits = vec![0.0; counted.iter().max().map_or(1, |most| most + 1)];
    counted.iter().for_each(|&misses| visits[misses] += per(1));
    Ok(Prediction {
        hit_rate: (slots > 0 && asked > 0).then(|| 1.0 - misses as f64 / asked as f64),
        bytes_per_token: streamed as f64 + expert_bytes,
        expert_bytes,
        computing_s,
        expert: (sizes.expert as f64, sizes.expert as f64 / machine.ram),
        per_token,
        visits,
        plan,
    })
}

/// Choices that every expert has the same part in.
pub fn uniform(layers: usize, moe: &MoeConfig, tokens: usize) -> Vec<Choice> {
    drawn(layers, moe, tokens, 0.0, &|_| 1.0)
}

/// Choices of a larger model that are as loyal as `recorded` ones: of each layer's experts the same part is chosen again
/// by the next token, beyond chance, and the more popular ones have the same part in all choices.
///
/// `experts` and `per_token` are those of the recorded model.
pub fn like(recorded: &[Choice], experts: usize, layers: usize, moe: &MoeConfig, tokens: usize) -> Vec<Choice> {
    let Habits { again, popular } = Habits::of(recorded, experts);
    let share = |rank: f64| {
        let at = rank * popular.len() as f64 - 0.5;
        let (low, part) = (at.floor().max(0.0) as usize, (at - at.floor()).clamp(0.0, 1.0));
        let of = |i: usize| popular[i.min(popular.len() - 1)];
        of(low) * (1.0 - part) + of(low + 1) * part
    };
    drawn(layers, moe, tokens, again, &share)
}

/// What is characteristic of recorded choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Habits {
    /// The part of a token's experts that the next token chooses again because of it: 0 where no more than by chance.
    pub again: f64,
    /// The part that experts have in their layer's choices, the most popular first, averaged over layers.
    pub popular: Vec<f64>,
}

impl Habits {
    /// Of choices among `experts` a layer.
    pub fn of(recorded: &[Choice], experts: usize) -> Self {
        let layers = recorded.iter().map(|(layer, _)| layer + 1).max().unwrap_or(0);
        let mut counts = vec![vec![0usize; experts]; layers];
        let mut last: Vec<&[usize]> = vec![&[]; layers];
        let (mut kept, mut could) = (0, 0);
        for (layer, chosen) in recorded {
            kept += chosen.iter().filter(|e| last[*layer].contains(e)).count();
            could += if last[*layer].is_empty() { 0 } else { chosen.len() };
            chosen.iter().for_each(|&e| counts[*layer][e] += 1);
            last[*layer] = chosen;
        }
        let mut popular = vec![0.0; experts];
        let mut chance = 0.0;
        for layer in &mut counts {
            layer.sort_unstable_by(|a, b| b.cmp(a));
            let all = layer.iter().sum::<usize>().max(1) as f64;
            layer.iter().zip(&mut popular).for_each(|(&n, p)| *p += n as f64 / all / layers as f64);
            // An expert with a part p of the choices is in k p of the tokens: that often it is there by chance.
            let k = recorded.first().map_or(1, |(_, chosen)| chosen.len()) as f64;
            chance +=
                layer.iter().map(|&n| n as f64 / all * (k * n as f64 / all).min(1.0)).sum::<f64>() / layers as f64;
        }
        let again = if could > 0 { kept as f64 / could as f64 } else { 0.0 };
        Habits { again: ((again - chance) / (1.0 - chance).max(1e-9)).clamp(0.0, 1.0), popular }
    }
}

/// `share` gives the weight of an expert by its rank in its layer, from 0 to 1.
fn drawn(layers: usize, moe: &MoeConfig, tokens: usize, again: f64, share: &dyn Fn(f64) -> f64) -> Vec<Choice> {
    let (experts, k) = (moe.num_experts, moe.num_experts_per_tok);
    let mut random = Random::new(7);
    // Ranks go to experts in an order of each layer's own.
    let orders: Vec<Vec<usize>> = (0..layers).map(|_| random.shuffled(experts)).collect();
    let mut sum = 0.0;
    let sums: Vec<f64> = (0..experts)
        .map(|rank| {
            sum += share((rank as f64 + 0.5) / experts as f64).max(1e-6);
            sum
        })
        .collect();
    let mut last: Vec<Vec<usize>> = vec![Vec::new(); layers];
    let mut all = Vec::with_capacity(tokens * layers);
    for _ in 0..tokens {
        for layer in 0..layers {
            let mut chosen: Vec<usize> = Vec::with_capacity(k);
            chosen.extend(last[layer].iter().copied().filter(|_| random.part() < again));
            while chosen.len() < k {
                let drawn = random.part() * sum;
                let rank = sums.partition_point(|&s| s < drawn).min(experts - 1);
                let expert = orders[layer][rank];
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen.sort_unstable();
            last[layer].clone_from(&chosen);
            all.push((layer, chosen));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Shape;

    fn subject(name: &str) -> Subject {
        let text = Shape::named(name).unwrap().config.to_string();
        let config = Config::parse(&text).unwrap();
        Subject { config, bits: [16.0, 16.0], context: 2048, most_patches: 4096, program: 60 << 20 }
    }

    const GIB: u64 = 1 << 30;

    #[test]
    fn a_dense_model_is_bound_by_memory_or_by_the_disk() {
        let dense = subject("qwen3-vl-2b");
        let of = |memory| predict(&dense, &Machine { memory, ram: 30e9, threads: 2 }, &[]).unwrap();
        let (all, half) = (of(8 * GIB), of(2 * GIB));
        assert!(!all.plan.streams() && all.bytes_per_token == 0.0);
        assert!((8.0..10.0).contains(&all.tokens_per_s(2e9)), "{all:?}");
        assert!((half.tokens_per_s(2e9) - 2e9 / half.bytes_per_token).abs() < 0.01, "{half:?}");
        assert!(of(GIB).tokens_per_s(2e9) < half.tokens_per_s(2e9));
    }

    #[test]
    fn loyal_choices_miss_less_than_uniform_ones() {
        let mixture = subject("qwen3-vl-30b-a3b-eighth");
        let moe = mixture.config.text.moe.unwrap();
        let machine = Machine { memory: 4 * GIB, ram: 30e9, threads: 2 };
        // Two of eight experts, which stay for ten tokens.
        let recorded: Vec<Choice> = (0..400).map(|i| (0, vec![i / 10 % 4, 4 + i / 10 % 4])).collect();
        let habits = Habits::of(&recorded, 8);
        assert!((0.8..0.95).contains(&habits.again), "{habits:?}");
        let loyal = predict(&mixture, &machine, &like(&recorded, 8, 6, &moe, 300)).unwrap();
        let any = predict(&mixture, &machine, &uniform(6, &moe, 300)).unwrap();
        let (loyal_rate, rate) = (loyal.hit_rate.unwrap(), any.hit_rate.unwrap());
        let part = any.plan.residency.expert_slots as f64 / 768.0;
        assert!((rate - part).abs() < 0.06, "uniform choices hit what fits: {rate} of {part}");
        assert!(loyal_rate > rate + 0.3 && loyal.tokens_per_s(1e9) > any.tokens_per_s(1e9), "{loyal_rate} {rate}");
    }

    #[test]
    fn sizes_of_a_shape_are_those_of_its_checkpoint() {
        let sizes = bench::unit_sizes(&subject("qwen3-vl-30b-a3b").config, [16.0, 16.0]);
        assert_eq!((sizes.experts, sizes.expert), (48 * 128, 3 * 2 * 2048 * 768));
        assert_eq!((sizes.layers.len(), sizes.vision.len()), (48, 27));
        assert_eq!(sizes.head, 2 * 151_936 * 2048);
    }
}
