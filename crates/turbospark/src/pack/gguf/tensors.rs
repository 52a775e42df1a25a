//! Which tensors a GGUF file has, of what type, and what they are made from.

use turbospark_models::Planned;
use turbospark_models::config::{Config, Family, RopeScaling};
use turbospark_models::rope::scaling_factors;
use turbospark_tensor::{DType, Shape};
use turbospark_weights::gguf::gguf_name;
use turbospark_weights::{Conventions, Linear};

use super::super::change::{Change, Meaning, Order, Tiling};
use super::super::units::{Job, jobs};
use super::dequantised;
use crate::{Error, Result};

/// A tensor of the file.
pub(super) struct Tensor<'a> {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub content: Content<'a>,
}

pub(super) enum Content<'a> {
    /// One after the other, all changed alike: a tensor, or all experts of a layer.
    Jobs(Vec<Job<'a>>, Change),
    Bytes(Vec<u8>),
}

/// The tensors of the trunk and those of the tower.
pub(super) fn tensors<'a>(
    planned: &'a [Planned],
    config: &Config,
    conventions: Conventions,
) -> Result<(Vec<Tensor<'a>>, Vec<Tensor<'a>>)> {
    let (mut trunk, mut tower) = (Vec::new(), Vec::new());
    trunk.extend(rope_factors(config)?);
    for planned in planned {
        let visual = planned.name.contains(".visual.");
        let list = if visual { &mut tower } else { &mut trunk };
        for job in jobs(planned) {
            add(list, job, config, conventions)?;
        }
    }
    for tensor in trunk.iter_mut().chain(&mut tower) {
        one_type(tensor)?;
    }
    Ok((trunk, tower))
}

/// Whether a weight was codes and scales.
pub(super) fn is_widened(linear: &Linear) -> bool {
    match linear {
        Linear::Scaled(_) => true,
        Linear::Piece(piece) => dequantised(piece).is_some() && piece.shape().dims().len() > 1,
    }
}

fn add<'a>(list: &mut Vec<Tensor<'a>>, job: Job<'a>, config: &Config, conventions: Conventions) -> Result<()> {
    let deepstack = config.vision.as_ref().map_or(&[][..], |v| &v.deepstack_visual_indexes);
    // Experts are stacked.
    let (stacked, is_expert) = match job.name.split_once(".experts.").map(|(a, b)| (a, b.split_once('.'))) {
        Some((layer, Some((_, part)))) => (format!("{layer}.experts.{part}"), true),
        _ => (job.name.clone(), false),
    };
    let name = gguf_name(&stacked, config.family.model_type(), deepstack)
        .ok_or_else(|| Error::Unsupported(format!("tensor {stacked:?} has no name in GGUF")))?;
    let shape = job.shape();
    if is_expert
        && let Some(Tensor { shape: all, content: Content::Jobs(jobs, _), .. }) =
            list.iter_mut().rev().find(|tensor| tensor.name == name)
    {
        let &[experts, a, b] = all.dims() else { unreachable!("a stack") };
        *all = Shape::from([experts + 1, a, b]);
        jobs.push(job);
        return Ok(());
    }
    let dtype = dtype(&job, &name, &shape);
    let change = change(&stacked, dtype, config, conventions);
    if let &[d, channels, frames, h, w] = shape.dims() {
        if frames != 2 {
            return Err(Error::Unsupported(format!("a patch has {frames} frames, which GGUF can't say: it has 2")));
        }
        for (frame, name) in [name.clone(), format!("{name}.1")].into_iter().enumerate() {
            let job = Job { name: job.name.clone(), planned: job.planned, expert: None };
            let rows = Order::Frame { frame, frames, height: h };
            let content = Content::Jobs(vec![job], Change { rows, ..change });
            list.push(Tensor { name, dtype, shape: Shape::from([d, channels, h, w]), content });
        }
        return Ok(());
    }
    if let (Some(tiling), Linear::Piece(piece)) = (change.columns, &job.planned.source)
        && !tiling.width.is_multiple_of(piece.dtype().block().elements)
    {
        return Err(Error::Unsupported(format!(
            "tensor {stacked:?} is {}, whose blocks reach over value heads of {}, and GGUF orders these anew; pack the \
             checkpoint that it was quantised from",
            piece.dtype(),
            tiling.width
        )));
    }
    let shape = match *shape.dims() {
        [channels, 1, kernel] if stacked.ends_with("conv1d.weight") => Shape::from([channels, kernel]),
        [a, b] if is_expert => Shape::from([1, a, b]),
        _ => shape,
    };
    list.push(Tensor { name, dtype, shape, content: Content::Jobs(vec![job], change) });
    Ok(())
}

/// The type of a tensor, as the converter chooses it.
fn dtype(job: &Job<'_>, name: &str, shape: &Shape) -> DType {
    let always_f32 = shape.dims().len() <= 1
        || !name.contains(".weight")
        || ["ffn_gate_inp", "ssm_conv1d", "position_embd"].iter().any(|part| name.contains(part));
    if always_f32 {
        return DType::F32;
    }
    let patch_embed = name.starts_with("v.patch_embd");
    match (&job.planned.source, job.planned.target) {
        (_, Some(dtype)) => dtype,
        (Linear::Scaled(_), None) => DType::F16,
        (Linear::Piece(piece), None) if dequantised(piece).is_some() => DType::F16,
        // The one matrix of the tower that llama.cpp can't take as BF16.
        (Linear::Piece(piece), None) if patch_embed && piece.dtype() != DType::F16 => DType::F32,
        (Linear::Piece(piece), None) => piece.dtype(),
    }
}

/// What the converter does to a tensor by its published name and this checkpoint's writer hasn't done.
fn change(name: &str, dtype: DType, config: &Config, conventions: Conventions) -> Change {
    let mut change = Change::to(dtype);
    if name.contains(".visual.") {
        return change;
    }
    let is = |end: &str| name.ends_with(end);
    if config.family.is_qwen35() {
        if is("norm.weight") && !is("linear_attn.norm.weight") && !conventions.norms_hold_one {
            change.value = Meaning::PlusOne;
        }
        if is("linear_attn.A_log") && !conventions.decay_is_negated_exp {
            change.value = Meaning::NegatedExp;
        }
    }
    if let Some(d) = config.text.delta
        && d.num_key_heads != d.num_value_heads
        && !conventions.value_heads_tiled
    {
        let heads = |width| Tiling { keys: d.num_key_heads, values_each: d.num_value_heads / d.num_key_heads, width };
        let rows = |first, width| Order::Tiled { first, tiling: heads(width) };
        let part = name.rsplit_once("linear_attn.").map_or("", |(_, part)| part);
        match part {
            "in_proj_qkv.weight" | "conv1d.weight" => change.rows = rows(2 * d.key_dim(), d.value_head_dim),
            "in_proj_z.weight" => change.rows = rows(0, d.value_head_dim),
            "in_proj_a.weight" | "in_proj_b.weight" => change.rows = rows(0, 1),
            "A_log" | "dt_bias" => change.columns = Some(heads(1)),
            "out_proj.weight" => change.columns = Some(heads(d.value_head_dim)),
            _ => {}
        }
    }
    if config.family == Family::Llama && (is("self_attn.q_proj.weight") || is("self_attn.k_proj.weight")) {
        change.rows = Order::Pairs { dim: config.text.head_dim };
    }
    change
}

/// Gives a stack of experts the type that all of them have: floats of several types become F32.
fn one_type(tensor: &mut Tensor<'_>) -> Result<()> {
    let Content::Jobs(jobs, change) = &mut tensor.content else { return Ok(()) };
    if jobs.len() < 2 {
        return Ok(());
    }
    let shape = jobs[0].shape();
    let types: Vec<DType> = jobs.iter().map(|job| dtype(job, &tensor.name, &shape)).collect();
    if types.iter().all(|t| *t == types[0]) {
        return Ok(());
    }
    if !types.iter().all(|t| t.is_float()) {
        return Err(Error::Unsupported(format!(
            "experts of {:?} are stored in several types, and GGUF has one for all; add --quant q8_0 --requantise",
            tensor.name
        )));
    }
    (tensor.dtype, change.dtype) = (DType::F32, DType::F32);
    Ok(())
}

/// What Llama 3's frequencies are divided by, which is stored as a tensor.
fn rope_factors(config: &Config) -> Result<Option<Tensor<'static>>> {
    let rope = &config.text.rope;
    let factors = match &rope.scaling {
        RopeScaling::None | RopeScaling::Linear(_) => return Ok(None),
        RopeScaling::Llama3 { .. } => scaling_factors(rope),
        RopeScaling::Each(factors) => factors.clone(),
    };
    if config.family != Family::Llama {
        let family = config.family.model_type();
        return Err(Error::Unsupported(format!(
            "rope scaling of {family} frequency by frequency is not known to GGUF"
        )));
    }
    let shape = Shape::from([factors.len()]);
    let bytes = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
    let name = "rope_freqs.weight".to_owned();
    Ok(Some(Tensor { name, dtype: DType::F32, shape, content: Content::Bytes(bytes) }))
}
