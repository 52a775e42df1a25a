//! Taking a model away: its files in the snapshots, and the blobs that no other snapshot uses.
//!
//! Deletes links and never through them: what a link leads to is deleted only where it is a blob of this model.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::cache::{Cache, Pointer, RepoFolder};
use crate::choose::{File, choose};
use crate::error::{Error, Result, at};
use crate::gguf::{groups, pick};
use crate::spec::{RepoId, Spec, is_hex};

/// What would go.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Removal {
    /// Whose files.
    pub repo: RepoId,
    /// The commits that lose files.
    pub commits: Vec<String>,
    /// Files that go, by path in the repository.
    pub files: Vec<String>,
    /// Bytes of disk that become free.
    pub bytes: u64,
    whole: bool,
    /// Of `commits`, those that lose all.
    emptied: BTreeSet<String>,
    pointers: Vec<PathBuf>,
    blobs: Vec<PathBuf>,
    folder: RepoFolder,
}

impl Cache {
    /// What `spec` names here: a whole model with all its revisions, one revision of it, or one quantisation.
    ///
    /// # Errors
    /// [`Error::Nothing`], and [`Error::Outside`] where part of the model's folder is a link.
    pub fn removal(&self, spec: &Spec) -> Result<Removal> {
        let folder = self.repo(&spec.repo);
        let nothing = || Error::Nothing { name: spec.to_string() };
        for path in [folder.path.clone(), folder.blobs(), folder.snapshots(), folder.refs_folder()] {
            match fs::symlink_metadata(&path) {
                Ok(m) if m.is_dir() => {}
                Ok(_) => {
                    return Err(Error::Outside {
                        path,
                        problem: "is a link or a file and stays as it is; remove it by hand",
                    });
                }
                Err(e) if e.kind() == ErrorKind::NotFound && path != folder.path => {}
                Err(e) if e.kind() == ErrorKind::NotFound => return Err(nothing()),
                Err(e) => return Err(at(&path)(e)),
            }
        }
        let chosen = match &spec.revision {
            None => folder.commits()?,
            Some(revision) => folder.commit(revision)?.into_iter().collect(),
        };
        let mut all = BTreeMap::new();
        for commit in folder.commits()? {
            all.insert(commit.clone(), folder.pointers(&commit)?);
        }
        let (mut goes, mut stays) = (Vec::new(), Vec::new());
        let mut commits = Vec::new();
        let mut emptied = BTreeSet::new();
        for (commit, pointers) in all {
            if !chosen.contains(&commit) {
                stays.extend(pointers);
                continue;
            }
            let (going, staying) = divide(pointers, spec)?;
            if !going.is_empty() || spec.part.is_none() {
                if staying.is_empty() {
                    emptied.insert(commit.clone());
                }
                commits.push(commit);
            }
            goes.extend(going);
            stays.extend(staying);
        }
        let whole = stays.is_empty() && (spec.revision.is_none() || !goes.is_empty());
        if goes.is_empty() && !(whole && spec.part.is_none()) {
            return Err(nothing());
        }
        let kept: BTreeSet<&str> = stays.iter().filter_map(|p| p.blob.as_deref()).collect();
        let names: BTreeSet<&str> =
            goes.iter().filter_map(|p| p.blob.as_deref()).filter(|b| !kept.contains(b)).collect();
        let mut blobs: Vec<PathBuf> = names.into_iter().map(|name| folder.blobs().join(name)).collect();
        if whole {
            blobs = own_blobs(&folder.blobs())?;
        }
        let length = |path: &PathBuf| fs::symlink_metadata(path).ok().filter(|m| m.is_file()).map_or(0, |m| m.len());
        let pointers: Vec<PathBuf> = goes.iter().map(|p| p.at.clone()).collect();
        let bytes = blobs.iter().chain(&pointers).map(length).sum();
        let files: BTreeSet<String> = goes.into_iter().map(|p| p.path).collect();
        let files = files.into_iter().collect();
        Ok(Removal { repo: spec.repo.clone(), commits, files, bytes, whole, emptied, pointers, blobs, folder })
    }
}

/// The files of a snapshot that go, and those that stay.
fn divide(pointers: Vec<Pointer>, spec: &Spec) -> Result<(Vec<Pointer>, Vec<Pointer>)> {
    let Some(part) = &spec.part else { return Ok((pointers, Vec::new())) };
    // A dangling link is part of its model too.
    let files: Vec<File> = pointers.iter().map(|p| File { path: p.path.clone(), size: p.size.unwrap_or(0) }).collect();
    let all = groups(&files);
    let group = match pick(&all, Some(part), &spec.repo.to_string()) {
        Ok(group) => group,
        Err(problem) if problem.starts_with("several") => return Err(Error::Choice(problem)),
        Err(_) => return Ok((Vec::new(), pointers)),
    };
    let has_more =
        all.len() > 1 || choose(&files, None, "").is_ok_and(|c| matches!(c, crate::choose::Choice::Safetensors { .. }));
    // The last one takes the vision part and what else came with it along.
    let goes = |p: &Pointer| !has_more || group.parts.values().any(|path| *path == p.path);
    Ok(pointers.into_iter().partition(goes))
}

/// Blobs, whole or on their way. Nothing else is in that folder, or it is none of ours.
fn own_blobs(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(at(folder)(e)),
    };
    let mut blobs = Vec::new();
    for entry in entries {
        let path = entry.map_err(at(folder))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let stem = name.split('.').next().unwrap_or_default();
        if is_hex(stem, 40) || is_hex(stem, 64) {
            blobs.push(path);
        }
    }
    Ok(blobs)
}

impl Removal {
    /// Deletes it.
    ///
    /// # Errors
    /// [`Error::Busy`] while the model is being pulled; what the file system refuses. What is left then is found by
    /// the next removal.
    pub fn apply(self) -> Result<()> {
        let lock = self.folder.lock_alone()?;
        // Refs first: what is half gone is not found any more.
        let refs = self.folder.refs_folder();
        for (name, commit) in self.folder.refs()? {
            if self.emptied.contains(&commit) {
                delete(&refs.join(name))?;
            }
        }
        for pointer in &self.pointers {
            delete(pointer)?;
        }
        for commit in &self.commits {
            prune(&self.folder.snapshot(commit))?;
        }
        for blob in &self.blobs {
            delete(blob)?;
        }
        if self.whole {
            // The last two are the Python client's notes of what is not there, and of what there is.
            let notes = [".no_exist", "trees"].map(|name| self.folder.path.join(name));
            for folder in [self.folder.snapshots(), self.folder.blobs(), refs].into_iter().chain(notes) {
                prune_all(&folder)?;
            }
            // Stays where something is in it that is none of ours.
            let _ = fs::remove_dir(&self.folder.path);
        }
        drop(lock);
        Ok(())
    }
}

/// Deletes a file, or a link and not what it leads to.
fn delete(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(at(path)(e)),
        _ => Ok(()),
    }
}

/// Deletes a folder of folders that have nothing in them.
fn prune(folder: &Path) -> Result<()> {
    if !fs::symlink_metadata(folder).is_ok_and(|m| m.is_dir()) {
        return Ok(());
    }
    for entry in fs::read_dir(folder).map_err(at(folder))?.flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            prune(&entry.path())?;
        }
    }
    match fs::remove_dir(folder) {
        Err(e) if !matches!(e.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::NotFound) => Err(at(folder)(e)),
        _ => Ok(()),
    }
}

/// Deletes a folder with all that is in it; links in it go, what they lead to stays.
fn prune_all(folder: &Path) -> Result<()> {
    match fs::symlink_metadata(folder) {
        Ok(m) if m.is_dir() => fs::remove_dir_all(folder).map_err(at(folder)),
        _ => Ok(()),
    }
}
