//! The walk over text and pictures, against the reference and the cases.

mod common;

use common::*;
use serde_json::Value;
use turbospark_vision::{Grid, Modality, PositionError, Positions, rope_index};

fn modalities(ids: &Value) -> Vec<Modality> {
    usizes(ids).iter().map(|&id| Modality::try_from(id as u8).unwrap()).collect()
}

fn grids(value: &Value) -> Vec<Grid> {
    value.as_array().into_iter().flatten().map(grid).collect()
}

/// Checks positions against `[3][tokens]`.
fn agree(name: &str, got: &Positions, golden: &[Vec<usize>], rope_delta: i64) {
    for axis in 0..3 {
        let ours: Vec<usize> = got.thw.iter().map(|p| p[axis] as usize).collect();
        assert_eq!(ours, golden[axis], "{name}, axis {axis}");
    }
    assert_eq!(got.rope_delta, rope_delta, "{name}");
}

#[test]
fn every_prompt_of_the_fixtures_has_the_references_positions() {
    let (cases, prompts) = (json("fixtures/rope_index.json"), json("fixtures/prompts/prompts.json"));
    for (name, case) in cases.as_object().unwrap() {
        if name.starts_with("batch_") {
            continue;
        }
        let source = if case["ids"].is_null() { &prompts[name] } else { case };
        let got = rope_index(
            &modalities(&source["mm_token_type_ids"]),
            &grids(&source["image_grid_thw"]),
            &grids(&source["video_grid_thw"]),
            2,
        )
        .unwrap_or_else(|e| panic!("{name}: {e}"));
        let golden: Vec<Vec<usize>> = (0..3).map(|axis| usizes(&case["position_ids_thw"][axis])).collect();
        agree(name, &got, &golden, case["rope_delta"].as_i64().unwrap());
        if let Some(first) = case["first_decode_position"].as_i64() {
            assert_eq!(got.first_decode_position(), first, "{name}");
        }
    }
}

/// The entries of a padded row that are kept by its mask.
fn unpadded(row: &Value, mask: &Value) -> Vec<usize> {
    usizes(row).into_iter().zip(usizes(mask)).filter(|&(_, kept)| kept == 1).map(|(v, _)| v).collect()
}

#[test]
fn padding_changes_nothing_on_either_side() {
    let cases = json("fixtures/rope_index.json");
    for name in ["batch_left_pad", "batch_right_pad"] {
        let case = &cases[name];
        let mut images = grids(&case["image_grid_thw"]).into_iter();
        for (b, mask) in case["attention_mask"].as_array().unwrap().iter().enumerate() {
            let ids = unpadded(&case["mm_token_type_ids"][b], mask);
            let row: Vec<Modality> = ids.iter().map(|&id| Modality::try_from(id as u8).unwrap()).collect();
            let runs = row.chunk_by(|a, b| a == b).filter(|run| run[0] == Modality::Image).count();
            let own: Vec<Grid> = images.by_ref().take(runs).collect();
            let got = rope_index(&row, &own, &[], 2).unwrap();
            let golden: Vec<Vec<usize>> =
                (0..3).map(|axis| unpadded(&case["position_ids_thw"][axis][b], mask)).collect();
            agree(&format!("{name} row {b}"), &got, &golden, case["rope_delta"][b].as_i64().unwrap());
        }
        assert!(images.next().is_none());
    }
}

#[test]
fn two_and_three_pictures_in_one_prompt() {
    for (i, item) in json("cases/expect/S07.json")["items"].as_array().unwrap().iter().enumerate() {
        let (mut row, mut images) = (Vec::new(), Vec::new());
        for part in item["layout"].as_array().unwrap() {
            if let Some(n) = part["text"].as_u64() {
                row.extend(std::iter::repeat_n(Modality::Text, n as usize));
            } else {
                let image = grid(&part["image"]);
                row.extend(std::iter::repeat_n(Modality::Image, image.tokens(2)));
                images.push(image);
            }
        }
        let expect = &item["expect"];
        assert_eq!(row.len() as u64, expect["length"].as_u64().unwrap());
        let got = rope_index(&row, &images, &[], 2).unwrap();
        let golden: Vec<Vec<usize>> = ["t", "h", "w"].iter().map(|axis| usizes(&expect[axis])).collect();
        agree(&format!("S07 layout {i}"), &got, &golden, expect["rope_delta"].as_i64().unwrap());
        assert_eq!(Some(got.first_decode_position()), expect["first_decode_position"].as_i64());
    }
}

#[test]
fn runs_and_grids_that_disagree_are_refused_with_both_numbers() {
    use Modality::{Image, Text, Video};
    let square = Grid { t: 1, h: 4, w: 4 };
    let image = [Text, Image, Image, Image, Image, Text];

    let short = rope_index(&image[..4], &[square], &[], 2).unwrap_err();
    assert!(matches!(short, PositionError::RunLength { run: 3, needed: 4, .. }), "{short}");
    // Two pictures with nothing between them are one run.
    let merged = rope_index(&[Image; 8], &[square, square], &[], 2).unwrap_err();
    assert!(matches!(merged, PositionError::RunLength { run: 8, needed: 4, .. }), "{merged}");
    let missing = rope_index(&image, &[], &[], 2).unwrap_err();
    assert!(matches!(missing, PositionError::MissingGrid { at: 1, grids: 0, .. }), "{missing}");
    let unused = rope_index(&image, &[square, square], &[], 2).unwrap_err();
    assert!(matches!(unused, PositionError::UnusedGrid { grids: 2, used: 1, .. }), "{unused}");
    let frames = Grid { t: 2, ..square };
    let one_frame = rope_index(&[Video; 4], &[], &[frames], 2).unwrap_err();
    assert!(matches!(one_frame, PositionError::UnusedGrid { grids: 2, used: 1, .. }), "{one_frame}");
    assert!(rope_index(&image, &[frames], &[], 2).is_err(), "an image has one frame");
    for odd in [Grid { t: 1, h: 3, w: 4 }, Grid { t: 1, h: 0, w: 4 }, Grid { t: 0, h: 4, w: 4 }] {
        assert!(rope_index(&image, &[odd], &[], 2).is_err(), "{odd}");
        assert!(rope_index(&image, &[], &[odd], 2).is_err(), "{odd}");
    }
    let huge = Grid { t: usize::MAX, h: usize::MAX - 1, w: usize::MAX - 1 };
    assert!(rope_index(&image, &[huge], &[], 2).is_err());
    assert!(rope_index(&image, &[], &[huge], 2).is_err());
    assert!(rope_index(&image, &[square], &[], 0).is_err());
    assert!(Modality::try_from(3).is_err());
}

#[test]
fn text_alone_counts_up_from_zero() {
    let got = rope_index(&[Modality::Text; 5], &[], &[], 2).unwrap();
    assert_eq!(got.thw, (0..5).map(|p| [p; 3]).collect::<Vec<_>>());
    assert_eq!(got.rope_delta, 0);
    let empty = rope_index(&[], &[], &[], 2).unwrap();
    assert_eq!((empty.thw.len(), empty.rope_delta), (0, 0));
}
