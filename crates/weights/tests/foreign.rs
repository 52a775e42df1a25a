//! Files that hold no weights of a kind that is read: what is said of them.

mod common;

use common::{folder, honest};
use turbospark_weights::{Folder, Sidecar, gguf::Mmproj};

/// What is said of a folder of these files, as a program opens it.
fn said(files: &[(&str, &[u8])]) -> String {
    let dir = folder(files);
    let folder = Folder::open(dir.path()).unwrap();
    match folder.require(Sidecar::Config) {
        Err(e) => e.to_string(),
        Ok(_) => folder.checkpoint().unwrap_err().to_string(),
    }
}

#[test]
fn a_folder_of_other_weights_is_refused_with_what_to_do() {
    const CONFIG: (&str, &[u8]) = ("config.json", b"{}");
    let adapter = honest(&[("lora_A.weight", "F32", &[2], 4)]);
    for (files, parts) in [
        (&[CONFIG, ("pytorch_model.bin", b"PK\x03\x04")][..], &["pytorch_model.bin", "safetensors or GGUF"][..]),
        (&[CONFIG, ("consolidated.00.pth", b"")], &["consolidated.00.pth", "PyTorch"]),
        (&[CONFIG, ("model.onnx", b"")], &["model.onnx", "another runtime"]),
        (&[("adapter_config.json", b"{}"), ("adapter_model.safetensors", &adapter)], &["adapter", "merge it"]),
        (&[CONFIG, ("adapter_model.safetensors", &adapter)], &["adapter_model.safetensors", "merge it"]),
        (&[CONFIG], &["no model.safetensors"]),
        (&[], &["config.json is missing"]),
    ] {
        let said = said(files);
        assert!(parts.iter().all(|part| said.contains(part)), "{said:?} lacks one of {parts:?}");
    }
}

#[test]
fn a_file_that_is_something_else_is_called_what_it_is() {
    for (name, bytes, part) in [
        ("model.safetensors", &b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"[..], "Git LFS"),
        ("model.safetensors", b"<!DOCTYPE html><html></html>", "a web page"),
        ("model.safetensors", b"PK\x03\x04 and more", "PyTorch"),
        ("model.safetensors", b"GGUF and more", "ends in .gguf"),
        ("model.gguf", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        ("model.gguf", b"<html></html>", "a web page"),
    ] {
        let dir = folder(&[(name, bytes), ("config.json", b"{}")]);
        let said = Folder::open(dir.path()).and_then(|folder| folder.checkpoint().map(drop)).unwrap_err().to_string();
        assert!(said.contains(part) && said.contains(name), "{said}");
    }
}

#[test]
fn a_tower_is_named_for_gguf_models_alone() {
    let dir = folder(&[("config.json", b"{}"), ("model.safetensors", &honest(&[]))]);
    for path in [dir.path().to_owned(), dir.path().join("model.safetensors")] {
        for mmproj in [Mmproj::Without, Mmproj::At("x.gguf".into())] {
            let said = Folder::open_with(&path, &mmproj).unwrap_err().to_string();
            assert!(said.contains("--mmproj is for .gguf models"), "{said}");
        }
    }
}
