//! Cases of preprocessing: images, clips, and the tables of sizes, frames and positions.

use std::fmt::Write;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use turbospark_vision::{
    DecodeLimits, ImageConfig, ImageError, Picture, Rgb, Sampling, VideoConfig, decode, preprocess_frames,
    rope_index as walk, sample_frames, smart_resize, smart_resize_video, timestamp_label, timestamps,
};

use super::file::{Golden, Tensors};
use super::prompt::{grids, modalities, numbers};
use super::{Case, Made, TraceError};

/// Whose preprocessing settings the cases were made with; all families have the same.
const SETTINGS: &str = "qwen3_vl/checkpoint";
/// The fixture's merge factor and pixels a token's side.
const MERGE: usize = 2;
const FACTOR: usize = 32;

pub(super) fn run(case: &Case<'_>) -> Result<Made, TraceError> {
    match (case.folder, case.name) {
        ("preprocess", "cases.json") => images(case).map(Made::Json),
        ("preprocess", "smart_resize.json") => sizes(case).map(Made::Json),
        ("video", "sampling.json") => sampling(case).map(Made::Json),
        ("preprocess", name) if name.ends_with(".safetensors") => image(case).map(Made::Tensors),
        ("video", name) if name.ends_with(".safetensors") => clip(case).map(Made::Tensors),
        _ => Ok(Made::Unknown),
    }
}

fn list<'v>(case: &Case<'_>, value: &'v Value) -> Result<&'v Vec<Value>, TraceError> {
    value.as_array().ok_or_else(|| case.broken("a list was expected"))
}

/// Decodes and sizes one row of `cases.json`; the inner error is the picture's.
fn prepare(case: &Case<'_>, row: &Value) -> Result<(Rgb, Result<Picture, ImageError>), TraceError> {
    let text = case.files.text(&format!("{SETTINGS}/preprocessor_config.json"))?;
    let config = ImageConfig::from_json(&text).map_err(TraceError::of(case.path))?;
    let limit = |key: &str| row["size"][key].as_u64().map(|n| n as usize);
    let config =
        config.with_limits(limit("shortest_edge"), limit("longest_edge")).map_err(TraceError::of(case.path))?;
    let image = row["image"].as_str().ok_or_else(|| case.broken("a case names no image"))?;
    let limits = DecodeLimits::default();
    let rgb = decode(&case.files.bytes(image)?, &limits).map_err(TraceError::of(image))?.rgb;
    Ok((rgb.clone(), Picture::from_rgb(rgb, &config, &limits)))
}

/// Samples one channel after the other.
fn planes(rgb: &Rgb) -> Vec<u8> {
    (0..3).flat_map(|c| rgb.data().iter().skip(c).step_by(3).copied()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut s, b| {
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn images(case: &Case<'_>) -> Result<Value, TraceError> {
    let mut rows = Vec::new();
    for row in list(case, &case.files.json(case.path)?)? {
        let (rgb, picture) = prepare(case, row)?;
        let mut made = json!({"image": row["image"], "size": row["size"], "config": row["config"]});
        match picture {
            Err(e) => made["error"] = e.to_string().into(),
            Ok(p) => {
                let patches: Vec<u8> = p.patches().iter().flat_map(|v| v.to_le_bytes()).collect();
                made["decoded_hw"] = json!([rgb.height(), rgb.width()]);
                made["resized_hw"] = json!([p.resized().0, p.resized().1]);
                made["image_grid_thw"] = json!([p.grid.t, p.grid.h, p.grid.w]);
                made["image_tokens"] = p.tokens().into();
                made["pixel_values_sha256_f32le"] = hex(&Sha256::digest(patches)).into();
                made["resized_sha256_u8_chw"] = hex(&Sha256::digest(planes(p.rgb()))).into();
                made["file"] = row["file"].clone();
            }
        }
        rows.push(made);
    }
    Ok(rows.into())
}

/// Rows of the patches that a golden lists.
fn pixel_rows(golden: &Golden<'_>, patches: &[f32], n: usize, out: &mut Tensors) -> Result<(), TraceError> {
    let rows = golden.numbers("pixel_rows")?;
    let len = patches.len() / n.max(1);
    out.copy(&golden.tensors, "pixel_rows");
    let kept = rows.iter().filter_map(|&r| patches.get(r * len..(r + 1) * len)).flatten().copied().collect();
    out.f32("pixel_values", &[rows.len(), len], kept);
    Ok(())
}

fn image(case: &Case<'_>) -> Result<Tensors, TraceError> {
    let cases = case.files.json("preprocess/cases.json")?;
    let row = list(case, &cases)?.iter().find(|row| row["file"] == case.path);
    let row = row.ok_or_else(|| case.broken("preprocess/cases.json has no such case"))?;
    let golden = case.files.golden(case.path)?;
    let (rgb, picture) = prepare(case, row)?;
    let mut out = Tensors::default();
    let decoded = [rgb.height(), rgb.width(), 3];
    // Where the reference drops alpha from a file and lays it on white from an opened image, the second is
    // what is computed here, so the tensors that follow from the first are not written.
    let transparent = ["rgba", "la_", "palette_trns"].iter().any(|part| case.name.contains(part));
    if transparent {
        out.u8("decoded_rgb_pil_object", &decoded, rgb.into_data());
        return Ok(out);
    }
    let picture = picture.map_err(TraceError::of(case.path))?;
    pixel_rows(&golden, &picture.patches(), picture.grid.patches(), &mut out)?;
    if golden.tensors.has("decoded_rgb") {
        out.u8("decoded_rgb", &decoded, rgb.into_data());
    }
    if golden.tensors.has("resized_rgb_chw") {
        let (h, w) = picture.resized();
        out.u8("resized_rgb_chw", &[3, h, w], planes(picture.rgb()));
    }
    Ok(out)
}

fn sizes(case: &Case<'_>) -> Result<Value, TraceError> {
    let mut table = case.files.json(case.path)?;
    for kind in ["image", "video"] {
        let rows = table[kind].as_array_mut().ok_or_else(|| case.broken("a table is missing"))?;
        for row in rows {
            let limits = numbers(&row["limits"]);
            let sides = numbers(&row[if kind == "image" { "hw" } else { "thw" }]);
            row["out"] = match (limits.as_deref(), sides.as_deref()) {
                (Some(&[min, max]), Some(&[h, w])) => smart_resize(h, w, FACTOR, min, max),
                (Some(&[min, max]), Some(&[t, h, w])) => smart_resize_video(t, h, w, 2, FACTOR, min, max),
                _ => return Err(case.broken("a row is incomplete")),
            }
            .map_or(Value::Null, |(h, w)| json!([h, w]));
        }
    }
    Ok(table)
}

/// The library's default: two frames a second, 4 to 768 of them.
const DEFAULT_SAMPLING: Sampling = Sampling::Rate { fps: 2.0, min_frames: 4, max_frames: 768 };

fn sampling(case: &Case<'_>) -> Result<Value, TraceError> {
    let failed = TraceError::of(case.path);
    let mut table = case.files.json(case.path)?;
    for row in table.as_array_mut().ok_or_else(|| case.broken("a list was expected"))? {
        let total = row["total_num_frames"].as_u64().ok_or_else(|| case.broken("a row has no number of frames"))?;
        let fps = row["fps"].as_f64();
        let indices = sample_frames(total as usize, fps, DEFAULT_SAMPLING).map_err(&failed)?;
        let times = timestamps(&indices, fps, 2).map_err(&failed)?;
        // Long lists are cut as the set cuts them.
        let times = if times.len() < 40 { &times[..] } else { &times[..20] };
        row["count"] = indices.len().into();
        row["timestamps"] = times.iter().map(|t| (t * 1e6).round() / 1e6).collect();
        row["labels"] = times.iter().map(|&t| timestamp_label(t)).collect();
        let n = indices.len();
        row["indices"] = if n < 60 {
            json!(indices)
        } else {
            let ends = |i: &[usize]| i.iter().map(|&i| json!(i)).collect::<Vec<_>>();
            [ends(&indices[..30]), vec!["...".into()], ends(&indices[n - 30..])].concat().into()
        };
    }
    Ok(table)
}

fn clip(case: &Case<'_>) -> Result<Tensors, TraceError> {
    let golden = case.files.golden(case.path)?;
    let text = case.files.text(&format!("{SETTINGS}/video_preprocessor_config.json"))?;
    let config = VideoConfig::from_json(&text).map_err(TraceError::of(case.path))?;
    let &[n, height, width, 3] = golden.dims("frames")? else {
        return Err(case.broken("frames are not [frames, height, width, 3]"));
    };
    let frame = |data: &[u8]| Rgb::new(width, height, data.to_vec());
    let frames = golden.u8s("frames")?.chunks_exact(height * width * 3).map(frame).collect::<Result<Vec<_>, _>>();
    let frames = frames.map_err(TraceError::of(case.path))?;
    // The set holds the frames after sampling; `sampled24` took them from 24 at 8 a second.
    let indices = match case.stem() {
        "sampled24" => sample_frames(24, Some(8.0), config.sampling()).map_err(TraceError::of(case.path))?,
        _ => (0..n).collect(),
    };
    let clip = preprocess_frames(&frames, &config, 1).map_err(TraceError::of(case.path))?;
    let mut out = Tensors::default();
    out.copy(&golden.tensors, "frames");
    out.i64("frame_indices", &[indices.len()], indices.iter().map(|&i| i as i64).collect());
    let g = clip.grid;
    out.i64("video_grid_thw", &[1, 3], [g.t, g.h, g.w].map(|n| n as i64).to_vec());
    pixel_rows(&golden, &clip.patches(), g.patches(), &mut out)?;
    Ok(out)
}

/// Positions of every prompt of the set and of the made-up ones; padded batches sequence by sequence.
pub(super) fn rope_index(case: &Case<'_>) -> Result<Made, TraceError> {
    let golden = case.files.json(case.path)?;
    let prompts = case.files.json("prompts/prompts.json")?;
    let mut out = serde_json::Map::new();
    for (name, row) in golden.as_object().ok_or_else(|| case.broken("it is no table"))? {
        let source = if row["ids"].is_null() { &prompts[name] } else { row };
        let incomplete = || case.broken(format!("{name:?} is incomplete"));
        if !row["attention_mask"].is_null() {
            out.insert(name.clone(), padded(case, row).ok_or_else(incomplete)??);
            continue;
        }
        let parts = || {
            let kinds = modalities(&source["mm_token_type_ids"])?;
            Some((kinds, grids(&source["image_grid_thw"])?, grids(&source["video_grid_thw"])?))
        };
        let (kinds, images, videos) = parts().ok_or_else(incomplete)?;
        let p = walk(&kinds, &images, &videos, MERGE).map_err(TraceError::of(name))?;
        let axes: Vec<Vec<u32>> = (0..3).map(|a| p.thw.iter().map(|t| t[a]).collect()).collect();
        let mut made = json!({"position_ids_thw": axes, "rope_delta": p.rope_delta});
        if !row["first_decode_position"].is_null() {
            made["first_decode_position"] = p.first_decode_position().into();
        }
        out.insert(name.clone(), made);
    }
    Ok(Made::Json(out.into()))
}

/// A batch with padding: what is padded stands at 0, and grids are taken in order across the batch.
fn padded(case: &Case<'_>, row: &Value) -> Option<Result<Value, TraceError>> {
    let mut rest = grids(&row["image_grid_thw"])?.into_iter();
    let (mut axes, mut deltas) = (vec![Vec::new(); 3], Vec::new());
    let masks = row["attention_mask"].as_array()?;
    for (mask, kinds) in masks.iter().zip(row["mm_token_type_ids"].as_array()?) {
        let (mask, kinds) = (numbers(mask)?, modalities(kinds)?);
        let kept: Vec<_> = kinds.iter().zip(&mask).filter(|&(_, &m)| m != 0).map(|(&k, _)| k).collect();
        let runs = kept.chunk_by(|a, b| a == b).filter(|run| run[0] != turbospark_vision::Modality::Text).count();
        let images: Vec<_> = rest.by_ref().take(runs).collect();
        let p = match walk(&kept, &images, &[], MERGE) {
            Ok(p) => p,
            Err(e) => return Some(Err(TraceError::of(case.path)(e))),
        };
        for (a, axis) in axes.iter_mut().enumerate() {
            let mut at = p.thw.iter();
            axis.push(mask.iter().map(|&m| if m != 0 { at.next().map_or(0, |t| t[a]) } else { 0 }).collect::<Vec<_>>());
        }
        deltas.push(p.rope_delta);
    }
    Some(Ok(json!({"position_ids_thw": axes, "rope_delta": deltas})))
}
