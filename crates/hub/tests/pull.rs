//! Pulls from a hub that behaves.

mod server;

use std::ops::ControlFlow;
use std::time::Duration;

use server::{
    COMMIT, REPO, Reply, Repository, Server, WEIGHTS, blobs, git_sha1, noise, run, settings, sha256, single, spec,
};
use turbospark_hub::{Cache, Error, Event, Format, pull};

#[test]
fn a_checkpoint_comes_whole_and_a_second_pull_fetches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("with space/ü");
    let repository = Repository::sharded();
    let server = repository.clone().serve(|_| None);
    let settings = settings(&cache, &server);
    let pulled = run(&settings, REPO).unwrap();
    assert_eq!(pulled.model.path, cache.join("models--org--name/snapshots").join(COMMIT));
    assert_eq!((&pulled.model.format, pulled.model.missing.as_ref()), (&Format::Safetensors, None));
    let names: Vec<&str> = pulled.files.iter().map(|f| f.name.as_str()).collect();
    let index = "model.safetensors.index.json";
    assert_eq!(names, ["config.json", "tokenizer.json", index, "model-1.safetensors", "model-2.safetensors"]);
    for name in names {
        assert_eq!(std::fs::read(pulled.model.path.join(name)).unwrap(), repository.bytes(name), "{name}");
    }
    assert!(!pulled.model.path.join("pytorch_model.bin").exists());
    // The layout of the Python client: blobs by checksum, a ref.
    assert!(blobs(&cache).contains(&sha256(repository.bytes("model-1.safetensors"))));
    assert!(blobs(&cache).contains(&git_sha1(repository.bytes("config.json"))));
    assert_eq!(std::fs::read_to_string(cache.join("models--org--name/refs/main")).unwrap(), COMMIT);
    #[cfg(unix)]
    assert!(std::fs::read_link(pulled.model.path.join("config.json")).unwrap().starts_with("../../blobs"));

    let before = server.fetches().len();
    let again = run(&settings, REPO).unwrap();
    assert_eq!((again.downloaded, server.fetches().len()), (0, before));
    assert!(again.files.iter().all(|f| !f.fetched));
    assert_eq!(Cache::new(&cache).find(&spec(REPO)).unwrap().path, pulled.model.path);
}

#[test]
fn a_pull_that_was_stopped_goes_on_in_the_next_run() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|_| None);
    let settings = settings(folder.path(), &server);
    let mut came = 0;
    let stopped = pull(&spec(REPO), &settings, &mut |event| match event {
        Event::Bytes(n) => {
            came += n;
            if came > 100_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
        _ => ControlFlow::Continue(()),
    });
    assert!(matches!(stopped, Err(Error::Cancelled)), "{stopped:?}");
    let incomplete = format!("{}.incomplete", sha256(single().bytes(WEIGHTS)));
    assert!(blobs(folder.path()).contains(&incomplete));
    // Nothing of it is taken for the model.
    assert!(matches!(Cache::new(folder.path()).find(&spec(REPO)), Err(Error::NotHere { .. })));
    let pulled = run(&settings, REPO).unwrap();
    assert!(server.fetches().last().unwrap().from().unwrap() > 100_000);
    assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS));
    assert!(!blobs(folder.path()).contains(&incomplete));
}

#[test]
fn what_an_earlier_run_left_damaged_is_fetched_anew() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|_| None);
    let blobs_folder = folder.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs_folder).unwrap();
    for left in [vec![0; 1000], vec![0; 400_000], vec![0; 500_000]] {
        let incomplete = blobs_folder.join(format!("{}.incomplete", sha256(single().bytes(WEIGHTS))));
        std::fs::write(&incomplete, left).unwrap();
        let pulled = run(&settings(folder.path(), &server), REPO).unwrap();
        assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS));
        assert!(!incomplete.exists());
        std::fs::remove_dir_all(folder.path().join("models--org--name")).unwrap();
        std::fs::create_dir_all(&blobs_folder).unwrap();
    }
}

#[test]
fn offline_uses_what_is_here_and_says_when_that_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repository::sharded().serve(|_| None);
    let mut settings = settings(folder.path(), &server);
    settings.offline = true;
    let failed = run(&settings, REPO).unwrap_err().to_string();
    assert!(failed.contains("offline") && failed.contains("is not here"), "{failed}");
    assert!(server.requests().is_empty());
    settings.offline = false;
    let pulled = run(&settings, REPO).unwrap();
    let asked = server.requests().len();
    settings.offline = true;
    assert_eq!(run(&settings, REPO).unwrap().model.path, pulled.model.path);
    std::fs::remove_file(pulled.model.path.join("model-2.safetensors")).unwrap();
    let failed = run(&settings, REPO).unwrap_err().to_string();
    assert!(failed.contains("offline") && failed.contains("1 of 2") && failed.contains("model-2"), "{failed}");
    assert_eq!(server.requests().len(), asked);
}

#[test]
fn a_listing_in_pages_is_read_to_its_end_from_the_hub_alone() {
    let folder = tempfile::tempdir().unwrap();
    let tree = single().tree();
    let server = single().serve(move |request| {
        let (_, query) = request.path.split_once("/tree/")?.1.split_once('?')?;
        let page = |i: usize| Reply::new(200, serde_json::json!([tree[i]]).to_string());
        Some(match query.contains("cursor=two%3D") {
            false => page(0).with("Link", "<http://127.0.0.1:1/elsewhere?cursor=two%3D>; rel=\"next\""),
            true => page(1),
        })
    });
    assert_eq!(run(&settings(folder.path(), &server), REPO).unwrap().files.len(), 2);
    let endless = single().serve(|r| {
        r.path.contains("/tree/").then(|| Reply::new(200, "[]").with("Link", "<http://x/?cursor=a>; rel=\"next\""))
    });
    let failed = run(&settings(folder.path(), &endless), REPO).unwrap_err().to_string();
    assert!(failed.contains("pages"), "{failed}");
}

#[test]
fn two_pulls_at_once_fetch_each_file_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Repository::sharded().serve(|r| {
        std::thread::sleep(Duration::from_millis(if r.path.contains("/resolve/") { 150 } else { 0 }));
        None
    });
    let settings = settings(folder.path(), &server);
    let pulls: Vec<_> = (0..3)
        .map(|_| {
            let settings = settings.clone();
            std::thread::spawn(move || run(&settings, REPO).unwrap().downloaded)
        })
        .collect();
    let downloaded: u64 = pulls.into_iter().map(|p| p.join().unwrap()).sum();
    let mut paths: Vec<String> = server.fetches().into_iter().map(|r| r.path).collect();
    let all = paths.len();
    paths.sort();
    paths.dedup();
    assert_eq!((all, paths.len()), (5, 5));
    assert_eq!(
        downloaded,
        Repository::sharded()
            .files
            .iter()
            .filter(|(p, _)| p != "README.md" && p != "pytorch_model.bin")
            .map(|(_, c)| c.bytes.len() as u64)
            .sum::<u64>()
    );
}

#[test]
fn a_quantisation_comes_with_all_its_parts_and_the_vision_part() {
    let repository = Repository::new(&[
        ("README.md", b"x"),
        ("config.json", b"{}"),
        ("Model-Q8_0.gguf", b"q8"),
        ("Q4_K_M/Model-Q4_K_M-00001-of-00002.gguf", b"one"),
        ("Q4_K_M/Model-Q4_K_M-00002-of-00002.gguf", b"two"),
        ("mmproj-BF16.gguf", b"bf16"),
        ("mmproj-F16.gguf", b"f16"),
        ("mmproj-F32.gguf", b"f32"),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let server = repository.serve(|_| None);
    let settings = settings(folder.path(), &server);
    let cache = Cache::new(folder.path());
    let pulled = run(&settings, REPO).unwrap();
    assert!(pulled.model.path.ends_with("Q4_K_M/Model-Q4_K_M-00001-of-00002.gguf"), "{pulled:?}");
    let names: Vec<&str> = pulled.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(
        names,
        ["Q4_K_M/Model-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/Model-Q4_K_M-00002-of-00002.gguf", "mmproj-F16.gguf"]
    );
    let failed = cache.find(&spec("org/name:q8_0")).unwrap_err().to_string();
    assert!(failed.contains("is not here (Q4_K_M is); turbospark pull org/name:q8_0"), "{failed}");
    let pulled = run(&settings, "org/name:q8_0").unwrap();
    assert_eq!((&pulled.model.format, pulled.downloaded), (&Format::Gguf("Q8_0".into()), 2));
    let pulled = run(&settings, "org/name:Model-Q8_0.gguf").unwrap();
    assert!(pulled.model.path.ends_with("Model-Q8_0.gguf"));
    assert!(cache.find(&spec(REPO)).unwrap().path.ends_with("Q4_K_M/Model-Q4_K_M-00001-of-00002.gguf"));
    let names: Vec<String> = cache.list().unwrap().iter().map(|m| m.name()).collect();
    assert_eq!(names, ["org/name:Q8_0", "org/name:Q4_K_M"]);
    let failed = run(&settings, "org/name:q2_k").unwrap_err().to_string();
    assert!(failed.contains("q2_k") && failed.contains("Q8_0") && failed.contains("Q4_K_M"), "{failed}");
}

#[test]
fn names_with_spaces_and_of_any_script_are_fetched() {
    let name = "模型 ü #1?-Q4_K_M.gguf".replace('?', "%");
    let repository = Repository::new(&[(&name, b"weights")]);
    let folder = tempfile::tempdir().unwrap();
    let server = repository.serve(|_| None);
    let pulled = run(&settings(&folder.path().join("ein Ordner"), &server), REPO).unwrap();
    assert_eq!(std::fs::read(&pulled.model.path).unwrap(), b"weights");
    assert!(pulled.model.path.ends_with(&name));
}

#[test]
fn a_branch_that_moved_leaves_the_older_copy_until_the_new_one_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let old = single().serve(|_| None);
    let first = run(&settings(folder.path(), &old), REPO).unwrap();
    let mut repository = single();
    repository.commit = "2".repeat(40);
    repository.files[0].1.bytes = b"{\"new\": true}".to_vec();
    repository.files[1].1.bytes = noise(8, 1000);
    let broken = repository.clone().serve(|r| r.path.ends_with(WEIGHTS).then(|| Reply::new(404, "")));
    assert!(run(&settings(folder.path(), &broken), REPO).is_err());
    assert_eq!(Cache::new(folder.path()).find(&spec(REPO)).unwrap().path, first.model.path);
    let new = repository.serve(|_| None);
    let pulled = run(&settings(folder.path(), &new), REPO).unwrap();
    assert_eq!((pulled.model.commit, pulled.replaced.as_deref()), ("2".repeat(40), Some(COMMIT)));
    let cache = Cache::new(folder.path());
    assert_eq!(cache.find(&spec(&format!("org/name@{}", &COMMIT[..8]))).unwrap().path, first.model.path);
}

#[test]
fn revisions_are_kept_under_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|_| None);
    let settings = settings(folder.path(), &server);
    for (name, file) in [("org/name@refs/pr/5", Some("refs/refs/pr/5")), ("org/name@11111111", Some("refs/11111111"))] {
        let pulled = run(&settings, name).unwrap();
        assert_eq!(pulled.model.commit, COMMIT);
        assert_eq!(Cache::new(folder.path()).find(&spec(name)).unwrap().path, pulled.model.path);
        assert!(folder.path().join("models--org--name").join(file.unwrap()).is_file());
    }
    run(&settings, &format!("org/name@{COMMIT}")).unwrap();
    assert!(!folder.path().join("models--org--name/refs").join(COMMIT).exists());
    let failed = Cache::new(folder.path()).find(&spec(REPO)).unwrap_err().to_string();
    assert!(failed.contains("org/name@refs/pr/5"), "{failed}");
}

/// A file as the hub sends it today: the hub's own answer names length and checksum and leads to another host, whose
/// signed address is good for that host alone.
#[test]
fn large_files_come_from_where_the_hub_sends_us() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = single().bytes(WEIGHTS).to_vec();
    let sum = sha256(&bytes);
    let bridge = Server::start(move |request| Reply::file(request, &bytes).with("ETag", "\"of another kind\""));
    let url = bridge.url();
    let server = single().serve(move |request| {
        request.path.ends_with(WEIGHTS).then(|| {
            Reply::redirect(format!("{url}/xet-bridge/a/b?X-Amz-Signature=c&response-content-disposition=d"))
                .with("X-Repo-Commit", COMMIT)
                .with("X-Linked-Size", 400_000)
                .with("X-Linked-ETag", format!("\"{sum}\""))
                .with("X-Xet-Hash", "e".repeat(64))
                .with("Link", "<https://example.invalid/xet-auth>; rel=\"xet-auth\"")
        })
    });
    let pulled = run(&settings(folder.path(), &server), REPO).unwrap();
    assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS));
    assert_eq!(bridge.requests()[0].path, "/xet-bridge/a/b?X-Amz-Signature=c&response-content-disposition=d");
    // Renamed models lead to their new name, for the list as for the files.
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|request| {
        let new = request.path.contains("/old/name").then(|| request.path.replace("/old/name", "/org/name"));
        new.map(|path| Reply { status: 307, ..Reply::redirect(path) })
    });
    let pulled = run(&settings(folder.path(), &server), "old/name").unwrap();
    assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS));
    assert!(folder.path().join("models--old--name").is_dir());
}

#[test]
fn what_belongs_to_a_model_comes_with_it() {
    let names = [
        "config.json",
        "quantize_config.json",
        "hf_quant_config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
        "model.safetensors",
    ];
    let mut files: Vec<(&str, &[u8])> = names.iter().map(|name| (*name, name.as_bytes())).collect();
    files.push(("README.md", b"x"));
    let folder = tempfile::tempdir().unwrap();
    let server = Repository::new(&files).serve(|_| None);
    let pulled = run(&settings(folder.path(), &server), REPO).unwrap();
    let came: Vec<&str> = pulled.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(came, names);
    for name in names {
        assert_eq!(std::fs::read(pulled.model.path.join(name)).unwrap(), name.as_bytes());
    }
}

#[test]
fn without_links_the_snapshot_holds_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|_| None);
    let mut settings = settings(folder.path(), &server);
    settings.no_links = true;
    let pulled = run(&settings, REPO).unwrap();
    let about = std::fs::symlink_metadata(pulled.model.path.join(WEIGHTS)).unwrap();
    assert!(about.is_file() && blobs(folder.path()).is_empty());
    assert_eq!(run(&settings, REPO).unwrap().downloaded, 0);
}

#[test]
fn too_little_room_is_said_before_anything_comes() {
    let vast: u64 = 1 << 60;
    let mut tree = single().tree();
    tree[1]["lfs"]["size"] = vast.into();
    let server = single().serve(move |r| r.path.contains("/tree/").then(|| Reply::new(200, tree.to_string())));
    let folder = tempfile::tempdir().unwrap();
    let failed = run(&settings(folder.path(), &server), REPO).unwrap_err();
    assert!(matches!(failed, Error::Space { needed, .. } if needed > vast), "{failed:?}");
    assert!(failed.to_string().contains("TiB are to come") && server.fetches().is_empty(), "{failed}");
}
