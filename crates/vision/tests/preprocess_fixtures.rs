//! The reference's own pixels, byte for byte.

mod common;

use common::*;
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use turbospark_vision::{DecodeLimits, Picture, decode, preprocess, smart_resize, smart_resize_video};

/// Images whose transparency is laid on white here and dropped by the reference.
const TRANSPARENT: [&str; 3] = ["rgba_70x90", "la_66x66", "palette_trns_72x88"];

struct Case {
    row: Value,
    stem: String,
    bytes: Vec<u8>,
}

impl Case {
    fn all() -> Vec<Case> {
        let rows = json("fixtures/preprocess/cases.json");
        let load = |row: &Value| {
            let image = row["image"].as_str().unwrap();
            let stem = image.trim_start_matches("images/").split('.').next().unwrap().to_owned();
            Case { row: row.clone(), stem, bytes: bytes(&format!("fixtures/{image}")) }
        };
        rows.as_array().unwrap().iter().map(load).collect()
    }

    fn picture(&self) -> Result<Picture, turbospark_vision::ImageError> {
        let size = &self.row["size"];
        let edge = |k: &str| size[k].as_u64().unwrap();
        preprocess(&self.bytes, &image_config(edge("shortest_edge"), edge("longest_edge")), &DecodeLimits::default())
    }

    fn tensors(&self) -> Option<Vec<u8>> {
        self.row["file"].as_str().map(|f| bytes(&format!("fixtures/{f}")))
    }

    fn is_transparent(&self) -> bool {
        TRANSPARENT.contains(&self.stem.as_str())
    }

    fn is_jpeg(&self) -> bool {
        self.row["image"].as_str().unwrap().ends_with(".jpg")
    }
}

fn planes(rgb: &[u8]) -> Vec<u8> {
    (0..3).flat_map(|c| rgb.iter().skip(c).step_by(3).copied()).collect()
}

#[test]
fn sizes_and_grids_are_the_references() {
    for case in Case::all().iter().filter(|c| c.row["error"].is_null()) {
        let picture = case.picture().unwrap_or_else(|e| panic!("{}: {e}", case.stem));
        let (h, w) = picture.resized();
        assert_eq!(vec![picture.height, picture.width], usizes(&case.row["decoded_hw"]), "{}", case.stem);
        assert_eq!(vec![h, w], usizes(&case.row["resized_hw"]), "{}", case.stem);
        assert_eq!(picture.grid, grid(&case.row["image_grid_thw"]), "{}", case.stem);
        assert_eq!(picture.tokens() as u64, case.row["image_tokens"].as_u64().unwrap(), "{}", case.stem);
    }
}

#[test]
fn what_the_reference_refuses_is_refused() {
    let refused: Vec<Case> = Case::all().into_iter().filter(|c| !c.row["error"].is_null()).collect();
    assert!(!refused.is_empty());
    for case in refused {
        let message = case.picture().unwrap_err().to_string();
        assert!(message.contains("aspect ratio") && message.contains("200"), "{}: {message}", case.stem);
    }
}

#[test]
fn lossless_images_give_the_references_bytes() {
    let mut exact = 0;
    for case in Case::all().iter().filter(|c| c.row["error"].is_null() && !c.is_jpeg() && !c.is_transparent()) {
        let picture = case.picture().unwrap();
        let resized = hex(&Sha256::digest(planes(picture.rgb().data())));
        assert_eq!(resized, case.row["resized_sha256_u8_chw"].as_str().unwrap(), "{}: resized", case.stem);
        let patches: Vec<u8> = picture.patches().iter().flat_map(|v| v.to_le_bytes()).collect();
        let patches = hex(&Sha256::digest(patches));
        assert_eq!(patches, case.row["pixel_values_sha256_f32le"].as_str().unwrap(), "{}: patches", case.stem);
        exact += 1;
    }
    assert_eq!(exact, 16);
}

#[test]
fn every_stored_tensor_is_within_its_tolerance() {
    let index = json("fixtures/INDEX.json");
    for case in Case::all().iter().filter(|c| !c.is_transparent()) {
        let Some(file) = case.tensors() else { continue };
        let picture = case.picture().unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let described = &index["files"][case.row["file"].as_str().unwrap()]["tensors"];
        let tolerance = |name: &str| described[name]["tol_f32"].as_f64().unwrap();
        let patches = picture.patches();
        let len = patches.len() / picture.grid.patches();
        let rows: Vec<f32> = i64s(&tensors, "pixel_rows")
            .iter()
            .flat_map(|&r| patches[r as usize * len..][..len].iter().copied())
            .collect();
        let off = distance(&rows, &f32s(&tensors, "pixel_values"));
        assert!(f64::from(off) <= tolerance("pixel_values"), "{}: patches off by {off}", case.stem);
        if let Ok(t) = tensors.tensor("decoded_rgb") {
            let decoded = decode(&case.bytes, &DecodeLimits::default()).unwrap();
            let off = distance_u8(decoded.rgb.data(), t.data());
            assert!(f64::from(off) <= tolerance("decoded_rgb"), "{}: decoded off by {off}", case.stem);
        }
        if let Ok(t) = tensors.tensor("resized_rgb_chw") {
            let off = distance_u8(&planes(picture.rgb().data()), t.data());
            assert!(f64::from(off) <= tolerance("resized_rgb_chw"), "{}: resized off by {off}", case.stem);
        }
    }
}

#[test]
fn transparency_is_laid_on_white_as_the_reference_does_for_opened_images() {
    let transparent: Vec<Case> = Case::all().into_iter().filter(Case::is_transparent).collect();
    assert_eq!(transparent.len(), TRANSPARENT.len());
    for case in transparent {
        let file = case.tensors().unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let decoded = decode(&case.bytes, &DecodeLimits::default()).unwrap();
        let golden = tensors.tensor("decoded_rgb_pil_object").unwrap();
        assert_eq!(distance_u8(decoded.rgb.data(), golden.data()), 0, "{}", case.stem);
    }
}

#[test]
fn smart_resize_gives_the_references_table() {
    let table = json("fixtures/preprocess/smart_resize.json");
    for row in table["image"].as_array().unwrap() {
        let (limits, hw) = (usizes(&row["limits"]), usizes(&row["hw"]));
        let got = smart_resize(hw[0], hw[1], 32, limits[0], limits[1]);
        let expected = (!row["out"].is_null()).then(|| usizes(&row["out"]));
        assert_eq!(got.ok().map(|(h, w)| vec![h, w]), expected, "{row}");
    }
    for row in table["video"].as_array().unwrap() {
        let (limits, thw) = (usizes(&row["limits"]), usizes(&row["thw"]));
        let got = smart_resize_video(thw[0], thw[1], thw[2], 2, 32, limits[0], limits[1]);
        let expected = (!row["out"].is_null()).then(|| usizes(&row["out"]));
        assert_eq!(got.ok().map(|(h, w)| vec![h, w]), expected, "{row}");
    }
}
