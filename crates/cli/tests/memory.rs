//! `--memory`: the same text under any ceiling that works, and a refusal that shows the subtraction under one that
//! doesn't.

mod common;

use common::{example, run};

fn page() -> String {
    example("receipt.png").display().to_string()
}

#[test]
fn a_page_reads_the_same_under_a_ceiling() {
    let page = page();
    let plain = run(["read", &page]);
    for flags in [["--memory", "160MiB"], ["--residency", "streamed"], ["--residency", "loaded"]] {
        let got = run([&["read", page.as_str()][..], &flags].concat());
        assert_eq!(got.code, Some(0), "{flags:?}: {}", got.err);
        assert_eq!(got.out, plain.out, "{flags:?}");
    }
}

#[test]
fn a_ceiling_that_is_too_small_is_refused_with_the_least_that_works() {
    let got = run(["read", &page(), "--memory", "20M"]);
    assert_eq!(got.code, Some(2));
    for part in ["20.0 MiB is too small", "norms and mergers", "in all", "for measuring: --memory "] {
        assert!(got.err.contains(part), "{}", got.err);
    }
    let least = got.err.split("--memory ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap().to_owned();
    let again = run(["read", &page(), "--memory", &least]);
    assert_eq!(again.code, Some(0), "{least}: {}", again.err);
}

#[test]
fn the_plan_is_shown_with_every_term() {
    let got = run(["inspect", "--plan", "--memory", "160M"]);
    for part in ["cache of", "images of", "8 of 8 layers", "in all", "ceiling"] {
        assert!(got.out.contains(part), "{}", got.out);
    }
    let got = run(["inspect", "--plan", "--residency", "streamed", "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&got.out).unwrap();
    assert!(plan["read_per_token"].as_u64().unwrap() > 1 << 20, "{plan}");
    assert_eq!(plan["ceiling"], serde_json::Value::Null);
}

#[test]
fn sizes_are_told_apart_from_words() {
    let got = run(["read", "x.png", "--memory", "lots"]);
    assert_eq!(got.code, Some(2));
    assert!(got.err.contains("6GiB or 512M"), "{}", got.err);
}
