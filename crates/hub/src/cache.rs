//! The cache folder that all programs of the hub share.
//!
//! ```text
//! models--org--name/blobs/<checksum>             contents, under their checksum
//! models--org--name/snapshots/<commit>/<path>    links to blobs; files where the system has no links
//! models--org--name/refs/<branch>                the commit that a branch was, at the last pull
//! .locks/models--org--name/<checksum>.lock       held while a blob is fetched, by whichever program
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::error::{Error, Result, at};
use crate::event::{Event, Watch, sleep, tell};
use crate::listing::RemoteFile;
use crate::spec::{RepoId, is_hex, is_safe_path};

/// A cache folder; it need not be there yet.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// One model's part of the cache.
#[derive(Clone, Debug)]
pub(crate) struct RepoFolder {
    pub(crate) id: RepoId,
    pub(crate) path: PathBuf,
    locks: PathBuf,
}

/// A file of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Pointer {
    /// In the repository.
    pub(crate) path: String,
    /// On this machine.
    pub(crate) at: PathBuf,
    /// Of what it leads to; `None` where that is gone.
    pub(crate) size: Option<u64>,
    /// The blob that it is a link to.
    pub(crate) blob: Option<String>,
}

impl Cache {
    /// The cache in this folder.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Cache { root: root.into() }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn repo(&self, id: &RepoId) -> RepoFolder {
        let name = id.folder_name();
        RepoFolder { id: id.clone(), path: self.root.join(&name), locks: self.root.join(".locks").join(name) }
    }

    /// The models that have a folder here, by name.
    pub(crate) fn repos(&self) -> Result<Vec<RepoFolder>> {
        let mut ids: Vec<RepoId> = names(&self.root)?.iter().filter_map(|n| RepoId::from_folder_name(n)).collect();
        ids.sort();
        Ok(ids.iter().map(|id| self.repo(id)).collect())
    }

    /// Bytes that can still be written here.
    pub(crate) fn free(&self) -> Result<u64> {
        fs::create_dir_all(&self.root).map_err(at(&self.root))?;
        fs4::available_space(&self.root).map_err(at(&self.root))
    }
}

impl RepoFolder {
    pub(crate) fn blobs(&self) -> PathBuf {
        self.path.join("blobs")
    }

    pub(crate) fn blob(&self, file: &RemoteFile) -> PathBuf {
        self.blobs().join(file.digest.hex())
    }

    /// What there is of a blob on its way.
    pub(crate) fn incomplete(&self, file: &RemoteFile) -> PathBuf {
        self.blobs().join(format!("{}.incomplete", file.digest.hex()))
    }

    /// The same where no lock keeps others from it: two that write one file could leave a hole in it.
    pub(crate) fn incomplete_of_this_process(&self, file: &RemoteFile) -> PathBuf {
        self.blobs().join(format!("{}.{}.incomplete", file.digest.hex(), std::process::id()))
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.path.join("snapshots")
    }

    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    pub(crate) fn refs_folder(&self) -> PathBuf {
        self.path.join("refs")
    }

    /// The snapshots that are here.
    pub(crate) fn commits(&self) -> Result<Vec<String>> {
        let mut commits = names(&self.snapshots())?;
        commits.retain(|c| is_hex(c, 40));
        commits.sort();
        Ok(commits)
    }

    /// Branches and tags with the commit that each was.
    pub(crate) fn refs(&self) -> Result<Vec<(String, String)>> {
        let mut refs = Vec::new();
        for (name, path) in walk(&self.refs_folder())? {
            let commit = fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
            if is_hex(&commit, 40) {
                refs.push((name, commit));
            }
        }
        refs.sort();
        Ok(refs)
    }

    /// The commit that a branch, a tag or the beginning of a commit stands for here.
    pub(crate) fn commit(&self, revision: &str) -> Result<Option<String>> {
        if let Some((_, commit)) = self.refs()?.into_iter().find(|(name, _)| name == revision) {
            return Ok(Some(commit));
        }
        let commits = self.commits()?;
        let mut fits = commits.into_iter().filter(|c| revision.len() >= 7 && c.starts_with(revision));
        Ok(fits.next().filter(|_| fits.next().is_none()))
    }

    /// Notes what a branch is now. Done last, so that a pull that is cut leaves the older copy in use.
    pub(crate) fn set_ref(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit {
            return Ok(());
        }
        let path = self.refs_folder().join(revision);
        let folder = path.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).map_err(at(folder))?;
        // Of its own for each pull, also for several of one process.
        static DRAFTS: AtomicU64 = AtomicU64::new(0);
        let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
        let draft = self.path.join(format!(".ref-{}-{number}", std::process::id()));
        fs::write(&draft, commit).map_err(at(&draft))?;
        fs::rename(&draft, &path).map_err(at(&path))
    }

    /// The files of a snapshot. Folders that are links are not entered.
    pub(crate) fn pointers(&self, commit: &str) -> Result<Vec<Pointer>> {
        let found = walk(&self.snapshot(commit))?;
        Ok(found.into_iter().map(|(path, at)| self.pointer(path, at)).collect())
    }

    fn pointer(&self, path: String, at: PathBuf) -> Pointer {
        let size = fs::metadata(&at).ok().filter(|m| m.is_file()).map(|m| m.len());
        let blob = fs::read_link(&at).ok().and_then(|target| self.blob_name(&path, &target));
        Pointer { path, at, size, blob }
    }

    /// The blob that a link leads to, if it leads to one of this model's and nowhere else.
    fn blob_name(&self, path: &str, target: &Path) -> Option<String> {
        let name = target.file_name()?.to_str()?;
        let own = target == link_target(path, name) || target == self.blobs().join(name);
        (own && (is_hex(name, 40) || is_hex(name, 64))).then(|| name.to_owned())
    }

    /// Whether the snapshot has the file, at its full length.
    pub(crate) fn has(&self, commit: &str, file: &RemoteFile) -> bool {
        fs::metadata(self.snapshot(commit).join(&file.path)).is_ok_and(|m| m.is_file() && m.len() == file.size)
    }

    /// Whether the blob is there, at its full length.
    pub(crate) fn has_blob(&self, file: &RemoteFile) -> bool {
        fs::symlink_metadata(self.blob(file)).is_ok_and(|m| m.is_file() && m.len() == file.size)
    }

    /// Makes a blob a file of a snapshot: by a link, or `no_links` by moving it there.
    pub(crate) fn place(&self, commit: &str, file: &RemoteFile, no_links: bool) -> Result<()> {
        self.place_by(commit, file, if no_links { |_, _| Err(ErrorKind::Unsupported.into()) } else { symlink })
    }

    fn place_by(&self, commit: &str, file: &RemoteFile, link: fn(&Path, &Path) -> std::io::Result<()>) -> Result<()> {
        let pointer = self.snapshot(commit).join(&file.path);
        let folder = pointer.parent().unwrap_or(&self.path);
        fs::create_dir_all(folder).map_err(at(folder))?;
        match fs::remove_file(&pointer) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(at(&pointer)(e)),
            _ => {}
        }
        match link(&link_target(&file.path, file.digest.hex()), &pointer) {
            // Another pull has just made the same link.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            // A system or disk without links: the blob itself becomes the file, as the Python client has it.
            Err(_) => fs::rename(self.blob(file), &pointer).map_err(at(&pointer)),
            Ok(()) => Ok(()),
        }
    }

    /// Keeps others from fetching the same blob. Waits as long as they do: a lock ends with its process. `None`
    /// where the disk has no locks.
    pub(crate) fn lock_blob(&self, file: &RemoteFile, watch: &mut Watch<'_>) -> Result<Option<File>> {
        let lock = self.lock_file(&format!("{}.lock", file.digest.hex()))?;
        let mut told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(lock)),
                Err(TryLockError::Error(_)) => return Ok(None),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut told, true) {
                        tell(watch, Event::Waiting { name: &file.path })?;
                    }
                    sleep(Duration::from_millis(100), watch)?;
                }
            }
        }
    }

    /// Held by every pull of the model, so that a removal can tell. `None` where the disk has no locks.
    pub(crate) fn lock_shared(&self) -> Result<Option<File>> {
        let lock = self.lock_file("turbospark.lock")?;
        Ok(lock.lock_shared().is_ok().then_some(lock))
    }

    /// Held by a removal.
    pub(crate) fn lock_alone(&self) -> Result<Option<File>> {
        let lock = self.lock_file("turbospark.lock")?;
        match lock.try_lock() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::Error(_)) => Ok(None),
            Err(TryLockError::WouldBlock) => Err(Error::Busy { name: self.id.to_string() }),
        }
    }

    fn lock_file(&self, name: &str) -> Result<File> {
        fs::create_dir_all(&self.locks).map_err(at(&self.locks))?;
        let path = self.locks.join(name);
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(at(&path))
    }
}

/// From a file of a snapshot to a blob.
fn link_target(path: &str, blob: &str) -> PathBuf {
    let mut target = PathBuf::from("../..");
    target.extend(path.split('/').skip(1).map(|_| ".."));
    target.join("blobs").join(blob)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> std::io::Result<()> {
    // Links of Windows are not followed through slashes that lean the other way.
    let target: PathBuf = target.components().collect();
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// The names in a folder, which need not be there. What is not Unicode is none of ours.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(at(folder)(e)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(at(folder))?.file_name().into_string());
    }
    Ok(names)
}

/// The files under a folder by their path in it, links not followed.
fn walk(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir());
    let mut open: Vec<String> = is_folder.then(String::new).into_iter().collect();
    while let Some(inside) = open.pop() {
        for name in names(&folder.join(&inside))? {
            let path = if inside.is_empty() { name } else { format!("{inside}/{name}") };
            let at = folder.join(&path);
            match fs::symlink_metadata(&at) {
                Ok(m) if m.is_dir() => open.push(path),
                Ok(_) if is_safe_path(&path) => found.push((path, at)),
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn repo(root: &Path) -> RepoFolder {
        Cache::new(root).repo(&"org/name".parse::<crate::Spec>().unwrap().repo)
    }

    fn file(path: &str) -> RemoteFile {
        RemoteFile { path: path.into(), size: 5, digest: Digest::git(&"b".repeat(40)).unwrap() }
    }

    #[test]
    fn a_system_without_links_gets_the_file_itself() {
        let folder = tempfile::tempdir().unwrap();
        let repo = repo(folder.path());
        let file = file("sub/config.json");
        let commit = "a".repeat(40);
        fs::create_dir_all(repo.blobs()).unwrap();
        fs::write(repo.blob(&file), "hello").unwrap();
        repo.place_by(&commit, &file, |_, _| Err(ErrorKind::PermissionDenied.into())).unwrap();
        assert!(repo.has(&commit, &file) && !repo.has_blob(&file));
        let pointers = repo.pointers(&commit).unwrap();
        assert_eq!(
            (pointers[0].path.as_str(), pointers[0].size, pointers[0].blob.as_deref()),
            ("sub/config.json", Some(5), None)
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_are_relative_and_only_those_to_own_blobs_count() {
        let folder = tempfile::tempdir().unwrap();
        let repo = repo(folder.path());
        let commit = "a".repeat(40);
        fs::create_dir_all(repo.blobs()).unwrap();
        for path in ["a.json", "x/y/b.json"] {
            let file = file(path);
            fs::write(repo.blob(&file), "hello").unwrap();
            repo.place(&commit, &file, false).unwrap();
            repo.place(&commit, &file, false).unwrap();
            assert!(repo.has(&commit, &file), "{path}");
        }
        let elsewhere = folder.path().join("secret");
        fs::write(&elsewhere, "hello").unwrap();
        symlink(&elsewhere, &repo.snapshot(&commit).join("c.json")).unwrap();
        symlink(folder.path(), &repo.snapshot(&commit).join("dir")).unwrap();
        let pointers = repo.pointers(&commit).unwrap();
        let blobs: Vec<_> = pointers.iter().map(|p| (p.path.as_str(), p.blob.is_some())).collect();
        assert_eq!(blobs, [("a.json", true), ("c.json", false), ("dir", false), ("x/y/b.json", true)]);
    }

    #[test]
    fn a_revision_is_a_branch_or_the_beginning_of_one_commit() {
        let folder = tempfile::tempdir().unwrap();
        let repo = repo(folder.path());
        let (one, two) = ("1234567".to_owned() + &"a".repeat(33), "1234568".to_owned() + &"a".repeat(33));
        for commit in [&one, &two] {
            fs::create_dir_all(repo.snapshot(commit)).unwrap();
        }
        repo.set_ref("refs/pr/5", &two).unwrap();
        repo.set_ref("main", &one).unwrap();
        fs::write(repo.path.join("refs/broken"), "../../x").unwrap();
        let commit = |revision: &str| repo.commit(revision).unwrap();
        assert_eq!(commit("main").as_deref(), Some(one.as_str()));
        assert_eq!(commit("refs/pr/5").as_deref(), Some(two.as_str()));
        assert_eq!(commit("1234568").as_deref(), Some(two.as_str()));
        assert_eq!((commit("123456"), commit("broken"), commit("dev")), (None, None, None));
    }
}
