//! Pulls from hubs and over networks that fail, lie or lead astray.

mod server;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use server::{REPO, Reply, Repository, Request, Server, WEIGHTS, blobs, first, run, settings, sha256, single, spec};
use turbospark_hub::{Cache, Error, Event, Settings, Token, pull};

#[test]
fn a_cut_connection_is_gone_on_with_where_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let repository = single();
    let bytes = repository.bytes(WEIGHTS).to_vec();
    let server = repository.serve(first(2, WEIGHTS, move |r| Reply::file(r, &bytes).cut_after(150_000)));
    let pulled = run(&settings(folder.path(), &server), REPO).unwrap();
    let ranges: Vec<_> = server.fetches().iter().filter(|r| r.path.ends_with(WEIGHTS)).map(Request::from).collect();
    assert_eq!(ranges, [None, Some(150_000), Some(300_000)]);
    assert_eq!(std::fs::read(pulled.model.path.join(WEIGHTS)).unwrap(), single().bytes(WEIGHTS));
    assert_eq!(pulled.downloaded, 400_002);
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
    // As a limit that is used up is told: how much is left, and when it is filled again.
    let folder = tempfile::tempdir().unwrap();
    let limit = r#""resolvers";r=0;t=86401"#;
    let server = single().serve(first(9, WEIGHTS, move |_| Reply::new(429, "").with("RateLimit", limit)));
    let failed = run(&settings(folder.path(), &server), REPO).unwrap_err().to_string();
    assert!(failed.contains("86401 seconds"), "{failed}");
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
        move |_: &Request| {
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
    // What the hub itself says of it is what helps: the token lacks a right, or the owner has not answered.
    let says = |status: u16, code: &'static str, words: &'static str| {
        single().serve(move |_| Some(Reply::new(status, "").with("X-Error-Code", code).with("X-Error-Message", words)))
    };
    let waiting = "Your request to access model org/name is awaiting a review from the repo authors.";
    holds(said(&says(403, "GatedRepo", waiting), REPO, true), &["gated", "awaiting a review"]);
    let rights = "Please enable access to public gated repositories in your fine-grained token settings";
    holds(said(&says(403, "", rights), REPO, true), &["403", "fine-grained token settings"]);
    let disabled = said(&says(403, "", "Access to this resource is disabled."), REPO, true);
    holds(disabled.clone(), &["403", "disabled"]);
    assert!(!disabled.contains("token"), "{disabled}");
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
    let tree = |tree: &'static str| move |r: &Request| r.path.contains("/tree/").then(|| Reply::new(200, tree));
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
