//! A hub for tests: threads that answer on the loopback address, as the real one does or worse.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha1::Digest as _;
use turbospark_hub::{Error, Pulled, Settings, Spec, pull};

pub const COMMIT: &str = "1111111111111111111111111111111111111111";
pub const REPO: &str = "org/name";

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// With its query.
    pub path: String,
    pub headers: HashMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The first byte of a range.
    pub fn from(&self) -> Option<usize> {
        self.header("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Closes the connection after so many bytes of the body.
    pub cut: Option<usize>,
    /// Waits before the body.
    pub stall: Duration,
    /// Announces the body's length.
    pub length: bool,
}

impl Reply {
    pub fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Reply { status, headers: Vec::new(), body: body.into(), cut: None, stall: Duration::ZERO, length: true }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.headers.push((name.into(), value.to_string()));
        self
    }

    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }

    pub fn redirect(location: impl ToString) -> Self {
        Reply::new(302, "").with("Location", location)
    }

    /// The file, or its part that was asked for.
    pub fn file(request: &Request, bytes: &[u8]) -> Self {
        match request.from() {
            None => Reply::new(200, bytes),
            Some(from) if from >= bytes.len() => Reply::new(416, ""),
            Some(from) => {
                let range = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
                Reply::new(206, &bytes[from..]).with("Content-Range", range)
            }
        }
    }
}

type Handler = dyn Fn(&Request) -> Reply + Send + Sync;

/// Answers until the test ends.
#[derive(Clone)]
pub struct Server {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(handler: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback address has a free port");
        let address = listener.local_addr().expect("it is bound");
        let requests = Arc::new(Mutex::new(Vec::new()));
        let server = Server { address, requests: requests.clone() };
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (requests, handler) = (requests.clone(), handler.clone());
                std::thread::spawn(move || serve(stream, &requests, &*handler));
            }
        });
        server
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The requests for contents of files.
    pub fn fetches(&self) -> Vec<Request> {
        let mut all = self.requests();
        all.retain(|r| r.path.contains("/resolve/"));
        all
    }
}

fn serve(stream: TcpStream, requests: &Mutex<Vec<Request>>, handler: &Handler) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let request = Request { path, headers };
    requests.lock().unwrap().push(request.clone());
    let reply = handler(&request);
    let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", reply.status);
    if reply.length && !reply.headers.iter().any(|(name, _)| name == "Content-Length") {
        head += &format!("Content-Length: {}\r\n", reply.body.len());
    }
    for (name, value) in &reply.headers {
        head += &format!("{name}: {value}\r\n");
    }
    let mut stream = stream;
    stream.write_all(format!("{head}\r\n").as_bytes()).ok()?;
    std::thread::sleep(reply.stall);
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len()).min(reply.body.len())];
    stream.write_all(body).ok()?;
    stream.flush().ok()?;
    stream.shutdown(Shutdown::Write).ok()?;
    // What is not read yet would turn the end into a reset.
    let _ = reader.read(&mut [0; 64]);
    Some(())
}

/// A file of a repository.
#[derive(Clone, Debug)]
pub struct Content {
    pub bytes: Vec<u8>,
    pub large: bool,
}

/// One repository as the hub serves it.
#[derive(Clone, Debug, Default)]
pub struct Repository {
    pub commit: String,
    pub files: Vec<(String, Content)>,
}

impl Repository {
    pub fn new(files: &[(&str, &[u8])]) -> Self {
        let content = |path: &str, bytes: &[u8]| Content {
            bytes: bytes.to_vec(),
            large: path.ends_with(".safetensors") || path.ends_with(".gguf"),
        };
        let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), content(path, bytes))).collect();
        Repository { commit: COMMIT.into(), files }
    }

    /// A checkpoint in two shards.
    pub fn sharded() -> Self {
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        Repository::new(&[
            ("README.md", b"# Not needed"),
            ("config.json", br#"{"model_type": "qwen3_vl"}"#),
            ("tokenizer.json", b"{}"),
            ("model.safetensors.index.json", index.as_bytes()),
            ("model-1.safetensors", &noise(1, 300_000)),
            ("model-2.safetensors", &noise(2, 200_000)),
            ("pytorch_model.bin", b"never"),
        ])
    }

    pub fn bytes(&self, path: &str) -> &[u8] {
        &self.files.iter().find(|(p, _)| p == path).unwrap_or_else(|| panic!("no {path}")).1.bytes
    }

    /// The list of files.
    pub fn tree(&self) -> serde_json::Value {
        let entry = |(path, content): &(String, Content)| {
            let mut entry = serde_json::json!({
                "type": "file", "path": path, "size": content.bytes.len(), "oid": git_sha1(&content.bytes),
            });
            if content.large {
                entry["lfs"] = serde_json::json!({
                    "oid": sha256(&content.bytes), "size": content.bytes.len(), "pointerSize": 130,
                });
            }
            entry
        };
        self.files.iter().map(entry).collect()
    }

    /// What a well-behaved hub answers.
    pub fn answer(&self, request: &Request) -> Reply {
        let path = decode(request.path.split('?').next().unwrap_or_default());
        let api = format!("/api/models/{REPO}");
        let unknown = |code: &str| Reply::new(404, "").with("X-Error-Code", code);
        if let Some(revision) = path.strip_prefix(&format!("{api}/revision/")) {
            let known = ["main", "dev", "refs/pr/5"].contains(&revision) || self.commit.starts_with(revision);
            let body = serde_json::json!({"id": REPO, "sha": self.commit}).to_string();
            return if known { Reply::new(200, body) } else { unknown("RevisionNotFound") };
        }
        if path == format!("{api}/tree/{}", self.commit) {
            return Reply::new(200, self.tree().to_string());
        }
        match path.strip_prefix(&format!("/{REPO}/resolve/{}/", self.commit)) {
            Some(file) => match self.files.iter().find(|(p, _)| p == file) {
                Some((_, content)) => Reply::file(request, &content.bytes),
                None => unknown("EntryNotFound"),
            },
            None => unknown("RepoNotFound"),
        }
    }

    /// Serves it, but for the requests that `special` answers.
    pub fn serve(self, special: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static) -> Server {
        Server::start(move |request| special(request).unwrap_or_else(|| self.answer(request)))
    }
}

/// Bytes without a pattern, the same each time.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(&sha2::Sha256::digest(bytes))
}

pub fn git_sha1(bytes: &[u8]) -> String {
    hex(&sha1::Sha1::new_with_prefix(format!("blob {}\0", bytes.len())).chain_update(bytes).finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn decode(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(b) = rest.next() {
        let digit = |b: Option<u8>| b.and_then(|b| (b as char).to_digit(16)).unwrap_or(0) as u8;
        bytes.push(if b == b'%' { 16 * digit(rest.next()) + digit(rest.next()) } else { b });
    }
    String::from_utf8(bytes).expect("paths are UTF-8")
}

pub const WEIGHTS: &str = "model.safetensors";

pub fn single() -> Repository {
    Repository::new(&[("config.json", b"{}"), (WEIGHTS, &noise(7, 400_000))])
}

pub fn settings(cache: &Path, server: &Server) -> Settings {
    let mut settings = Settings::new(cache);
    settings.endpoint = server.url();
    settings.proxy = false;
    settings.timeout = Duration::from_secs(5);
    settings.backoff = Duration::from_millis(5);
    settings
}

pub fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

pub fn run(settings: &Settings, name: &str) -> Result<Pulled, Error> {
    pull(&spec(name), settings, &mut |_| ControlFlow::Continue(()))
}

pub fn blobs(cache: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(cache.join("models--org--name/blobs")) else { return Vec::new() };
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Answers the first `times` requests whose path ends so with `reply`.
pub fn first(
    times: usize,
    ending: &'static str,
    reply: impl Fn(&Request) -> Reply + Send + Sync + 'static,
) -> impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |request| {
        let hit = request.path.ends_with(ending) && count.fetch_add(1, Ordering::SeqCst) < times;
        hit.then(|| reply(request))
    }
}
