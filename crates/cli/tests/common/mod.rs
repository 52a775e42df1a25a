//! Running the built program.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

pub const RECEIPT_TEXT: &str = "HILL DELI\n9 x Hose $15.90\n3 x Coffee 113.10\nBowl $37.31\nSUBTOTAL $166.31\n\
                                Tax $13.30\nTotal due $179.61\n14.06.1994\nPaid by card";

/// What a run of the program gave.
#[derive(Debug)]
pub struct Ran {
    pub out: String,
    pub err: String,
    pub code: Option<i32>,
}

impl Ran {
    /// The JSON objects on stdout, one a line.
    pub fn objects(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        self.out.lines().map(parse).collect()
    }

    #[track_caller]
    pub fn ends_with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    /// Whether stderr names all of these.
    #[track_caller]
    pub fn says(&self, words: &[&str]) {
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in {:?}", self.err);
        }
    }
}

pub fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_turbospark"));
    command.stdin(Stdio::null());
    command
}

pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    finish(program().args(args), b"")
}

/// Runs with `input` on stdin.
pub fn run_with_input<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: &[u8]) -> Ran {
    finish(program().args(args).stdin(Stdio::piped()), input)
}

pub fn finish(command: &mut Command, input: &[u8]) -> Ran {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input).expect("the program reads its input");
    }
    let done = child.wait_with_output().expect("the program ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
    Ran { out: text(done.stdout), err: text(done.stderr), code: done.status.code() }
}

/// Sends an interrupt, as Ctrl-C does.
#[cfg(unix)]
pub fn interrupt(child: &std::process::Child) {
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace is there")
}

pub fn example(name: &str) -> PathBuf {
    root().join("examples").join(name)
}

pub fn case_input(name: &str) -> PathBuf {
    root().join("assets/cases/inputs").join(name)
}

pub fn expected(case: &str) -> Value {
    let path = root().join("assets/cases/expect").join(case);
    serde_json::from_str(&std::fs::read_to_string(path).expect("the case is there")).expect("the case is JSON")
}

/// A grey picture of this size, as a file.
pub fn grey(folder: &Path, width: usize, height: usize) -> PathBuf {
    let path = folder.join(format!("grey-{width}x{height}.pgm"));
    let mut bytes = format!("P5\n{width} {height}\n255\n").into_bytes();
    bytes.resize(bytes.len() + width * height, 128);
    std::fs::write(&path, bytes).expect("the folder can be written");
    path
}
