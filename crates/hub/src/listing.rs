//! What the hub says is in a repository.

use std::collections::HashMap;

use serde::Deserialize;
use ureq::http::header;

use crate::address::encode;
use crate::choose::File;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::event::{Patience, Watch};
use crate::http::{Client, Failure, Reply};
use crate::settings::Settings;
use crate::spec::{RepoId, Spec, is_hex, is_safe_path};

/// Far above real ones: a thousand entries take a third of a megabyte.
const MAX_ANSWER: u64 = 32 << 20;
const MAX_PAGES: usize = 200;
const MAX_FILES: usize = 100_000;

/// The files of one commit.
pub(crate) struct Listing {
    pub(crate) commit: String,
    pub(crate) files: Vec<File>,
    digests: HashMap<String, Entry>,
}

/// A file that may be fetched: its path stays inside a folder, its checksum is one.
#[derive(Clone, Debug)]
pub(crate) struct RemoteFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) digest: Digest,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: Option<String>,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    oid: String,
    size: u64,
}

/// Asks one hub.
pub(crate) struct Hub<'a> {
    pub(crate) client: &'a Client,
    pub(crate) settings: &'a Settings,
}

/// What was asked for, to say what is missing.
pub(crate) enum Asked<'a> {
    Revision(&'a Spec),
    File(&'a RepoId, &'a str),
}

impl Hub<'_> {
    /// The commit that the revision is now, and its files.
    pub(crate) fn listing(&self, spec: &Spec, watch: &mut Watch<'_>) -> Result<Listing> {
        let unusable = |problem: String| Error::Listing { repo: spec.repo.to_string(), problem };
        let api = format!("{}/api/models/{}", self.settings.endpoint, spec.repo);
        let url = format!("{api}/revision/{}", encode(spec.revision()));
        let (text, _) = self.text(&url, spec, watch)?;
        let revision: Revision = serde_json::from_str(&text).map_err(|e| unusable(e.to_string()))?;
        let commit = revision.sha;
        if !is_hex(&commit, 40) {
            return Err(unusable("its commit is not 40 hexadecimal digits".into()));
        }
        let tree = format!("{api}/tree/{commit}?recursive=true");
        let mut listing = Listing { commit, files: Vec::new(), digests: HashMap::new() };
        let mut next = Some(tree.clone());
        for _ in 0..MAX_PAGES {
            let Some(url) = next else { return Ok(listing) };
            let (text, cursor) = self.text(&url, spec, watch)?;
            // A mirror may name the hub that it mirrors: only the page's mark is taken from the address.
            next = cursor.map(|cursor| format!("{tree}&cursor={cursor}"));
            let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|e| unusable(e.to_string()))?;
            for entry in entries.into_iter().filter(|e| e.r#type == "file") {
                let size = entry.lfs.as_ref().map_or(entry.size, |l| l.size);
                listing.files.push(File { path: entry.path.clone(), size });
                if let Some(twice) = listing.digests.insert(entry.path.clone(), entry) {
                    return Err(unusable(format!("it lists {:?} twice", twice.path)));
                }
            }
            if listing.files.len() > MAX_FILES {
                break;
            }
        }
        Err(unusable(format!("it lists more than {MAX_FILES} files or {MAX_PAGES} pages")))
    }

    /// A JSON answer, and the mark of its next page.
    fn text(&self, url: &str, spec: &Spec, watch: &mut Watch<'_>) -> Result<(String, Option<String>)> {
        let mut patience = Patience::new(self.settings.backoff);
        loop {
            let answer = self.client.get(url, None).and_then(|reply| {
                if reply.status != 200 {
                    return Err(Failure::Final(self.refusal(&reply, &Asked::Revision(spec))));
                }
                let cursor = reply.header(header::LINK.as_str()).and_then(next_cursor);
                Ok((reply.text(MAX_ANSWER)?, cursor))
            });
            match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => patience.after(failure, watch)?,
            }
        }
    }

    /// What a status means for what was asked.
    pub(crate) fn refusal(&self, reply: &Reply, asked: &Asked<'_>) -> Error {
        let endpoint = self.settings.endpoint.clone();
        let (repo, what) = match asked {
            Asked::Revision(spec) => (spec.repo.to_string(), spec.to_string()),
            Asked::File(repo, file) => (repo.to_string(), format!("{repo}, file {file:?}")),
        };
        let code = reply.header("x-error-code").unwrap_or_default();
        let token = self.client.has_token();
        match (reply.status, code) {
            (401 | 403, "GatedRepo") => {
                let advice = if token {
                    "accept them with the account that the token belongs to"
                } else {
                    "then set HF_TOKEN to a token of that account (Settings, Access Tokens)"
                };
                Error::Gated { endpoint, repo, advice, said: reply.said() }
            }
            (404, "RevisionNotFound") => self.no_revision(asked, repo),
            (404, "EntryNotFound") => match asked {
                Asked::File(_, file) => Error::NoFile { repo, file: (*file).to_owned() },
                Asked::Revision(_) => self.no_revision(asked, repo),
            },
            // The hub hides private models from strangers by calling them unknown, with either status.
            (401 | 404, "RepoNotFound") => {
                let advice = if token {
                    "check the name, and that the token may read it if it is private"
                } else {
                    "check the name; a private one needs a token in HF_TOKEN"
                };
                Error::NoRepo { endpoint, repo, advice }
            }
            (404, _) => match asked {
                Asked::File(_, file) => Error::NoFile { repo, file: (*file).to_owned() },
                Asked::Revision(spec) if spec.revision.is_some() && self.knows(&spec.repo) => {
                    self.no_revision(asked, repo)
                }
                Asked::Revision(_) => Error::NoRepo { endpoint, repo, advice: "check the name" },
            },
            // Taken down: no token helps.
            (403, _) if reply.said().contains("resource is disabled") => {
                Error::Status { host: reply.host.clone(), what, status: 403, said: reply.said() }
            }
            (401 | 403, _) => {
                let advice = if token {
                    "the token may have expired (hf auth login makes another), or may not read it"
                } else {
                    "the name may be wrong; a private or gated model needs a token in HF_TOKEN"
                };
                Error::Refused { endpoint, repo, status: reply.status, advice, said: reply.said() }
            }
            (status, _) => Error::Status { host: reply.host.clone(), what, status, said: reply.said() },
        }
    }

    fn no_revision(&self, asked: &Asked<'_>, repo: String) -> Error {
        let revision = match asked {
            Asked::Revision(spec) => spec.revision().to_owned(),
            Asked::File(..) => "of this file".into(),
        };
        Error::NoRevision { endpoint: self.settings.endpoint.clone(), repo, revision }
    }

    /// Whether the model is there at all: servers without error codes leave that open.
    fn knows(&self, repo: &RepoId) -> bool {
        let url = format!("{}/api/models/{repo}", self.settings.endpoint);
        self.client.get(&url, None).is_ok_and(|reply| reply.status == 200)
    }
}

impl Listing {
    /// The file at `path`, if it may be fetched.
    pub(crate) fn file(&self, repo: &RepoId, path: &str) -> Result<RemoteFile> {
        let unusable = |problem: String| Error::Listing { repo: repo.to_string(), problem };
        let entry = self.digests.get(path).ok_or_else(|| unusable(format!("it does not list {path:?}")))?;
        if !is_safe_path(path) {
            return Err(unusable(format!("the path {path:?} would leave the folder or is no path on every system")));
        }
        let (digest, size) = match &entry.lfs {
            Some(large) => (Digest::sha256(large.oid.trim_start_matches("sha256:")), large.size),
            None => (entry.oid.as_deref().and_then(Digest::git), entry.size),
        };
        let digest = digest.ok_or_else(|| unusable(format!("the checksum of {path:?} is none")))?;
        Ok(RemoteFile { path: path.to_owned(), size, digest })
    }
}

/// The `cursor` of `<https://hub/api/...?cursor=x&limit=1000>; rel="next"`.
fn next_cursor(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let address = next.split_once('<')?.1.split_once('>')?.0;
    let query = address.split_once('?')?.1;
    let cursor = query.split('&').find_map(|pair| pair.strip_prefix("cursor="))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '~' | '%' | '=' | '+' | '/');
    cursor.chars().all(plain).then(|| cursor.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mark_of_the_next_page_is_taken_from_its_address() {
        let link = "<https://evil.example/x?limit=5&cursor=ZXlK%3D&y=1>; rel=\"next\"";
        assert_eq!(next_cursor(link).as_deref(), Some("ZXlK%3D"));
        assert_eq!(next_cursor("<https://a/b?cursor=x>; rel=\"prev\""), None);
        assert_eq!(next_cursor("<https://a/b?cursor=a b>; rel=\"next\""), None);
        assert_eq!(next_cursor("garbage"), None);
    }
}
