use std::io;
use std::path::{Path, PathBuf};

use crate::choose::Bytes;

/// Everything that fetching, finding or removing a model refuses or fails at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not a model's name.
    #[error("{text:?} is not a model's name: {problem}; it looks like org/name, org/name@revision or org/name:q4_k_m")]
    Spec {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A setting of the environment that can't be used.
    #[error("{0}")]
    Settings(String),
    /// The hub has no such model, or hides it.
    #[error("{endpoint} has no model {repo}; {advice}")]
    NoRepo {
        /// The hub's address.
        endpoint: String,
        /// The model asked for.
        repo: String,
        /// What could be done.
        advice: &'static str,
    },
    /// The model has no such branch, tag or commit.
    #[error("{repo} has no revision {revision:?}; branches and tags are listed at {endpoint}/{repo}/tree/main")]
    NoRevision {
        /// The hub's address.
        endpoint: String,
        /// The model.
        repo: String,
        /// The revision asked for.
        revision: String,
    },
    /// The hub lists a file and then does not have it.
    #[error("{repo} has no file {file:?}, though the hub's list names it; try again later")]
    NoFile {
        /// The model.
        repo: String,
        /// The file.
        file: String,
    },
    /// The model's owner wants its terms accepted first.
    #[error("{repo} is gated{said}: its terms have to be accepted at {endpoint}/{repo}; {advice}")]
    Gated {
        /// The hub's address.
        endpoint: String,
        /// The model.
        repo: String,
        /// What the token has to do with it.
        advice: &'static str,
        /// What the hub said, if anything: that a request waits for its owner, say.
        said: String,
    },
    /// The hub refused who asked.
    #[error("{endpoint} refused access to {repo} (status {status}){said}; {advice}")]
    Refused {
        /// The hub's address.
        endpoint: String,
        /// The model.
        repo: String,
        /// 401 or 403.
        status: u16,
        /// What the token has to do with it.
        advice: &'static str,
        /// What the hub said, if anything.
        said: String,
    },
    /// A status that nothing can be done about.
    #[error("{host} answered {what} with status {status}{said}")]
    Status {
        /// Who answered.
        host: String,
        /// What was asked for.
        what: String,
        /// The status.
        status: u16,
        /// What the server said, if anything.
        said: String,
    },
    /// No connection, or none that lasts.
    #[error("{host}: {problem}")]
    Network {
        /// Who was asked.
        host: String,
        /// What went wrong.
        problem: String,
    },
    /// What the hub says about a model makes no sense or is not safe to follow.
    #[error("the hub's answer for {repo} can't be used: {problem}")]
    Listing {
        /// The model.
        repo: String,
        /// What is wrong.
        problem: String,
    },
    /// Nothing to fetch, or more than one thing.
    #[error("{0}")]
    Choice(String),
    /// A file that came with another length than the hub's list says.
    #[error("{file}: {came} bytes came, the hub's list says {wanted}; nothing of it was kept")]
    Size {
        /// The file.
        file: String,
        /// Bytes by the list.
        wanted: u64,
        /// Bytes that came.
        came: u64,
    },
    /// A file whose content is another than the hub's list says.
    #[error("{file}: its checksum is {came}, the hub's list says {wanted}; nothing of it was kept")]
    Checksum {
        /// The file.
        file: String,
        /// By the list.
        wanted: String,
        /// By what came.
        came: String,
    },
    /// Too little room on the disk.
    #[error(
        "{}: {} are to come and {} are free; make room or set HF_HUB_CACHE to another disk",
        folder.display(), Bytes(*needed), Bytes(*free)
    )]
    Space {
        /// Where the cache is.
        folder: PathBuf,
        /// Bytes still to come.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The model is not in the cache.
    #[error("model {name:?} is not here{hint}; turbospark pull {name} fetches it")]
    NotHere {
        /// Its name.
        name: String,
        /// What is here instead, if anything.
        hint: String,
    },
    /// There is nothing to remove.
    #[error("nothing of {name} is here")]
    Nothing {
        /// What was asked for.
        name: String,
    },
    /// Only a part of the model is in the cache.
    #[error("model {name:?} is here in part: {missing}; turbospark pull {name} fetches the rest")]
    Incomplete {
        /// Its name.
        name: String,
        /// What is missing.
        missing: String,
    },
    /// It would have to be fetched and must not be.
    #[error("offline, and {because}")]
    Offline {
        /// Why the copy that is here, if there is one, does not do.
        because: Box<Error>,
    },
    /// Another process works on the model.
    #[error("{name} is being pulled by another process; try again when that is done")]
    Busy {
        /// The model.
        name: String,
    },
    /// Part of the cache leads elsewhere, and what lies elsewhere is not touched.
    #[error("{}: {problem}", path.display())]
    Outside {
        /// Which part.
        path: PathBuf,
        /// What it is.
        problem: &'static str,
    },
    /// The caller asked to stop.
    #[error("stopped")]
    Cancelled,
    /// The file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// This crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Names the file of a system's error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
    move |source| Error::Io { path: path.to_owned(), source }
}
