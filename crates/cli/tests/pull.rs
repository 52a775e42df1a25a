//! `turbospark pull`, `list`, `rm`, and `--model` with the name of a pulled model, against a hub in this process.

mod common;
#[path = "../../hub/tests/server/mod.rs"]
mod server;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Ran, finish, program, root, run};
use server::{COMMIT, REPO, Reply, Repository, Server};

/// The program with a cache of its own and this hub.
fn hub(cache: &Path, server: &Server) -> Command {
    let mut command = program();
    for name in ["HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "HUGGINGFACE_HUB_CACHE"] {
        command.env_remove(name);
    }
    for name in ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"] {
        command.env_remove(name);
    }
    command.env("HF_HUB_CACHE", cache).env("HF_HOME", cache).env("HF_ENDPOINT", server.url());
    command
}

fn ask(cache: &Path, server: &Server, args: &[&str]) -> Ran {
    finish(hub(cache, server).args(args), b"")
}

/// The checkpoint that is compiled into the program, as a repository.
fn tiny() -> Repository {
    let folder = root().join("assets/tiny-ocr-qwen3_vl");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    let files: Vec<(String, Vec<u8>)> =
        files.map(|p| (p.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(p).unwrap())).collect();
    let mut files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    files.push(("pytorch_model.bin", b"never"));
    Repository::new(&files)
}

#[test]
fn a_model_is_pulled_listed_run_by_name_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("a cache");
    let server = tiny().serve(|_| None);
    let ran = ask(&cache, &server, &["inspect", "--model", REPO]).ends_with_code(1);
    ran.says(&["model \"org/name\" is not here; turbospark pull org/name"]);

    let ran = ask(&cache, &server, &["pull", REPO]).ends_with_code(0);
    let path = cache.join("models--org--name/snapshots").join(COMMIT);
    assert_eq!(ran.out, format!("{}\n", path.display()));
    ran.says(&["model.safetensors: ", "fetched", "--model org/name"]);
    assert!(!path.join("pytorch_model.bin").exists());
    let fetches = server.fetches().len();
    ask(&cache, &server, &["pull", REPO]).ends_with_code(0).says(&["all of it was here"]);
    assert_eq!(server.fetches().len(), fetches);

    let ran = ask(&cache, &server, &["list", "--json"]).ends_with_code(0);
    let objects = ran.objects();
    assert_eq!(objects.len(), 1);
    let model = &objects[0];
    assert_eq!((&model["model"], &model["name"], &model["revision"]), (&REPO.into(), &REPO.into(), &COMMIT.into()));
    assert_eq!(
        (&model["format"], &model["missing"], &model["runs"]),
        (&"safetensors".into(), &().into(), &true.into())
    );
    assert_eq!(model["path"], path.to_str().unwrap());
    assert!(model["bytes"].as_u64().unwrap() > 20_000_000);
    let table = ask(&cache, &server, &["list"]).ends_with_code(0).out;
    assert!(table.starts_with("NAME") && table.contains("org/name  111111111111  safetensors"), "{table}");

    let ran = ask(&cache, &server, &["inspect", "--json", "--model", REPO]).ends_with_code(0);
    assert_eq!(ran.objects()[0]["family"], "qwen3_vl");
    ask(&cache, &server, &["inspect", "org/name@main"]).ends_with_code(0);

    ask(&cache, &server, &["rm", REPO]).ends_with_code(2).says(&["--yes"]);
    assert!(path.exists());
    let ran = ask(&cache, &server, &["rm", "--yes", REPO]).ends_with_code(0);
    assert!(ran.out.starts_with("removed org/name: ") && ran.out.contains("MiB freed"), "{}", ran.out);
    assert!(!cache.join("models--org--name").exists());
    ask(&cache, &server, &["rm", "--yes", REPO]).ends_with_code(1).says(&["nothing of org/name is here"]);
    ask(&cache, &server, &["list"]).ends_with_code(0).says(&["no models", "turbospark pull"]);
}

#[test]
fn scripts_get_json_and_quiet_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files: &[(&str, &[u8])] = &[("a-Q4_K_M.gguf", b"four"), ("a-Q8_0.gguf", b"eight"), ("mmproj-F16.gguf", b"f16")];
    let server = Repository::new(files).serve(|_| None);
    let ran = ask(folder.path(), &server, &["pull", "--json", "--quiet", "org/name:q8_0"]).ends_with_code(0);
    assert_eq!(ran.err, "");
    let object = &ran.objects()[0];
    assert_eq!((&object["quant"], &object["name"]), (&"Q8_0".into(), &"org/name:Q8_0".into()));
    assert_eq!((object["downloaded_bytes"].as_u64(), object["files"].as_array().unwrap().len()), (Some(8), 2));
    assert!(object["path"].as_str().unwrap().ends_with("a-Q8_0.gguf"));
    let ran = ask(folder.path(), &server, &["run", "hello", "--model", "org/name:q4_k_m"]).ends_with_code(1);
    ran.says(&["is not here (Q8_0 is); turbospark pull org/name:q4_k_m"]);
    let ran = ask(folder.path(), &server, &["pull", "org/name:q2_k"]).ends_with_code(1);
    ran.says(&["q2_k", "Q4_K_M", "Q8_0"]);
    let ran = ask(folder.path(), &server, &["rm", "-y", "--json", "org/name:q8_0"]).ends_with_code(0);
    assert_eq!(ran.objects()[0]["freed_bytes"], 8);
}

#[test]
fn models_of_other_programs_are_counted_and_shown_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let config = br#"{"model_type": "bert", "torch_dtype": "float32"}"#;
    let server = Repository::new(&[("config.json", config), ("model.safetensors", b"weights")]).serve(|_| None);
    ask(folder.path(), &server, &["pull", REPO]).ends_with_code(0).says(&["this program does not run it", "bert"]);
    let ran = ask(folder.path(), &server, &["list"]).ends_with_code(0);
    assert_eq!(ran.out, "");
    ran.says(&["1 more", "--all"]);
    let table = ask(folder.path(), &server, &["list", "--all"]).ends_with_code(0).out;
    assert!(table.contains("safetensors float32") && table.contains("not for this program"), "{table}");
}

#[test]
fn offline_and_failures_are_said_and_the_token_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let server = tiny().serve(|_| Some(Reply::new(403, "").with("X-Error-Code", "GatedRepo")));
    let ran = ask(folder.path(), &server, &["pull", "--offline", REPO]).ends_with_code(1);
    ran.says(&["offline", "is not here"]);
    let ran =
        finish(hub(folder.path(), &server).env("HF_HUB_OFFLINE", "1").args(["pull", REPO]), b"").ends_with_code(1);
    ran.says(&["offline"]);
    assert!(server.requests().is_empty());
    let ran = finish(hub(folder.path(), &server).env("HF_TOKEN", "hf_secret").args(["pull", "-v", REPO]), b"");
    let ran = ran.ends_with_code(1);
    ran.says(&["gated", "org/name", "account that the token belongs to"]);
    assert!(!ran.err.contains("hf_secret"), "{}", ran.err);
    assert_eq!(server.requests()[0].header("authorization"), Some("Bearer hf_secret"));
}

#[test]
fn names_that_are_none_are_wrong_usage_and_paths_stay_paths() {
    for name in ["model", "org/name/x", "../name", "org/name@", "org/name:../x"] {
        for command in ["pull", "rm"] {
            run([command, name]).ends_with_code(2).says(&["org/name:q4_k_m"]);
        }
    }
    // An existing path wins over a name; a path that is none is no name.
    let folder = tempfile::tempdir().unwrap();
    let server = tiny().serve(|_| None);
    std::fs::create_dir_all(folder.path().join("org/name")).unwrap();
    let ran = finish(hub(folder.path(), &server).current_dir(folder.path()).args(["inspect", REPO]), b"");
    ran.ends_with_code(1).says(&["config.json"]);
    ask(folder.path(), &server, &["inspect", "/no/such/folder"])
        .ends_with_code(1)
        .says(&["no file or folder /no/such/folder"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_came() {
    let folder = tempfile::tempdir().unwrap();
    let server = tiny().serve(|request| {
        // The second half comes too late.
        request.path.ends_with("model.safetensors").then(|| {
            let mut reply = Reply::file(request, tiny().bytes("model.safetensors"));
            if request.from().is_none() {
                reply = reply.cut_after(1_000_000);
            } else {
                reply.stall = Duration::from_secs(5);
            }
            reply
        })
    });
    let mut command = hub(folder.path(), &server);
    command.args(["pull", REPO]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    let blobs = folder.path().join("models--org--name/blobs");
    let incomplete = || {
        let entries = std::fs::read_dir(&blobs).ok()?.flatten();
        entries.into_iter().find(|e| e.file_name().to_string_lossy().ends_with(".incomplete"))?.metadata().ok()
    };
    while incomplete().is_none_or(|m| m.len() < 1_000_000) {
        std::thread::sleep(Duration::from_millis(20));
    }
    common::interrupt(&child);
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(130));
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(said.contains("stopped; turbospark pull org/name goes on from here"), "{said}");
    assert_eq!(incomplete().unwrap().len(), 1_000_000);
}
