//! Each wrong line of this crate must show. One test: the switch is process-wide.
#![cfg(feature = "mutants")]

mod common;

use common::*;
use sha2::{Digest, Sha256};
use turbospark_tensor::mutant::{Mutant, set};
use turbospark_vision::{DecodeLimits, Grid, Modality, Positions, preprocess, rope_index, smart_resize};

/// What a stage gives, in a form that compares.
type Stage = fn() -> String;

fn patches() -> String {
    let config = image_config(4096, 65536);
    let odd = bytes("fixtures/images/rgb_odd_75x101.png");
    let picture = preprocess(&odd, &config, &DecodeLimits::default()).unwrap();
    hex(&Sha256::digest(picture.patches().iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()))
}

fn size() -> String {
    format!("{:?}", smart_resize(80, 2048, 32, 65536, 16_777_216))
}

fn turned() -> String {
    format!("{:?}", case("s01_exif_6.jpg").unwrap().resized())
}

fn corner_of_a_cut_out() -> String {
    format!("{:?}", &case("s02_rgba.png").unwrap().rgb().data()[..3])
}

fn walk() -> String {
    use Modality::{Image, Text};
    let row = [Text, Image, Image, Image, Image, Image, Image, Text];
    let Positions { thw, rope_delta } = rope_index(&row, &[Grid { t: 1, h: 4, w: 6 }], &[], 2).unwrap();
    format!("{:?} {rope_delta}", thw)
}

#[test]
fn every_mutant_of_this_crate_shows() {
    let stages: [(Stage, &str, &[Mutant]); 5] = [
        (
            patches,
            "",
            &[
                Mutant::PatchesInRasterOrder,
                Mutant::PatchFrameBeforeChannel,
                Mutant::ResizeRowsFirst,
                Mutant::ResizeSharperKernel,
            ],
        ),
        (size, "Ok((64, 2048))", &[Mutant::SizeRoundsHalfUp]),
        (turned, "(480, 320)", &[Mutant::OrientationIgnored]),
        (corner_of_a_cut_out, "[255, 255, 255]", &[Mutant::AlphaDropped]),
        (
            walk,
            "[[0, 0, 0], [1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 2, 1], [1, 2, 2], [1, 2, 3], [4, 4, 4]] -3",
            &[Mutant::ClockByTokens, Mutant::ImagePositionsPlain, Mutant::RopeDeltaZero],
        ),
    ];
    let golden_patches = json("fixtures/preprocess/cases.json")
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["image"] == "images/rgb_odd_75x101.png" && row["config"] == "tiny")
        .map(|row| row["pixel_values_sha256_f32le"].as_str().unwrap().to_owned())
        .unwrap();
    for (stage, golden, mutants) in stages {
        let golden = if golden.is_empty() { &golden_patches } else { golden };
        assert_eq!(stage(), golden);
        for &mutant in mutants {
            set(Some(mutant));
            let got = stage();
            set(None);
            assert_ne!(got, golden, "{mutant:?} does not show");
        }
    }
}
