//! Weights that stay on the disk until they are used.
//!
//! Three kinds of units: layers of the trunk without their routed experts, blocks of the tower, and experts. The first
//! two are used in a fixed order and go through a [`ring`](Ring); experts are kept in a [`pool`](Pool). What part of a
//! model is streamed is a [`Residency`], which the memory plan makes; all give the same bits.

mod disk;
mod experts;
mod guess;
mod lent;
pub mod policy;
mod pool;
mod reads;
mod ring;
mod table;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use turbospark_device::{Buffer, Device};
use turbospark_weights::{Checkpoint, DirectFile, Linear, Piece};

use disk::Disk;
pub use disk::{Choice, Counters, Visit};
pub(crate) use experts::PooledExperts;
pub(crate) use guess::Seen;
pub(crate) use lent::Lender;
pub use pool::{Pool, READERS};
pub(crate) use reads::{ExpertReads, Part, Reads};
pub use ring::Ring;
use ring::{Cycle, slots_of};
pub(crate) use table::StreamedTable;
use table::shards;

use crate::blocks::mlp::{Mlp, Routed};
use crate::load::{Model, Planned};
use crate::weight::{Home, Spot};
use crate::{ModelError, Result};

/// What of a model stays on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// Layers of the trunk that are streamed, ascending.
    pub layers: Vec<usize>,
    /// Whether embedding and head are read as tokens ask for them.
    pub head: bool,
    /// Whether blocks of the tower are streamed.
    pub vision: bool,
    /// Slots of the ring; at least 2 where anything goes through it.
    pub slots: usize,
    /// Slots of the pool of experts; 0 keeps experts with the rest.
    pub expert_slots: usize,
    /// Of `layers`, those that have a place of their own while memory is [lent](crate::Model::lend), in this order.
    pub lent_layers: Vec<usize>,
    /// Slots of the pool beside `expert_slots`, while memory is lent.
    pub lent_experts: usize,
    /// Whether what isn't streamed is copied to memory and not mapped.
    pub loaded: bool,
    /// Whether the tower is mapped all the same, so that its memory can be given back while it has nothing to do.
    pub vision_mapped: bool,
}

/// The streamed units of a model by size, for the memory plan.
#[derive(Clone, Debug, Default)]
pub struct UnitSizes {
    /// Bytes of a slot for each layer, without routed experts.
    pub layers: Vec<usize>,
    /// Bytes of the slot of a vision block; empty without a tower.
    pub vision: Vec<usize>,
    /// Bytes of the slot of an expert, the largest; 0 without experts.
    pub expert: usize,
    /// Number of experts of all layers.
    pub experts: usize,
    /// Bytes of the embedding, and of the head where it is another table.
    pub tables: u64,
    /// Bytes of the head, which may be the embedding.
    pub head: u64,
    /// Whether the two can be read row by row and part by part.
    pub cuts: bool,
    /// Bytes of everything else: norms outside layers, mergers.
    pub rest: u64,
    /// Whether anything is quantised while it is loaded: it can't be read again.
    pub quantised: bool,
    /// Of what is quantised, bytes of the largest tensor as it is stored.
    pub largest_source: u64,
    /// Bytes of the largest tensor beside experts and tables, and of the largest that experts lie in.
    pub largest: u64,
    /// See [`UnitSizes::largest`].
    pub largest_of_experts: u64,
}

impl UnitSizes {
    /// Bytes of a part of the head where nothing is streamed beside it. Else a part is as large as the largest unit, so
    /// that it needs no larger slot, and a quarter of this at least.
    pub const SHARD: usize = 32 << 20;

    /// Bytes of a part of the head beside units of at most `largest` bytes.
    pub fn shard(largest: Option<usize>) -> usize {
        largest.unwrap_or(Self::SHARD).max(Self::SHARD / 4)
    }

    /// The sizes of a model that isn't there, from its tensors' names, sides and bytes.
    pub fn of_shapes<'t>(tensors: impl IntoIterator<Item = (&'t str, &'t [usize], u64)>) -> Self {
        let mut sizes = UnitSizes { cuts: true, ..UnitSizes::default() };
        let (mut units, mut experts) = (BTreeMap::new(), BTreeMap::new());
        for (name, dims, bytes) in tensors {
            let unit = unit_of(name);
            sizes.see(unit, is_table(name), bytes);
            match unit {
                Some(UnitName::Expert(layer)) => {
                    let (count, sum) = experts.entry(layer).or_insert((dims[0], 0));
                    *sum += bytes / *count as u64;
                }
                Some(unit) => *units.entry(unit).or_insert(0) += bytes as usize,
                None if is_table(name) => {
                    sizes.tables += bytes;
                    sizes.head = bytes;
                }
                None => sizes.rest += bytes,
            }
        }
        for (unit, bytes) in units {
            match unit {
                UnitName::Vision(_) => sizes.vision.push(bytes),
                _ => sizes.layers.push(bytes),
            }
        }
        sizes.experts = experts.values().map(|(count, _)| count).sum();
        sizes.expert = experts.values().map(|(_, bytes)| *bytes as usize).max().unwrap_or(0);
        sizes
    }

    fn see(&mut self, unit: Option<UnitName>, is_table: bool, bytes: u64) {
        match unit {
            Some(UnitName::Expert(_)) => self.largest_of_experts = self.largest_of_experts.max(bytes),
            None if is_table => {}
            _ => self.largest = self.largest.max(bytes),
        }
    }

    /// The sizes of a planned model's units.
    pub fn of(planned: &[Planned]) -> Self {
        let mut sizes = UnitSizes { cuts: true, ..UnitSizes::default() };
        let mut units: BTreeMap<UnitName, Vec<Piece>> = BTreeMap::new();
        // What of a unit is quantised while it is loaded.
        let mut made: BTreeMap<UnitName, u64> = BTreeMap::new();
        let mut experts: BTreeMap<(usize, String), (usize, u64)> = BTreeMap::new();
        for tensor in planned {
            let stored: u64 = pieces(&tensor.source).map(Piece::length).sum();
            let target = tensor.target.and_then(|dtype| dtype.bytes(tensor.source.shape().elements()));
            let bytes = target.map_or(stored, |bytes| bytes as u64);
            if target.is_some() {
                sizes.quantised = true;
                sizes.largest_source = sizes.largest_source.max(stored);
            }
            let unit = unit_of(&tensor.name);
            sizes.see(unit, is_table(&tensor.name), bytes);
            match unit {
                Some(UnitName::Expert(layer)) => {
                    let name = tensor.name.split(".experts.").nth(1).unwrap_or_default();
                    let single = name.split('.').next().is_some_and(|e| e.parse::<usize>().is_ok());
                    let count = if single { 1 } else { tensor.source.shape().dims()[0] };
                    let key = (
                        layer,
                        if single { name.split('.').next().unwrap_or_default().to_owned() } else { String::new() },
                    );
                    let entry = experts.entry(key).or_insert((count, 0));
                    // Direct reads take whole blocks at both ends of each tensor.
                    entry.1 += bytes / count as u64 + 2 * 3 * DirectFile::ALIGN as u64;
                }
                Some(unit) if target.is_some() => *made.entry(unit).or_default() += bytes,
                Some(unit) => units.entry(unit).or_default().extend(pieces(&tensor.source).cloned()),
                None if is_table(&tensor.name) => {
                    sizes.tables += bytes;
                    // The head comes after the embedding, if it is another table.
                    sizes.head = bytes;
                    sizes.cuts &= tensor.target.is_none() && shards(&tensor.source, Self::SHARD).is_some();
                }
                None => sizes.rest += bytes,
            }
        }
        made.keys().for_each(|unit| _ = units.entry(*unit).or_default());
        for (unit, pieces) in units {
            let bytes = Reads::lay_out(&pieces).0.slot_bytes + made.get(&unit).map_or(0, |&bytes| bytes as usize);
            match unit {
                UnitName::Layer(_) | UnitName::Head(_) => sizes.layers.push(bytes),
                _ => sizes.vision.push(bytes),
            }
        }
        sizes.experts = experts.values().map(|(count, _)| count).sum();
        sizes.expert = experts.values().map(|(_, bytes)| *bytes as usize).max().unwrap_or(0);
        sizes
    }
}

/// Which unit a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum UnitName {
    Layer(usize),
    /// A part of the head; used after the layers.
    Head(usize),
    Vision(usize),
    /// A routed expert of a layer.
    Expert(usize),
}

fn unit_of(name: &str) -> Option<UnitName> {
    let after = |word: &str| name.split_once(word)?.1.split('.').next()?.parse().ok();
    if name.contains(".visual.") {
        return after(".blocks.").map(UnitName::Vision);
    }
    let layer = after(".layers.")?;
    Some(if name.contains(".experts.") { UnitName::Expert(layer) } else { UnitName::Layer(layer) })
}

/// The embedding, or a head of its own.
fn is_table(name: &str) -> bool {
    name.ends_with("embed_tokens.weight") || name == "lm_head.weight"
}

fn pieces(linear: &Linear) -> impl Iterator<Item = &Piece> {
    let (whole, scaled) = match linear {
        Linear::Piece(piece) => (Some(piece), None),
        Linear::Scaled(s) => (None, Some(s)),
    };
    whole.into_iter().chain(scaled.into_iter().flat_map(|s| s.pieces()))
}

/// What tells a piece from all others of a checkpoint.
fn key(piece: &Piece) -> String {
    match piece {
        Piece::Place(p) => format!("{} {} {}", p.file.index(), p.offset, p.length),
        Piece::Made(made) => format!("{made:?}"),
    }
}

/// Slots and places of a model's streamed tensors, made before the model itself.
#[derive(Debug)]
pub(crate) struct Streamed {
    /// Where a tensor of a unit lies: its slot and the offset in it.
    places: HashMap<String, (Home, usize)>,
    pub ring: Option<Arc<Ring>>,
    /// Unit of each layer of the trunk and of each vision block that is streamed.
    pub layers: HashMap<usize, usize>,
    pub vision: HashMap<usize, usize>,
    /// Parts of the head: first row, weights and unit; empty where it is in memory.
    pub head: Vec<(usize, Linear, usize)>,
    /// Slots of the pool of experts; 0 where they are in memory; and those that are lent.
    pub expert_slots: [usize; 2],
    /// Bytes of each unit of the ring that has a place of its own while memory is lent.
    lent: Vec<u64>,
    pub counters: Arc<Counters>,
}

impl Streamed {
    pub fn new(
        planned: &[Planned],
        residency: &Residency,
        device: &Arc<dyn Device>,
        checkpoint: &Arc<Checkpoint>,
    ) -> Result<Self> {
        let mut units: BTreeMap<UnitName, Vec<Piece>> = BTreeMap::new();
        for tensor in planned {
            let unit = match unit_of(&tensor.name) {
                Some(unit @ UnitName::Layer(i)) if residency.layers.contains(&i) => unit,
                Some(unit @ UnitName::Vision(_)) if residency.vision => unit,
                Some(unit @ UnitName::Expert(_)) if residency.expert_slots > 0 => unit,
                _ => continue,
            };
            if tensor.target.is_some() {
                let problem =
                    "weights that stay on the disk can't be quantised while they are loaded; pack the model first";
                return Err(ModelError::Device(turbospark_device::DeviceError::Unsupported(problem.into())));
            }
            if matches!(unit, UnitName::Expert(_)) {
                continue;
            }
            units.entry(unit).or_default().extend(pieces(&tensor.source).cloned());
        }
        let mut head = Vec::new();
        if residency.head {
            let mut tables = planned.iter().filter(|t| is_table(&t.name));
            let table = tables.next_back().filter(|t| t.target.is_none());
            let largest = units.values().map(|pieces| Reads::lay_out(pieces).0.slot_bytes).max();
            let cut = table.and_then(|t| shards(&t.source, UnitSizes::shard(largest)));
            let cut = cut.ok_or_else(|| {
                let problem = "this embedding or head can't be read in parts".to_owned();
                ModelError::Device(turbospark_device::DeviceError::Unsupported(problem))
            })?;
            for (i, (first, part)) in cut.into_iter().enumerate() {
                units.insert(UnitName::Head(i), pieces(&part).cloned().collect());
                head.push((first, part, 0));
            }
        }
        let counters = Arc::new(Counters::default());
        let (mut layers, mut vision, mut reads, mut laid) = (HashMap::new(), HashMap::new(), Vec::new(), Vec::new());
        for (i, (unit, pieces)) in units.into_iter().enumerate() {
            match unit {
                UnitName::Layer(n) => _ = layers.insert(n, i),
                UnitName::Head(n) => head[n].2 = i,
                UnitName::Vision(n) | UnitName::Expert(n) => _ = vision.insert(n, i),
            }
            let (unit_reads, offsets) = Reads::lay_out(&pieces);
            reads.push(unit_reads);
            laid.push((pieces, offsets));
        }
        let trunk = layers.len() + head.len();
        let all = [Cycle { first: 0, count: trunk }, Cycle { first: trunk, count: vision.len() }];
        let cycles: Vec<Cycle> = all.into_iter().filter(|cycle| cycle.count > 0).collect();
        let longest = cycles.iter().map(|c| c.count).max().unwrap_or(0);
        let count = residency.slots.clamp(1, longest.max(1));
        let bytes = reads.iter().map(|r| r.slot_bytes).max().unwrap_or(0);
        let count = if cycles.is_empty() { 0 } else { count };
        let slots = alloc_slots(device, "slot of streamed weights", count, bytes)?;
        let lent_units: Vec<usize> = residency.lent_layers.iter().filter_map(|i| layers.get(i)).copied().collect();
        let most = lent_units.iter().map(|&unit| reads[unit].slot_bytes).max().unwrap_or(0);
        let own = alloc_slots(device, "places of their own", lent_units.len(), most)?;
        let slot = slots_of(&cycles, &lent_units, count);
        let spot = |(&unit, own): (&usize, Arc<Buffer>)| {
            let slot = slots[slot[unit]].clone();
            (unit, Arc::new(Spot { slot, own, in_own: AtomicBool::new(false) }))
        };
        let spots: Vec<(usize, Arc<Spot>)> = lent_units.iter().zip(own).map(spot).collect();
        let lent = vec![most as u64; spots.len()];
        let mut places = HashMap::new();
        for (unit, (pieces, offsets)) in laid.into_iter().enumerate() {
            let home = match spots.iter().find(|(one, _)| *one == unit) {
                Some((_, spot)) => Home::Either(spot.clone()),
                None => Home::One(slots[slot[unit]].clone()),
            };
            places.extend(pieces.iter().zip(offsets).map(|(piece, at)| (key(piece), (home.clone(), at))));
        }
        let mut ring = None;
        if !cycles.is_empty() {
            let disk = Disk::new(device.clone(), checkpoint.clone(), counters.clone())?;
            ring = Some(Arc::new(Ring::new(Arc::new(disk), slots, reads, cycles, slot, spots)));
        }
        let expert_slots = [residency.expert_slots, residency.lent_experts];
        Ok(Streamed { places, ring, layers, vision, head, expert_slots, lent, counters })
    }

    /// Hands ring and pool to a model that was loaded with these places.
    pub fn attach(
        self,
        model: &mut Model,
        pooled: Vec<Vec<ExpertReads>>,
        device: &Arc<dyn Device>,
        checkpoint: &Arc<Checkpoint>,
    ) -> Result<()> {
        let [own, lent] = self.expert_slots;
        let mut experts = None;
        if own > 0 {
            let bytes = pooled.iter().flatten().map(|expert| expert.reads.slot_bytes).max().unwrap_or(0);
            let slots = alloc_slots(device, "slot of experts", own + lent, bytes)?;
            let disk = Disk::new(device.clone(), checkpoint.clone(), self.counters.clone())?;
            let pool = Arc::new(Pool::new(Arc::new(disk), slots, own, pooled));
            experts = Some((pool.clone(), bytes as u64));
            let routed = model.trunk.layers.iter_mut().filter_map(|layer| match &mut layer.mlp {
                Mlp::Moe(moe) => Some(moe),
                Mlp::Dense(_) => None,
            });
            for (layer, moe) in routed.enumerate() {
                moe.experts = Routed::Pooled(PooledExperts::new(pool.clone(), layer));
            }
        }
        model.lender = Some(Lender::new(device.clone(), self.ring.clone().zip(Some(self.lent)), experts));
        model.trunk.ring.clone_from(&self.ring);
        model.trunk.units = self.layers;
        if let Some(tower) = &mut model.vision {
            tower.ring = self.ring;
            tower.units = self.vision;
        }
        model.counters = Some(self.counters);
        Ok(())
    }

    /// Where a tensor lies, if it is streamed.
    pub fn place(&self, piece: &Piece) -> Option<(Home, usize)> {
        if self.places.is_empty() { None } else { self.places.get(&key(piece)).cloned() }
    }
}

/// Below this, memory of its own isn't aligned for direct reads.
pub(crate) const MIN_SLOT: usize = 2 << 20;

fn alloc_slots(device: &Arc<dyn Device>, label: &str, count: usize, bytes: usize) -> Result<Vec<Arc<Buffer>>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    Ok(device.alloc_slots(label, count, bytes)?.into_iter().map(Arc::new).collect())
}

/// All files of a checkpoint for direct reads.
pub(crate) fn direct_files(checkpoint: &Checkpoint) -> Result<Vec<DirectFile>> {
    Ok(checkpoint
        .files()
        .iter()
        .map(turbospark_weights::WeightFile::direct)
        .collect::<turbospark_weights::Result<_>>()?)
}
