//! `turbospark preprocess` on the cases S01 to S06 and S17: all rows.

mod common;

use std::path::{Path, PathBuf};

use common::{Ran, case_input, expected, finish, grey, program};
use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The settings that the cases are for.
const LIMITS: [&str; 4] = ["--min-pixels", "65536", "--max-pixels", "16777216"];

fn preprocess(files: &[PathBuf], more: &[&str]) -> Ran {
    finish(program().args(["preprocess", "--json"]).args(more).args(files), b"")
}

fn inputs(names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| case_input(name)).collect()
}

#[track_caller]
fn sized(got: &Value, expect: &Value) {
    assert_eq!(got["resized"], expect["resized_hw"], "{got}");
    assert_eq!(got["grid_thw"], expect["grid_thw"], "{got}");
    assert_eq!(got["tokens"], expect["tokens"], "{got}");
}

/// Holds sizes and colours of `files` against their expectations.
fn check(names: &[&str], expects: &[&Value]) {
    let folder = tempfile::tempdir().unwrap();
    let pixels = folder.path().join("pixels.safetensors");
    let more = [&LIMITS[..], &["--pixels", pixels.to_str().unwrap()]].concat();
    let ran = preprocess(&inputs(names), &more).ends_with_code(0);
    let bytes = std::fs::read(&pixels).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let objects = ran.objects();
    assert_eq!(objects.len(), names.len());
    for (i, (got, expect)) in objects.iter().zip(expects).enumerate() {
        assert!(got["file"].as_str().unwrap().ends_with(names[i]));
        sized(got, expect);
        let rgb = tensors.tensor(&format!("{i}.rgb")).unwrap();
        let (height, width) = (rgb.shape()[0], rgb.shape()[1]);
        assert_eq!(serde_json::json!([height, width]), expect["resized_hw"]);
        let tolerance = expect["tol"].as_u64().unwrap_or(0);
        for point in expect["pixels_xy_rgb"].as_array().into_iter().flatten() {
            let at = |i: usize| point[i].as_u64().unwrap() as usize;
            let offset = (at(1) * width + at(0)) * 3;
            for (channel, wanted) in point[2].as_array().unwrap().iter().enumerate() {
                let (got, wanted) = (u64::from(rgb.data()[offset + channel]), wanted.as_u64().unwrap());
                assert!(got.abs_diff(wanted) <= tolerance, "{} {point}: channel {channel} is {got}", names[i]);
            }
        }
        let patches = tensors.tensor(&format!("{i}.patches")).unwrap();
        assert_eq!(patches.shape(), [height * width / 256, 1536]);
        let digest: String = Sha256::digest(patches.data()).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(got["pixel_sha256"], digest);
    }
}

fn check_items(case: &str) {
    let case = expected(case);
    let items = case["items"].as_array().unwrap();
    let names: Vec<&str> = items.iter().map(|i| i["file"].as_str().unwrap()).collect();
    let expects: Vec<&Value> = items.iter().map(|i| &i["expect"]).collect();
    check(&names, &expects);
}

#[test]
fn s01_a_turned_photo_is_seen_upright() {
    let case = expected("S01.json");
    let names: Vec<&str> = case["files"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
    check(&names, &vec![&case["expect"]; names.len()]);
}

#[test]
fn s02_what_is_transparent_is_white() {
    check_items("S02.json");
}

#[test]
fn s03_16_bit_and_1_bit_pictures_keep_their_greys() {
    check_items("S03.json");
}

#[test]
fn s04_tiny_and_thin_pictures_work() {
    check_items("S04.json");
}

#[test]
fn s05_sides_are_rounded_and_limited_as_the_reference_does() {
    let case = expected("S05.json");
    let items = case["items"].as_array().unwrap();
    let names: Vec<&str> = items.iter().map(|i| i["file"].as_str().unwrap()).collect();
    let ran = preprocess(&inputs(&names), &LIMITS).ends_with_code(0);
    let objects = ran.objects();
    assert_eq!(objects.len(), items.len());
    objects.iter().zip(items).for_each(|(got, item)| sized(got, &item["expect"]));
}

#[test]
fn s05_limits_of_the_user_take_effect() {
    let folder = tempfile::tempdir().unwrap();
    for item in expected("S05_limits.json")["items"].as_array().unwrap() {
        let number = |key: &str| item[key].as_u64().unwrap() as usize;
        let file = grey(folder.path(), number("width"), number("height"));
        let (min, max) = (number("min_pixels").to_string(), number("max_pixels").to_string());
        let ran = preprocess(&[file], &["--min-pixels", &min, "--max-pixels", &max]).ends_with_code(0);
        sized(&ran.objects()[0], &item["expect"]);
    }
}

/// Every refused file gives an object with one of the words that the case wants, and exit code 1.
fn refused(ran: Ran, items: &[Value]) {
    let ran = ran.ends_with_code(1);
    let objects = ran.objects();
    assert_eq!(objects.len(), items.len());
    for (got, item) in objects.iter().zip(items) {
        let error = got["error"].as_str().unwrap_or_else(|| panic!("{got} is no refusal"));
        let words = item["contains_any"].as_array().unwrap();
        assert!(words.iter().any(|w| error.contains(w.as_str().unwrap())), "{error:?} has none of {words:?}");
        assert!(got["file"].as_str().unwrap().ends_with(item["file"].as_str().unwrap()));
    }
}

fn names(items: &[Value]) -> Vec<PathBuf> {
    items.iter().map(|i| case_input(i["file"].as_str().unwrap())).collect()
}

#[test]
fn s06_a_broken_picture_is_refused_and_the_next_one_is_read() {
    let case = expected("S06.json");
    let items = case["items"].as_array().unwrap();
    refused(preprocess(&names(items), &LIMITS), items);

    let good = &case["accepted_neighbour"];
    let mut files = names(items);
    files.push(case_input(good["file"].as_str().unwrap()));
    let ran = preprocess(&files, &LIMITS).ends_with_code(1);
    sized(ran.objects().last().unwrap(), &good["expect"]);
}

#[test]
fn s17_a_small_file_with_a_huge_picture_is_refused_at_once() {
    let case = expected("S17.json");
    let items = case["items"].as_array().unwrap();
    for item in items {
        let began = std::time::Instant::now();
        let ran = preprocess(&names(std::slice::from_ref(item)), &LIMITS);
        let took = began.elapsed().as_secs_f64();
        refused(ran, std::slice::from_ref(item));
        assert!(took < item["max_seconds"].as_f64().unwrap(), "{item} took {took} s");
    }
}

/// The whole program in 512 MiB of address space: the refusals allocate nothing of the claimed size.
#[cfg(target_os = "linux")]
#[test]
fn s17_a_refusal_takes_little_memory() {
    let case = expected("S17.json");
    let items = case["items"].as_array().unwrap();
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -v 524288 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_turbospark")]);
    let ran = finish(limited.args(["preprocess", "--json", "--threads", "2"]).args(names(items)), b"");
    refused(ran, items);
}

#[test]
fn the_pixel_limit_can_be_set_and_honest_large_photos_pass() {
    let folder = tempfile::tempdir().unwrap();
    let photo = grey(folder.path(), 8000, 6000);
    let ran = preprocess(std::slice::from_ref(&photo), &[]).ends_with_code(0);
    assert_eq!((&ran.objects()[0]["width"], &ran.objects()[0]["height"]), (&8000.into(), &6000.into()));
    let ran = preprocess(&[photo], &["--max-image-pixels", "47999999"]).ends_with_code(1);
    ran.says(&["8000x6000", "47999999"]);
}

#[test]
fn people_get_a_table() {
    let files = [case_input("s04_305x30.png"), Path::new("absent.png").to_owned()];
    let ran = finish(program().arg("preprocess").args(LIMITS).args(files), b"").ends_with_code(1);
    let row = ran.out.lines().nth(1).unwrap();
    for word in ["s04_305x30.png", "305x30", "832x96", "1x6x52", "78"] {
        assert!(row.contains(word), "{row}");
    }
    ran.says(&["absent.png"]);
}
