//! GGUF files: the trunk, and the vision tower beside it.
//!
//! The exact inverse of how this program reads them, and byte for byte what llama.cpp's converter writes of the
//! tensors of a published checkpoint. What the source changed already (a GGUF file, say) is not changed twice.

mod keys;
mod tensors;
mod types;

use std::path::Path;

use turbospark_models::{LoadAs, plan};
use turbospark_tensor::DType;
use turbospark_weights::gguf::{NewTensor, Writer};
use turbospark_weights::packed::PackError;
use turbospark_weights::{Linear, Piece};

use super::fill::Filler;
use super::{PackOptions, PackProgress, PackReport, Source, made, room, units};
use crate::{Cancel, Error, Result};
use tensors::{Content, Tensor};

pub(super) fn pack(
    source: &Source<'_>,
    target: &Path,
    options: &PackOptions,
    cancel: &Cancel,
    progress: &mut dyn FnMut(PackProgress),
) -> Result<PackReport> {
    let checkpoint = &source.checkpoint;
    // GGUF has no form for codes and scales apart: those are quantised in any case, blocks only if that is wanted.
    let mut planned = plan(source.config.clone(), checkpoint, &LoadAs { requantise: true, ..options.load_as() })?;
    let is_block = |linear: &Linear| matches!(linear, Linear::Piece(piece) if piece.dtype().is_block());
    for p in planned.iter_mut().filter(|p| !options.requantise && is_block(&p.source)) {
        p.target = None;
    }
    let asked = options.quant.is_some();
    let kept_quantised = if asked { planned.iter().filter(|p| units::stays_quantised(p)).count() } else { 0 };
    let widened = planned.iter().filter(|p| p.target.is_none() && tensors::is_widened(&p.source)).count();

    let (trunk, tower) = tensors::tensors(&planned, &source.config, checkpoint.conventions())?;
    let name = options.name.clone().unwrap_or_else(|| types::name(source.path));
    std::fs::create_dir_all(target).map_err(|e| PackError::Io { path: target.to_owned(), source: e })?;
    let mut outputs = Vec::new();
    for (tensors, prefix) in [(trunk, ""), (tower, "mmproj-")] {
        if tensors.is_empty() {
            continue;
        }
        let most = types::most(&tensors);
        let keys = match prefix {
            "" => keys::trunk(source, &name, types::file_type(most))?,
            _ => keys::tower(source, &name, types::file_type(most))?,
        };
        let path = target.join(format!("{prefix}{name}-{}.gguf", types::label(most, options.quant.is_some())));
        let made = made(source.path, checkpoint, options);
        let writer = Writer::new(&path, &made, &keys, tensors.iter().map(new_tensor).collect())?;
        outputs.push((writer, tensors));
    }

    let of: u64 = outputs.iter().map(|(writer, _)| writer.total()).sum();
    let resumed: u64 = outputs.iter().map(|(writer, _)| writer.resumed()).sum();
    room(target, of - resumed)?;
    let mut filler = Filler::new(checkpoint, options.threads);
    let mut done = resumed;
    progress(PackProgress { bytes: done, of });
    let written = outputs.iter_mut().try_for_each(|(writer, tensors)| {
        writer.write(|i, sink| {
            let mut sink = |bytes: &[u8]| {
                if cancel.is_cancelled() {
                    return Err(Error::Cancelled);
                }
                done += bytes.len() as u64;
                progress(PackProgress { bytes: done, of });
                Ok(sink(bytes)?)
            };
            match &tensors[i].content {
                Content::Bytes(bytes) => sink(bytes),
                Content::Jobs(jobs, change) => jobs.iter().try_for_each(|job| filler.fill(job, change, &mut sink)),
            }
        })
    });
    let mut writers: Vec<Writer> = outputs.into_iter().map(|(writer, _)| writer).collect();
    if let Err(e) = written {
        // What no run could go on from would only take room.
        if !matches!(e, Error::Cancelled | Error::Pack(_)) {
            writers.into_iter().for_each(Writer::abandon);
        }
        return Err(e);
    }
    // Named once both are whole: a trunk alone would be taken for a model that only reads.
    writers.iter_mut().try_for_each(Writer::finish)?;
    let files: Vec<_> = writers.iter().map(|writer| writer.target().to_owned()).collect();
    writers.into_iter().try_for_each(Writer::settle)?;
    progress(PackProgress { bytes: of, of });
    Ok(PackReport {
        model: files.first().cloned().unwrap_or_else(|| target.to_owned()),
        files,
        bytes: of,
        source_bytes: checkpoint.total_bytes(),
        resumed,
        kept_quantised,
        widened,
        groups: filler.report(),
    })
}

fn new_tensor(tensor: &Tensor<'_>) -> NewTensor {
    NewTensor { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape }
}

/// The type of a piece that was put together from codes and scales, if it was.
fn dequantised(piece: &Piece) -> Option<DType> {
    match piece {
        Piece::Made(made) if made.recipe() == "dequantised" => Some(made.dtype),
        _ => None,
    }
}
