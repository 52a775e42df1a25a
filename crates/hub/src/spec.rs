//! Names: of models, of revisions, and of files inside a listing.
//!
//! All of them become parts of paths and of addresses, and two of the three come from the network.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// `org/name`, as on the hub.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId {
    org: String,
    name: String,
}

/// What to pull or to look for: `org/name`, `org/name@revision`, `org/name:q4_k_m`, `org/name@revision:file.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Whose model.
    pub repo: RepoId,
    /// Branch, tag or commit; `None` is `main`.
    pub revision: Option<String>,
    /// A quantisation such as `q4_k_m`, or a file ending in `.gguf`.
    pub part: Option<String>,
}

impl RepoId {
    /// The name of its folder in the cache.
    pub(crate) fn folder_name(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }

    /// The model that a folder of the cache belongs to.
    pub(crate) fn from_folder_name(folder: &str) -> Option<Self> {
        let (org, name) = folder.strip_prefix("models--")?.split_once("--")?;
        format!("{org}/{name}").parse::<Spec>().ok().map(|spec| spec.repo).filter(|id| id.folder_name() == folder)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)
    }
}

impl Spec {
    /// The revision to ask for.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.repo.fmt(f)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        if let Some(part) = &self.part {
            write!(f, ":{part}")?;
        }
        Ok(())
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |problem| Error::Spec { text: text.to_owned(), problem };
        let (rest, part) = match text.split_once(':') {
            Some((rest, part)) => (rest, Some(part)),
            None => (text, None),
        };
        let (id, revision) = match rest.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (rest, None),
        };
        let (org, name) = id.split_once('/').ok_or_else(|| wrong("there is no / in it"))?;
        for word in [org, name] {
            let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if word.is_empty() || word.len() > 96 {
                return Err(wrong("owner and name have 1 to 96 characters each"));
            }
            if !word.chars().all(plain) {
                return Err(wrong("owner and name are made of letters, digits, '-', '_' and '.'"));
            }
            // The cache joins owner and name by two dashes.
            if word.contains("--") || word.contains("..") || word.starts_with(['-', '.']) || word.ends_with(['-', '.'])
            {
                return Err(wrong("owner and name have no '--' or '..' and no '-' or '.' at an end"));
            }
        }
        if revision.is_some_and(|r| !is_safe_path(r)) {
            return Err(wrong("what follows the @ can't be a branch, tag or commit"));
        }
        if part.is_some_and(|p| !is_safe_path(p)) {
            return Err(wrong("what follows the : can't be a quantisation or a file"));
        }
        Ok(Spec {
            repo: RepoId { org: org.into(), name: name.into() },
            revision: revision.map(Into::into),
            part: part.map(Into::into),
        })
    }
}

/// Whether this is a relative path that stays inside a folder, on every system: what a listing names is created
/// under the cache.
pub(crate) fn is_safe_path(path: &str) -> bool {
    !path.is_empty() && path.len() <= 1024 && path.split('/').all(is_safe_name)
}

fn is_safe_name(name: &str) -> bool {
    let forbidden = |c: char| c.is_control() || matches!(c, '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    // Windows drops dots and spaces at the end, and takes these names for devices whatever follows the dot.
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let port =
        |s: &str| s.strip_prefix("COM").or_else(|| s.strip_prefix("LPT")).is_some_and(|n| n.chars().count() == 1);
    !name.is_empty()
        && name.len() <= 255
        && !name.chars().any(forbidden)
        && !name.ends_with(['.', ' '])
        && !matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL")
        && !port(&stem)
}

/// Whether this is `digits` hexadecimal digits in lower case, as in a checksum or commit.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_is_taken_apart_and_put_together_again() {
        let spec: Spec = "Qwen/Qwen3-VL-2B-Instruct-GGUF@refs/pr/5:UD-Q4_K_XL".parse().unwrap();
        assert_eq!(spec.repo.to_string(), "Qwen/Qwen3-VL-2B-Instruct-GGUF");
        assert_eq!((spec.revision(), spec.part.as_deref()), ("refs/pr/5", Some("UD-Q4_K_XL")));
        assert_eq!(spec.to_string().parse::<Spec>().unwrap(), spec);
        let spec: Spec = "a/b:dir/file@1.gguf".parse().unwrap();
        assert_eq!((spec.revision(), spec.part.as_deref()), ("main", Some("dir/file@1.gguf")));
        assert_eq!(spec.repo.folder_name(), "models--a--b");
        assert_eq!(RepoId::from_folder_name("models--a--b"), Some(spec.repo));
        for folder in ["models--a", "models--a--b--c", "datasets--a--b", "models----", "models--..--b"] {
            assert_eq!(RepoId::from_folder_name(folder), None, "{folder}");
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = format!("a/{}", "b".repeat(97));
        for text in [
            "",
            "a",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "a b/c",
            "../b",
            "a/..",
            "a--b/c",
            "a/.b",
            "a/b-",
            "a/b@",
            "a/b:",
            "a/b@x/../y",
            "a/b@/x",
            "a/b:..",
            "a/b:/etc/passwd",
            "a/b:c\\d",
            "a/b@c:d:e",
            "C:\\a",
            "a/b\n",
            "a/ü",
            &long,
        ] {
            assert!(text.parse::<Spec>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_paths_that_stay_inside_are_safe() {
        for path in [
            "a",
            "a/b.gguf",
            "ein Pfad/mit Leerzeichen.json",
            "模型/重み.safetensors",
            "...x",
            "com10.json",
            ".gitattributes",
        ] {
            assert!(is_safe_path(path), "{path:?}");
        }
        for path in [
            "",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/..",
            "a\\b",
            "C:a",
            "a:b",
            "a\0b",
            "a\nb",
            "a/b.",
            "a/b ",
            "nul",
            "NUL.json",
            "x/aux.txt",
            "COM1",
            "lpt9.bin",
            "a?b",
        ] {
            assert!(!is_safe_path(path), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_what_parses_stays_inside(text in "[a-cA-C./@:\\\\ -]{0,24}") {
            if let Ok(spec) = text.parse::<Spec>() {
                prop_assert!(!spec.repo.folder_name().contains(['/', '\\']));
                prop_assert_eq!(RepoId::from_folder_name(&spec.repo.folder_name()), Some(spec.repo));
            }
        }
    }
}
