//! From a ceiling to what stays and what is read again.

use turbospark_device::MemoryKind;
use turbospark_models::config::{Config, MlpKind};
use turbospark_models::{Residency, UnitSizes};

use super::work::{self, Pass};
use super::{Free, MemoryPlan, ResidencyChoice, Term};
use crate::{Error, Result};

/// What the plan is made from.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub config: Config,
    pub sizes: UnitSizes,
    /// What the user allows; `None` leaves it to what is free.
    pub ceiling: Option<u64>,
    /// What the system has free, where that counts.
    pub free: Option<Free>,
    /// Whose memory the device uses.
    pub kind: MemoryKind,
    /// What the user allows of a graphics adapter's own memory.
    pub adapter: Option<u64>,
    pub choice: ResidencyChoice,
    /// Bytes that the process has already, and had at most.
    pub program: u64,
    pub peak: u64,
    /// Tokens that a sequence may have, and bytes of the cache then: what is wished first, then what will do.
    pub contexts: Vec<(usize, u64)>,
    /// Rows of a chunk of a prompt.
    pub rows: usize,
    pub sequences: usize,
    pub threads: usize,
    /// Most patches that an image has by the checkpoint's limits.
    pub most_patches: usize,
    /// Whether the tower stays in memory while it has nothing to do.
    pub keep_vision: bool,
    /// Whether the device gives memory back at once, so that some of it may be lent.
    pub gives_back: bool,
}

/// Patches of a page of A4 at 200 dots an inch, and a little more.
const COMMON: usize = 16_384;
/// Tokens of the answer to an image: what a block of the tower saves once, a layer of the trunk saves so often.
const TOKENS_PER_IMAGE: u64 = 128;
/// Slots of the ring: one in use, one ready, one being filled. Where the third would hold a layer, that saves more: with
/// two the disk is idle only while a unit takes longer to use than to read.
const SLOTS: usize = 3;
/// The fewest that go on reading while a unit is used.
const LEAST_SLOTS_OF_RING: usize = 2;
/// Slots lie side by side, and take no less than a huge page together.
const LEAST_SLOTS: u64 = 2 << 20;

/// What bounds a plan.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// The ceiling of the machine's memory.
    system: u64,
    /// That of a graphics adapter's own memory, where it has some.
    adapter: Option<u64>,
}

/// As much as nobody has, where it isn't told how much there is.
const UNTOLD: u64 = 1 << 60;

impl Bounds {
    /// Of the memory that weights and caches are in.
    fn weights(self) -> u64 {
        self.adapter.unwrap_or(self.system)
    }
}

impl Demand {
    /// The plan.
    ///
    /// # Errors
    /// A ceiling that is too small, with every term and the least that works.
    pub fn plan(&self) -> Result<MemoryPlan> {
        if let MemoryKind::Own { .. } = self.kind {
            return self.apart();
        }
        match (self.ceiling, &self.free, self.choice) {
            (Some(ceiling), ..) => self.under(self.bounds(ceiling)),
            (None, Some(free), ResidencyChoice::Auto) => self.within(free),
            (None, _, choice) => {
                let all = self.sizes.layers.len();
                let residency = match choice {
                    ResidencyChoice::Streamed => self.streamed(all, true, SLOTS, 2 * self.pool_least(), true),
                    ResidencyChoice::Loaded => Residency { loaded: true, ..Residency::default() },
                    ResidencyChoice::Auto | ResidencyChoice::Mapped => Residency::default(),
                };
                Ok(self.finish(residency, self.most_patches, self.contexts[0]))
            }
        }
    }

    /// The file's own pages where they fit into what is free, else as under a ceiling.
    fn within(&self, free: &Free) -> Result<MemoryPlan> {
        // What the process has already is not free any more, and its own.
        let ceiling = self.program + free.bytes.saturating_sub(free.reserve());
        let mapped = |n: usize| self.finish(Residency::default(), n, self.contexts[0]);
        let largest = mapped(self.most_patches);
        if self.fits(&largest, self.bounds(ceiling)) {
            return Ok(largest);
        }
        let common = self.common(ceiling);
        let smaller = self.image_sizes().into_iter().filter(|&n| n >= common).map(mapped);
        let plan = match smaller.into_iter().find(|plan| self.fits(plan, self.bounds(ceiling))) {
            Some(plan) => MemoryPlan { ceiling: Some(ceiling), ..plan },
            None => self.under(self.bounds(ceiling))?,
        };
        Ok(MemoryPlan { free: Some(free.clone()), ..plan })
    }

    fn bounds(&self, system: u64) -> Bounds {
        let MemoryKind::Own { bytes } = self.kind else { return Bounds { system, adapter: None } };
        // The desktop and other programs have theirs.
        let room = bytes.map(|bytes| bytes - Free { bytes, group: None }.reserve().min(bytes));
        Bounds { system, adapter: Some(room.into_iter().chain(self.adapter).min().unwrap_or(UNTOLD)) }
    }

    /// On an adapter with memory of its own: weights, caches and work space there, the rest here.
    fn apart(&self) -> Result<MemoryPlan> {
        let free = self.free.as_ref().map(|free| self.program + free.bytes.saturating_sub(free.reserve()));
        let bounds = self.bounds(self.ceiling.or(free).unwrap_or(UNTOLD));
        let auto = self.ceiling.is_none() && self.choice == ResidencyChoice::Auto;
        let whole = self.finish(Residency::default(), self.most_patches, self.contexts[0]);
        let plan = if auto && self.fits(&whole, bounds) { whole } else { self.under(bounds)? };
        let told = |bytes: u64| Some(bytes).filter(|bytes| *bytes < UNTOLD);
        let adapter = bounds.adapter.and_then(told);
        Ok(MemoryPlan { ceiling: plan.ceiling.and_then(told), adapter, free: self.free.clone(), ..plan })
    }

    fn under(&self, bounds: Bounds) -> Result<MemoryPlan> {
        let (ceiling, weights) = (bounds.system, bounds.weights());
        let context = self.context(weights);
        let (sizes, common) = (self.image_sizes(), self.common(weights));
        let candidates = self.candidates();
        // The largest picture is rare: it makes way for weights, as far down as a common one.
        let whole = candidates.first().filter(|_| !matches!(self.choice, ResidencyChoice::Streamed));
        let larger =
            sizes.iter().filter(|&&n| n >= common).filter_map(|&n| whole.map(|r| (n, std::slice::from_ref(r))));
        let smaller = sizes.iter().filter(|&&n| n <= common).map(|&n| (n, &candidates[..]));
        for (patches, candidates) in larger.chain(smaller) {
            let plans = candidates.iter().map(|residency| MemoryPlan {
                ceiling: Some(ceiling),
                ..self.finish(residency.clone(), patches, context)
            });
            let plans = plans.filter(|plan| self.fits(plan, bounds));
            let plans = plans.map(|plan| self.grown(plan, bounds, context));
            let best = plans.min_by_key(|plan| {
                // Lent room is no reason to keep less for good.
                let reads = TOKENS_PER_IMAGE * plan.read_beside_images + plan.read_per_image;
                let slots = SLOTS.saturating_sub(plan.residency.slots);
                (reads, plan.residency.expert_slots > 0, slots, plan.total() + plan.adapter_total())
            });
            if let Some(plan) = best {
                return Ok(plan);
            }
        }
        Err(Error::Options(self.refusal(bounds, &self.least())))
    }

    /// The plan with everything read again that can be, and no room for more than a small page.
    fn least(&self) -> MemoryPlan {
        let context = self.contexts[self.contexts.len() - 1];
        let nothing = if self.all_stays() {
            Residency { loaded: true, ..Residency::default() }
        } else {
            self.streamed(self.sizes.layers.len(), true, LEAST_SLOTS_OF_RING, self.pool_least(), true)
        };
        self.finish(nothing, self.image_sizes().last().copied().unwrap_or(0), context)
    }

    /// Whether nothing can be read again.
    fn all_stays(&self) -> bool {
        self.sizes.quantised || matches!(self.choice, ResidencyChoice::Mapped | ResidencyChoice::Loaded)
    }

    /// What more memory would change: plans under larger ceilings, up to one that reads nothing again. Of an adapter's own
    /// memory there is no more.
    pub fn outlook(&self, plan: &MemoryPlan) -> Vec<MemoryPlan> {
        if let MemoryKind::Own { .. } = self.kind {
            return Vec::new();
        }
        let Some(ceiling) = plan.ceiling.filter(|_| plan.streams()) else { return Vec::new() };
        let Some(whole) = self.candidates().into_iter().next() else { return Vec::new() };
        let holds = |ceiling| {
            let (most_patches, context) = (self.common(ceiling), self.context(ceiling));
            ceiling_of(self.finish(whole.clone(), most_patches, context).total()).max(ceiling)
        };
        // More memory is room for larger images too.
        let whole = holds(holds(ceiling));
        // In whole 64 MiB, as people say it.
        let step = |quarters: u64| (ceiling + (whole - ceiling) / 4 * quarters).next_multiple_of(64 << 20);
        let mut plans: Vec<MemoryPlan> = Vec::new();
        for more in (1..=4).map(step).filter_map(|ceiling| self.under(self.bounds(ceiling)).ok()) {
            let before = plans.last().unwrap_or(plan);
            if more.read_per_token + more.read_per_image < before.read_per_token + before.read_per_image {
                plans.push(more);
            }
        }
        plans
    }

    fn fits(&self, plan: &MemoryPlan, bounds: Bounds) -> bool {
        let there = bounds.adapter.is_none_or(|room| plan.adapter_total() <= budget(room));
        there && plan.total().max(self.peak) <= budget(bounds.system)
    }

    /// The context that nobody insists on makes way for weights.
    fn context(&self, ceiling: u64) -> (usize, u64) {
        let fits = self.contexts.iter().find(|(_, cache)| *cache <= ceiling / 8);
        *fits.or(self.contexts.last()).expect("at least the one that is wished")
    }

    /// The largest size of image that weights don't take precedence over.
    fn common(&self, ceiling: u64) -> usize {
        let sizes = self.image_sizes();
        let common = sizes.iter().copied().find(|&n| n <= COMMON && self.image_bytes(n) <= budget(ceiling) / 8);
        common.or(sizes.last().copied()).unwrap_or(0)
    }

    fn image_bytes(&self, patches: usize) -> u64 {
        work::image_bytes(self.config.vision.as_ref(), patches, self.sequences, self.rows)
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
        let auto = self.choice == ResidencyChoice::Auto;
        match self.choice {
            ResidencyChoice::Mapped => return vec![Residency::default()],
            ResidencyChoice::Loaded => return vec![Residency { loaded: true, ..Residency::default() }],
            ResidencyChoice::Auto | ResidencyChoice::Streamed => {}
        }
        let whole = Residency {
            loaded: true,
            vision_mapped: auto && !self.keep_vision && self.kind == MemoryKind::Host,
            ..Residency::default()
        };
        if self.sizes.quantised {
            return vec![whole];
        }
        let mut list = Vec::new();
        if !matches!(self.choice, ResidencyChoice::Streamed) {
            list.push(whole.clone());
            if pool > 0 {
                list.push(Residency { expert_slots: pool, ..whole });
            }
            for vision in [false, true] {
                for (streamed, head) in (0..=all).flat_map(|n| [(n, false), (n, true)]) {
                    let with = |slots| self.streamed(streamed, vision, slots, pool, head);
                    list.extend([SLOTS, LEAST_SLOTS_OF_RING].map(with));
                }
            }
        }
        for head in [false, true] {
            list.push(self.streamed(all, true, SLOTS, pool, head));
            list.push(self.streamed(all, true, LEAST_SLOTS_OF_RING, pool, head));
        }
        list
    }

    /// `count` layers streamed, spread evenly; embedding and head too where `head` and they can be cut.
    fn streamed(&self, count: usize, vision: bool, slots: usize, expert_slots: usize, head: bool) -> Residency {
        let all = self.sizes.layers.len();
        let layers = (0..count).map(|i| i * all / count.max(1)).collect();
        let vision = vision && !self.sizes.vision.is_empty();
        let head = head && self.sizes.cuts;
        Residency { layers, head, vision, slots, expert_slots, loaded: true, ..Residency::default() }
    }

    /// As `residency`, with what holds more of it while images of `patches` aren't there.
    fn lent(&self, residency: Residency, patches: usize) -> Residency {
        let lends = self.gives_back && self.kind == MemoryKind::Host && self.choice == ResidencyChoice::Auto;
        let vision = self.config.vision.as_ref().filter(|_| lends);
        let room = work::lent_bytes(vision, patches, self.sequences, self.rows);
        let (sizes, all) = (&self.sizes, &residency.layers);
        let layer = all.iter().map(|&i| sizes.layers[i] as u64).max().unwrap_or(0).max(LEAST_SLOTS);
        let count = all.len().min((room / layer) as usize);
        let lent_layers: Vec<usize> = (0..count).map(|i| all[(2 * i + 1) * all.len() / (2 * count)]).collect();
        let left = room - count as u64 * layer;
        let missing = if residency.expert_slots > 0 { sizes.experts - residency.expert_slots } else { 0 };
        let lent_experts = missing.min((left / sizes.expert.max(1) as u64) as usize);
        Residency { lent_layers, lent_experts, ..residency }
    }

    /// Slots for the experts of one token; 0 for a model without.
    fn pool_least(&self) -> usize {
        let per_token = self.config.text.moe.as_ref().map_or(0, |m| m.num_experts_per_tok);
        if self.sizes.experts == 0 { 0 } else { per_token.max(2) }
    }

    /// What is left goes to experts.
    fn grown(&self, plan: MemoryPlan, bounds: Bounds, context: (usize, u64)) -> MemoryPlan {
        if plan.residency.expert_slots == 0 {
            return plan;
        }
        let used = if bounds.adapter.is_some() { plan.adapter_total() } else { plan.total() };
        let more = (budget(bounds.weights()) - used) / (self.sizes.expert as u64);
        let mut residency = plan.residency.clone();
        residency.expert_slots = (residency.expert_slots + more as usize).min(self.sizes.experts);
        MemoryPlan { ceiling: plan.ceiling, ..self.finish(residency, plan.most_patches, context) }
    }

    fn finish(&self, residency: Residency, most_patches: usize, (context, cache): (usize, u64)) -> MemoryPlan {
        let residency = self.lent(residency, most_patches);
        let (sizes, c) = (&self.sizes, &self.config);
        let &Demand { rows, sequences, threads, .. } = self;
        let rows = rows.min(context);
        let on_adapter = self.kind != MemoryKind::Host;
        let pass = Pass { rows, sequences, context, threads, on_adapter };
        let sum = |list: &[usize]| list.iter().map(|&n| n as u64).sum::<u64>();
        let streamed: u64 = residency.layers.iter().map(|&i| sizes.layers[i] as u64).sum();
        let resident = sum(&sizes.layers) - streamed;
        let largest = |list: &mut dyn Iterator<Item = usize>| list.max().unwrap_or(0) as u64;
        let ring = largest(&mut residency.layers.iter().map(|&i| sizes.layers[i])).max(if residency.vision {
            largest(&mut sizes.vision.iter().copied())
        } else {
            0
        });
        let shard = if residency.head { UnitSizes::shard((ring > 0).then_some(ring as usize)) } else { 0 };
        let ring = ring.max(shard as u64);
        let slots = if ring > 0 { (ring * residency.slots as u64).max(LEAST_SLOTS) } else { 0 };
        let pooled = residency.expert_slots > 0;
        let own = matches!(self.kind, MemoryKind::Own { .. });
        let mut terms = Vec::new();
        // The machine's, and the device's.
        let mut add_to = |on_adapter: bool, what: String, bytes: u64| {
            if bytes > 0 {
                terms.push(Term { what, bytes, on_adapter });
            }
        };
        let each = if sequences > 1 { format!("{sequences} sequences of ") } else { String::new() };
        add_to(false, "program and tokenizer".into(), self.program);
        if self.kind != MemoryKind::Host {
            let brought = if pooled { 0 } else { sizes.largest_of_experts };
            let brought = brought.max(sizes.largest).max(if residency.head { 0 } else { sizes.head });
            let read = [ring, if pooled { sizes.expert as u64 } else { 0 }];
            let bytes = work::staging_bytes(brought, read[0], read[1]);
            add_to(false, "the driver, and what is on its way to the adapter".into(), bytes);
        }
        if own {
            let (images, vision) = (self.image_bytes(most_patches), c.vision.as_ref());
            add_to(false, format!("images of {most_patches} patches together, as they come"), images);
            let bytes = work::tower_work_bytes(vision, most_patches, sequences, self.rows);
            add_to(true, format!("{most_patches} patches in the tower, and their rows"), bytes);
        } else {
            add_to(false, format!("images of {most_patches} patches together"), self.image_bytes(most_patches));
        }
        add_to(false, "the largest tensor while it is quantised".into(), sizes.largest_source);
        let mut add = |what: String, bytes: u64| add_to(own, what, bytes);
        add(format!("kernels and {threads} threads"), work::kernel_bytes(c, pass, most_patches));
        add(format!("cache of {each}{context} tokens"), cache);
        add(format!("work space for {rows} rows, logits"), work::trunk_bytes(&c.text, pass));
        add("norms and mergers".into(), sizes.rest);
        if !residency.head {
            add("embedding and head".into(), sizes.tables);
        }
        let count = sizes.layers.len() - residency.layers.len();
        add(format!("{count} of {} layers", sizes.layers.len()), resident);
        if !residency.vision {
            add(format!("{} vision blocks", sizes.vision.len()), sum(&sizes.vision));
        }
        add(format!("{} slots for what is read again", residency.slots), slots);
        if pooled {
            let what = format!("{} of {} experts", residency.expert_slots, sizes.experts);
            add(what, (residency.expert_slots as u64 * sizes.expert as u64).max(LEAST_SLOTS));
        } else {
            add(format!("{} experts", sizes.experts), (sizes.experts * sizes.expert) as u64);
        }
        let routed = c.text.mlp_kinds.iter().filter(|k| **k == MlpKind::Moe).count() as u64;
        let per_token = c.text.moe.as_ref().map_or(0, |m| m.num_experts_per_tok) as u64;
        let read_per_image = if residency.vision { sum(&sizes.vision) } else { 0 };
        let head = if residency.head { sizes.head } else { 0 };
        let chosen = (routed * per_token * sizes.expert as u64) as f64;
        let read_with = |expert_slots: usize| {
            let there = expert_slots as f64 / sizes.experts.max(1) as f64;
            streamed + head + if pooled { chosen * (1.0 - there) } else { 0.0 } as u64
        };
        let lends = !residency.lent_layers.is_empty() || residency.lent_experts > 0;
        let vision = c.vision.as_ref().filter(|_| lends);
        let lent_bytes = work::lent_bytes(vision, most_patches, sequences, self.rows);
        let read_beside_images = read_with(residency.expert_slots);
        let lent: u64 = residency.lent_layers.iter().map(|&i| sizes.layers[i] as u64).sum();
        let read_per_token = read_with(residency.expert_slots + residency.lent_experts) - lent;
        MemoryPlan {
            ceiling: None,
            adapter: None,
            free: None,
            terms,
            residency,
            context,
            most_patches,
            most_decode_bytes: work::decode_bytes(c.vision.as_ref(), most_patches, self.rows),
            read_per_token,
            read_beside_images,
            read_per_image,
            lent_bytes,
        }
    }

    /// The subtraction that does not work out.
    fn refusal(&self, bounds: Bounds, least: &MemoryPlan) -> String {
        let ceiling = bounds.system;
        let terms = |on_adapter: bool| {
            let own = least.terms.iter().filter(|t| t.on_adapter == on_adapter);
            own.map(|t| format!("  {:>12}  {}", mib(t.bytes), t.what)).collect::<Vec<_>>().join("\n")
        };
        if let Some(room) = bounds.adapter.filter(|room| least.adapter_total() > budget(*room)) {
            let (all, enough) = (least.adapter_total(), ceiling_of(least.adapter_total()));
            return format!(
                "the graphics adapter's memory, of which {} may be used, is too small for this model. With everything read \
                 again that can be it takes\n{}\n  {:>12}  in all\n  {:>12}  with 1/64 for measuring is the least that \
                 works (a shorter --context takes less; --device cpu needs no adapter)",
                mib(room),
                terms(true),
                mib(all),
                mib(enough)
            );
        }
        let total = least.total().max(self.peak);
        // What the program takes is measured anew each time, and may come to a step more.
        let enough = ceiling_of(total + PROGRAM_STEP);
        let peak = if self.peak > least.total() {
            format!("\n  {:>12}  was in use while the model was opened", mib(self.peak))
        } else {
            String::new()
        };
        let how = match (self.sizes.quantised, self.all_stays()) {
            (true, _) => {
                "What is quantised while it is loaded can't be read again (turbospark pack --quant does it once)"
            }
            (_, true) => "With a --residency that keeps everything in memory",
            _ => "With everything read again that can be",
        };
        let whose = match (&self.ceiling, &self.free) {
            (None, Some(Free { group: Some(group), .. })) => format!("what the memory group {group} leaves"),
            (None, Some(_)) => "what this system has free".into(),
            _ => "a memory".into(),
        };
        format!(
            "{whose} of {} is too small for this model. {how}: it takes\n{}\n  {:>12}  in all{peak}\n  {:>12}  is 1/64 \
             and a step of the program more, for measuring: --memory {}M is the least that works (a shorter --context takes less)",
            mib(ceiling),
            terms(false),
            mib(least.total()),
            mib(enough),
            enough.div_ceil(1 << 20)
        )
    }
}

/// What a ceiling leaves: less the slack of measuring, and of what the allocator keeps.
fn budget(ceiling: u64) -> u64 {
    ceiling - ceiling / 64
}

/// The program's own memory counts in whole steps of this: what works once works again.
pub(crate) const PROGRAM_STEP: u64 = 4 << 20;

/// The least ceiling with a budget of `total`.
fn ceiling_of(total: u64) -> u64 {
    total + total / 63 + 1
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}
