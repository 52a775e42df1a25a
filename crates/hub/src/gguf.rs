//! The GGUF files of a repository: which belong together, and which quantisation each is.
//!
//! Nothing but file names tells them apart before they are here, and every publisher names them a little
//! differently: `Model-Q4_K_M.gguf`, `model.q4_k_m.gguf`, `UD-Q4_K_XL/Model-UD-Q4_K_XL-00001-of-00002.gguf`.

use std::collections::BTreeMap;

use crate::choose::{File, table};

/// One model in one quantisation: a file, or the parts of a split one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// Such as `Q4_K_M`; without a known word in its name, the name.
    pub(crate) label: String,
    /// Its parts by number. A file that is not split is part 1.
    pub(crate) parts: BTreeMap<u32, String>,
    /// How many parts there should be.
    pub(crate) of: u32,
    /// Bytes of the parts.
    pub(crate) bytes: u64,
}

impl Group {
    /// The file that is opened.
    pub(crate) fn first(&self) -> Option<&str> {
        self.parts.get(&1).map(String::as_str)
    }

    /// How many parts are not there.
    pub(crate) fn missing(&self) -> u32 {
        self.of - self.parts.len() as u32
    }

    fn any(&self) -> &str {
        self.parts.values().next().map_or("", String::as_str)
    }
}

/// The models among `files`, by name.
pub(crate) fn groups(files: &[File]) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, u32), Group> = BTreeMap::new();
    for file in files {
        let Some(stem) = stem(&file.path).filter(|_| !is_companion(&file.path)) else { continue };
        let (whole, number, of) = split(stem).unwrap_or((stem, 1, 1));
        let new = || Group { label: label(whole), parts: BTreeMap::new(), of, bytes: 0 };
        let group = groups.entry((whole, of)).or_insert_with(new);
        group.parts.insert(number, file.path.clone());
        group.bytes = group.bytes.saturating_add(file.size);
    }
    groups.into_values().collect()
}

/// The vision part that goes with a model, in the most exact form that is worth its size.
pub(crate) fn mmproj<'a>(files: &'a [File], model: &Group) -> Option<&'a File> {
    const PREFERRED: [&str; 4] = ["F16", "BF16", "F32", "Q8_0"];
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let rank = |file: &File| {
        let label = stem(&file.path).map(label).unwrap_or_default();
        PREFERRED.iter().position(|p| p.eq_ignore_ascii_case(&label)).unwrap_or(PREFERRED.len())
    };
    let candidates = files.iter().filter(|f| stem(&f.path).is_some() && is_mmproj(&f.path));
    candidates.min_by_key(|f| (folder(&f.path) != folder(model.any()), rank(f), f.path.clone()))
}

/// The model that `part` asks for: a quantisation, a file, or what suits most.
///
/// # Errors
/// Why there is none or more than one, with what there is.
pub(crate) fn pick(groups: &[Group], part: Option<&str>, name: &str) -> Result<Group, String> {
    let list = || {
        let rows = groups.iter().map(|g| {
            let parts = if g.of > 1 { format!(" and {} more", g.of - 1) } else { String::new() };
            (g.label.clone(), g.bytes, format!("{}{parts}", g.any()))
        });
        table(rows.collect())
    };
    let by_label = |wanted: &str| -> Vec<&Group> {
        let plain = |label: &str| label.to_ascii_uppercase().trim_start_matches("UD-").to_owned();
        let exact: Vec<_> = groups.iter().filter(|g| g.label.eq_ignore_ascii_case(wanted)).collect();
        // Unsloth's own mixtures have a word before the type; nobody has to know it where the type says enough.
        if exact.is_empty() { groups.iter().filter(|g| plain(&g.label) == plain(wanted)).collect() } else { exact }
    };
    let (fits, missing) = match part {
        None => match groups {
            [only] => (vec![only], String::new()),
            _ => (by_label("Q4_K_M"), format!("{name} has no Q4_K_M; choose one, as in {name}:{}", example(groups))),
        },
        Some(file) if stem(file).is_some() => {
            let named = |path: &String| path == file || path.rsplit('/').next() == Some(file);
            let fits = groups.iter().filter(|g| g.parts.values().any(named)).collect();
            (fits, format!("{name} has no model file {file:?}; there are"))
        }
        Some(quant) => (by_label(quant), format!("{name} has no {quant:?}; there are")),
    };
    match fits.as_slice() {
        [only] => Ok((*only).clone()),
        [] => Err(format!("{missing}\n{}", list())),
        [one, ..] => Err(format!("several files of {name} fit; name one, as in {name}:{}\n{}", one.any(), list())),
    }
}

fn example(groups: &[Group]) -> &str {
    groups.first().map_or("q8_0", |g| &g.label)
}

/// The path without its ending, if that is `.gguf`.
fn stem(path: &str) -> Option<&str> {
    let cut = path.len().checked_sub(5).filter(|&at| path.is_char_boundary(at))?;
    let (stem, ending) = path.split_at(cut);
    ending.eq_ignore_ascii_case(".gguf").then_some(stem)
}

fn is_mmproj(path: &str) -> bool {
    path.rsplit('/').next().is_some_and(|name| name.to_ascii_lowercase().contains("mmproj"))
}

/// GGUF files that are no language model: vision parts, and statistics that quantisers leave behind.
fn is_companion(path: &str) -> bool {
    is_mmproj(path) || path.rsplit('/').next().is_some_and(|name| name.to_ascii_lowercase().contains("imatrix"))
}

/// `Model-Q4_K_M-00002-of-00003` is part 2 of 3 of `Model-Q4_K_M`.
fn split(stem: &str) -> Option<(&str, u32, u32)> {
    let five = |text: &str| (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?;
    let (rest, of) = stem.rsplit_once("-of-")?;
    let (whole, number) = rest.rsplit_once('-')?;
    let (number, of): (u32, u32) = (five(number)?, five(of)?);
    (1 <= number && number <= of).then_some((whole, number, of))
}

/// The quantisation in a name, upper case.
fn label(stem: &str) -> String {
    let name = stem.rsplit('/').next().unwrap_or(stem);
    let folder = stem.rsplit('/').nth(1);
    in_name(name).or_else(|| folder.and_then(in_name)).unwrap_or_else(|| name.to_owned())
}

fn in_name(name: &str) -> Option<String> {
    let is_ud = |before: &str| {
        before.len() >= 2
            && before.is_char_boundary(before.len() - 2)
            && before[before.len() - 2..].eq_ignore_ascii_case("ud")
    };
    let with_prefix = |at: usize, word: &str| {
        let before = name[..at].trim_end_matches(['-', '.', '_']);
        let prefix = if at > 0 && is_ud(before) { "UD-" } else { "" };
        format!("{prefix}{}", word.to_ascii_uppercase())
    };
    let starts = name.char_indices().filter(|&(i, _)| i == 0 || matches!(name.as_bytes()[i - 1], b'-' | b'.' | b'_'));
    let starts: Vec<usize> = starts.map(|(i, _)| i).collect();
    // A type at the end, the longest that is one; else the last whole word between dashes and dots.
    let at_end = starts.iter().find(|&&i| is_type(&name[i..])).map(|&i| with_prefix(i, &name[i..]));
    at_end.or_else(|| {
        let words = starts.iter().rev().map(|&i| (i, name[i..].split(['-', '.']).next().unwrap_or_default()));
        words.into_iter().find(|(_, word)| is_type(word)).map(|(i, word)| with_prefix(i, word))
    })
}

fn is_type(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    if matches!(word.as_str(), "F16" | "F32" | "BF16" | "FP16" | "FP32" | "MXFP4" | "MXFP4_MOE" | "NVFP4") {
        return true;
    }
    let rest = ["IQ", "TQ", "Q"].iter().find_map(|p| word.strip_prefix(p)).unwrap_or_default();
    let mut rest = rest.chars();
    rest.next().is_some_and(|c| c.is_ascii_digit()) && rest.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files(paths: &[&str]) -> Vec<File> {
        paths.iter().map(|p| File { path: (*p).into(), size: 1 << 20 }).collect()
    }

    fn picked(paths: &[&str], part: Option<&str>) -> Result<String, String> {
        pick(&groups(&files(paths)), part, "org/name").map(|g| g.any().to_owned())
    }

    #[test]
    fn the_type_is_read_from_names_of_every_habit() {
        for (path, wanted) in [
            ("Qwen3VL-2B-Instruct-Q4_K_M.gguf", "Q4_K_M"),
            ("qwen2.5-7b-instruct-q4_0.gguf", "Q4_0"),
            ("model.Q8_0.gguf", "Q8_0"),
            ("model_q5_k_s.gguf", "Q5_K_S"),
            ("Qwen3-VL-8B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
            ("BF16/Model-BF16-00001-of-00002.gguf", "BF16"),
            ("Q6_K/model-00001-of-00002.gguf", "Q6_K"),
            ("gpt-mxfp4_moe.gguf", "MXFP4_MOE"),
            ("Model-IQ4_XS-imat.gguf", "IQ4_XS"),
            ("Qwen3.5-0.8B.GGUF", "Qwen3.5-0.8B"),
            ("Q4_0_4_8.gguf", "Q4_0_4_8"),
        ] {
            assert_eq!(groups(&files(&[path]))[0].label, wanted, "{path}");
        }
    }

    #[test]
    fn q4_k_m_or_the_only_one_is_taken_and_else_the_user_chooses() {
        let all = ["a-Q4_0.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf", "mmproj-F16.gguf", "imatrix.gguf"];
        assert_eq!(picked(&all, None).unwrap(), "a-Q4_K_M.gguf");
        assert_eq!(picked(&all, Some("q8_0")).unwrap(), "a-Q8_0.gguf");
        assert_eq!(picked(&all, Some("a-Q4_0.gguf")).unwrap(), "a-Q4_0.gguf");
        assert_eq!(picked(&["a-Q2_K.gguf", "mmproj-F16.gguf"], None).unwrap(), "a-Q2_K.gguf");
        assert_eq!(picked(&["a-UD-Q4_K_XL.gguf", "a-Q8_0.gguf"], Some("q4_k_xl")).unwrap(), "a-UD-Q4_K_XL.gguf");
        let refused = picked(&["a-Q4_0.gguf", "a-Q8_0.gguf"], None).unwrap_err();
        for words in ["org/name:Q4_0", "Q8_0", "1.00 MiB", "a-Q8_0.gguf"] {
            assert!(refused.contains(words), "{words:?} is not in {refused}");
        }
        let refused = picked(&all, Some("q3_k_m")).unwrap_err();
        assert!(refused.contains("q3_k_m") && refused.contains("Q4_0") && !refused.contains("mmproj"), "{refused}");
        let refused = picked(&["large-Q8_0.gguf", "small-Q8_0.gguf"], Some("q8_0")).unwrap_err();
        assert!(refused.contains("org/name:large-Q8_0.gguf"), "{refused}");
        assert_eq!(
            picked(&["large-Q8_0.gguf", "small-Q8_0.gguf"], Some("small-Q8_0.gguf")).unwrap(),
            "small-Q8_0.gguf"
        );
    }

    #[test]
    fn the_parts_of_a_split_file_are_one_model() {
        let all = [
            "x/a-Q8_0-00002-of-00003.gguf",
            "x/a-Q8_0-00001-of-00003.gguf",
            "x/a-Q8_0-00003-of-00003.gguf",
            "a-F16.gguf",
        ];
        let groups = groups(&files(&all));
        let group = pick(&groups, Some("a-Q8_0-00002-of-00003.gguf"), "org/name").unwrap();
        assert_eq!((group.first(), group.parts.len(), group.missing()), (Some(all[1]), 3, 0));
        let partial = super::groups(&files(&all[..1]));
        assert_eq!((partial[0].first(), partial[0].missing()), (None, 2));
    }

    #[test]
    fn the_vision_part_is_the_half_precision_one_beside_the_model() {
        let pick = |paths: &[&str]| {
            let files = files(paths);
            mmproj(&files, &groups(&files)[0]).map(|f| f.path.clone())
        };
        assert_eq!(pick(&["a-Q8_0.gguf"]), None);
        assert_eq!(pick(&["a-Q8_0.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"]).unwrap(), "mmproj-F16.gguf");
        assert_eq!(pick(&["a-Q8_0.gguf", "mmproj-a-F32.gguf", "mmproj-a-bf16.gguf"]).unwrap(), "mmproj-a-bf16.gguf");
        assert_eq!(pick(&["a-Q8_0.gguf", "a.mmproj-Q8_0.gguf", "a.mmproj-Q4_0.gguf"]).unwrap(), "a.mmproj-Q8_0.gguf");
        assert_eq!(pick(&["x/a-Q8_0.gguf", "x/mmproj-F32.gguf", "mmproj-F16.gguf"]).unwrap(), "x/mmproj-F32.gguf");
    }

    proptest! {
        #[test]
        fn no_name_panics(name in "[a-zQqUD0-9_./é-]{0,40}") {
            let files = files(&[&format!("{name}.gguf"), &name]);
            for group in groups(&files) {
                let _ = (group.missing(), mmproj(&files, &group));
            }
        }
    }
}
