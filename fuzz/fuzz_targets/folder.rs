//! A folder of weights: what a configuration says of quantised tensors, a shard index, a packed folder's manifest.
//!
//! The first byte says which, the next two how long the text is; the weights' file is the rest.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_weights::{Checkpoint, Entry};

/// Bytes of a tensor that are asked for at most: an honest one is not much longer than its file.
const MOST: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let [kind, low, high, rest @ ..] = data else { return };
    let (text, weights) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    let (text_name, weights_name) = match kind % 4 {
        0 => ("config.json", "model.safetensors"),
        1 => ("quantize_config.json", "model.safetensors"),
        2 => ("model.safetensors.index.json", "a.safetensors"),
        _ => ("turbospark.json", "weights-00001-of-00001.bin"),
    };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join(text_name), text).expect("a file");
    std::fs::write(folder.path().join(weights_name), weights).expect("a file");
    let Ok(checkpoint) = Checkpoint::open(folder.path()) else { return };
    for (name, entry) in checkpoint.entries() {
        if entry.length() > MOST || entry.elements() > MOST {
            continue;
        }
        if let Entry::Place(place) = entry {
            assert!(place.offset + place.length <= weights.len() as u64, "{name} leaves the file");
        }
        // As floats: codes, scales and recipes are all read.
        let Some(shape) = shape(entry) else { continue };
        let Ok(piece) = checkpoint.claims().take(name, shape) else { continue };
        let mut out = vec![0; piece.length() as usize];
        checkpoint.fill(&piece, &mut out).expect("what was checked can be read");
    }
});

fn shape(entry: &Entry) -> Option<turbospark_tensor::Shape> {
    match entry {
        Entry::Place(place) => Some(place.shape),
        Entry::Made(made) => Some(made.shape),
        Entry::Scaled(scaled) => Some(scaled.shape),
        Entry::Foreign(_) => None,
    }
}
