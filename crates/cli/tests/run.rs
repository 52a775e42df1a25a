//! `turbospark run`: one prompt from flags, standard input or a request.

mod common;

use common::{example, run, run_with_input};
use serde_json::json;

#[test]
fn images_and_text_make_one_answer() {
    let receipt = example("receipt.png");
    let args = ["run".as_ref(), "--image".as_ref(), receipt.as_os_str()];
    let ran = run(args.into_iter().chain(["What is the total?".as_ref()])).ends_with_code(0);
    assert_eq!(ran.out, "$179.61\n");
    assert_eq!(run_with_input(args, b"What is the total?\n").ends_with_code(0).out, "$179.61\n");
}

#[test]
fn a_request_finds_its_images_beside_itself_and_flags_go_before_its_settings() {
    let folder = tempfile::tempdir().unwrap();
    // A name that a file: URL has to escape.
    std::fs::copy(example("receipt.png"), folder.path().join("my receipt.png")).unwrap();
    let url = format!("file://{}/my%20receipt.png", folder.path().display());
    let path = folder.path().join("request.json");
    for address in ["my receipt.png", &url] {
        let request = json!({
            "model": "any", "max_tokens": 3, "top_p": 0.9, "logit_bias": {"1": 2},
            "messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": address}},
                {"type": "text", "text": "What is the total?"}]}]
        });
        std::fs::write(&path, request.to_string()).unwrap();
        let args = ["run".as_ref(), "--json".as_ref(), "--messages".as_ref(), path.as_os_str()];
        let ran = run(args).ends_with_code(1);
        assert_eq!(ran.objects()[0]["finish_reason"], "length");
        assert_eq!(ran.objects()[0]["usage"]["completion_tokens"], 3);
        ran.says(&["logit_bias", "not used"]);
        let ran = run(args.into_iter().chain(["--max-tokens".as_ref(), "50".as_ref()])).ends_with_code(0);
        assert_eq!(ran.objects()[0]["text"], "$179.61");
        assert_eq!(ran.objects()[0]["images"][0]["tokens"], 130);
    }
}

#[test]
fn a_request_with_a_bad_address_fails_as_json_too() {
    for (url, word) in [("https://example.com/a.png", "not fetched"), ("absent.png", "absent.png")] {
        let request = json!([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]);
        let args = ["run", "--json", "--messages", "-"];
        let ran = run_with_input(args, request.to_string().as_bytes()).ends_with_code(1);
        ran.says(&["image 1", word]);
        assert!(ran.objects()[0]["error"].as_str().unwrap().contains(word));
    }
    run_with_input(["run", "--messages", "-"], b"{").ends_with_code(1);
    run_with_input(["run", "--messages", "-"], b"{}").ends_with_code(1).says(&["messages"]);
}

#[test]
fn sampling_with_a_seed_is_repeatable_and_stop_texts_end_the_answer() {
    let receipt = example("receipt.png");
    let image = ["run".as_ref(), "Read the text.".as_ref(), "--image".as_ref(), receipt.as_os_str()];
    let warm = ["--temperature".as_ref(), "1.5".as_ref(), "--seed".as_ref(), "7".as_ref()];
    let once = || run(image.into_iter().chain(warm)).ends_with_code(0).out;
    assert_eq!(once(), once());
    let ran = run(image.into_iter().chain(["--stop".as_ref(), "Coffee".as_ref()])).ends_with_code(0);
    assert_eq!(ran.out, "HILL DELI\n9 x Hose $15.90\n3 x \n");
}
