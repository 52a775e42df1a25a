//! The models that are here.

use std::fs;
use std::path::PathBuf;

use crate::cache::{Cache, Pointer, RepoFolder};
use crate::choose::{Choice, File, MAX_INDEX, choose, shards};
use crate::error::{Error, Result};
use crate::gguf::{Group, groups, mmproj};
use crate::spec::{RepoId, Spec};

/// A model in the cache: a safetensors checkpoint, or one quantisation of a GGUF repository.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LocalModel {
    /// Whose model.
    pub repo: RepoId,
    /// Which commit of it.
    pub commit: String,
    /// The branches and tags that are this commit here.
    pub refs: Vec<String>,
    /// What kind of files it is made of.
    pub format: Format,
    /// What to open: the snapshot's folder, or the GGUF file in it.
    pub path: PathBuf,
    /// Its files by path in the repository, with their bytes.
    pub files: Vec<(String, u64)>,
    /// What is missing, in words; `None` where it is whole.
    pub missing: Option<String>,
}

/// What kind of files a model is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A folder with `config.json` and safetensors.
    Safetensors,
    /// A GGUF file of this quantisation.
    Gguf(String),
}

impl LocalModel {
    /// Bytes of its files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }

    /// How it is asked for: with the revision unless it is `main`, with the quantisation if there is one.
    pub fn name(&self) -> String {
        let revision = match self.refs.first() {
            _ if self.refs.iter().any(|r| r == "main") => None,
            Some(branch) => Some(branch.clone()),
            None => Some(self.commit[..12].to_owned()),
        };
        let part = match &self.format {
            Format::Gguf(label) => Some(label.clone()),
            Format::Safetensors => None,
        };
        Spec { repo: self.repo.clone(), revision, part }.to_string()
    }
}

impl Cache {
    /// The models that are here, by name.
    ///
    /// # Errors
    /// A cache folder that can't be read. One that is not there holds no models.
    pub fn list(&self) -> Result<Vec<LocalModel>> {
        let mut models = Vec::new();
        for repo in self.repos()? {
            for commit in repo.commits()? {
                models.extend(Snapshot::open(&repo, &commit)?.models());
            }
        }
        Ok(models)
    }

    /// The model that `spec` names, whole.
    ///
    /// # Errors
    /// [`Error::NotHere`], [`Error::Incomplete`], or [`Error::Choice`] where several quantisations are here and none
    /// is named.
    pub fn find(&self, spec: &Spec) -> Result<LocalModel> {
        let repo = self.repo(&spec.repo);
        let name = spec.to_string();
        let Some(commit) = repo.commit(spec.revision())? else {
            let others: Vec<String> =
                repo.refs()?.into_iter().map(|(name, _)| format!("{}@{name}", spec.repo)).collect();
            let hint = if others.is_empty() { String::new() } else { format!(" ({} is)", others.join(", ")) };
            return Err(Error::NotHere { name, hint });
        };
        let snapshot = Snapshot::open(&repo, &commit)?;
        let model = match choose(&snapshot.files, spec.part.as_deref(), &spec.repo.to_string()) {
            Ok(Choice::Safetensors { files, index }) => snapshot.safetensors(files, index),
            Ok(Choice::Gguf { group, .. }) => snapshot.gguf(&group),
            Err(problem) => return Err(snapshot.why_none(spec, problem)),
        };
        match model.missing {
            Some(missing) => Err(Error::Incomplete { name, missing }),
            None => Ok(model),
        }
    }
}

struct Snapshot<'a> {
    repo: &'a RepoFolder,
    commit: &'a str,
    refs: Vec<String>,
    files: Vec<File>,
}

impl<'a> Snapshot<'a> {
    fn open(repo: &'a RepoFolder, commit: &'a str) -> Result<Self> {
        let file = |p: Pointer| p.size.map(|size| File { path: p.path, size });
        let files = repo.pointers(commit)?.into_iter().filter_map(file).collect();
        let refs = repo.refs()?.into_iter().filter(|(_, c)| c == commit).map(|(name, _)| name).collect();
        Ok(Snapshot { repo, commit, refs, files })
    }

    /// All that could be opened here, whole or not.
    fn models(&self) -> Vec<LocalModel> {
        let mut models = Vec::new();
        let others: Vec<File> = self.files.iter().filter(|f| f.path.ends_with(".gguf")).cloned().collect();
        // Without the GGUF files the choice is the checkpoint or nothing.
        let rest: Vec<File> = self.files.iter().filter(|f| !f.path.ends_with(".gguf")).cloned().collect();
        if let Ok(Choice::Safetensors { files, index }) = choose(&rest, None, "") {
            models.push(self.safetensors(files, index));
        }
        models.extend(groups(&others).iter().map(|g| self.gguf(g)));
        models
    }

    fn safetensors(&self, mut files: Vec<String>, index: Option<String>) -> LocalModel {
        let mut missing = None;
        if let Some(index) = index {
            match self.read_index(&index).and_then(|text| shards(&text)) {
                Ok(shards) => {
                    let (here, gone): (Vec<_>, Vec<_>) = shards.into_iter().partition(|s| self.has(s));
                    if let Some(first) = gone.first() {
                        let all = here.len() + gone.len();
                        missing = Some(format!("{} of {all} weight files are missing, such as {first}", gone.len()));
                    }
                    files.extend(here);
                }
                Err(problem) => missing = Some(problem),
            }
        }
        self.model(Format::Safetensors, self.repo.snapshot(self.commit), files, missing)
    }

    fn read_index(&self, index: &str) -> Result<String, String> {
        let path = self.repo.snapshot(self.commit).join(index);
        match fs::metadata(&path) {
            Ok(m) if m.len() > MAX_INDEX => Err(format!("{index} is longer than {MAX_INDEX} bytes")),
            _ => fs::read_to_string(&path).map_err(|e| format!("{index}: {e}")),
        }
    }

    fn gguf(&self, group: &Group) -> LocalModel {
        let vision = mmproj(&self.files, group).map(|f| f.path.clone());
        let path = self.repo.snapshot(self.commit).join(group.first().unwrap_or_default());
        let missing = group.missing();
        let missing = (missing > 0).then(|| format!("{missing} of {} parts are missing", group.of));
        let files = group.parts.values().cloned().chain(vision).collect();
        self.model(Format::Gguf(group.label.clone()), path, files, missing)
    }

    fn model(&self, format: Format, path: PathBuf, files: Vec<String>, missing: Option<String>) -> LocalModel {
        let size = |path: &String| self.files.iter().find(|f| f.path == *path).map_or(0, |f| f.size);
        let files = files.into_iter().map(|path| (path.clone(), size(&path))).collect();
        let (repo, commit, refs) = (self.repo.id.clone(), self.commit.to_owned(), self.refs.clone());
        LocalModel { repo, commit, refs, format, path, files, missing }
    }

    fn has(&self, path: &str) -> bool {
        self.files.iter().any(|f| f.path == path)
    }

    /// Why what was asked for can't be taken from here.
    fn why_none(&self, spec: &Spec, problem: String) -> Error {
        let name = spec.to_string();
        let here = groups(&self.files);
        let of_kind = |label: &str| spec.part.as_deref().is_some_and(|p| p.eq_ignore_ascii_case(label));
        if let Some(cut) = here.iter().find(|g| g.missing() > 0 && (here.len() == 1 || of_kind(&g.label))) {
            return Error::Incomplete { name, missing: self.gguf(cut).missing.unwrap_or_default() };
        }
        let labels: Vec<&str> = here.iter().map(|g| g.label.as_str()).collect();
        match &spec.part {
            Some(_) if !labels.is_empty() && !problem.starts_with("several") => {
                Error::NotHere { name, hint: format!(" ({} is)", labels.join(", ")) }
            }
            _ if !labels.is_empty() => Error::Choice(problem),
            _ if self.files.is_empty() => Error::NotHere { name, hint: String::new() },
            _ => Error::Incomplete { name, missing: "there are no weights".into() },
        }
    }
}
