//! Case S18 at a small scale: at the whole model, a half, a quarter and the least ceiling the same tokens and bits, and no
//! more memory than was allowed, by the kernel's own account: while loading, with pages of different sizes, with
//! prompts that need other experts. `scripts/ceiling.py` does the same at the size of real models.

mod common;

use std::path::{Path, PathBuf};

use common::{example, root, run};
use serde_json::{Value, json};
use turbospark::Cancel;
use turbospark::bench::{Shape, build_checkpoint};

/// A model of some 90 MB that takes a moment, as a mixture where `experts`.
fn checkpoint(folder: &Path, experts: bool) -> PathBuf {
    let mut config = Shape::named("tiny").expect("a shape").config;
    for (key, id) in [("image_token_id", 300), ("video_token_id", 301), ("vision_start_token_id", 302)] {
        config[key] = id.into();
    }
    config["vision_end_token_id"] = 303.into();
    let (text, vision) =
        (&mut config["text_config"], json!({"depth": 6, "hidden_size": 256, "intermediate_size": 1024}));
    let sizes = json!({"vocab_size": 4096, "eos_token_id": 304, "hidden_size": 512, "num_hidden_layers": 8,
        "intermediate_size": 3072, "num_attention_heads": 8, "num_key_value_heads": 4});
    extend(text, sizes);
    if experts {
        extend(
            text,
            json!({"num_experts": 32, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "model_type":
                "qwen3_vl_moe_text"}),
        );
        config["model_type"] = "qwen3_vl_moe".into();
        config["architectures"] = json!(["Qwen3VLMoeForConditionalGeneration"]);
        config["vision_config"]["model_type"] = "qwen3_vl_moe".into();
    }
    extend(&mut config["vision_config"], vision);
    config["vision_config"]["out_hidden_size"] = 512.into();
    let name = if experts { "mixture" } else { "dense" };
    let shape = Shape { name, config };
    let path = build_checkpoint(&shape, folder, &Cancel::new(), &mut |_, _| ()).expect("it is written");
    let template = root().join("assets/tiny-ocr-qwen3_vl/chat_template.jinja");
    std::fs::copy(template, path.join("chat_template.jinja")).expect("a template");
    forget(&path.join("model.safetensors"));
    path
}

/// Has a file leave the page cache, so that what stays is read past it too; where the tool is missing it is copied.
fn forget(file: &Path) {
    let of = format!("of={}", file.display());
    let all = [of.as_str(), "oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"];
    let _ = std::process::Command::new("dd").args(all).status();
}

fn extend(object: &mut Value, more: Value) {
    let (Some(object), Value::Object(more)) = (object.as_object_mut(), more) else { unreachable!("objects") };
    object.extend(more);
}

/// Ceilings in MiB: what takes everything, a half and a quarter of what weights take of it, and the least.
fn ceilings(model: &str) -> [u64; 4] {
    let refused = run(["inspect", "--plan", "--memory", "20M", model, "--context", "1024"]);
    let least = refused.err.split("--memory ").nth(1).and_then(|rest| rest.split('M').next());
    let least: u64 = least.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{}", refused.err));
    let plan = |memory: u64| {
        let memory = format!("{memory}M");
        let got = run(["inspect", "--plan", "--json", "--memory", &memory, model, "--context", "1024"]);
        serde_json::from_str::<Value>(&got.out).unwrap_or_else(|_| panic!("{}", got.err))
    };
    let streams = |memory: u64| {
        let plan = plan(memory);
        plan["read_per_token"].as_u64() != Some(0) || plan["read_per_image"].as_u64() != Some(0)
    };
    let whole = (0..).map(|i| least + 8 * i).find(|&memory| !streams(memory)).expect("some memory is enough");
    assert!(streams(least) && whole > least + 40, "{least} {whole}");
    let shown = run(["inspect", "--plan", "--memory", &format!("{least}M"), model, "--context", "1024"]);
    assert!(shown.out.contains("read again: ") && shown.out.contains("with more memory"), "{}", shown.out);
    let part = |n: u64| least + (whole - least) / n;
    [whole, part(2), part(4), least]
}

fn check(experts: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = tempfile::tempdir().expect("a folder");
    let model = checkpoint(folder.path(), experts).display().to_string();
    let pages = ["000-line-clean.png", "025-page11_14-clean.png", "029-receipt-hard.png", "000-line-clean.png"];
    let pages: Vec<String> = pages.map(|p| root().join("assets/eval").join(p).display().to_string()).to_vec();
    let request = folder.path().join("request.json");
    let image =
        json!({"type": "image_url", "image_url": {"url": format!("file://{}", example("receipt.png").display())}});
    let text = json!({"type": "text", "text": "What does it say?"});
    let messages = json!({"messages": [{"role": "user", "content": [image, text]}]});
    std::fs::write(&request, messages.to_string()).expect("written");

    let mut expected: Option<(Vec<Value>, Vec<u8>)> = None;
    for memory in ceilings(&model) {
        let ceiling = format!("{memory}M");
        let common = ["--memory", ceiling.as_str(), "--model", model.as_str(), "--context", "1024", "--threads", "2"];
        let read = ["read", "--json", "--max-tokens", "8"];
        let got = run(read.into_iter().chain(common).chain(pages.iter().map(String::as_str)));
        let objects = got.objects();
        assert_eq!(objects.len(), 4, "{memory} MiB: {}", got.err);
        let texts: Vec<Value> = objects.iter().map(|page| json!([page["text"], page["usage"]])).collect();
        let memory_of = &objects[3]["memory"];
        let peak = memory_of["peak"].as_u64();
        if cfg!(target_os = "linux") {
            let peak = peak.expect("the kernel tells");
            println!("experts {experts}: {memory} MiB allowed, {} MiB at most", peak >> 20);
            assert!(peak as f64 <= 1.03 * (memory << 20) as f64, "{memory} MiB allowed, {peak} bytes were in memory");
        }
        let out = folder.path().join("trace.safetensors");
        let (request, out) = (request.display().to_string(), out.display().to_string());
        let trace = [
            "trace",
            "--precision",
            "auto",
            "--max-tokens",
            "32",
            "--request",
            request.as_str(),
            "--out",
            out.as_str(),
        ];
        let traced = common::finish(
            common::program().args(trace.into_iter().chain(common)).env("XDG_CACHE_HOME", cache.path()),
            b"",
        );
        assert_eq!(traced.code, Some(0), "{memory} MiB: {}", traced.err);
        let bytes = std::fs::read(&out).expect("a trace");
        match &expected {
            None => expected = Some((texts, bytes)),
            Some((expected, trace)) => {
                assert_eq!(&texts, expected, "{memory} MiB");
                assert!(bytes == *trace, "{memory} MiB: another bit than in memory");
            }
        }
    }
    assert!(std::fs::read_dir(cache.path()).expect("it is there").next().is_none(), "nothing is written while it runs");
}

#[test]
fn a_dense_model_keeps_every_ceiling_and_every_bit() {
    check(false);
}

#[test]
fn a_mixture_keeps_every_ceiling_and_every_bit() {
    check(true);
}
