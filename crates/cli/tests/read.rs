//! `turbospark read`: the main job, what it does with files it can't read, and how it ends.

mod common;

use common::{RECEIPT_TEXT, case_input, example, finish, program, root, run, run_with_input};

#[test]
fn the_receipt_is_read_exactly() {
    let ran = run(["read".as_ref(), example("receipt.png").as_os_str()]).ends_with_code(0);
    assert_eq!(ran.out, format!("{RECEIPT_TEXT}\n"));
    assert_eq!(ran.err, "", "nothing but the text is said where no terminal listens");
}

#[test]
fn a_question_about_the_receipt_is_answered() {
    let ran = run(["read".as_ref(), "--prompt=What is the total?".as_ref(), example("receipt.png").as_os_str()]);
    assert_eq!(ran.ends_with_code(0).out, "$179.61\n");
}

#[test]
fn a_page_as_json_has_the_documented_shape() {
    let receipt = example("receipt.png");
    let ran = run(["read".as_ref(), "--json".as_ref(), receipt.as_os_str()]).ends_with_code(0);
    let objects = ran.objects();
    assert_eq!(objects.len(), 1);
    let page = &objects[0];
    assert_eq!(page["file"], receipt.to_str().unwrap());
    assert_eq!(page["page"], 1);
    assert_eq!(page["text"], RECEIPT_TEXT);
    assert_eq!(page["finish_reason"], "stop");
    let image = serde_json::json!([{"width": 427, "height": 323, "grid_thw": [1, 20, 26], "tokens": 130}]);
    assert_eq!(page["images"], image);
    assert_eq!(page["usage"]["prompt_tokens"], 144);
    assert!(page["usage"]["completion_tokens"].as_u64().unwrap() > 40);
    for stage in ["encode_s", "prefill_s", "decode_s"] {
        assert!(page["timing"][stage].as_f64().unwrap() > 0.0, "{stage}");
    }
    assert_eq!(page["model"], "tiny-ocr-qwen3_vl");
}

#[test]
fn a_broken_file_among_others_costs_only_itself() {
    let line = root().join("assets/eval/000-line-clean.png");
    let broken = case_input("s06_cut.jpg");
    let files = [line.as_os_str(), broken.as_os_str(), line.as_os_str()];
    let ran = run(["read".as_ref()].into_iter().chain(files)).ends_with_code(1);
    let name = line.display();
    assert_eq!(ran.out, format!("==> {name} <==\nthat the best\n\n==> {name} <==\nthat the best\n"));
    ran.says(&["s06_cut.jpg", "truncated"]);

    let ran = run(["read".as_ref(), "--json".as_ref()].into_iter().chain(files)).ends_with_code(1);
    let objects = ran.objects();
    assert_eq!(objects.len(), 3, "a page a line, the broken one too");
    assert_eq!(objects[0]["text"], "that the best");
    assert_eq!(objects[1]["page"], 1);
    assert!(objects[1]["error"].as_str().unwrap().contains("truncated"));
    assert!(objects[1].get("text").is_none());
    assert_eq!(objects[2]["text"], "that the best");
}

#[test]
fn a_page_cut_by_the_token_limit_is_printed_and_counts_as_failed() {
    let receipt = example("receipt.png");
    let args = ["read".as_ref(), receipt.as_os_str(), "--max-tokens".as_ref(), "6".as_ref()];
    let ran = run(args).ends_with_code(1);
    let text = ran.out.trim_end_matches('\n');
    assert!(!text.is_empty() && RECEIPT_TEXT.starts_with(text), "{text:?}");
    ran.says(&["receipt.png", "6 tokens", "--max-tokens"]);

    let ran = run(args.into_iter().chain(["--json".as_ref()])).ends_with_code(1);
    assert_eq!(ran.objects()[0]["finish_reason"], "length");
    assert_eq!(ran.objects()[0]["usage"]["completion_tokens"], 6);
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_with_both_numbers() {
    let receipt = example("receipt.png");
    let ran = run(["read".as_ref(), receipt.as_os_str(), "--context".as_ref(), "100".as_ref()]).ends_with_code(1);
    assert_eq!(ran.out, "");
    ran.says(&["144 tokens", "100", "--context", "--max-pixels"]);
}

#[test]
fn an_image_comes_from_standard_input_too() {
    let bytes = std::fs::read(root().join("assets/eval/000-line-clean.png")).unwrap();
    assert_eq!(run_with_input(["read", "-"], &bytes).ends_with_code(0).out, "that the best\n");
    run_with_input(["read", "-", "-"], &bytes).ends_with_code(2).says(&["once"]);
}

#[test]
fn what_is_no_picture_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let pdf: &[u8] = b"%PDF-1.7\n1 0 obj";
    let mkv: &[u8] = b"\x1a\x45\xdf\xa3\x01\0\0\0\0\0\0\x1f";
    let mp4: &[u8] = b"\0\0\0\x20ftypisom\0\0\x02\0isomiso2avc1mp41";
    let cases = [("a.pdf", pdf, "PDF"), ("b.png", mkv, "WebM"), ("c.mp4", mp4, "MP4"), ("d.png", b"", "empty")];
    let mut files = vec![folder.path().to_owned(), folder.path().join("absent.png"), case_input("s06_heic_head.heic")];
    for (name, bytes, _) in cases {
        files.push(folder.path().join(name));
        std::fs::write(files.last().unwrap(), bytes).unwrap();
    }
    let ran = finish(program().arg("read").args(&files), b"").ends_with_code(1);
    assert_eq!(ran.out, "");
    ran.says(&["is a folder", "*.png", "absent.png", "HEIC"]);
    for (name, _, word) in cases {
        let line = ran.err.lines().find(|l| l.contains(name)).unwrap_or_else(|| panic!("{name} is not in {}", ran.err));
        assert!(line.contains(word), "{line}");
    }
}

#[test]
fn frames_that_are_left_out_are_noted() {
    // Two frames of one white pixel.
    let mut gif = b"GIF89a\x01\0\x01\0\x80\0\0\xff\xff\xff\0\0\0".to_vec();
    for _ in 0..2 {
        gif.extend(b"\x21\xf9\x04\0\0\0\0\0,\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0");
    }
    gif.push(b';');
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("moving.gif");
    std::fs::write(&path, gif).unwrap();
    let ran = run(["preprocess".as_ref(), "--json".as_ref(), path.as_os_str()]).ends_with_code(0);
    ran.says(&["moving.gif", "first of 2 frames"]);
    assert_eq!(ran.objects()[0]["notes"][0], "only the first of 2 frames was used");
}

#[cfg(unix)]
mod streams {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;

    use super::common::{RECEIPT_TEXT, example, interrupt, program};

    /// So many pages that the program is still at work when the test is done with it.
    const MANY: usize = 200;

    #[test]
    fn a_reader_that_leaves_ends_it_quietly() {
        let mut child = program()
            .arg("read")
            .args(vec![example("receipt.png"); MANY])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap(); // and closes the pipe
        assert!(line.starts_with("==> "));
        let done = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stderr), "");
        assert_eq!(done.status.code(), Some(0));
    }

    #[test]
    fn an_interrupt_keeps_the_text_so_far_and_gives_130() {
        // The end of a page's prefill is told, so the interrupt falls into its answer, unless this test then waits for a
        // processor longer than an answer takes.
        let cut = (0..20).any(|_| {
            let mut child = program()
                .args(["-vv", "read", "--json"])
                .args(vec![example("receipt.png"); MANY])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
            told.by_ref().filter(|line| line.contains("prefill")).nth(1).expect("no second page was begun");
            interrupt(&child);
            let drained = std::thread::spawn(move || told.for_each(drop));
            let mut out = String::new();
            child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
            drained.join().unwrap();
            assert_eq!(child.wait().unwrap().code(), Some(130));
            assert!((1..MANY).contains(&out.lines().count()));
            let last: serde_json::Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
            assert!(RECEIPT_TEXT.starts_with(last["text"].as_str().unwrap()));
            last["finish_reason"] == "cancelled"
        });
        assert!(cut, "no page was cut");
    }

    #[test]
    fn a_second_interrupt_ends_it_at_once() {
        // The plain loops take half a minute for this page: the first interrupt waits for the tower.
        let mut child = program()
            .args(["-v", "read", "--device", "reference"])
            .arg(example("receipt.png"))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("load") {
            line.clear();
            assert!(err.read_line(&mut line).unwrap() > 0, "the model was never loaded");
        }
        std::thread::sleep(std::time::Duration::from_millis(300));
        let began = std::time::Instant::now();
        interrupt(&child);
        std::thread::sleep(std::time::Duration::from_millis(300));
        interrupt(&child);
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }
}
