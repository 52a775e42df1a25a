//! Wrong usage ends with 2 and says what would be right; help teaches.

mod common;

use common::{example, run};

#[track_caller]
fn wrong(args: &[&str], words: &[&str]) {
    let ran = run(args).ends_with_code(2);
    assert_eq!(ran.out, "");
    ran.says(words);
}

#[test]
fn flags_that_make_no_sense_are_refused_before_any_work() {
    wrong(&["read"], &["FILE"]);
    wrong(&["raed", "a.png"], &["read"]);
    wrong(&["read", "a.png", "--frobnicate"], &["--frobnicate"]);
    wrong(&["read", "a.png", "--max-tokens", "0"], &["--max-tokens", "from 1"]);
    wrong(&["read", "a.png", "--temperature", "-1"], &["temperature"]);
    wrong(&["read", "a.png", "--temperature", "hot"], &["hot", "a number from 0"]);
    wrong(&["read", "a.png", "--top-p", "1.5"], &["--top-p", "0 to 1"]);
    wrong(&["read", "a.png", "--top-p", "0.5"], &["temperature 0", "--temperature"]);
    wrong(&["read", "a.png", "--threads", "0"], &["--threads"]);
    wrong(&["read", "a.png", "--precision", "f8"], &["f32 or auto"]);
    wrong(&["read", "a.png", "--kv", "q4"], &["q4", "auto, f32, f16 or q8"]);
    wrong(&["read", "a.png", "--device", "abacus"], &["abacus", "cpu"]);
    wrong(&["read", "a.png", "--device", "cuda"], &["not in this build"]);
    wrong(&["read", "a.png", "--stop", ""], &["empty"]);
    wrong(&["run", "--messages", "a.json", "hello"], &["--messages"]);
    wrong(&["run", ""], &["prompt is empty"]);
    wrong(&["run"], &["prompt is empty"]);
    wrong(&["preprocess"], &["FILE"]);
    wrong(&["trace", "--out", "x"], &["--request"]);
    wrong(&["trace", "--request", "a.json"], &["--out"]);
}

#[test]
fn settings_that_the_model_cannot_meet_are_wrong_usage() {
    let receipt = example("receipt.png");
    let receipt = receipt.to_str().unwrap();
    wrong(&["read", receipt, "--context", "100000"], &["100000", "4096"]);
    wrong(&["read", receipt, "--min-pixels", "9000", "--max-pixels", "8000"], &["9000", "8000"]);
    wrong(&["read", receipt, "--min-pixels", "1", "--max-pixels", "100"], &["100 pixels", "32x32"]);
}

#[test]
fn a_model_that_is_not_there_is_a_failure_not_a_usage() {
    let ran = run(["read", "a.png", "--model", "no-such-model"]).ends_with_code(1);
    ran.says(&["no-such-model", "--model"]);
}

#[test]
fn help_names_every_command_and_shows_examples() {
    let help = run(["--help"]).ends_with_code(0);
    for command in ["read", "run", "chat", "inspect", "preprocess", "bench", "trace", "pull", "list", "rm"] {
        assert!(help.out.contains(&format!("\n  {command} ")), "{command} is not in {}", help.out);
        let own = run([command, "--help"]).ends_with_code(0);
        let examples = own.out.matches(&format!("\n  turbospark {command}")).count();
        assert!(examples >= 3, "{command} shows {examples} examples: {}", own.out);
    }
    assert!(help.out.contains("130"), "exit codes are explained");
    run::<&str>([]).ends_with_code(2).says(&["read", "Examples:"]);
    assert!(run(["--version"]).ends_with_code(0).out.starts_with("turbospark "));
}
