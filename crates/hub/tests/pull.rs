//! Pulls from a hub that behaves, and from hubs and networks that do not.

mod server;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use server::{COMMIT, REPO, Reply, Repository, Server, git_sha1, noise, sha256};
use turbospark_hub::{Cache, Error, Event, Format, Pulled, Settings, Spec, Token, pull};

const WEIGHTS: &str = "model.safetensors";

fn single() -> Repository {
    Repository::new(&[("config.json", b"{}"), (WEIGHTS, &noise(7, 400_000))])
}

fn settings(cache: &Path, server: &Server) -> Settings {
    let mut settings = Settings::new(cache);
    settings.endpoint = server.url();
    settings.proxy = false;
    settings.timeout = Duration::from_secs(5);
    settings.backoff = Duration::from_millis(5);
    settings
}

fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

fn run(settings: &Settings, name: &str) -> Result<Pulled, Error> {
    pull(&spec(name), settings, &mut |_| ControlFlow::Continue(()))
}

fn blobs(cache: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(cache.join("models--org--name/blobs")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Answers the first `times` requests whose path ends so with `reply`.
fn first(
    times: usize,
    ending: &'static str,
    reply: impl Fn(&server::Request) -> Reply + Send + Sync + 'static,
) -> impl Fn(&server::Request) -> Option<Reply> + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |request| {
        let hit = request.path.ends_with(ending) && count.fetch_add(1, Ordering::SeqCst) < times;
        hit.then(|| reply(request))
    }
}

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
fn a_cut_connection_is_gone_on_with_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let repository = single();
    let bytes = repository.bytes(WEIGHTS).to_vec();
    let server = repository.serve(first(2, WEIGHTS, move |r| Reply::file(r, &bytes).cut_after(150_000)));
    let pulled = run(&settings(folder.path(), &server), REPO).unwrap();
    let ranges: Vec<_> =
        server.fetches().iter().filter(|r| r.path.ends_with(WEIGHTS)).map(server::Request::from).collect();
    assert_eq!(ranges, [None, Some(150_000), Some(300_000)]);
    assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS));
    assert_eq!(pulled.downloaded, 400_002);
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
fn a_server_that_gives_the_whole_or_another_part_makes_no_hole() {
    for answer in [200, 206, 416] {
        let folder = tempfile::tempdir().unwrap();
        let bytes = single().bytes(WEIGHTS).to_vec();
        let count = AtomicUsize::new(0);
        let server = single().serve(move |request| {
            if !request.path.ends_with(WEIGHTS) {
                return None;
            }
            Some(match (count.fetch_add(1, Ordering::SeqCst), answer) {
                (0, _) => Reply::new(200, bytes.clone()).cut_after(150_000),
                (1, 206) => Reply::new(206, &bytes[100_000..]).with("Content-Range", "bytes 100000-399999/400000"),
                (1, 416) => Reply::new(416, ""),
                _ => Reply::new(200, bytes.clone()),
            })
        });
        let pulled = run(&settings(folder.path(), &server), REPO).unwrap();
        assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS), "{answer}");
    }
}

#[test]
fn passing_failures_are_tried_again_and_others_are_not() {
    for status in [408, 429, 500, 502, 503, 504] {
        let folder = tempfile::tempdir().unwrap();
        let server = single().serve(first(3, WEIGHTS, move |_| Reply::new(status, "busy")));
        run(&settings(folder.path(), &server), REPO).unwrap();
        let server = single().serve(first(2, "/revision/main", move |_| Reply::new(status, "busy")));
        run(&settings(folder.path(), &server), REPO).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(first(99, WEIGHTS, |_| Reply::new(503, "")));
    let mut waits = Vec::new();
    let failed = pull(&spec(REPO), &settings(folder.path(), &server), &mut |event| {
        if let Event::Retry { wait, .. } = event {
            waits.push(wait.as_millis());
        }
        ControlFlow::Continue(())
    });
    assert_eq!(waits, [5, 10, 20, 40], "the wait doubles and ends");
    assert!(failed.unwrap_err().to_string().contains("503"));
    let server = single().serve(first(99, WEIGHTS, |_| Reply::new(418, "").with("X-Error-Message", "a teapot")));
    let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
    assert!(failed.contains("418") && failed.contains("teapot") && failed.contains(WEIGHTS), "{failed}");
    assert_eq!(server.fetches().iter().filter(|r| r.path.ends_with(WEIGHTS)).count(), 1);
}

#[test]
fn a_server_that_names_a_wait_gets_it_unless_it_is_long() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(first(1, WEIGHTS, |_| Reply::new(429, "").with("Retry-After", 1)));
    let start = Instant::now();
    run(&settings(folder.path(), &server), REPO).unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(first(9, WEIGHTS, |_| Reply::new(429, "").with("Retry-After", 86_400)));
    let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
    assert!(failed.contains("86400 seconds"), "{failed}");
}

#[test]
fn a_silent_server_is_left_and_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(first(1, WEIGHTS, |r| {
        let mut reply = Reply::file(r, single().bytes(WEIGHTS));
        reply.stall = Duration::from_secs(3);
        reply
    }));
    let mut settings = settings(folder.path(), &server);
    settings.timeout = Duration::from_millis(300);
    let start = Instant::now();
    run(&settings, REPO).unwrap();
    assert!(start.elapsed() < Duration::from_secs(3));
}

#[test]
fn the_token_goes_to_the_hub_and_to_no_other_port_or_host() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = single().bytes(WEIGHTS).to_vec();
    let store: Arc<Mutex<Option<Server>>> = Arc::default();
    // The store sends the client back to the hub once: from there on it is a stranger's request.
    let hub_url: Arc<Mutex<String>> = Arc::default();
    let (back, whole) = (hub_url.clone(), bytes.clone());
    let cdn = Server::start(move |request| match request.path.as_str() {
        "/hop?signature=1" => Reply::redirect(format!("{}/back", back.lock().unwrap())),
        _ => Reply::file(request, &whole),
    });
    let url = cdn.url();
    let server = single().serve(move |request| match request.path.as_str() {
        "/back" => Some(Reply::redirect(format!("{url}/file?signature=2"))),
        path if path.ends_with(WEIGHTS) => Some(Reply::redirect(format!("{url}/hop?signature=1"))),
        _ => None,
    });
    *hub_url.lock().unwrap() = server.url();
    *store.lock().unwrap() = Some(cdn.clone());
    let mut settings = settings(folder.path(), &server);
    settings.token = Some(Token::new("hf_secret").unwrap());
    run(&settings, REPO).unwrap();
    for request in server.requests() {
        let wanted = if request.path == "/back" { None } else { Some("Bearer hf_secret") };
        assert_eq!(request.header("authorization"), wanted, "{}", request.path);
    }
    assert_eq!(cdn.requests().len(), 2);
    for request in cdn.requests() {
        assert!(!format!("{request:?}").contains("hf_secret"), "{request:?}");
    }
}

#[test]
fn redirects_within_the_hub_are_followed_and_loops_end() {
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|request| match request.path.as_str() {
        "/moved/a%20b" => Some(Reply::file(request, single().bytes(WEIGHTS))),
        path if path.ends_with(WEIGHTS) => Some(Reply::redirect("../../../../moved/a b")),
        path if path.ends_with("config.json") && !path.starts_with("/cache") => {
            Some(Reply::redirect("/cache/config.json"))
        }
        "/cache/config.json" => Some(Reply::file(request, b"{}")),
        _ => None,
    });
    let mut settings = settings(folder.path(), &server);
    settings.token = Some(Token::new("hf_secret").unwrap());
    run(&settings, REPO).unwrap();
    assert!(server.requests().iter().all(|r| r.header("authorization").is_some()));
    for location in ["/loop?x=secret", "ftp://example.com/x", "http://user@127.0.0.1/"] {
        let folder = tempfile::tempdir().unwrap();
        let server = single().serve(move |r| {
            (r.path.ends_with(WEIGHTS) || r.path.starts_with("/loop")).then(|| Reply::redirect(location))
        });
        let mut settings = settings.clone();
        (settings.cache, settings.endpoint) = (folder.path().into(), server.url());
        let failed = run(&settings, REPO).unwrap_err().to_string();
        assert!(failed.contains("redirect") || failed.contains("address"), "{failed}");
        assert!(!failed.contains("secret"), "{failed}");
    }
}

#[test]
fn another_length_or_content_than_listed_is_refused_and_not_kept() {
    let good = single().bytes(WEIGHTS).to_vec();
    let mut flipped = good.clone();
    flipped[123] ^= 1;
    let longer = [&good[..], b"x"].concat();
    for (bytes, length, word) in [
        (flipped, true, "checksum"),
        (good[..399_999].to_vec(), true, "399999 bytes"),
        (good[..399_999].to_vec(), false, "399999 bytes"),
        (longer.clone(), true, "400001 bytes"),
        (longer, false, "400001 bytes"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let server = single().serve(move |request| {
            request.path.ends_with(WEIGHTS).then(|| {
                let from = request.from().unwrap_or(0);
                let mut reply = Reply::new(if from > 0 { 206 } else { 200 }, &bytes[from..]);
                if from > 0 {
                    reply = reply.with("Content-Range", format!("bytes {from}-{}/*", bytes.len() as i64 - 1));
                }
                reply.length = length;
                reply
            })
        });
        let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
        assert!(failed.contains(word) && failed.contains(WEIGHTS), "{failed}");
        let left = blobs(folder.path());
        assert!(!left.iter().any(|name| name.starts_with(&sha256(&good))), "{left:?}");
        assert!(Cache::new(folder.path()).find(&spec(REPO)).is_err());
    }
    let folder = tempfile::tempdir().unwrap();
    let server = single().serve(|r| r.path.ends_with("config.json").then(|| Reply::new(200, "[]")));
    let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
    assert!(failed.contains("config.json") && failed.contains("checksum"), "small files are checked too: {failed}");
}

#[test]
fn what_is_missing_or_closed_is_named_with_the_way_in() {
    let code = |status: u16, code: &'static str| {
        move |_: &server::Request| {
            let reply = Reply::new(status, "");
            Some(if code.is_empty() { reply } else { reply.with("X-Error-Code", code) })
        }
    };
    let said = |server: &Server, name: &str, token: bool| {
        let folder = tempfile::tempdir().unwrap();
        let mut settings = settings(folder.path(), server);
        settings.token = token.then(|| Token::new("hf_secret").unwrap());
        let error = run(&settings, name).unwrap_err().to_string();
        assert!(!error.contains("hf_secret"), "{error}");
        error
    };
    let holds = |text: String, words: &[&str]| {
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    };
    let gated = single().serve(code(403, "GatedRepo"));
    holds(said(&gated, REPO, false), &["gated", &format!("{}/org/name", gated.url()), "HF_TOKEN"]);
    holds(said(&gated, REPO, true), &["gated", "account that the token belongs to"]);
    holds(said(&single().serve(code(401, "GatedRepo")), REPO, false), &["gated", "HF_TOKEN"]);
    holds(said(&single().serve(code(401, "RepoNotFound")), REPO, false), &["no model org/name", "HF_TOKEN"]);
    holds(said(&single().serve(code(404, "RepoNotFound")), REPO, true), &["no model org/name", "token may read it"]);
    holds(said(&single().serve(code(401, "")), REPO, false), &["401", "HF_TOKEN"]);
    holds(said(&single().serve(code(403, "")), REPO, true), &["403", "expired"]);
    holds(said(&single().serve(code(404, "")), REPO, false), &["no model org/name"]);
    holds(said(&single().serve(|_| None), "other/name", false), &["no model other/name"]);
    holds(said(&single().serve(|_| None), "org/name@v9", false), &["no revision \"v9\""]);
    // A mirror without error codes.
    let plain = single().serve(|r| match r.path.as_str() {
        "/api/models/org/name" => Some(Reply::new(200, "{}")),
        path if path.contains("/revision/") => Some(Reply::new(404, "")),
        _ => None,
    });
    holds(said(&plain, "org/name@v9", false), &["no revision \"v9\""]);
    let gone = single()
        .serve(|r| r.path.ends_with(WEIGHTS).then(|| Reply::new(404, "").with("X-Error-Code", "EntryNotFound")));
    holds(said(&gone, REPO, false), &["no file \"model.safetensors\""]);
    let gated_file =
        single().serve(|r| r.path.contains("/resolve/").then(|| Reply::new(403, "").with("X-Error-Code", "GatedRepo")));
    holds(said(&gated_file, REPO, false), &["gated"]);
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
fn a_listing_with_hostile_paths_writes_nothing_outside() {
    for path in [
        "../../../evil.gguf",
        "/tmp/turbospark-evil.gguf",
        "a/../../evil.gguf",
        "C:\\evil.gguf",
        "a\\..\\evil.gguf",
        "a\nb.gguf",
        "nul.gguf",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("a/b/c/cache");
        let server = Repository::new(&[(path, b"evil")])
            .serve(move |r| r.path.contains("/resolve/").then(|| Reply::file(r, b"evil")));
        let failed = run(&settings(&cache, &server), REPO).unwrap_err();
        assert!(matches!(failed, Error::Listing { .. }), "{failed:?}");
        assert!(server.fetches().is_empty() && blobs(&cache).is_empty());
        assert!(!folder.path().join("a/evil.gguf").exists() && !Path::new("/tmp/turbospark-evil.gguf").exists());
    }
    // An index that leads outside, to files that the list has.
    let index = br#"{"weight_map": {"a": "../model.safetensors"}}"#;
    let server = Repository::new(&[
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("../model.safetensors", b"x"),
    ])
    .serve(|_| None);
    let folder = tempfile::tempdir().unwrap();
    let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
    assert!(failed.contains("../model.safetensors"), "{failed}");
}

#[test]
fn a_listing_that_makes_no_sense_is_refused() {
    let tree = |tree: &'static str| move |r: &server::Request| r.path.contains("/tree/").then(|| Reply::new(200, tree));
    let listed =
        r#"[{"type":"file","path":"a-Q4_0.gguf","size":4,"oid":"../../../../x","lfs":{"oid":"../x","size":4}}]"#;
    let no_sum = r#"[{"type":"file","path":"a-Q4_0.gguf","size":4}]"#;
    let twice = r#"[{"type":"file","path":"a","size":4,"oid":"b"},{"type":"file","path":"a","size":4,"oid":"b"}]"#;
    let vast = r#"[{"type":"file","path":"a-Q4_0.gguf","oid":"b",
        "lfs":{"oid":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "size":18446744073709551615}}]"#;
    for (text, word) in [
        (listed, "checksum"),
        (no_sum, "checksum"),
        (twice, "twice"),
        ("[{", "EOF"),
        ("{}", "sequence"),
        (vast, "to come"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let failed = run(&settings(folder.path(), &single().serve(tree(text))), REPO).unwrap_err().to_string();
        assert!(failed.contains(word), "{word}: {failed}");
    }
    for sha in ["../../x", "", "main", &"g".repeat(40)] {
        let folder = tempfile::tempdir().unwrap();
        let body = serde_json::json!({"sha": sha}).to_string();
        let server = single().serve(move |r| r.path.contains("/revision/").then(|| Reply::new(200, body.clone())));
        let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
        assert!(failed.contains("hexadecimal"), "{failed}");
    }
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

#[test]
fn nobody_there_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut settings = Settings::new(folder.path());
    (settings.endpoint, settings.proxy) = (format!("http://{closed}"), false);
    let start = Instant::now();
    let failed = run(&settings, REPO).unwrap_err().to_string();
    assert!(failed.contains("127.0.0.1"), "{failed}");
    assert!(start.elapsed() < Duration::from_secs(1));
}
