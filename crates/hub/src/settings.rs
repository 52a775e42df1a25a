//! What the environment says, in the words that other programs of the hub use.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cache::Cache;
use crate::error::{Error, Result};

/// Where models come from and go to.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The hub's address, without a slash at the end.
    pub endpoint: String,
    /// The folder of `models--org--name` folders.
    pub cache: PathBuf,
    /// Who asks.
    pub token: Option<Token>,
    /// Use what is here and no network.
    pub offline: bool,
    /// Go through the proxy that the environment names, if it does.
    pub proxy: bool,
    /// Put files into snapshots and no links to them.
    pub no_links: bool,
    /// The longest silence of a server.
    pub timeout: Duration,
    /// The wait before the first repeated attempt; it doubles.
    pub backoff: Duration,
}

/// A secret: it is shown to its hub and to nobody else, logs included.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// # Errors
    /// What no header can hold.
    pub fn new(text: &str) -> Result<Self> {
        if text.bytes().all(|b| b.is_ascii_graphic()) && !text.is_empty() {
            Ok(Token(text.to_owned()))
        } else {
            // Without the text: it may be a good token with a slip in it.
            Err(Error::Settings(
                "the token has characters that no token has; is HF_TOKEN or the token file whole?".into(),
            ))
        }
    }

    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl Settings {
    /// The hub everyone uses.
    pub const ENDPOINT: &str = "https://huggingface.co";

    /// No token, the public hub.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Settings {
            endpoint: Self::ENDPOINT.into(),
            cache: cache.into(),
            token: None,
            offline: false,
            proxy: true,
            no_links: false,
            timeout: Duration::from_secs(30),
            backoff: Duration::from_secs(1),
        }
    }

    /// `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HUB_OFFLINE` and their older names,
    /// `HF_HUB_DISABLE_IMPLICIT_TOKEN`, `HF_HUB_DISABLE_SYMLINKS` and `HF_HUB_DOWNLOAD_TIMEOUT`.
    ///
    /// # Errors
    /// What is set to nonsense.
    pub fn from_env() -> Result<Self> {
        Self::from(&|name| std::env::var_os(name))
    }

    fn from(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Self> {
        let set = |name: &str| env(name).filter(|v| !v.is_empty());
        let path = |name: &str| set(name).map(|v| from_home(v, env));
        let text = |name: &str| match set(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(text)) => Ok(Some(text.trim().to_owned()).filter(|t| !t.is_empty())),
            Some(Err(_)) => Err(Error::Settings(format!("{name} is not text"))),
        };
        let yes = |name: &str| -> Result<bool> {
            let truthy = |v: String| matches!(v.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
            Ok(text(name)?.is_some_and(truthy))
        };
        let file = || path("HF_TOKEN_PATH").or_else(|| hub_home(env).map(|h| h.join("token")));
        let token = match (yes("HF_HUB_DISABLE_IMPLICIT_TOKEN")?, text("HF_TOKEN")?, text("HUGGING_FACE_HUB_TOKEN")?) {
            (true, ..) => None,
            (_, Some(token), _) | (_, None, Some(token)) => Some(token),
            _ => file().map_or(Ok(None), |file| token_file(&file))?,
        };
        let defaults = Self::new(cache_folder(env)?);
        let timeout = match text("HF_HUB_DOWNLOAD_TIMEOUT")? {
            Some(seconds) => Duration::from_secs(seconds.parse().ok().filter(|&s| s > 0).ok_or_else(|| {
                Error::Settings(format!("HF_HUB_DOWNLOAD_TIMEOUT is {seconds:?}; it takes a number of seconds"))
            })?),
            None => defaults.timeout,
        };
        Ok(Settings {
            endpoint: text("HF_ENDPOINT")?.map_or(Ok(Self::ENDPOINT.into()), |e| endpoint(&e))?,
            token: token.as_deref().map(Token::new).transpose()?,
            offline: match text("HF_HUB_OFFLINE")? {
                Some(_) => yes("HF_HUB_OFFLINE")?,
                None => yes("TRANSFORMERS_OFFLINE")?,
            },
            no_links: yes("HF_HUB_DISABLE_SYMLINKS")?,
            timeout,
            ..defaults
        })
    }
}

impl Cache {
    /// The cache that the environment names, or the usual one.
    ///
    /// # Errors
    /// No home folder to look in.
    pub fn from_env() -> Result<Self> {
        cache_folder(&|name| std::env::var_os(name)).map(Cache::new)
    }
}

fn cache_folder(env: &dyn Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let named = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"].iter().find_map(|n| env(n).filter(|v| !v.is_empty()));
    match named {
        Some(folder) => Ok(from_home(folder, env)),
        None => hub_home(env).map(|h| h.join("hub")).ok_or_else(|| {
            Error::Settings("there is no home folder to keep models in; set HF_HUB_CACHE to a folder".into())
        }),
    }
}

/// Where programs of the hub keep what is theirs.
fn hub_home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let path = |name: &str| env(name).filter(|v| !v.is_empty()).map(|v| from_home(v, env));
    path("HF_HOME").or_else(|| {
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(home(env)?.join(".cache")));
        cache.map(|c| c.join("huggingface"))
    })
}

fn home(env: &dyn Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    env("HOME").filter(|h| !h.is_empty()).map(PathBuf::from).or_else(std::env::home_dir)
}

/// With `~` at the start and `$NAME` anywhere replaced, as the shell would have done: a file of settings for a service
/// knows no shell.
fn from_home(path: OsString, env: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    let path = match path.into_string() {
        Ok(text) => PathBuf::from(with_variables(&text, env)),
        Err(path) => PathBuf::from(path),
    };
    match (path.strip_prefix("~"), home(env)) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// `$NAME` and `${NAME}` replaced by what they stand for; those that stand for nothing stay.
fn with_variables(text: &str, env: &dyn Fn(&str) -> Option<OsString>) -> String {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = match part.strip_prefix('{').and_then(|part| part.split_once('}')) {
            Some(braced) => braced,
            None => part.split_at(part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(part.len())),
        };
        match Some(name).filter(|name| !name.is_empty()).and_then(env).and_then(|value| value.into_string().ok()) {
            Some(value) => out = out + &value + rest,
            None => out = out + "$" + part,
        }
    }
    out
}

fn token_file(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|t| !t.is_empty())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path: path.to_owned(), source }),
    }
}

fn endpoint(text: &str) -> Result<String> {
    let trimmed = text.trim_end_matches('/');
    let rest = trimmed.strip_prefix("https://").or_else(|| trimmed.strip_prefix("http://"));
    let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@');
    match rest {
        Some(rest) if !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(plain) => Ok(trimmed.to_owned()),
        _ => {
            Err(Error::Settings(format!("HF_ENDPOINT is {text:?}; it takes an address such as {}", Settings::ENDPOINT)))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<Settings> {
        let map: HashMap<_, _> = pairs.iter().copied().collect();
        Settings::from(&|name| map.get(name).map(OsString::from))
    }

    #[test]
    fn the_cache_folder_is_the_one_that_other_programs_use() {
        let cache = |pairs: &[(&str, &str)]| from(pairs).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/h")]), Path::new("/h/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "~/f")]), Path::new("/h/f/hub"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c d")]), Path::new("/c d"));
        assert_eq!(cache(&[("HOME", "/h"), ("HF_HUB_CACHE", "")]), Path::new("/h/.cache/huggingface/hub"));
        for (named, wanted) in [("$HOME/c", "/h/c"), ("/a/${HOME}b", "/a//hb"), ("/a$none/$", "/a$none/$")] {
            assert_eq!(cache(&[("HOME", "/h"), ("HF_HUB_CACHE", named)]), Path::new(wanted));
        }
    }

    #[test]
    fn the_token_is_found_and_never_shown() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(from(&[("HF_HOME", home)]).unwrap().token, None);
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let token = |pairs: &[(&str, &str)]| from(pairs).unwrap().token.unwrap().header();
        assert_eq!(token(&[("HF_HOME", home)]), "Bearer hf_file");
        assert_eq!(token(&[("HF_HOME", home), ("HUGGING_FACE_HUB_TOKEN", "hf_old")]), "Bearer hf_old");
        assert_eq!(token(&[("HF_HOME", home), ("HUGGING_FACE_HUB_TOKEN", "b"), ("HF_TOKEN", " a ")]), "Bearer a");
        let other = folder.path().join("other");
        std::fs::write(&other, "hf_other").unwrap();
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN_PATH", other.to_str().unwrap())]), "Bearer hf_other");
        let unasked = [("HOME", "/h"), ("HF_TOKEN", "a"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")];
        assert_eq!(from(&unasked).unwrap().token, None);
        let settings = from(&[("HOME", "/h"), ("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{settings:?}").contains("secret"));
        let error = from(&[("HOME", "/h"), ("HF_TOKEN", "hf_se\ncret")]).unwrap_err();
        assert!(!error.to_string().contains("cret"), "{error}");
    }

    #[test]
    fn endpoint_and_offline_are_read() {
        let settings =
            from(&[("HOME", "/h"), ("HF_ENDPOINT", "http://localhost:80/hub/"), ("HF_HUB_OFFLINE", "yes")]).unwrap();
        assert_eq!((settings.endpoint.as_str(), settings.offline), ("http://localhost:80/hub", true));
        let offline = |pairs: &[(&str, &str)]| from(&[&[("HOME", "/h")], pairs].concat()).unwrap().offline;
        assert!(!offline(&[("HF_HUB_OFFLINE", "0")]) && offline(&[("TRANSFORMERS_OFFLINE", "1")]));
        assert!(!offline(&[("TRANSFORMERS_OFFLINE", "1"), ("HF_HUB_OFFLINE", "0")]));
        let settings = from(&[("HOME", "/h"), ("HF_HUB_DOWNLOAD_TIMEOUT", "90"), ("HF_HUB_DISABLE_SYMLINKS", "1")]);
        assert_eq!(settings.map(|s| (s.timeout, s.no_links)).unwrap(), (Duration::from_secs(90), true));
        assert!(from(&[("HOME", "/h"), ("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]).is_err());
        for wrong in ["hub.example", "ftp://x", "https://", "https://u:p@x", "https://x y", "https:///x"] {
            let error = from(&[("HOME", "/h"), ("HF_ENDPOINT", wrong)]).unwrap_err().to_string();
            assert!(error.contains("HF_ENDPOINT"), "{error}");
        }
    }
}
