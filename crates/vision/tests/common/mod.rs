//! Where the fixtures are and how they are read.
#![allow(dead_code)]

use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;
use turbospark_vision::{DecodeLimits, Grid, ImageConfig, ImageError, Picture, preprocess};

pub fn assets(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets")).join(path)
}

pub fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(assets(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn json(path: &str) -> Value {
    serde_json::from_slice(&bytes(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

pub fn usizes(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect()
}

pub fn grid(value: &Value) -> Grid {
    let [t, h, w] = usizes(value)[..] else { panic!("{value} is no grid") };
    Grid { t, h, w }
}

pub fn image_config(min_pixels: u64, max_pixels: u64) -> ImageConfig {
    let text = format!(
        r#"{{"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2, "image_mean": [0.5, 0.5, 0.5],
             "image_std": [0.5, 0.5, 0.5], "size": {{"shortest_edge": {min_pixels}, "longest_edge": {max_pixels}}}}}"#
    );
    ImageConfig::from_json(&text).unwrap()
}

/// The published settings.
pub fn published() -> ImageConfig {
    image_config(65536, 16_777_216)
}

pub fn case(file: &str) -> Result<Picture, ImageError> {
    preprocess(&bytes(&format!("cases/inputs/{file}")), &published(), &DecodeLimits::default())
}

/// Checks a picture against a case's `expect` object.
pub fn meets(name: &str, picture: &Picture, expect: &Value) {
    let (h, w) = picture.resized();
    assert_eq!(vec![h, w], usizes(&expect["resized_hw"]), "{name}: size");
    assert_eq!(picture.grid, grid(&expect["grid_thw"]), "{name}: grid");
    assert_eq!(picture.tokens() as u64, expect["tokens"].as_u64().unwrap(), "{name}: tokens");
    for pixel in expect["pixels_xy_rgb"].as_array().into_iter().flatten() {
        let (x, y) = (pixel[0].as_u64().unwrap() as usize, pixel[1].as_u64().unwrap() as usize);
        let got = &picture.rgb().data()[(y * w + x) * 3..][..3];
        let tol = expect["tol"].as_u64().unwrap() as usize;
        for (g, e) in got.iter().zip(usizes(&pixel[2])) {
            assert!(usize::from(*g).abs_diff(e) <= tol, "{name} at {x},{y}: {got:?}, expected {}", pixel[2]);
        }
    }
}

pub fn f32s(file: &SafeTensors, name: &str) -> Vec<f32> {
    file.tensor(name).unwrap().data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

pub fn i64s(file: &SafeTensors, name: &str) -> Vec<i64> {
    file.tensor(name).unwrap().data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect()
}

/// Largest distance between two equally long lists.
pub fn distance(got: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(g, e)| (g - e).abs()).fold(0.0, f32::max)
}

pub fn distance_u8(got: &[u8], expected: &[u8]) -> u8 {
    assert_eq!(got.len(), expected.len());
    got.iter().zip(expected).map(|(g, e)| g.abs_diff(*e)).max().unwrap_or(0)
}
