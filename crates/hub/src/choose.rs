//! Which files of a repository are the model.
//!
//! A repository holds more than that: the same weights in other forms, code, pictures, notes. What is not read is
//! not fetched. The same rules find the model among what the cache holds.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use crate::gguf::{Group, groups, mmproj, pick};

/// What a model's description is spread over; none of them is large.
const SIDECARS: [&str; 16] = [
    "config.json",
    "generation_config.json",
    // What older GPTQ and AWQ folders say of their codes.
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Several times the largest published index.
pub(crate) const MAX_INDEX: u64 = 64 << 20;

/// A file by its path in the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) size: u64,
}

/// The files of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A folder of safetensors with its sidecars; `index` lists further files.
    Safetensors { files: Vec<String>, index: Option<String> },
    /// One quantisation, and the vision part.
    Gguf { group: Group, mmproj: Option<String> },
}

/// What `part` asks for among `files`; without it a safetensors checkpoint before a GGUF file.
///
/// # Errors
/// What is in the way, with what there is.
pub(crate) fn choose(files: &[File], part: Option<&str>, name: &str) -> Result<Choice, String> {
    let ggufs = groups(files);
    let has = |path: &str| files.iter().any(|f| f.path == path);
    let weights = files.iter().filter(|f| is_root_safetensors(&f.path));
    let is_checkpoint = has("config.json") && (has(INDEX) || weights.clone().next().is_some());
    match (part, ggufs.is_empty()) {
        (None, _) if is_checkpoint => {}
        (Some(part), true) if is_checkpoint => {
            return Err(format!(
                "{name} has no GGUF file, so there is no {part:?}; pull it whole, and quantise with --quant to run it"
            ));
        }
        (_, false) => {
            let group = pick(&ggufs, part, name)?;
            if group.missing() > 0 {
                let (label, missing, of) = (&group.label, group.missing(), group.of);
                return Err(format!("{label} of {name} is split into {of} files, {missing} of which are missing"));
            }
            let mmproj = mmproj(files, &group).map(|f| f.path.clone());
            return Ok(Choice::Gguf { group, mmproj });
        }
        (_, true) => {
            let why = if has("config.json") {
                "weights in safetensors or GGUF"
            } else {
                "config.json with safetensors, and no GGUF"
            };
            return Err(format!("{name} has no {why}: nothing that turbospark runs"));
        }
    }
    let mut chosen: Vec<String> = SIDECARS.iter().filter(|s| has(s)).map(|s| (*s).to_owned()).collect();
    chosen.extend(files.iter().filter(|f| is_template(&f.path)).map(|f| f.path.clone()));
    if has(SINGLE) {
        chosen.push(SINGLE.into());
    } else if has(INDEX) {
        chosen.push(INDEX.into());
        return Ok(Choice::Safetensors { files: chosen, index: Some(INDEX.into()) });
    } else {
        let weights: Vec<_> = weights.collect();
        let [only] = weights.as_slice() else {
            let rows = weights.iter().map(|f| (String::new(), f.size, f.path.clone())).collect();
            return Err(format!(
                "{name} has several weight files and no {INDEX} that says which belong together\n{}",
                table(rows)
            ));
        };
        chosen.push(only.path.clone());
    }
    Ok(Choice::Safetensors { files: chosen, index: None })
}

/// The weight files that an index names, in order.
///
/// # Errors
/// An index that is none.
pub(crate) fn shards(index: &str) -> Result<BTreeSet<String>, String> {
    let index: Value = serde_json::from_str(index).map_err(|e| format!("{INDEX}: {e}"))?;
    let map = index["weight_map"].as_object().ok_or_else(|| format!("{INDEX} has no weight_map"))?;
    let name = |v: &Value| v.as_str().filter(|s| is_root_safetensors(s)).map(str::to_owned);
    let names = map
        .values()
        .map(|v| name(v).ok_or_else(|| format!("{INDEX} names {v}, which is no safetensors file beside it")));
    let names = names.collect::<Result<BTreeSet<_>, _>>()?;
    if names.is_empty() { Err(format!("{INDEX} names no file")) } else { Ok(names) }
}

/// A chat template beside the one in `chat_template.jinja`.
fn is_template(path: &str) -> bool {
    let name = path.strip_prefix("additional_chat_templates/").and_then(|name| name.strip_suffix(".jinja"));
    name.is_some_and(|name| !name.is_empty() && !name.contains('/') && !name.starts_with('.'))
}

fn is_root_safetensors(path: &str) -> bool {
    path.ends_with(".safetensors") && !path.contains('/') && !path.starts_with('.')
}

/// Rows of label, size and path.
pub(crate) fn table(rows: Vec<(String, u64, String)>) -> String {
    const MOST: usize = 40;
    let width = rows.iter().map(|(label, ..)| label.chars().count()).max().unwrap_or(0);
    let clean = |text: &str| text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect::<String>();
    let line = |(label, bytes, path): &(String, u64, String)| {
        format!("  {:<width$}  {:>10}  {}", clean(label), Bytes(*bytes).to_string(), clean(path))
    };
    let mut lines: Vec<String> = rows.iter().take(MOST).map(line).collect();
    if rows.len() > MOST {
        lines.push(format!("  and {} more", rows.len() - MOST));
    }
    lines.join("\n")
}

/// A number of bytes in binary units.
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 { write!(f, "{} B", self.0) } else { write!(f, "{value:.2} {}", UNITS[unit]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<File> {
        paths.iter().map(|p| File { path: (*p).into(), size: 1 }).collect()
    }

    fn chosen(paths: &[&str]) -> (Vec<String>, Option<String>) {
        match choose(&files(paths), None, "org/name").unwrap() {
            Choice::Safetensors { files, index } => (files, index),
            gguf => panic!("{gguf:?}"),
        }
    }

    #[test]
    fn a_checkpoint_is_its_sidecars_and_its_weights_and_nothing_else() {
        let (files, index) = chosen(&[
            ".gitattributes",
            "README.md",
            "config.json",
            "tokenizer.json",
            "model.safetensors",
            "pytorch_model.bin",
            "model.pt",
            "onnx/model.onnx",
            "original/consolidated.safetensors",
            "consolidated.safetensors",
            "figure.png",
            "chat_template.jinja",
            "additional_chat_templates/rag.jinja",
            "additional_chat_templates/old/rag.jinja",
            "additional_chat_templates/notes.txt",
            "run.py",
            "model.safetensors.index.json",
        ]);
        let rag = "additional_chat_templates/rag.jinja";
        assert_eq!(files, ["config.json", "tokenizer.json", "chat_template.jinja", rag, "model.safetensors"]);
        assert_eq!(index, None);
        let (files, index) = chosen(&["config.json", INDEX, "model-00001-of-00002.safetensors", "other.safetensors"]);
        assert_eq!((files, index.as_deref()), (vec!["config.json".to_owned(), INDEX.to_owned()], Some(INDEX)));
        assert_eq!(chosen(&["config.json", "weights.safetensors"]).0, ["config.json", "weights.safetensors"]);
    }

    #[test]
    fn what_is_no_model_is_refused_with_a_reason() {
        let refused = |paths: &[&str], part| choose(&files(paths), part, "org/name").unwrap_err();
        assert!(refused(&["config.json", "pytorch_model.bin"], None).contains("safetensors or GGUF"));
        assert!(refused(&["adapter_model.safetensors"], None).contains("config.json"));
        assert!(refused(&["config.json", "model.safetensors"], Some("q4_k_m")).contains("--quant"));
        assert!(refused(&["config.json", "a.safetensors", "b.safetensors"], None).contains("b.safetensors"));
        assert!(refused(&["a-Q8_0-00001-of-00002.gguf"], None).contains("1 of which"));
        assert!(refused(&["mmproj-F16.gguf"], None).contains("nothing"));
    }

    #[test]
    fn gguf_is_taken_where_it_is_asked_for_or_alone() {
        let both = ["config.json", "model.safetensors", "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf"];
        assert_eq!(chosen(&both).0, ["config.json", "model.safetensors"]);
        for (paths, part, first) in [(&both[..], Some("q8_0"), "a-Q8_0.gguf"), (&both[2..], None, "a-Q4_K_M.gguf")] {
            match choose(&files(paths), part, "org/name").unwrap() {
                Choice::Gguf { group, mmproj } => {
                    assert_eq!((group.first(), mmproj.as_deref()), (Some(first), Some("mmproj-F16.gguf")));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn an_index_names_files_beside_it_or_is_refused() {
        let two = r#"{"weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}}"#;
        assert_eq!(shards(two).unwrap().into_iter().collect::<Vec<_>>(), ["m-1.safetensors", "m-2.safetensors"]);
        for wrong in [
            "",
            "{}",
            r#"{"weight_map": {}}"#,
            r#"{"weight_map": {"a": 1}}"#,
            r#"{"weight_map": {"a": "../x.safetensors"}}"#,
            r#"{"weight_map": {"a": "/x.safetensors"}}"#,
            r#"{"weight_map": {"a": "m.bin"}}"#,
        ] {
            assert!(shards(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bytes_are_shown_in_binary_units() {
        assert_eq!(
            [Bytes(1023), Bytes(1 << 20), Bytes(5 << 39)].map(|b| b.to_string()),
            ["1023 B", "1.00 MiB", "2.50 TiB"]
        );
    }
}
