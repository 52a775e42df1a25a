//! `turbospark chat`, scripted through its standard input.

mod common;

use common::{example, run, run_with_input};

#[test]
fn a_conversation_about_an_image_reuses_what_was_said() {
    let receipt = example("receipt.png");
    let script = format!("{}\nWhat is the total?\nWhat is the date?\n/stats\n", receipt.display());
    let ran = run_with_input(["chat"], script.as_bytes()).ends_with_code(0);
    assert_eq!(ran.out, "$179.61\n14.06.1994\n");
    ran.says(&["from the cache", "tokens of context"]);
    assert!(!ran.err.contains("(0 from the cache)"), "{}", ran.err);
}

#[test]
fn paths_may_be_quoted_escaped_or_urls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my receipt.png");
    std::fs::copy(example("receipt.png"), &path).unwrap();
    let path = path.display().to_string();
    let url = format!("file://{}", path.replace(' ', "%20"));
    let escaped = path.replace(' ', "\\ ");
    let mut script = String::new();
    for form in [path.clone(), format!("'{path}'"), escaped, url, format!("/image \"{path}\"")] {
        script += &format!("{form}\nWhat is the total?\n/clear\n");
    }
    let ran = run_with_input(["chat"], script.as_bytes()).ends_with_code(0);
    assert_eq!(ran.out, "$179.61\n".repeat(5));
}

#[test]
fn a_turn_that_fails_ends_neither_the_chat_nor_the_history() {
    let receipt = example("receipt.png");
    let broken = common::case_input("s06_cut.jpg");
    let script = format!(
        "/image nope.png\n{}\n/frobnicate\n{}\nWhat is the total?\n/help\n/quit\nWhat is the date?\n",
        broken.display(),
        receipt.display()
    );
    let ran = run_with_input(["chat"], script.as_bytes()).ends_with_code(1);
    assert_eq!(ran.out, "$179.61\n", "/quit ends it");
    ran.says(&["nope.png", "truncated", "/frobnicate", "/image PATH", "/system"]);
}

#[test]
fn an_empty_conversation_is_done() {
    let ran = run(["chat"]).ends_with_code(0);
    assert_eq!((ran.out.as_str(), ran.err.as_str()), ("", ""));
}

#[cfg(unix)]
#[test]
fn an_interrupt_at_an_empty_prompt_leaves_with_130() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::Stdio;

    let mut child = common::program()
        .arg("chat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    writeln!(stdin, "{}\nWhat is the total?", example("receipt.png").display()).unwrap();
    let mut answer = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut answer).unwrap();
    assert!(answer.starts_with('$'));
    // The line may come a moment before the answer ends; the second one always finds an empty prompt.
    std::thread::sleep(std::time::Duration::from_secs(1));
    common::interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(stdin);
}
