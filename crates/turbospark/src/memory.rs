//! The memory plan: what of a model stays in memory under a ceiling, and what is read again.
//!
//! Everything that the process touches counts: the program itself, caches, scratch, image buffers, weights. What is left
//! of the ceiling after the fixed terms goes to weights in the order of what reading again would cost: layers of the
//! trunk (each token reads them), experts (each token reads some), vision blocks (each image reads them once). The
//! part of the layers that stays is a fixed set, spread evenly over the pass, so that reads and computing go side by
//! side; never a cache that a cyclic pass would empty just before it is used.
//!
//! Nothing here changes a bit of what is computed.

use std::time::Instant;

use turbospark_models::config::{Config, MlpKind};
use turbospark_models::{Residency, Trunk, UnitSizes, VisionTower};
use turbospark_weights::{Checkpoint, DirectFile};

use crate::{Error, Result};

/// What the user says about where weights live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResidencyChoice {
    /// What the ceiling allows; without one the file's own pages.
    #[default]
    Auto,
    /// The file's own pages, which the system reads and drops as it likes.
    Mapped,
    /// Copies in memory.
    Loaded,
    /// Everything that can be is read again for each use.
    Streamed,
}

impl std::str::FromStr for ResidencyChoice {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        Ok(match name {
            "auto" => ResidencyChoice::Auto,
            "mapped" => ResidencyChoice::Mapped,
            "loaded" => ResidencyChoice::Loaded,
            "streamed" => ResidencyChoice::Streamed,
            _ => return Err(format!("unknown residency {name:?}; choose auto, mapped, loaded or streamed")),
        })
    }
}

/// One term of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// What it is for.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
}

/// What memory is used for, and what a token costs in reads.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// The ceiling; `None` where nothing was asked for.
    pub ceiling: Option<u64>,
    /// Every term.
    pub terms: Vec<Term>,
    /// What stays on the disk.
    pub residency: Residency,
    /// Most patches of an image.
    pub most_patches: usize,
    /// Bytes that a decoded token reads; of experts what differs if each token drew anew.
    pub read_per_token: u64,
    /// Bytes that encoding an image reads.
    pub read_per_image: u64,
}

impl MemoryPlan {
    /// The sum of all terms.
    pub fn total(&self) -> u64 {
        self.terms.iter().map(|t| t.bytes).sum()
    }
}

/// What the plan is made from.
pub(crate) struct Demand<'a> {
    pub config: &'a Config,
    pub sizes: &'a UnitSizes,
    pub ceiling: Option<u64>,
    pub choice: ResidencyChoice,
    /// Bytes that the process has already.
    pub program: u64,
    /// Bytes of the cache.
    pub cache: u64,
    /// Rows of a chunk of a prompt, and tokens that a sequence may have.
    pub rows: usize,
    pub context: usize,
    /// Most patches that an image has by the checkpoint's limits.
    pub most_patches: usize,
}

/// Patches of a page of A4 at 200 dots an inch, and a little more.
const COMMON: usize = 16_384;
/// Slots of the ring: one in use, one ready, one being filled.
const SLOTS: usize = 3;
/// What kernels pack, what threads and the allocator keep.
const WORKING: u64 = 40 << 20;
/// Bytes of a patch in an image's own form, sized and cut: three frames of bytes, and the patch as floats.
const IMAGE_BYTES: u64 = 4;

impl Demand<'_> {
    /// The plan.
    ///
    /// # Errors
    /// A ceiling that is too small, with every term and the least that works.
    pub fn plan(&self) -> Result<MemoryPlan> {
        let all = self.sizes.layers.len();
        let Some(ceiling) = self.ceiling else {
            let residency = match self.choice {
                ResidencyChoice::Streamed => self.streamed(all, true, SLOTS, 2 * self.pool_least(), true),
                ResidencyChoice::Loaded => Residency { loaded: true, ..Residency::default() },
                ResidencyChoice::Auto | ResidencyChoice::Mapped => Residency::default(),
            };
            return Ok(self.finish(residency, self.most_patches));
        };
        // The slack of measuring, and of what the allocator keeps.
        let budget = ceiling - ceiling / 64;
        let (sizes, candidates) = (self.image_sizes(), self.candidates());
        // The largest picture is rare: it makes way for weights, as far down as a common one.
        let common = sizes.iter().copied().find(|&n| n <= COMMON && self.image_bytes(n) <= budget / 8);
        let common = common.or(sizes.last().copied()).unwrap_or(0);
        let whole = candidates.first().filter(|_| !matches!(self.choice, ResidencyChoice::Streamed));
        let larger = sizes.iter().filter(|&&n| n >= common).filter_map(|&n| whole.map(|r| (n, r)));
        let smaller = sizes.iter().filter(|&&n| n <= common).flat_map(|&n| candidates.iter().map(move |r| (n, r)));
        for (patches, residency) in larger.chain(smaller) {
            let plan = self.finish(residency.clone(), patches);
            if plan.total() <= budget {
                return Ok(self.grown(plan, budget));
            }
        }
        let nothing = self.streamed(all, true, 2, self.pool_least(), true);
        let least = self.finish(nothing, sizes.last().copied().unwrap_or(0));
        Err(Error::Options(refusal(ceiling, &least)))
    }

    /// What an image takes while it is sized, cut and encoded.
    fn image_bytes(&self, patches: usize) -> u64 {
        let Some(v) = &self.config.vision else { return 0 };
        VisionTower::work_bytes(v, patches) as u64 + (patches * v.patch_dim()) as u64 * IMAGE_BYTES
    }

    /// Sizes of the largest image, from the checkpoint's own down to a small page.
    fn image_sizes(&self) -> Vec<usize> {
        if self.config.vision.is_none() {
            return vec![0];
        }
        let least = 1024.min(self.most_patches);
        let steps = std::iter::successors(Some(self.most_patches), |n| (*n > least).then_some((n / 2).max(least)));
        steps.collect()
    }

    /// What may stay, from everything to nothing.
    fn candidates(&self) -> Vec<Residency> {
        let (all, pool) = (self.sizes.layers.len(), self.pool_least());
        let loaded = Residency { loaded: true, ..Residency::default() };
        let mut list = Vec::new();
        if !matches!(self.choice, ResidencyChoice::Streamed) {
            list.push(loaded.clone());
            if pool > 0 {
                list.push(Residency { expert_slots: pool, ..loaded.clone() });
            }
            for vision in [false, true] {
                for (streamed, head) in (0..=all).flat_map(|n| [(n, false), (n, true)]) {
                    list.push(self.streamed(streamed, vision, SLOTS, pool, head));
                }
            }
        }
        for head in [false, true] {
            list.push(self.streamed(all, true, SLOTS, pool, head));
            list.push(self.streamed(all, true, 2, pool, head));
        }
        // Fewest reads a token first; a vision block costs once an image.
        list.sort_by_cached_key(|r| {
            let plan = self.finish(r.clone(), 0);
            (plan.read_per_token, plan.read_per_image, r.expert_slots > 0, plan.total())
        });
        list
    }

    /// `count` layers streamed, spread evenly; embedding and head too where `head` and they can be cut.
    fn streamed(&self, count: usize, vision: bool, slots: usize, expert_slots: usize, head: bool) -> Residency {
        let all = self.sizes.layers.len();
        let layers = (0..count).map(|i| i * all / count.max(1)).collect();
        let vision = vision && !self.sizes.vision.is_empty();
        Residency { layers, head: head && self.sizes.cuts, vision, slots, expert_slots, loaded: true }
    }

    /// Slots for the experts of one token; 0 for a model without.
    fn pool_least(&self) -> usize {
        let per_token = self.config.text.moe.as_ref().map_or(0, |m| m.num_experts_per_tok);
        if self.sizes.experts == 0 { 0 } else { per_token.max(2) }
    }

    /// What is left goes to experts.
    fn grown(&self, plan: MemoryPlan, budget: u64) -> MemoryPlan {
        if plan.residency.expert_slots == 0 {
            return plan;
        }
        let more = (budget - plan.total()) / (self.sizes.expert as u64).max(1);
        let mut residency = plan.residency.clone();
        residency.expert_slots = (residency.expert_slots + more as usize).min(self.sizes.experts);
        self.finish(residency, plan.most_patches)
    }

    fn finish(&self, residency: Residency, most_patches: usize) -> MemoryPlan {
        let (sizes, c) = (self.sizes, self.config);
        let sum = |list: &[usize]| list.iter().map(|&n| n as u64).sum::<u64>();
        let streams = |i: usize| residency.layers.contains(&i);
        let resident: u64 = (0..sizes.layers.len()).filter(|&i| !streams(i)).map(|i| sizes.layers[i] as u64).sum();
        let largest = |list: &mut dyn Iterator<Item = usize>| list.max().unwrap_or(0) as u64;
        let ring = largest(&mut residency.layers.iter().map(|&i| sizes.layers[i])).max(if residency.vision {
            largest(&mut sizes.vision.iter().copied())
        } else {
            0
        });
        let shard = if residency.head { UnitSizes::shard((ring > 0).then_some(ring as usize)) } else { 0 };
        let ring = ring.max(shard as u64);
        let ring = if ring > 0 { ring.max(2 << 20) * residency.slots as u64 } else { 0 };
        let pooled = residency.expert_slots > 0;
        let expert = (sizes.expert as u64).max(if pooled { 2 << 20 } else { 0 });
        let mut terms = Vec::new();
        let mut add = |what: String, bytes: u64| {
            if bytes > 0 {
                terms.push(Term { what, bytes });
            }
        };
        add("program, tokenizer and threads".into(), self.program + WORKING);
        add(format!("cache of {} tokens", self.context), self.cache);
        add(format!("work space for {} rows", self.rows), Trunk::work_bytes(&c.text, self.rows, self.context) as u64);
        add(format!("an image of {most_patches} patches"), self.image_bytes(most_patches));
        add("norms and mergers".into(), sizes.rest);
        if !residency.head {
            add("embedding and head".into(), sizes.tables);
        }
        let count = sizes.layers.len() - residency.layers.len();
        add(format!("{count} of {} layers", sizes.layers.len()), resident);
        if !residency.vision {
            add(format!("{} vision blocks", sizes.vision.len()), sum(&sizes.vision));
        }
        add(format!("{} slots for what is read again", residency.slots), ring);
        if pooled {
            let what = format!("{} of {} experts", residency.expert_slots, sizes.experts);
            add(what, residency.expert_slots as u64 * expert);
        } else {
            add(format!("{} experts", sizes.experts), (sizes.experts * sizes.expert) as u64);
        }
        let streamed: u64 = residency.layers.iter().map(|&i| sizes.layers[i] as u64).sum();
        let routed = c.text.mlp_kinds.iter().filter(|k| **k == MlpKind::Moe).count() as u64;
        let per_token = c.text.moe.as_ref().map_or(0, |m| m.num_experts_per_tok) as u64;
        let missing = if pooled { 1.0 - residency.expert_slots as f64 / sizes.experts.max(1) as f64 } else { 0.0 };
        let experts = (routed * per_token * sizes.expert as u64) as f64 * missing;
        let read_per_image = if residency.vision { sum(&sizes.vision) } else { 0 };
        let head = if residency.head { sizes.head } else { 0 };
        let read_per_token = streamed + head + experts as u64;
        MemoryPlan { ceiling: self.ceiling, terms, residency, most_patches, read_per_token, read_per_image }
    }
}

/// The subtraction that does not work out.
fn refusal(ceiling: u64, least: &MemoryPlan) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let terms: Vec<String> = least.terms.iter().map(|t| format!("  {:>12}  {}", mib(t.bytes), t.what)).collect();
    let total = least.total() + least.total() / 63 + 1;
    format!(
        "a memory of {} is too small for this model. With everything read again that can be, it takes\n{}\n  {:>12}  in \
         all: --memory {}M is the least that works (a shorter --context takes less)",
        mib(ceiling),
        terms.join("\n"),
        mib(total),
        total.div_ceil(1 << 20)
    )
}

/// Bytes a second that direct reads of a checkpoint reach, from up to 128 MiB of its largest file; `None` where there
/// is no file on a disk.
pub(crate) fn read_speed(checkpoint: &Checkpoint) -> Result<Option<f64>> {
    const BYTES: usize = 32 << 20;
    let Some(file) = checkpoint.files().iter().filter(|f| f.path().is_some()).max_by_key(|f| f.length()) else {
        return Ok(None);
    };
    let direct = file.direct()?;
    let mut memory = vec![0u8; BYTES + DirectFile::ALIGN];
    let start = memory.as_ptr().align_offset(DirectFile::ALIGN).min(DirectFile::ALIGN);
    let buffer = &mut memory[start..start + BYTES];
    let began = Instant::now();
    let mut read = 0u64;
    // From the middle on: the beginning may lie in a drive's own cache.
    let first = file.length() / 2 / BYTES as u64 * BYTES as u64;
    for i in 0..4 {
        let offset = first + i * BYTES as u64;
        let some = file.length().saturating_sub(offset).min(BYTES as u64) as usize;
        if some == 0 {
            break;
        }
        direct.read(offset, some, &mut buffer[..some.next_multiple_of(DirectFile::ALIGN)])?;
        read += some as u64;
    }
    Ok((read > 0).then(|| read as f64 / began.elapsed().as_secs_f64()))
}

/// Bytes of this process that are in memory.
pub(crate) fn resident_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    if let Ok(text) = std::fs::read_to_string("/proc/self/statm")
        && let Some(pages) = text.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok())
    {
        return pages * 4096;
    }
    64 << 20
}
