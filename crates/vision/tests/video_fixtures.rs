//! Frame sampling, timestamps and clip patches against the reference.

mod common;

use common::*;
use safetensors::SafeTensors;
use serde_json::Value;
use turbospark_vision::{Rgb, Sampling, VideoConfig, preprocess_frames, sample_frames, timestamp_label, timestamps};

fn config() -> VideoConfig {
    let text = bytes("fixtures/qwen3_vl/checkpoint/video_preprocessor_config.json");
    VideoConfig::from_json(std::str::from_utf8(&text).unwrap()).unwrap()
}

#[test]
fn frames_and_labels_are_the_references() {
    for row in json("fixtures/video/sampling.json").as_array().unwrap() {
        let (total, fps) = (row["total_num_frames"].as_u64().unwrap() as usize, row["fps"].as_f64());
        let got = sample_frames(total, fps, config().sampling()).unwrap();
        assert_eq!(got.len() as u64, row["count"].as_u64().unwrap(), "{total} frames at {fps:?}");
        let listed = row["indices"].as_array().unwrap();
        let gap = listed.iter().position(Value::is_string).unwrap_or(listed.len());
        assert_eq!(got[..gap], usizes(&Value::from(&listed[..gap])), "{total} frames at {fps:?}");
        if gap < listed.len() {
            let tail = usizes(&Value::from(&listed[gap + 1..]));
            assert_eq!(got[got.len() - tail.len()..], tail, "{total} frames at {fps:?}");
        }
        let times = timestamps(&got, fps, 2).unwrap();
        for (i, label) in row["labels"].as_array().unwrap().iter().enumerate() {
            assert_eq!(timestamp_label(times[i]), label.as_str().unwrap(), "{total} frames at {fps:?}, group {i}");
            let seconds = row["timestamps"][i].as_f64().unwrap();
            assert!((times[i] - seconds).abs() <= 1e-6, "{total} frames at {fps:?}, group {i}");
        }
    }
}

#[test]
fn clips_give_the_references_patches() {
    for name in ["sampled24", "odd5"] {
        let file = bytes(&format!("fixtures/video/{name}.safetensors"));
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let frames = tensors.tensor("frames").unwrap();
        let [count, height, width, 3] = frames.shape()[..] else { panic!("{name}: {:?}", frames.shape()) };
        let frames: Vec<Rgb> = frames
            .data()
            .chunks_exact(height * width * 3)
            .map(|frame| Rgb::new(width, height, frame.to_vec()).unwrap())
            .collect();
        assert_eq!(frames.len(), count);
        let clip = preprocess_frames(&frames, &config(), 1).unwrap();
        let golden_grid: Vec<usize> = i64s(&tensors, "video_grid_thw").iter().map(|&n| n as usize).collect();
        assert_eq!(vec![clip.grid.t, clip.grid.h, clip.grid.w], golden_grid, "{name}");
        let patches = clip.patches();
        let rows: Vec<f32> = i64s(&tensors, "pixel_rows")
            .iter()
            .flat_map(|&r| patches[r as usize * 1536..][..1536].iter().copied())
            .collect();
        assert!(distance(&rows, &f32s(&tensors, "pixel_values")) <= 2e-6, "{name}");
    }
}

#[test]
fn the_fixture_clip_is_sampled_as_the_reference_sampled_it() {
    let file = bytes("fixtures/video/sampled24.safetensors");
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let got = sample_frames(24, Some(8.0), config().sampling()).unwrap();
    let golden: Vec<usize> = i64s(&tensors, "frame_indices").iter().map(|&i| i as usize).collect();
    assert_eq!(got, golden);
}

#[test]
fn a_fixed_number_of_frames_is_spread_evenly() {
    assert_eq!(sample_frames(10, None, Sampling::Count(4)), Ok(vec![0, 3, 6, 9]));
    assert_eq!(sample_frames(1, None, Sampling::Count(1)), Ok(vec![0]));
    assert!(sample_frames(3, None, Sampling::Count(4)).is_err());
    assert!(sample_frames(3, None, Sampling::Count(0)).is_err());
}

#[test]
fn clips_that_make_no_sense_are_refused_with_both_numbers() {
    let frame = |w| Rgb::new(w, 64, vec![0; w * 64 * 3]).unwrap();
    let unequal = preprocess_frames(&[frame(64), frame(96)], &config(), 1).unwrap_err().to_string();
    assert!(unequal.contains("96x64") && unequal.contains("64x64"), "{unequal}");
    let single = preprocess_frames(&[frame(64)], &config(), 1).unwrap_err().to_string();
    assert!(single.contains("at least 2 frames"), "{single}");
    assert!(preprocess_frames(&[], &config(), 1).is_err());
    assert!(sample_frames(0, None, config().sampling()).is_err());
    for fps in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(sample_frames(8, Some(fps), config().sampling()).is_err());
        assert!(timestamps(&[0, 1], Some(fps), 2).is_err());
    }
}
