//! Opening the model that the flags name.

use std::path::Path;

use anyhow::{Context, bail};
use turbospark::{LoadOptions, Model};

/// The model at `path`, or the embedded one.
pub fn open(path: Option<&Path>, options: &LoadOptions) -> anyhow::Result<Model> {
    let Some(path) = path else { return embedded(options) };
    if !path.exists() {
        bail!(
            "there is no model at {}; --model takes the folder of a downloaded checkpoint or a .gguf file",
            path.display()
        );
    }
    Model::open(path, options).with_context(|| format!("cannot open the model {}", path.display()))
}

#[cfg(feature = "embedded-model")]
fn embedded(options: &LoadOptions) -> anyhow::Result<Model> {
    Model::embedded(options).context("cannot open the embedded model")
}

#[cfg(not(feature = "embedded-model"))]
fn embedded(_: &LoadOptions) -> anyhow::Result<Model> {
    Err(crate::outcome::Usage("this build has no embedded model: --model DIR is needed".into()).into())
}
