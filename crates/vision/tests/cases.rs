//! Cases S01 to S06 and S17: pictures as users send them.

mod common;

use std::time::{Duration, Instant};

use common::*;
use turbospark_vision::{DecodeLimits, decode, preprocess, smart_resize};

fn items(case: &str) {
    let expect = json(&format!("cases/expect/{case}.json"));
    for item in expect["items"].as_array().unwrap() {
        let file = item["file"].as_str().unwrap();
        let picture = self::case(file).unwrap_or_else(|e| panic!("{file}: {e}"));
        meets(file, &picture, &item["expect"]);
    }
}

#[test]
fn s01_a_turned_photo_is_seen_upright() {
    let expect = json("cases/expect/S01.json");
    for file in expect["files"].as_array().unwrap() {
        let file = file.as_str().unwrap();
        meets(file, &case(file).unwrap(), &expect["expect"]);
    }
}

#[test]
fn s02_what_is_transparent_is_white() {
    items("S02");
}

#[test]
fn s03_16_bit_and_1_bit_pictures_keep_their_greys() {
    items("S03");
}

#[test]
fn s04_tiny_and_thin_pictures_work() {
    items("S04");
}

#[test]
fn s05_rounding_and_the_upper_limit() {
    items("S05");
}

#[test]
fn s05_the_users_own_limits_take_effect() {
    for row in json("cases/expect/S05_limits.json")["items"].as_array().unwrap() {
        let n = |key: &str| row[key].as_u64().unwrap() as usize;
        let limits = published().with_limits(Some(n("min_pixels")), Some(n("max_pixels"))).unwrap();
        let got = smart_resize(n("height"), n("width"), 32, limits.min_pixels, limits.max_pixels).unwrap();
        assert_eq!(vec![got.0, got.1], usizes(&row["expect"]["resized_hw"]), "{row}");
        let grid = limits.layout.grid(1, got.0, got.1);
        assert_eq!(grid, common::grid(&row["expect"]["grid_thw"]), "{row}");
        assert_eq!(grid.tokens(2), row["expect"]["tokens"].as_u64().unwrap() as usize, "{row}");
    }
}

#[test]
fn s05_limits_that_cannot_be_kept_are_refused() {
    for (min, max) in [(Some(0), None), (Some(2000), Some(1999)), (Some(1), Some(1023))] {
        assert!(published().with_limits(min, max).is_err(), "{min:?} {max:?}");
    }
}

#[test]
fn s06_a_broken_picture_is_an_error_that_says_what_is_wrong() {
    let expect = json("cases/expect/S06.json");
    for item in expect["items"].as_array().unwrap() {
        let file = item["file"].as_str().unwrap();
        let message = case(file).expect_err(file).to_string();
        let wanted = item["contains_any"].as_array().unwrap();
        assert!(wanted.iter().any(|w| message.contains(w.as_str().unwrap())), "{file}: {message}");
    }
    let neighbour = &expect["accepted_neighbour"];
    let file = neighbour["file"].as_str().unwrap();
    meets(file, &case(file).unwrap(), &neighbour["expect"]);
}

#[test]
fn s06_each_fault_has_its_own_words() {
    for (file, words) in [
        ("s06_cut.jpg", "data is missing"),
        ("s06_empty.bin", "0 bytes"),
        ("s06_head_only.png", "data is missing"),
        ("s06_heic_head.heic", "HEIC is not a supported"),
        ("s06_bad_crc.png", "CRC"),
        ("s06_ratio201.png", "200 to 1"),
    ] {
        let message = case(file).unwrap_err().to_string();
        assert!(message.contains(words), "{file}: {message}");
    }
}

#[test]
fn s17_a_small_file_with_a_huge_picture_is_refused_at_once_naming_the_limit() {
    for item in json("cases/expect/S17.json")["items"].as_array().unwrap() {
        let file = item["file"].as_str().unwrap();
        let start = Instant::now();
        let message = case(file).expect_err(file).to_string();
        assert!(start.elapsed() < Duration::from_millis(200), "{file} took {:?}", start.elapsed());
        assert!(message.contains("200000000") && message.contains("pixels"), "{file}: {message}");
    }
}

#[test]
fn s17_the_limit_can_be_set_and_honest_photos_pass() {
    let photo = bytes("cases/inputs/s05_6000x4000.png");
    assert!(decode(&photo, &DecodeLimits { max_pixels: 24_000_000, ..DecodeLimits::default() }).is_ok());
    let message =
        decode(&photo, &DecodeLimits { max_pixels: 23_999_999, ..DecodeLimits::default() }).unwrap_err().to_string();
    assert!(message.contains("24000000") && message.contains("23999999"), "{message}");
    let tight = DecodeLimits { max_alloc_bytes: 1 << 20, ..DecodeLimits::default() };
    let message = decode(&photo, &tight).unwrap_err().to_string();
    assert!(message.contains("1048576"), "{message}");
}

#[test]
fn s09_pictures_of_one_size_have_digests_of_their_own() {
    let (red, blue) = (case("s09_red.png").unwrap(), case("s09_blue.png").unwrap());
    assert_ne!(red.digest, blue.digest);
    assert_eq!(red.digest, case("s09_red.png").unwrap().digest);
    let smaller = published().with_limits(None, Some(65536 - 1024)).unwrap_err();
    assert!(smaller.to_string().contains("65536"));
    let other = image_config(4096, 32768);
    let small = preprocess(&bytes("cases/inputs/s09_red.png"), &other, &DecodeLimits::default()).unwrap();
    assert_ne!(small.digest, red.digest);
}
