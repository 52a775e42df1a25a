//! `bench`: what it prints, and what it refuses. No time is asserted.

mod common;

use common::{finish, program, run};
use serde_json::Value;

/// A number that is there, finite and not negative.
#[track_caller]
fn number(object: &Value, key: &str) -> f64 {
    let n = object[key].as_f64().unwrap_or_else(|| panic!("{key} is no number in {object}"));
    assert!(n.is_finite() && n >= 0.0, "{key}: {n}");
    n
}

#[test]
fn a_shape_is_built_once_and_its_object_has_every_field() {
    let cache = tempfile::tempdir().unwrap();
    let measure = || {
        let mut command = program();
        command.env("XDG_CACHE_HOME", cache.path());
        command.args(["bench", "--shape", "tiny", "--threads", "2", "--image", "64x96", "--image", "64x64"]);
        command.args(["--prefill", "20", "--prefill", "5", "--decode", "2", "--depth", "3", "--batch", "2"]);
        finish(command.args(["--reps", "2", "--json"]), b"").ends_with_code(0)
    };
    let ran = measure();
    ran.says(&["writing random weights to", "turbospark/shapes/tiny", "GB"]);
    let all = ran.objects();
    let [o] = &all[..] else { panic!("one object, not {all:?}") };
    assert_eq!((&o["device"], &o["threads"], &o["model"]), (&"cpu".into(), &2.into(), &"tiny".into()));
    let image = &o["image"];
    assert_eq!((&image["size"], &image["patches"], &image["tokens"]), (&"64x96".into(), &24.into(), &6.into()));
    assert_eq!(o["images"].as_array().unwrap().len(), 2);
    assert_eq!((&o["prefill"]["tokens"], &o["prefills"][1]["tokens"]), (&20.into(), &5.into()));
    assert_eq!((&o["decode"]["tokens"], &o["decode"]["batch"]), (&2.into(), &2.into()));
    assert_eq!(o["decode"]["runs_s"].as_array().unwrap().len(), 2);
    for (part, keys) in [
        (&o["image"], &["encode_s", "tflops"][..]),
        (&o["prefill"], &["tok_s", "tflops"]),
        (&o["decode"], &["tok_s", "bytes_per_token", "gb_s"]),
        (&o["limits"], &["read_gb_s"]),
    ] {
        keys.iter().for_each(|key| assert!(number(part, key) > 0.0, "{key} of {part}"));
    }
    // Generous: an unoptimised build is slow, and weights in a cache beat memory.
    for (part, key) in [(&o["image"], "peak_share"), (&o["prefill"], "peak_share"), (&o["decode"], "bandwidth_share")] {
        let share = number(part, key);
        assert!(share > 0.0 && share < 50.0, "{key} {share}");
    }
    for peak in o["limits"]["peaks"].as_array().unwrap() {
        assert!(number(peak, "tops") > 0.0);
    }
    if cfg!(target_os = "linux") {
        assert!(number(o, "peak_rss_bytes") > 1e6);
    }
    let again = measure();
    assert!(!again.err.contains("writing"), "{}", again.err);
}

#[test]
fn quantised_weights_are_fewer_bytes_of_a_decoded_token() {
    let measure = |more: &[&str]| {
        let args = ["bench", "--only", "decode", "--decode", "1", "--depth", "1", "--reps", "1", "--json"];
        let objects = run([&args[..], more].concat()).ends_with_code(0).objects();
        (number(&objects[0]["decode"], "weight_bytes_per_token"), objects[0]["quant"].clone())
    };
    let ((stored, none), (quantised, q8_0)) = (measure(&[]), measure(&["--quant", "q8_0"]));
    assert_eq!((none, q8_0), (Value::Null, "q8_0".into()));
    // 34 bytes for 32 weights in place of 64; norms stay.
    let ratio = quantised / stored;
    assert!((0.53..0.54).contains(&ratio), "{ratio}");
}

#[test]
fn eight_bit_keys_are_fewer_bytes_of_a_decoded_token() {
    let measure = |more: &[&str]| {
        let args = ["bench", "--only", "decode", "--decode", "1", "--depth", "99", "--reps", "1", "--json"];
        let objects = run([&args[..], more].concat()).ends_with_code(0).objects();
        let decode = &objects[0]["decode"];
        let own = number(decode, "bytes_per_token") - number(decode, "weight_bytes_per_token");
        (own, objects[0]["kv"].as_str().unwrap().to_owned())
    };
    let ((f16, auto), (q8, q8_0)) = (measure(&[]), measure(&["--kv", "q8"]));
    assert_eq!((&auto[..], &q8_0[..]), ("f16", "q8_0"));
    // 34 bytes for 32 elements in place of 64.
    assert!((q8 / f16 - 34.0 / 64.0).abs() < 1e-9, "{q8} of {f16}");
}

#[test]
fn the_table_shows_only_the_parts_asked_for() {
    let ran = run(["bench", "--only", "prefill", "--prefill", "8", "--reps", "1", "--isa", "portable"]);
    let ran = ran.ends_with_code(0);
    assert!(ran.out.contains("portable"), "{}", ran.out);
    assert!(ran.out.contains("\nprefill 8"), "{}", ran.out);
    assert!(!ran.out.contains("encode") && !ran.out.contains("decode"), "{}", ran.out);
}

#[test]
fn wrong_usage_is_told_with_what_there_is() {
    let wrong = |args: &[&str], words: &[&str]| run([&["bench"], args].concat()).ends_with_code(2).says(words);
    wrong(&["--shape", "qwen9"], &["qwen9", "qwen3-vl-2b", "qwen3.5-0.8b", "qwen3-vl-30b-a3b"]);
    wrong(&["--isa", "mmx"], &["mmx", "portable"]);
    wrong(&["--quant", "q3"], &["q3", "q8_0", "q4_k"]);
    wrong(&["--isa", "portable", "--device", "reference"], &["reference"]);
    wrong(&["--image", "1024"], &["1280x960"]);
    wrong(&["--image", "0x64"], &["1280x960"]);
    wrong(&["--only", "sing"], &["encode", "prefill", "decode"]);
    wrong(&["--shape", "tiny", "model"], &["--shape"]);
    wrong(&["--prefill", "100000"], &["100001", "4096"]);
    run(["bench", "no-such-model"]).ends_with_code(1).says(&["no-such-model"]);
}

#[test]
fn a_cache_that_cannot_be_written_is_a_failure_with_the_size() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let mut command = program();
    command.env("XDG_CACHE_HOME", &file).args(["bench", "--shape", "tiny"]);
    finish(&mut command, b"").ends_with_code(1).says(&["GB are needed for tiny"]);
}
