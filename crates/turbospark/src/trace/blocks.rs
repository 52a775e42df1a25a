//! Cases of one block alone: gated DeltaNet, mixture of experts, experts stored one by one.

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use turbospark_models::Model;
use turbospark_models::config::TextConfig;
use turbospark_models::probe::{self, Taps};
use turbospark_weights::{Checkpoint, Entry};

use super::file::Tensors;
use super::model::Family;
use super::{Case, TraceError};

/// The first layer's DeltaNet, fed in the pieces that the name lists.
pub(super) fn gdn(family: &Family<'_>, case: &Case<'_>, pieces: &str) -> Result<Tensors, TraceError> {
    let golden = family.files.golden(case.path)?;
    let pieces: Option<Vec<usize>> = pieces.split('_').map(|n| n.parse().ok()).collect();
    let pieces = pieces.ok_or_else(|| case.broken("the name does not list pieces"))?;
    let c = &family.config.text;
    let d = c.delta.ok_or_else(|| case.broken("the checkpoint has no DeltaNet layers"))?;
    let run = probe::delta_net(&family.model.trunk, family.device, 0, golden.f32s("x")?, &pieces);
    let run = run.map_err(TraceError::of(case.path))?;
    let rows = pieces.iter().sum();
    let mut out = Tensors::default();
    out.copy(&golden.tensors, "x");
    out.f32("out", &[rows, c.hidden_size], run.out);
    out.f32("conv_state", &[d.conv_channels(), d.conv_kernel], run.conv_state);
    let state = [d.num_value_heads, d.key_head_dim, d.value_head_dim];
    out.f32("recurrent_state", &state, run.recurrent_state);
    let all = |name: &str| -> Vec<f32> {
        run.pieces.iter().filter_map(|t| t.get(name, 0)).flat_map(|t| t.values.clone()).collect()
    };
    out.f32("core", &[rows, d.num_value_heads, d.value_head_dim], all("delta_core"));
    let heads = d.num_value_heads;
    let gates = [("conv_out", d.conv_channels()), ("z", d.value_dim()), ("beta", heads), ("g", heads)];
    let taps = ["delta_conv", "delta_z", "delta_beta", "delta_g"];
    for ((name, width), tap) in gates.into_iter().zip(taps) {
        if golden.tensors.has(name) {
            out.f32(name, &[rows, width], all(tap));
        }
    }
    Ok(out)
}

/// The mixture of experts of one layer.
pub(super) fn moe(family: &Family<'_>, case: &Case<'_>, layer: &str) -> Result<Tensors, TraceError> {
    let golden = family.files.golden(case.path)?;
    let layer = layer.parse().map_err(|_| case.broken("the name does not end in a layer's number"))?;
    let mut taps = Taps::default();
    let y = probe::feed_forward(&family.model.trunk, family.device, layer, golden.f32s("x")?, &mut taps);
    let y = y.map_err(TraceError::of(case.path))?;
    let mut out = Tensors::default();
    out.copy(&golden.tensors, "x");
    out.f32("out", golden.dims("x")?, y);
    for t in taps.iter() {
        match t.name {
            "experts" => out.f32("experts_out", &t.dims, t.values.clone()),
            "shared_gate" => {
                let opened = t.values.iter().map(|&x| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32);
                out.f32(t.name, &t.dims, opened.collect());
            }
            "router_experts" => out.i64(t.name, &t.dims, t.values.iter().map(|&v| v as i64).collect()),
            _ => out.f32(t.name, &t.dims, t.values.clone()),
        }
    }
    Ok(out)
}

/// Loads the checkpoint again with the experts of some layers stored one by one, as the case has them, and
/// runs the first layer's mixture in both forms: `out.split` and `out.fused`, which are to be the same bits.
pub(super) fn split_experts(family: &Family<'_>, case: &Case<'_>) -> Result<Tensors, TraceError> {
    let failed = TraceError::of::<turbospark_weights::Error>(case.path);
    let fused = family.folder.checkpoint().map_err(&failed)?;
    let name = case.files.fixtures.join(case.path);
    let split = Checkpoint::open(&name).map_err(failed)?;
    // `...layers.0.mlp.experts.3.up_proj.weight` replaces `...layers.0.mlp.experts.up_proj` and the like.
    const PART: &str = ".mlp.experts.";
    let replaced: Vec<&str> = split.entries().filter_map(|(n, _)| Some(&n[..n.find(PART)? + PART.len()])).collect();
    let kept = |name: &str| !replaced.iter().any(|prefix| name.starts_with(prefix));
    let mut parts = Vec::new();
    for (checkpoint, own) in [(&fused, false), (&split, true)] {
        for (name, entry) in checkpoint.entries().filter(|(name, _)| own || kept(name)) {
            let part = stored(checkpoint, entry).map_err(TraceError::of(case.path))?;
            parts.push((name, part.ok_or_else(|| case.broken(format!("tensor {name:?} is of a foreign type")))?));
        }
    }
    let views =
        parts.iter().map(|(name, (dtype, dims, bytes))| Ok((*name, TensorView::new(*dtype, dims.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>();
    let packed = views.and_then(|v| safetensors::serialize(v, None)).map_err(TraceError::of(case.path))?;
    let checkpoint =
        Checkpoint::from_bytes(case.name, std::sync::Arc::<[u8]>::from(packed)).map_err(TraceError::of(case.path))?;
    let again = Model::load(family.config.clone(), &checkpoint, family.device).map_err(TraceError::of(case.path))?;

    let x = rows(&family.config.text);
    let mut out = Tensors::default();
    for (name, model) in [("out.fused", &family.model), ("out.split", &again)] {
        let y = probe::feed_forward(&model.trunk, family.device, 0, &x, &mut Taps::default());
        out.f32(name, &[ROWS, family.config.text.hidden_size], y.map_err(TraceError::of(case.path))?);
    }
    Ok(out)
}

const ROWS: usize = 16;

/// Rows that reach every expert: waves of different lengths.
fn rows(c: &TextConfig) -> Vec<f32> {
    let wave = |i: usize| (i as f32 * 0.37).sin() + (i as f32 * 1.91).cos();
    (0..ROWS * c.hidden_size).map(wave).collect()
}

type Stored = (Dtype, Vec<usize>, Vec<u8>);

fn stored(checkpoint: &Checkpoint, entry: &Entry) -> turbospark_weights::Result<Option<Stored>> {
    use turbospark_tensor::DType;
    let Entry::Place(place) = entry else { return Ok(None) };
    let dtype = match place.dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        _ => return Ok(None),
    };
    let mut bytes = vec![0; place.length as usize];
    checkpoint.read(place, &mut bytes)?;
    Ok(Some((dtype, place.shape.dims().to_vec(), bytes)))
}
