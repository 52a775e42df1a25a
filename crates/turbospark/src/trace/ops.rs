//! Cases of single ops on the device, and of the tables that the host computes.

use serde_json::{Value, json};
use turbospark_device::op::{DeltaGates, DeltaScan, LayerNorm, Matmul, RmsNorm, SigmoidGate};
use turbospark_device::{Activation, Buffer, Device, DeviceError, Pass, Span};
use turbospark_models::config::{Config, VisionConfig};
use turbospark_models::probe::patch_positions;
use turbospark_models::rope::{TextRope, VisionRope};
use turbospark_tensor::{DType, Shape};

use super::file::{Golden, Tensors};
use super::{Case, Made, TraceError};
use crate::sampler::{Sampling, probabilities};

pub(super) fn run(case: &Case<'_>) -> Result<Made, TraceError> {
    let golden = || case.files.golden(case.path);
    match case.stem() {
        "activations" => activations(case, &golden()?).map(Made::Tensors),
        "norms" => norms(case, &golden()?).map(Made::Tensors),
        "gated_delta_rule_128" => delta_rule(case, &golden()?).map(Made::Tensors),
        "rope_tables" => rope_tables(case, &golden()?).map(Made::Tensors),
        "vision_positions" => vision_positions(case, &golden()?).map(Made::Tensors),
        "sampling" => sampling(case, &golden()?).map(Made::Tensors),
        _ => Ok(Made::Unknown),
    }
}

/// A buffer that holds `values`.
fn upload(device: &dyn Device, values: &[f32]) -> Result<Buffer, DeviceError> {
    let buffer = device.alloc("trace input", 4 * values.len())?;
    device.write_f32(buffer.view(0, DType::F32, [values.len()]), values)?;
    Ok(buffer)
}

fn activations(case: &Case<'_>, golden: &Golden<'_>) -> Result<Tensors, TraceError> {
    let (device, failed) = (case.device, TraceError::of(case.path));
    let x = golden.f32s("x")?;
    let n = x.len();
    let mut out = Tensors::default();
    out.copy(&golden.tensors, "x");
    let mut run = |name: &str, record: &dyn for<'p> Fn(&mut Pass<'p>, &'p [Buffer; 5])| -> Result<(), DeviceError> {
        let zeros = vec![0.0; n];
        let [x, one] = [upload(device, x)?, upload(device, &vec![1.0; n])?];
        let all = [x, one, upload(device, &zeros)?, upload(device, &zeros)?, upload(device, &zeros)?];
        let mut pass = Pass::new(device);
        pass.scope("activation alone", None);
        record(&mut pass, &all);
        pass.submit()?;
        let mut values = device.read_f32(all[3].view(0, DType::F32, [n]))?;
        if name == "softplus" {
            values.iter_mut().for_each(|v| *v = -*v); // the op gives the decay, -exp(0) softplus(x)
        }
        out.f32(name, &[n], values);
        Ok(())
    };
    let kinds = [("gelu_tanh", Activation::GeluTanh), ("gelu_erf", Activation::GeluErf), ("silu", Activation::Silu)];
    for (name, kind) in kinds {
        run(name, &|pass, [x, one, _, out, _]| {
            let column = |b| Buffer::view(b, 0, DType::F32, [n, 1]);
            let weight = one.view(0, DType::F32, [1, 1]);
            pass.matmul(Matmul { activation: Some(kind), ..Matmul::new(column(x), weight, column(out)) });
        })
        .map_err(&failed)?;
    }
    run("sigmoid", &|pass, [x, one, _, out, _]| {
        let cube = |b| Buffer::view(b, 0, DType::F32, [n, 1, 1]);
        pass.sigmoid_gate(SigmoidGate { x: cube(one), gate: cube(x), residual: None, out: cube(out) });
    })
    .map_err(&failed)?;
    run("softplus", &|pass, [x, _, zero, out, rest]| {
        let column = |b| Buffer::view(b, 0, DType::F32, [n, 1]);
        let scalar = zero.view(0, DType::F32, [1]);
        let (a, b) = (column(x), column(x));
        pass.delta_gates(DeltaGates {
            a,
            b,
            a_log: scalar,
            is_rate: false,
            dt_bias: scalar,
            g: column(out),
            beta: column(rest),
        });
    })
    .map_err(&failed)?;
    Ok(out)
}

fn norms(case: &Case<'_>, golden: &Golden<'_>) -> Result<Tensors, TraceError> {
    let (device, failed) = (case.device, TraceError::of(case.path));
    let dims: [usize; 2] = golden.dims("x")?.try_into().map_err(|_| case.broken("x has not two sides"))?;
    let mut out = Tensors::default();
    let mut inputs = Vec::new();
    for name in ["x", "weight", "bias", "gate"] {
        out.copy(&golden.tensors, name);
        inputs.push(upload(device, golden.f32s(name)?).map_err(&failed)?);
    }
    let [x, gate] = [&inputs[0], &inputs[3]].map(|b| b.view(0, DType::F32, dims));
    let [weight, bias] = [&inputs[1], &inputs[2]].map(|b| b.view(0, DType::F32, [dims[1]]));
    let result = upload(device, &vec![0.0; dims[0] * dims[1]]).map_err(&failed)?;
    let view = result.view(0, DType::F32, dims);
    const EPS: f32 = 1e-6;
    for name in ["rms_vl", "rms_q35", "rms_gated", "layernorm_1e-6"] {
        let mut pass = Pass::new(device);
        pass.scope("norm alone", None);
        if name == "layernorm_1e-6" {
            pass.layer_norm(LayerNorm { x, weight, bias, eps: EPS, out: view });
        } else {
            let gate = (name == "rms_gated").then_some(gate);
            pass.rms_norm(RmsNorm { x, weight, one_plus: name == "rms_q35", eps: EPS, gate, out: view });
        }
        pass.submit().map_err(&failed)?;
        out.f32(name, &dims, device.read_f32(view).map_err(&failed)?);
    }
    Ok(out)
}

fn delta_rule(case: &Case<'_>, golden: &Golden<'_>) -> Result<Tensors, TraceError> {
    let (device, failed) = (case.device, TraceError::of(case.path));
    const INPUTS: [&str; 6] = ["q", "k", "v", "g", "beta", "initial_state"];
    let mut out = Tensors::default();
    let mut inputs = Vec::new();
    for name in INPUTS {
        out.copy(&golden.tensors, name);
        let shape = Shape::try_new(golden.dims(name)?).map_err(TraceError::of(case.path))?;
        inputs.push((upload(device, golden.f32s(name)?).map_err(&failed)?, shape));
    }
    let [q, k, v, g, beta] = [0, 1, 2, 3, 4].map(|i| {
        let (buffer, shape) = &inputs[i];
        buffer.view(0, DType::F32, *shape)
    });
    let (&[rows, ..], &[heads, key, value]) = (v.dims(), inputs[5].1.dims()) else {
        return Err(case.broken("v or initial_state lacks a side"));
    };
    let state = inputs[5].0.view(0, DType::F32, [1, heads, key, value]);
    let result = upload(device, &vec![0.0; v.shape().elements()]).map_err(&failed)?;
    let view = result.view(0, DType::F32, v.shape());
    // In the middle of a sequence, since there is a state already, and at a border of chunks.
    let spans = [Span { first_row: 0, rows, start: 64, decode: false, table: 0, state: 0, snapshots: vec![] }];
    let mut pass = Pass::new(device);
    pass.scope("delta rule alone", None);
    pass.delta_scan(DeltaScan { q, k, v, g, beta, state, tiled: false, spans: &spans, out: view });
    pass.submit().map_err(&failed)?;
    out.f32("out", v.dims(), device.read_f32(view).map_err(&failed)?);
    out.f32("final_state", &[heads, key, value], device.read_f32(state).map_err(&failed)?);
    Ok(out)
}

/// The text rope of a family's published head size, from a checkpoint's own configuration with that size put in.
fn published_rope(case: &Case<'_>, family: &str) -> Result<TextRope, TraceError> {
    let path = format!("{family}/checkpoint/config.json");
    let mut config = case.files.json(&path)?;
    let text = &mut config["text_config"];
    let broken = |text: &str| case.files.broken(&path, format!("it has no {text}"));
    let put = |value: &mut Value, entries: Value| -> Option<()> {
        let entries = entries.as_object()?.clone();
        value.as_object_mut()?.extend(entries);
        Some(())
    };
    if family == "qwen3_vl" {
        put(text, json!({"head_dim": 128, "rope_theta": 5e6})).ok_or_else(|| broken("text_config"))?;
        put(&mut text["rope_scaling"], json!({"mrope_section": [24, 20, 20]})).ok_or_else(|| broken("rope_scaling"))?;
    } else {
        put(text, json!({"head_dim": 256})).ok_or_else(|| broken("text_config"))?;
        let rope = json!({"mrope_section": [11, 11, 10], "rope_theta": 1e7, "partial_rotary_factor": 0.25});
        put(&mut text["rope_parameters"], rope).ok_or_else(|| broken("rope_parameters"))?;
    }
    let config = Config::parse(&config.to_string()).map_err(TraceError::of(case.path))?;
    Ok(TextRope::new(&config.text.rope))
}

/// Each row of `[rows, half]` twice: the reference keeps whole heads.
fn twice(values: &[f32], half: usize) -> Vec<f32> {
    values.chunks_exact(half).flat_map(|row| [row, row].concat()).collect()
}

fn rope_tables(case: &Case<'_>, golden: &Golden<'_>) -> Result<Tensors, TraceError> {
    let mut out = Tensors::default();
    // Heads of 72 and the base of the tower are the published ones.
    let vision = VisionRope::new(VisionConfig::ROPE_THETA, 72);
    let at = golden.numbers("vision.positions_hw")?;
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    at.as_chunks().0.iter().for_each(|&[h, w]| vision.extend(h, w, &mut cos, &mut sin));
    let rows = at.len() / 2;
    out.copy(&golden.tensors, "vision.positions_hw");
    out.f32("vision.cos", &[rows, 2 * vision.half()], twice(&cos, vision.half()));
    out.f32("vision.sin", &[rows, 2 * vision.half()], twice(&sin, vision.half()));
    for family in ["qwen3_vl", "qwen3_5"] {
        let rope = published_rope(case, family)?;
        for range in ["small", "large"] {
            let name = format!("{range}.positions_thw");
            let positions = golden.triples(&name)?;
            out.copy(&golden.tensors, &name);
            let (mut cos, mut sin) = (Vec::new(), Vec::new());
            positions.iter().for_each(|p| rope.extend(p.map(|n| n as u32), &mut cos, &mut sin));
            let dims = [positions.len(), 2 * rope.half()];
            out.f32(format!("{range}.{family}.cos"), &dims, twice(&cos, rope.half()));
            out.f32(format!("{range}.{family}.sin"), &dims, twice(&sin, rope.half()));
        }
    }
    Ok(out)
}

fn vision_positions(case: &Case<'_>, golden: &Golden<'_>) -> Result<Tensors, TraceError> {
    /// Side of the published position table, and patches along a side of a merged row.
    const SIDE: usize = 48;
    const MERGE: usize = 2;
    let mut out = Tensors::default();
    for tag in golden.tensors.names().filter_map(|n| n.strip_suffix(".rows")) {
        let grid: Option<Vec<usize>> = tag.split('x').map(|n| n.parse().ok()).collect();
        let grid = grid.and_then(|g| <[usize; 3]>::try_from(g).ok());
        let grid = grid.ok_or_else(|| case.broken(format!("{tag:?} is no grid")))?;
        let all = patch_positions(SIDE, grid, MERGE);
        let name = format!("{tag}.rows");
        let rows = golden.numbers(&name)?;
        if rows.iter().any(|&r| r >= all.row_column.len()) {
            return Err(case.broken(format!("{tag}: a row lies past the grid")));
        }
        out.copy(&golden.tensors, &name);
        let index = rows.iter().flat_map(|&r| all.index[4 * r..4 * r + 4].to_vec()).collect();
        let weights = rows.iter().flat_map(|&r| all.weights[4 * r..4 * r + 4].to_vec()).collect();
        let places = rows.iter().flat_map(|&r| all.row_column[r].map(|n| n as i32)).collect();
        out.i32(format!("{tag}.indices"), &[rows.len(), 4], index);
        out.f32(format!("{tag}.weights"), &[rows.len(), 4], weights);
        out.i32(format!("{tag}.rope_hw"), &[rows.len(), 2], places);
    }
    Ok(out)
}

/// The settings of each distribution stand in the index, in the case's description.
fn sampling(case: &Case<'_>, golden: &Golden<'_>) -> Result<Tensors, TraceError> {
    let index = case.files.json("INDEX.json")?;
    let text = index["files"][case.path]["description"].as_str().unwrap_or_default();
    let settings = text.find('{').map(|at| serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>());
    let settings = settings.and_then(|mut found| found.next()?.ok());
    let settings = settings.ok_or_else(|| case.broken("its description in INDEX.json holds no settings"))?;
    let mut out = Tensors::default();
    out.copy(&golden.tensors, "logits");
    out.copy(&golden.tensors, "history");
    let logits = golden.f32s("logits")?;
    let history: Vec<u32> = golden.numbers("history")?.into_iter().map(|id| id as u32).collect();
    for (name, s) in settings.as_object().into_iter().flatten() {
        let number = |key: &str, default: f64| s[key].as_f64().unwrap_or(default) as f32;
        let sampling = Sampling {
            temperature: number("temperature", 1.0),
            top_k: number("top_k", 0.0) as u32,
            top_p: number("top_p", 1.0),
            min_p: number("min_p", 0.0),
            repetition_penalty: number("repetition_penalty", 1.0),
            ..Sampling::default()
        };
        out.f32(format!("{name}.probs"), &[logits.len()], probabilities(&sampling, &history, logits));
    }
    Ok(out)
}
