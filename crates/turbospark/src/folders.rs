//! Where the program keeps what it can make again.

use std::path::PathBuf;

use crate::{Error, Result};

/// `turbospark` in the user's cache folder.
///
/// # Errors
/// When the environment names no cache folder and no home.
pub(crate) fn cache() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let own = if cfg!(windows) {
        set("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        set("HOME").map(|home| home.join("Library/Caches"))
    } else {
        set("HOME").map(|home| home.join(".cache"))
    };
    let cache = set("XDG_CACHE_HOME").or(own);
    let cache = cache.ok_or_else(|| Error::Options("no cache folder is known; set XDG_CACHE_HOME".into()))?;
    Ok(cache.join("turbospark"))
}
