//! Mixtures of experts.
//!
//! Where all experts lie together, the choice stays on the device: decode rows read the expert of each of their slots (a
//! row and one of its experts) from the router's ids, and the slots of prompt rows are put in the order of experts by a
//! kernel. Else the host looks at the choice and takes one expert after the other. Each slot's output is kept until all
//! are there, and a row adds up its own in ascending order of experts: what other rows chose moves no bit.

use turbospark_device::op::{Experts, LinearWeight, WeightLayout};
use turbospark_device::{DeviceError, Expert};

use super::layer::{Layer, Slots, routed_rows};
use super::weight::Weight;
use super::{Flush, Rows, kernel::Routed};
use crate::kernel::{Form, Source};
use crate::ops::{Done, strides};
use crate::plan::{Plan, Window, refused, word};

/// Experts that the kernel counts in workgroup memory.
const MOST_EXPERTS: usize = 1024;

const ROUTE: Source = Source { name: "route", text: include_str!("../shaders/linear/route.wgsl"), includes: &[] };

const COMBINE: Source = Source { name: "combine", text: include_str!("../shaders/linear/combine.wgsl"), includes: &[] };

/// Work space of the op: what an expert's first half gives, what the second gives, and the list of tiles.
struct Space {
    inner: Window,
    y: Window,
    list: Window,
}

/// Sides of the op.
#[derive(Clone, Copy)]
struct Sides {
    hidden: usize,
    width: usize,
    top: usize,
    /// Slots, of prompt rows and all.
    prompt: usize,
    slots: usize,
    /// Tiles at most, and their rows.
    tiles: usize,
    tile: u32,
}

impl Sides {
    fn of(plan: &Plan<'_>, op: &Experts<'_>) -> Self {
        let (rows, top, experts) = (op.x.dim(0), op.ids.dim(1), op.source.experts());
        let (prompt, slots) = (op.prompt_rows * top, rows * top);
        let tile = routed_rows(plan, prompt.div_ceil(experts.max(1)) as u32);
        // An expert's last tile may be filled in part.
        let tiles = prompt / tile as usize + experts.min(prompt);
        Sides { hidden: op.x.dim(1), width: op.width, top, prompt, slots, tiles, tile }
    }

    /// Bytes of each part of the work space.
    fn bytes(&self) -> [u64; 3] {
        [self.slots * self.width, self.slots * self.hidden, 3 * self.tiles + self.prompt].map(|n| 4 * n as u64)
    }
}

pub(crate) fn experts<'d>(plan: &mut Plan<'d>, op: &Experts<'_>, flush: &mut Flush<'_, 'd>) -> Done {
    let sides = Sides::of(plan, op);
    if sides.slots == 0 {
        return Ok(());
    }
    if op.source.experts() <= MOST_EXPERTS
        && let Some(all) = op.source.stacked()
        && let Ok(weights) = Weights::of(plan, &all, sides)
    {
        return together(plan, op, sides, &weights);
    }
    one_by_one(plan, op, sides, flush)
}

/// An expert's weights, or those of all.
struct Weights {
    gate: Weight,
    up: Weight,
    down: Weight,
    layout: WeightLayout,
}

impl Weights {
    fn of(plan: &Plan<'_>, e: &Expert<'_>, sides: Sides) -> Result<Self, DeviceError> {
        let of = |w: &LinearWeight<'_>, k| Weight::of(plan, w, e.layout, k);
        Ok(Weights {
            gate: of(&e.gate, sides.hidden)?,
            up: of(&e.up, sides.hidden)?,
            down: of(&e.down, sides.width)?,
            layout: e.layout,
        })
    }

    /// `down(silu(gate x) * up x)` for slots, each to its own row of `y`.
    fn plan(
        &self,
        plan: &mut Plan<'_>,
        x: &Rows,
        space: &Space,
        sides: Sides,
        slots: &Slots,
        tile: Option<u32>,
    ) -> Done {
        let inner = Rows::temp(space.inner.clone(), sides.width)?;
        let layer = |k, n, x: &Rows, a: &Weight, b: Option<&Weight>, out| Layer {
            rows: sides.slots,
            k,
            n,
            x: x.clone(),
            a: a.clone(),
            b: b.cloned(),
            layout: self.layout,
            bias: None,
            activation: None,
            residual: None,
            out,
            norm: None,
        };
        layer(sides.hidden, sides.width, x, &self.gate, Some(&self.up), inner.clone()).routed(plan, slots, tile)?;
        let y = Rows::temp(space.y.clone(), sides.hidden)?;
        let own = Slots { top: 1, ..slots.clone() };
        layer(sides.width, sides.hidden, &inner, &self.down, None, y).routed(plan, &own, tile)
    }
}

/// All of them lie together, and nothing waits for the host.
fn together(plan: &mut Plan<'_>, op: &Experts<'_>, sides: Sides, weights: &Weights) -> Done {
    let [inner, y, list] = sides.bytes();
    let space = Space { inner: plan.temp(inner)?, y: plan.temp(y)?, list: plan.temp(list)? };
    let (x, ids) = (Rows::of(plan, &op.x)?, plan.view(&op.ids)?);
    if sides.prompt > 0 {
        let experts = op.source.experts();
        let words = [word(sides.prompt)?, word(experts)?, word(sides.tiles)?, ids.at, 0];
        plan.kernel(&ROUTE)
            .set("EXPERTS", word(experts.next_power_of_two())?)
            .set("BM", sides.tile)
            .read("ids", Form::U32, &ids.window)
            .write("list", Form::U32, &space.list)
            .grid(&words, [1, 1, 1])?;
        let slots = Slots {
            list: space.list.clone(),
            at: 0,
            entries: word(sides.tiles)?,
            first: 0,
            top: word(sides.top)?,
            routed: Routed::Ids,
        };
        weights.plan(plan, &x, &space, sides, &slots, Some(sides.tile))?;
    }
    let slots = Slots {
        at: ids.at + word(sides.prompt)?,
        list: ids.window,
        entries: word(sides.slots - sides.prompt)?,
        first: word(sides.prompt)?,
        top: word(sides.top)?,
        routed: Routed::Ids,
    };
    weights.plan(plan, &x, &space, sides, &slots, None)?;
    combine(plan, op, sides, &space)
}

/// The host looks at the choice; each expert's weights are there during a call only.
fn one_by_one<'d>(plan: &mut Plan<'d>, op: &Experts<'_>, sides: Sides, flush: &mut Flush<'_, 'd>) -> Done {
    let count = op.source.experts();
    flush(plan)?;
    let mut ids = vec![0i32; sides.slots];
    let memory = plan.gpu.memory(&op.ids)?;
    plan.gpu.get(memory, op.ids.offset_bytes() as u64, bytemuck::cast_slice_mut(&mut ids))?;
    let mut chosen: Vec<Vec<u32>> = vec![Vec::new(); count];
    for (slot, &id) in ids.iter().enumerate() {
        let expert = usize::try_from(id).ok().filter(|&e| e < count);
        let expert = expert.ok_or_else(|| refused(format!("row {} chose expert {id} of {count}", slot / sides.top)))?;
        chosen[expert].push(slot as u32);
    }
    // Work space of a submission is anyone's after it, and this is several: it has its own.
    let [inner, y, _] = sides.bytes();
    let own = plan.gpu.linear.take_space(plan.gpu, &[inner, y])?;
    let space = Space { inner: own.part(0), y: own.part(1), list: plan.tables() };
    let wanted: Vec<usize> = (0..count).filter(|&e| !chosen[e].is_empty()).collect();
    op.source.with(&wanted, &mut |e, expert| {
        expert.check(sides.hidden, sides.width).map_err(|m| refused(format!("expert {e}: {m}")))?;
        let weights = Weights::of(plan, &expert, sides)?;
        let x = Rows::of(plan, &op.x)?;
        let (prompt, decode) = chosen[e].split_at(chosen[e].partition_point(|&s| (s as usize) < sides.prompt));
        let top = word(sides.top)?;
        let of = |at, entries, list| Slots { list, at, entries, first: 0, top, routed: Routed::Slots };
        if !prompt.is_empty() {
            let slots = plan.table(prompt.iter().copied());
            let tiles = prompt.chunks(sides.tile as usize);
            let step = sides.tile;
            let words = tiles.enumerate().flat_map(|(i, tile)| [0, slots + i as u32 * step, tile.len() as u32]);
            let words: Vec<u32> = words.collect();
            let entries = word(words.len() / 3)?;
            let at = plan.table(words);
            let list = plan.tables();
            weights.plan(plan, &x, &space, sides, &of(at, entries, list), Some(sides.tile))?;
        }
        if !decode.is_empty() {
            let at = plan.table(decode.iter().copied());
            let list = plan.tables();
            weights.plan(plan, &x, &space, sides, &of(at, word(decode.len())?, list), None)?;
        }
        // The weights' slot may be given up after this.
        flush(plan)
    })?;
    combine(plan, op, sides, &space)?;
    flush(plan)?;
    plan.gpu.linear.give_space(own);
    Ok(())
}

/// Each row adds up the outputs of its experts.
fn combine(plan: &mut Plan<'_>, op: &Experts<'_>, sides: Sides, space: &Space) -> Done {
    let count = sides.slots / sides.top * sides.hidden;
    let (ids, weights, out) = (plan.view(&op.ids)?, plan.view(&op.weights)?, Rows::of(plan, &op.out)?);
    let residual = op.residual.as_ref().map(|r| Rows::of(plan, r)).transpose()?;
    let words = [
        word(count)?,
        word(sides.hidden)?,
        word(sides.top)?,
        ids.at,
        weights.at,
        0,
        residual.as_ref().map_or(0, |r| r.at.at),
        residual.as_ref().map_or(0, |r| r.row),
        out.at.at,
        strides(&op.out)?[0],
    ];
    plan.kernel(&COMBINE)
        .set("RESIDUAL", residual.is_some().into())
        .read("ids", Form::I32, &ids.window)
        .read("weights", Form::F32, &weights.window)
        .read("y", Form::F32, &space.y)
        .read("residual", Form::F32, residual.as_ref().map_or(&space.y, |r| &r.at.window))
        .write("out", Form::F32, &out.at.window)
        .over(&words, (count as u64).div_ceil(256))
}
