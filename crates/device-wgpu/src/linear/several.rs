//! Several layers of the same decode rows as one kernel: queries, keys and values, or what DeltaNet projects.
//!
//! Each reads its own weight, so that nothing is saved but launches, which take as long as a small weight's read.

use turbospark_device::op::{LinearWeight, Matmul, RmsNorm, WeightLayout};
use turbospark_device::{Op, Recorded, View};

use super::Rows;
use super::kernel::{Routed, Shape, Variant};
use super::layer::row_shape;
use super::normed::{self, Normed};
use super::weight::{A, MORE, Weight};
use crate::kernel::Form;
use crate::ops::{Done, apart, same};
use crate::plan::{Plan, word};

/// Weights of a kernel at most.
const MOST: usize = 4;

/// Buffers that it binds: the weights, rows, outputs, the list of parts, and grids of formats.
const BUFFERS: u32 = MOST as u32 + 4;

/// Plans the layers at the head of `ops` as one, with the norm before them where there is one: how many; `None` where fewer
/// than two fit together.
pub(crate) fn several(plan: &mut Plan<'_>, norm: Option<&RmsNorm<'_>>, ops: &[Recorded<'_>]) -> Option<(usize, Done)> {
    let plain = ops.iter().take(MOST).map_while(|r| match &r.op {
        Op::Matmul(op) if is_plain(plan, op) => Some(op),
        _ => None,
    });
    let mut layers: Vec<&Matmul<'_>> = Vec::new();
    for op in plain {
        let of_first = layers.first().is_none_or(|first| {
            let mut views = vec![&first.x, &op.out];
            views.extend(layers.iter().map(|l| &l.out));
            same(&first.x, &op.x) && apart(&views)
        });
        if !of_first {
            break;
        }
        layers.push(op);
    }
    let buffers = BUFFERS + norm.map_or(0, |_| normed::BUFFERS);
    if layers.len() < 2 || plan.gpu.limits.max_storage_buffers_per_shader_stage < buffers {
        return None;
    }
    let outs: Vec<&View<'_>> = layers.iter().map(|l| &l.out).collect();
    let norm = match norm {
        Some(norm) => Some(Normed::of(plan, norm, &layers[0].x, &outs)?),
        None => None,
    };
    one(plan, norm.as_ref(), &layers).map(|done| (layers.len(), done))
}

/// Whether a layer is of decode rows and a whole weight without scales apart, with nothing after it.
fn is_plain(plan: &Plan<'_>, op: &Matmul<'_>) -> bool {
    let LinearWeight::View(weight) = &op.weight else { return false };
    let bare = op.bias.is_none() && op.activation.is_none() && op.residual.is_none();
    let some = op.x.dim(0) > 0 && op.out.dim(1) > 0;
    op.prompt_rows == 0 && op.layout == WeightLayout::OutIn && bare && some && plan.stored(weight).is_ok()
}

/// `None` where outputs lie in different windows.
fn one(plan: &mut Plan<'_>, norm: Option<&Normed>, layers: &[&Matmul<'_>]) -> Option<Done> {
    let outs: Vec<Rows> = layers.iter().map(|l| Rows::of(plan, &l.out)).collect::<Result<_, _>>().ok()?;
    let window = &outs[0].at.window;
    outs.iter().all(|o| o.at.window.is(window)).then(|| run(plan, norm, layers, &outs))
}

fn run(plan: &mut Plan<'_>, norm: Option<&Normed>, layers: &[&Matmul<'_>], outs: &[Rows]) -> Done {
    let (rows, k) = (layers[0].x.dim(0), layers[0].x.dim(1));
    let all = layers.iter().map(|l| Weight::of(plan, &l.weight, WeightLayout::OutIn, k));
    let weights: Vec<Weight> = all.collect::<Result<_, _>>()?;
    let x = match norm {
        Some(norm) => norm.x.clone(),
        None => Rows::of(plan, &layers[0].x)?,
    };
    let total = layers.iter().map(|l| l.out.dim(1)).sum();
    let shape = row_shape(plan, [k, total], false, (rows as u32).next_power_of_two().min(16), 1);
    let Shape::Rows { outputs, batch, .. } = shape else { unreachable!("decode rows") };
    let (mut parts, mut begin) = (Vec::new(), 0);
    for ((layer, weight), out) in layers.iter().zip(&weights).zip(outs) {
        let n = word(layer.out.dim(1))?;
        let end = begin + n.div_ceil(outputs);
        parts.extend([begin, end, n, weight.at, weight.row, out.at.at, out.row]);
        begin = end;
    }
    let wide_x = x.at.at.is_multiple_of(4) && x.row.is_multiple_of(4);
    let more = |i: usize| weights.get(i).map(|w| (w.format, w.align));
    let variant = Variant {
        shape,
        a: (weights[0].format, weights[0].align),
        b: None,
        more: [1, 2, 3].map(more),
        in_out: false,
        tail: !k.is_multiple_of(8),
        whole: false,
        wide_x,
        routed: Routed::No,
        bias: false,
        residual: false,
        activation: 0,
        norm: norm.map(|norm| norm.kind),
    };
    // The kernel's parameters, of which it takes these: rows, inner side, x, and where the list of parts begins.
    let mut words = [0; 32];
    (words[0], words[1], words[3], words[4]) = (word(rows)?, word(k)?, x.at.at, x.row);
    (words[22], words[23]) = (plan.table(parts), 1);
    words[28..].copy_from_slice(&norm.map_or(Ok([0; 4]), Normed::words)?);
    let (tables, grids) = (plan.tables(), plan.gpu.linear.grids(plan.gpu)?);
    let mut run = plan.kernel(variant.source());
    run = run.read("x", if wide_x { Form::Vec4 } else { Form::F32 }, &x.at.window);
    if let Some(norm) = norm {
        run = norm.bind(run);
    }
    for (weight, names) in weights.iter().zip([A].into_iter().chain(MORE)) {
        run = weight.bind(run, names);
    }
    if weights.iter().any(|w| w.format.has_grid()) {
        run = run.read("grid", Form::U32, &grids);
    }
    run.read("list", Form::U32, &tables)
        .write("out", Form::F32, &outs[0].at.window)
        .grid(&words, [begin, (rows as u32).div_ceil(batch), 1])
}
