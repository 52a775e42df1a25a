//! Finding and opening the model that the flags name.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use turbospark::{LoadOptions, Mmproj, Model};
use turbospark_hub::{Bytes, Cache, Spec};

use crate::console;
use crate::outcome::Usage;

/// The model at `path` or of this name, or the embedded one. One that doesn't fit into what is free says so.
pub fn open(path: Option<&Path>, options: &LoadOptions) -> anyhow::Result<Model> {
    let model = open_quietly(path, options)?;
    let plan = model.memory_plan();
    if let (Some(free), true) = (&plan.free, plan.streams()) {
        let whose = free.group.as_ref().map_or("are free".into(), |group| format!("are left by memory group {group}"));
        let (left, again) = (Bytes(free.bytes), Bytes(plan.read_per_token));
        console::note(format_args!(
            "{left} {whose}, fewer than {} takes: {again} are read again for each token (--memory SIZE to give more or less)",
            model.name()
        ));
    }
    Ok(model)
}

/// The same, for a look that runs nothing.
pub fn open_quietly(path: Option<&Path>, options: &LoadOptions) -> anyhow::Result<Model> {
    let Some(path) = path else {
        if options.mmproj != Mmproj::Beside {
            return Err(Usage("--mmproj is for .gguf models; --model FILE.gguf names one".into()).into());
        }
        return embedded(options);
    };
    let found = locate(path)?;
    // A pulled copy lies under its commit's hash: it is called as it was asked for.
    let name = (found != path).then(|| path.to_string_lossy().into_owned());
    let options = LoadOptions { name: name.or_else(|| options.name.clone()), ..options.clone() };
    Model::open(&found, &options).with_context(|| format!("cannot open the model {}", path.display()))
}

/// Where the model is: a file or folder as it is, a name such as `org/name` in the cache of pulled models.
pub fn locate(given: &Path) -> anyhow::Result<PathBuf> {
    if given.exists() {
        return Ok(given.to_owned());
    }
    let Some(spec) = given.to_str().and_then(|name| name.parse::<Spec>().ok()) else {
        bail!(
            "there is no file or folder {}; --model takes the folder of a checkpoint, a .gguf file, or the name of a pulled model, org/name",
            given.display()
        );
    };
    match Cache::from_env()?.find(&spec) {
        Ok(model) => Ok(model.path),
        Err(error @ turbospark_hub::Error::NotHere { .. }) => {
            bail!("{error} (a file or folder of that name is not here either)")
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(feature = "embedded-model")]
fn embedded(options: &LoadOptions) -> anyhow::Result<Model> {
    Model::embedded(options).context("cannot open the embedded model")
}

#[cfg(not(feature = "embedded-model"))]
fn embedded(_: &LoadOptions) -> anyhow::Result<Model> {
    Err(Usage("this build has no embedded model: --model DIR is needed".into()).into())
}
