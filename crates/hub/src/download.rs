//! One file: fetched, gone on with, checked, and only then given its name.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::address::encode_path;
use crate::cache::RepoFolder;
use crate::digest::Hasher;
use crate::error::{Error, Result, at};
use crate::event::{Event, Patience, Watch, tell};
use crate::http::{Failure, Reply};
use crate::listing::{Asked, Hub, RemoteFile};
use crate::spec::RepoId;

/// Bytes after which a connection that is cut again counts as a new trouble.
const A_WHILE: u64 = 1 << 20;

/// Fetches a blob that is not there, under its lock, and says how many bytes came. What comes is kept as `incomplete`
/// until its length and checksum are the listed ones; a cut leaves it there for the next attempt, in this run or a
/// later one.
pub(crate) fn fetch(
    hub: &Hub<'_>,
    repo: &RepoFolder,
    commit: &str,
    file: &RemoteFile,
    incomplete: PathBuf,
    watch: &mut Watch<'_>,
) -> Result<u64> {
    let blobs = repo.blobs();
    fs::create_dir_all(&blobs).map_err(at(&blobs))?;
    let endpoint = &hub.settings.endpoint;
    let url = format!("{endpoint}/{}/resolve/{commit}/{}", repo.id, encode_path(&file.path));
    let mut partial = Partial::open(incomplete, file, watch)?;
    // Bytes that no checksum has seen since they were written.
    let mut inherited = partial.have > 0;
    let mut patience = Patience::new(hub.settings.backoff);
    loop {
        while partial.have < file.size {
            let before = partial.have;
            let attempt = partial.fetch_rest(hub, &repo.id, &url, file, watch);
            if partial.have >= before + A_WHILE {
                patience.renew();
            }
            if let Err(failure) = attempt {
                let size_is_wrong = matches!(&failure, Failure::Final(Error::Size { .. }));
                if size_is_wrong {
                    partial.discard()?;
                }
                patience.after(failure, watch)?;
            }
        }
        let hex = partial.checksum(file);
        if hex == file.digest.hex() {
            break;
        }
        if !std::mem::take(&mut inherited) {
            partial.discard()?;
            return Err(Error::Checksum { file: file.path.clone(), wanted: file.digest.hex().into(), came: hex });
        }
        // What an earlier run left may have been damaged since; what comes now decides.
        tell(watch, Event::Again(partial.have))?;
        partial.restart(file)?;
    }
    let blob = repo.blob(file);
    // The name says that the content is checked, also after the power failed.
    partial.file.sync_all().map_err(at(&partial.path))?;
    let length = partial.file.metadata().map_err(at(&partial.path))?.len();
    if length != file.size {
        partial.discard()?;
        return Err(Error::Size { file: file.path.clone(), wanted: file.size, came: length });
    }
    drop(partial.file);
    fs::rename(&partial.path, &blob).map_err(at(&blob))?;
    Ok(partial.came)
}

/// A file on its way.
struct Partial {
    path: PathBuf,
    file: File,
    have: u64,
    /// Bytes of this run, those that had to come again included.
    came: u64,
    hasher: Hasher,
    /// The server gave another part than the one asked for: ask for the whole from now on.
    whole_only: bool,
    /// Where a body ended properly and too early, once.
    ended_early: Option<u64>,
}

impl Partial {
    fn open(path: PathBuf, file: &RemoteFile, watch: &mut Watch<'_>) -> Result<Self> {
        refuse_link(&path)?;
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let handle = open.map_err(at(&path))?;
        let hasher = file.digest.hasher(file.size);
        let mut partial =
            Partial { path, file: handle, have: 0, came: 0, hasher, whole_only: false, ended_early: None };
        let length = partial.file.metadata().map_err(at(&partial.path))?.len();
        if length > file.size {
            partial.restart(file)?;
        }
        partial.take_over(watch)?;
        Ok(partial)
    }

    /// Reads what an earlier run left, for the checksum.
    fn take_over(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        let mut buffer = vec![0; 1 << 18];
        loop {
            tell(watch, Event::Idle)?;
            match self.file.read(&mut buffer).map_err(at(&self.path))? {
                0 => return Ok(()),
                n => {
                    self.hasher.update(&buffer[..n]);
                    self.have += n as u64;
                }
            }
        }
    }

    fn restart(&mut self, file: &RemoteFile) -> Result<()> {
        self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0))).map_err(at(&self.path))?;
        self.hasher = file.digest.hasher(file.size);
        self.have = 0;
        Ok(())
    }

    fn discard(&self) -> Result<()> {
        fs::remove_file(&self.path).map_err(at(&self.path))
    }

    fn checksum(&mut self, file: &RemoteFile) -> String {
        std::mem::replace(&mut self.hasher, file.digest.hasher(file.size)).hex()
    }

    /// One request for what is missing.
    fn fetch_rest(
        &mut self,
        hub: &Hub<'_>,
        repo: &RepoId,
        url: &str,
        file: &RemoteFile,
        watch: &mut Watch<'_>,
    ) -> Result<(), Failure> {
        tell(watch, Event::Idle).map_err(Failure::Final)?;
        let from = Some(self.have).filter(|&have| have > 0 && !self.whole_only);
        let reply = hub.client.get(url, from)?;
        let starts = match reply.status {
            200 => 0,
            206 if from.is_some() => content_range(&reply, file)?.unwrap_or(u64::MAX),
            416 if from.is_some() => u64::MAX,
            _ => return Err(Failure::Final(hub.refusal(&reply, &Asked::File(repo, &file.path)))),
        };
        if starts == u64::MAX || (starts != 0 && starts != self.have) {
            // Not the part that was asked for. Nothing fits what is here; the next request is for the whole.
            self.whole_only = true;
            let problem = "it sent another part of the file than the one asked for".into();
            return Err(Failure::Passing(Error::Network { host: reply.host, problem }, None));
        }
        if starts != self.have {
            tell(watch, Event::Again(self.have)).map_err(Failure::Final)?;
            self.restart(file).map_err(Failure::Final)?;
        }
        if let Some(length) = reply.header("content-length").and_then(|l| l.parse::<u64>().ok()) {
            let came = self.have.saturating_add(length);
            // Less is fine in answer to a range: some servers give a file in slices.
            if came > file.size || (came < file.size && reply.status == 200) {
                return Err(self.wrong_size(file, came));
            }
        }
        self.copy(reply, file, watch)
    }

    fn copy(&mut self, reply: Reply, file: &RemoteFile, watch: &mut Watch<'_>) -> Result<(), Failure> {
        let host = reply.host.clone();
        let cut = |have: u64, why: String| {
            let problem = format!("the connection ended after {have} of {} bytes{why}", file.size);
            Failure::Passing(Error::Network { host: host.clone(), problem }, None)
        };
        let mut reader = reply.into_reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(0) if self.have == file.size => return Ok(()),
                Ok(0) if self.ended_early == Some(self.have) => return Err(self.wrong_size(file, self.have)),
                Ok(0) => {
                    self.ended_early = Some(self.have);
                    return Err(cut(self.have, String::new()));
                }
                Ok(n) => n,
                Err(e) => return Err(cut(self.have, format!(" ({e})"))),
            };
            let have = self.have + n as u64;
            if have > file.size {
                return Err(self.wrong_size(file, have));
            }
            self.file.write_all(&buffer[..n]).map_err(at(&self.path)).map_err(Failure::Final)?;
            self.hasher.update(&buffer[..n]);
            self.have = have;
            self.came += n as u64;
            tell(watch, Event::Bytes(n as u64)).map_err(Failure::Final)?;
        }
    }

    fn wrong_size(&self, file: &RemoteFile, came: u64) -> Failure {
        Failure::Final(Error::Size { file: file.path.clone(), wanted: file.size, came })
    }
}

/// Where the part starts, if the answer says so and means this file.
fn content_range(reply: &Reply, file: &RemoteFile) -> Result<Option<u64>, Failure> {
    let range = reply.header("content-range").and_then(|r| r.strip_prefix("bytes "));
    let Some((range, total)) = range.and_then(|r| r.split_once('/')) else { return Ok(None) };
    match total.parse::<u64>() {
        Ok(total) if total != file.size => {
            Err(Failure::Final(Error::Size { file: file.path.clone(), wanted: file.size, came: total }))
        }
        _ => Ok(range.split_once('-').and_then(|(start, _)| start.parse().ok())),
    }
}

/// A file on its way that is a link would be written to wherever it leads.
fn refuse_link(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_symlink() => Err(Error::Outside { path: path.to_owned(), problem: "is a link; remove it" }),
        _ => Ok(()),
    }
}
