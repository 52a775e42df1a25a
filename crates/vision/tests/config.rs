//! The checkpoint's settings files.

mod common;

use common::bytes;
use serde_json::{Value, json};
use turbospark_vision::{ConfigError, ImageConfig, PixelScale, VideoConfig};

/// What the published files hold, no more.
fn short() -> Value {
    json!({
        "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 65536, "longest_edge": 16777216},
        "image_processor_type": "Qwen2VLImageProcessorFast", "processor_class": "Qwen3VLProcessor"
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut file = short();
    file[key] = value;
    file
}

fn read(file: &Value) -> Result<ImageConfig, ConfigError> {
    ImageConfig::from_json(&file.to_string())
}

#[test]
fn every_fixture_checkpoint_is_read() {
    for family in ["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"] {
        let text = |name: &str| String::from_utf8(bytes(&format!("fixtures/{family}/checkpoint/{name}"))).unwrap();
        let image = ImageConfig::from_json(&text("preprocessor_config.json")).unwrap();
        assert_eq!((image.min_pixels, image.max_pixels), (4096, 65536), "{family}");
        assert_eq!(image.layout.factor(), 32);
        let video = VideoConfig::from_json(&text("video_preprocessor_config.json")).unwrap();
        assert_eq!((video.min_pixels, video.max_pixels), (4096, 73728), "{family}");
        assert_eq!((video.fps, video.min_frames, video.max_frames), (2.0, 4, 768), "{family}");
        assert!(video.sample_frames);
    }
}

#[test]
fn keys_that_the_published_files_leave_out_are_not_needed() {
    let config = read(&short()).unwrap();
    assert_eq!((config.min_pixels, config.max_pixels), (65536, 16_777_216));
    assert_eq!(config.scale.rescale, Some(1.0 / 255.0));
    assert_eq!(config.scale.table()[0][255], 1.0);
    assert_eq!(config.scale.table()[0][0], -1.0);
}

#[test]
fn pixel_keys_override_the_size_at_either_level() {
    let top = read(&with("max_pixels", json!(1_000_000))).unwrap();
    assert_eq!((top.min_pixels, top.max_pixels), (65536, 1_000_000));
    let inside = read(&with("size", json!({"min_pixels": 2048, "max_pixels": 4096, "longest_edge": 9}))).unwrap();
    assert_eq!((inside.min_pixels, inside.max_pixels), (2048, 4096));
}

#[test]
fn settings_nested_in_a_processor_file_are_found() {
    let file = json!({"image_processor": short(), "video_processor": short(), "processor_class": "Qwen3VLProcessor"});
    assert_eq!(read(&file).unwrap(), read(&short()).unwrap());
    assert!(VideoConfig::from_json(&file.to_string()).is_ok());
}

#[test]
fn a_missing_key_is_named() {
    for key in ["patch_size", "merge_size", "temporal_patch_size", "image_mean", "image_std"] {
        let mut file = short();
        file.as_object_mut().unwrap().remove(key);
        let message = read(&file).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains("preprocessor_config.json"), "{message}");
    }
    for edge in ["shortest_edge", "longest_edge"] {
        let mut file = short();
        file["size"].as_object_mut().unwrap().remove(edge);
        let message = read(&file).unwrap_err().to_string();
        assert!(message.contains(edge), "{message}");
    }
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    for (key, value) in [
        ("resample", json!(2)),
        ("do_resize", json!(false)),
        ("do_convert_rgb", json!(false)),
        ("image_processor_type", json!("CLIPImageProcessor")),
        ("patch_size", json!(0)),
        ("patch_size", json!("16")),
        ("merge_size", json!(1_000_000)),
        ("image_mean", json!([0.5, 0.5])),
        ("image_std", json!([0.5, 0.0, 0.5])),
        ("rescale_factor", json!(0)),
        ("do_normalize", json!("yes")),
    ] {
        let message = read(&with(key, value.clone())).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains(value.to_string().as_str()), "{key}: {message}");
    }
    assert!(read(&with("size", json!({"shortest_edge": 9000, "longest_edge": 8000}))).is_err());
    assert!(ImageConfig::from_json("{").is_err());
    assert!(ImageConfig::from_json("[]").is_err());
    let capped = with("cap_pixels_per_frame", json!(true)).to_string();
    assert!(VideoConfig::from_json(&capped).unwrap_err().to_string().contains("cap_pixels_per_frame"));
}

#[test]
fn other_spreads_are_fused_with_the_factor_as_the_reference_fuses_them() {
    let mean = [0.481_454_66_f32, 0.457_827_5, 0.408_210_73];
    let std = [0.268_629_54_f32, 0.261_302_6, 0.275_777_1];
    let scale = PixelScale { mean, std, rescale: Some(1.0 / 255.0), normalize: true };
    for (c, table) in scale.table().iter().enumerate() {
        for (v, got) in table.iter().enumerate() {
            assert_eq!(*got, (v as f32 - mean[c] * 255.0) / (std[c] * 255.0));
        }
    }
    let plain = PixelScale { rescale: None, normalize: false, ..scale };
    assert_eq!(plain.table()[2][200], 200.0);
}
