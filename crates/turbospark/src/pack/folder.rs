//! The packed folder.

use std::path::Path;

use serde_json::Value;
use turbospark_models::plan;
use turbospark_weights::packed::Writer;
use turbospark_weights::{ADDITIONAL_TEMPLATES, Folder, Sidecar};

use super::fill::Filler;
use super::units::{self, Job};
use super::{PackOptions, PackProgress, PackReport, Source, made, room};
use crate::{Cancel, Error, Result};

pub(super) fn pack(
    source: &Source<'_>,
    target: &Path,
    options: &PackOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<PackReport> {
    let checkpoint = &source.checkpoint;
    let planned = plan(source.config.clone(), checkpoint, &options.load_as())?;
    let asked = options.quant.is_some() && !options.requantise;
    let kept_quantised = if asked { planned.iter().filter(|p| units::stays_quantised(p)).count() } else { 0 };
    let units = units::units(&planned);
    let layout: Vec<_> = units.iter().map(|(name, jobs)| units::layout(name, jobs)).collect();
    let mut writer = Writer::new(target, &made(source.path, checkpoint, options), checkpoint.conventions(), &layout)?;
    let (of, resumed) = (writer.total(), writer.resumed());
    room(target, of - resumed)?;
    let mut filler = Filler::new(checkpoint, options.threads);
    let mut done = resumed;
    progress(PackProgress { bytes: done, of });
    writer.write(|[u, t, p], sink| {
        let job: &Job = &units[u].1[t];
        let mut sink = |bytes: &[u8]| {
            if cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            done += bytes.len() as u64;
            progress(PackProgress { bytes: done, of });
            Ok(sink(bytes)?)
        };
        match job.as_stored() {
            Some(change) => filler.fill(job, &change, &mut sink),
            None => filler.part(job, p, &mut sink),
        }
    })?;
    side_files(&source.folder, &writer, &source.config_text)?;
    writer.finish()?;
    progress(PackProgress { bytes: of, of });
    Ok(PackReport {
        model: target.to_owned(),
        files: Vec::new(),
        bytes: of,
        source_bytes: checkpoint.total_bytes(),
        resumed,
        kept_quantised,
        widened: 0,
        groups: filler.report(),
    })
}

/// The texts beside the weights; of the configuration without what it said of another program's quantising.
fn side_files(folder: &Folder, writer: &Writer, config_text: &str) -> Result<()> {
    let mut config: Value = serde_json::from_str(config_text).expect("it was read as a configuration");
    for key in ["quantization", "quantization_config", "compression_config"] {
        if let Some(object) = config.as_object_mut() {
            object.shift_remove(key);
        }
        if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
            text.shift_remove(key);
        }
    }
    let config = serde_json::to_string_pretty(&config).expect("it was read from text");
    writer.side_file(Sidecar::Config.file_name(), config.as_bytes())?;
    for sidecar in Sidecar::ALL.into_iter().filter(|s| *s != Sidecar::Config) {
        if let Some(text) = folder.text(sidecar)? {
            writer.side_file(sidecar.file_name(), text.as_bytes())?;
        }
    }
    for (name, text) in folder.additional_chat_templates()? {
        writer.side_file(&format!("{ADDITIONAL_TEMPLATES}/{name}.jinja"), text.as_bytes())?;
    }
    Ok(())
}
