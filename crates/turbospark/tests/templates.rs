//! A checkpoint's chat templates, wherever its folder keeps them, and in a GGUF file that is written of it.
#![cfg(feature = "device-cpu")]

mod support;

use std::path::Path;

use serde_json::json;
use support::written::{options, text_only};
use turbospark::pack::{PackFormat, PackOptions, pack};
use turbospark::{Cancel, ChatOptions, LoadOptions, Model};

/// A small text model without a template.
fn bare() -> tempfile::TempDir {
    let (config, tensors) = text_only("qwen3", 2);
    let folder = support::written::folder(&config, &tensors);
    std::fs::remove_file(folder.path().join("chat_template.jinja")).unwrap();
    folder
}

fn put(folder: &Path, file: &str, text: &str) {
    std::fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
    std::fs::write(folder.join(file), text).unwrap();
}

/// What a template makes of no more than a word: which one it is. With tools, the one for tools.
fn shown(path: &Path, name: Option<&str>, tools: bool) -> Result<String, String> {
    let options = LoadOptions {
        chat_template: name.map(str::to_owned),
        threads: Some(1),
        context: Some(64),
        ..LoadOptions::default()
    };
    let model = Model::open(path, &options).map_err(|e| e.to_string())?;
    let tools = tools.then(|| json!([{"type": "function", "function": {"name": "f"}}]));
    let prompt = model.prompt().text("x").options(ChatOptions { tools, ..ChatOptions::default() }).build();
    let ids = prompt.map_err(|e| e.to_string())?.ids().to_vec();
    let mut decoder = turbospark_text::StreamDecoder::new(model.tokenizer());
    Ok(ids.into_iter().map(|id| decoder.push(id)).collect::<String>() + &decoder.finish())
}

#[test]
fn templates_are_found_by_name_in_every_place_of_a_folder_and_in_a_file() {
    let folder = bare();
    let at = folder.path();
    put(at, "chat_template.json", r#"{"chat_template": "json"}"#);
    assert_eq!(shown(at, None, false).unwrap(), "json");
    put(at, "chat_template.jinja", "own");
    put(at, "additional_chat_templates/tool_use.jinja", "with tools");
    put(at, "additional_chat_templates/rag.jinja", "documents");
    put(at, "additional_chat_templates/notes.txt", "{% no template");
    let outer = tempfile::tempdir().unwrap();
    let [packed, gguf] = ["packed", "gguf"].map(|name| outer.path().join(name));
    pack(at, &packed, &PackOptions::default(), &Cancel::new(), &mut |_| {}).unwrap();
    let as_gguf = PackOptions { format: PackFormat::Gguf, ..options(None) };
    let file = pack(at, &gguf, &as_gguf, &Cancel::new(), &mut |_| {}).unwrap().model;
    for path in [at, &packed, &file] {
        let of = |name, tools| shown(path, name, tools).unwrap();
        assert_eq!([of(None, false), of(None, true), of(Some("rag"), true)], ["own", "with tools", "documents"]);
        let said = shown(path, Some("other"), false).unwrap_err();
        assert!(
            ["\"other\"", "\"default\"", "\"rag\"", "\"tool_use\""].iter().all(|word| said.contains(word)),
            "{said}"
        );
    }
}
