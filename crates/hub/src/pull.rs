//! A pull: what is there, what of it is needed, what is missing here, fetch that.

use std::fs;
use std::path::PathBuf;

use crate::cache::{Cache, RepoFolder};
use crate::choose::{Choice, MAX_INDEX, choose, shards};
use crate::download::fetch;
use crate::error::{Error, Result, at};
use crate::event::{Event, Watch, tell};
use crate::http::Client;
use crate::listing::{Hub, Listing, RemoteFile};
use crate::local::LocalModel;
use crate::settings::Settings;
use crate::spec::Spec;

/// What a pull came to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pulled {
    /// The model as it is here now.
    pub model: LocalModel,
    /// Its files.
    pub files: Vec<PulledFile>,
    /// Bytes that came over the network.
    pub downloaded: u64,
    /// The commit that the branch was here before, if it was another; its files are still here.
    pub replaced: Option<String>,
}

/// A file of a pulled model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PulledFile {
    /// Its path in the repository.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Whether it was fetched now.
    pub fetched: bool,
}

/// Fetches the model that `spec` names into the cache, or what is missing of it.
///
/// # Errors
/// What the hub, the network, the disk or the settings refuse, and [`Error::Cancelled`] where `watch` breaks off.
/// What was fetched until then stays for the next attempt.
pub fn pull(spec: &Spec, settings: &Settings, watch: &mut Watch<'_>) -> Result<Pulled> {
    let cache = Cache::new(&settings.cache);
    if settings.offline {
        return offline(&cache, spec);
    }
    let client = Client::new(settings)?;
    let hub = Hub { client: &client, settings };
    let listing = hub.listing(spec, watch)?;
    let repo = cache.repo(&spec.repo);
    let _pulling = repo.lock_shared()?;
    let work = Work { hub: &hub, cache: &cache, repo: &repo, listing: &listing };
    let name = spec.repo.to_string();
    let mut done = Vec::new();
    let mut downloaded = 0;
    let paths = match choose(&listing.files, spec.part.as_deref(), &name).map_err(Error::Choice)? {
        Choice::Gguf { group, mmproj } => group.parts.into_values().chain(mmproj).collect(),
        Choice::Safetensors { files, index: None } => files,
        Choice::Safetensors { mut files, index: Some(index) } => {
            // The index says which files are to come, so it comes before they are counted.
            let index = listing.file(&spec.repo, &index)?;
            let text = work.read(&index, &mut downloaded, watch)?;
            files.extend(shards(&text).map_err(|problem| Error::Listing { repo: name.clone(), problem })?);
            files
        }
    };
    let files = paths.iter().map(|p| listing.file(&spec.repo, p)).collect::<Result<Vec<_>>>()?;
    work.check_room(&files, watch)?;
    for file in &files {
        let fetched = work.get(file, &mut downloaded, watch)?;
        done.push(PulledFile { name: file.path.clone(), bytes: file.size, fetched });
    }
    let before = repo.refs()?.into_iter().find(|(name, _)| name == spec.revision()).map(|(_, commit)| commit);
    repo.set_ref(spec.revision(), &listing.commit)?;
    let replaced = before.filter(|b| *b != listing.commit && repo.snapshot(b).is_dir());
    // A commit given in part has no ref of its own.
    let whole = Spec { revision: Some(listing.commit.clone()), ..spec.clone() };
    Ok(Pulled { model: cache.find(&whole)?, files: done, downloaded, replaced })
}

fn offline(cache: &Cache, spec: &Spec) -> Result<Pulled> {
    let model = cache.find(spec).map_err(|because| Error::Offline { because: Box::new(because) })?;
    let file = |(name, bytes): &(String, u64)| PulledFile { name: name.clone(), bytes: *bytes, fetched: false };
    let files = model.files.iter().map(file).collect();
    Ok(Pulled { model, files, downloaded: 0, replaced: None })
}

struct Work<'a> {
    hub: &'a Hub<'a>,
    cache: &'a Cache,
    repo: &'a RepoFolder,
    listing: &'a Listing,
}

impl Work<'_> {
    /// Makes a file part of the snapshot, and says whether it had to be fetched.
    fn get(&self, file: &RemoteFile, downloaded: &mut u64, watch: &mut Watch<'_>) -> Result<bool> {
        let commit = &self.listing.commit;
        if self.repo.has(commit, file) {
            return Ok(false);
        }
        let lock = self.repo.lock_blob(file, watch)?;
        // Another process may have brought it while this one waited.
        let missing = !self.repo.has(commit, file) && !self.repo.has_blob(file);
        if missing {
            let here = self.here(file);
            tell(watch, Event::File { name: &file.path, bytes: file.size, from: here })?;
            let incomplete = match lock {
                Some(_) => self.repo.incomplete(file),
                None => self.repo.incomplete_of_this_process(file),
            };
            *downloaded += fetch(self.hub, self.repo, commit, file, incomplete, watch)?;
        }
        if !self.repo.has(commit, file) {
            self.repo.place(commit, file, self.hub.settings.no_links)?;
        }
        drop(lock);
        if missing {
            tell(watch, Event::Done { name: &file.path, bytes: file.size })?;
        }
        Ok(missing)
    }

    fn read(&self, file: &RemoteFile, downloaded: &mut u64, watch: &mut Watch<'_>) -> Result<String> {
        if file.size > MAX_INDEX {
            let problem = format!("{} has {} bytes; {MAX_INDEX} are read", file.path, file.size);
            return Err(Error::Listing { repo: self.repo.id.to_string(), problem });
        }
        self.get(file, downloaded, watch)?;
        let path = self.repo.snapshot(&self.listing.commit).join(&file.path);
        fs::read_to_string(&path).map_err(at(&path))
    }

    /// Bytes of a file that need not come: all, or what an earlier pull left.
    fn here(&self, file: &RemoteFile) -> u64 {
        if self.repo.has(&self.listing.commit, file) || self.repo.has_blob(file) {
            return file.size;
        }
        fs::metadata(self.repo.incomplete(file)).map_or(0, |m| m.len()).min(file.size)
    }

    fn check_room(&self, files: &[RemoteFile], watch: &mut Watch<'_>) -> Result<()> {
        let overflow =
            || Error::Listing { repo: self.repo.id.to_string(), problem: "its files have no sensible size".into() };
        let bytes = files.iter().try_fold(0u64, |sum, f| sum.checked_add(f.size)).ok_or_else(overflow)?;
        let here: u64 = files.iter().map(|f| self.here(f)).sum();
        tell(watch, Event::Planned { files: files.len(), bytes, here })?;
        let (needed, free) = (bytes - here, self.cache.free()?);
        if needed > free {
            let folder: PathBuf = self.cache.root().into();
            return Err(Error::Space { folder, needed, free });
        }
        Ok(())
    }
}
