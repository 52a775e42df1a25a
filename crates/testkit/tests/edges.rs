//! The crate graph is part of the design: dependencies point one way.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Which of our crates each crate may depend on; `testkit` may use anything and is a dev-dependency only.
const EDGES: &[(&str, &[&str])] = &[
    ("turbospark-tensor", &[]),
    ("turbospark-weights", &["turbospark-tensor"]),
    ("turbospark-device", &["turbospark-tensor"]),
    ("turbospark-device-cpu", &["turbospark-device", "turbospark-tensor"]),
    ("turbospark-device-wgpu", &["turbospark-device", "turbospark-tensor"]),
    ("turbospark-models", &["turbospark-device", "turbospark-weights", "turbospark-tensor"]),
    ("turbospark-vision", &["turbospark-tensor"]),
    ("turbospark-text", &["turbospark-tensor"]),
    (
        "turbospark",
        &[
            "turbospark-models",
            "turbospark-vision",
            "turbospark-text",
            "turbospark-weights",
            "turbospark-device",
            "turbospark-device-cpu",
            "turbospark-device-wgpu",
            "turbospark-tensor",
        ],
    ),
    ("turbospark-hub", &[]),
    ("turbospark-cli", &["turbospark", "turbospark-hub"]),
];

#[test]
fn dependencies_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root)
        .output()
        .expect("cargo is there, it runs this test");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut seen = BTreeSet::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        if name == "turbospark-testkit" {
            continue;
        }
        seen.insert(name.to_owned());
        let (_, allowed) = EDGES.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("{name} has no rule"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            let development = dependency["kind"] == "dev";
            if on.starts_with("turbospark") && !development {
                assert!(allowed.contains(&on), "{name} depends on {on}, which the design does not allow");
            }
            assert!(on != "turbospark-testkit" || development, "{name} ships with testkit");
        }
    }
    assert_eq!(seen.len(), EDGES.len(), "{seen:?}");
}

#[test]
fn unsafe_code_is_only_where_kernels_and_maps_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (name, _) in EDGES {
        let folder = name.strip_prefix("turbospark-").unwrap_or("turbospark");
        let main = if folder == "cli" { "main.rs" } else { "lib.rs" };
        let source = std::fs::read_to_string(root.join(folder).join("src").join(main)).unwrap();
        let forbids = source.contains("#![forbid(unsafe_code)]");
        let denies = source.contains("unsafe_code)]");
        match folder {
            "device-cpu" => {}
            "device-wgpu" => assert!(denies, "device-wgpu allows unsafe code outside its pipelines"),
            "weights" => assert!(denies, "weights allows unsafe code outside its mapping"),
            _ => assert!(forbids, "{folder} does not forbid unsafe code"),
        }
    }
}
