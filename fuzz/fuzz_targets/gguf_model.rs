//! A model of GGUF files: names, keys and recipes of a trunk and of its tower.
//!
//! The first four bytes say how long the trunk is; the tower is the rest.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_weights::{Entry, Folder, Sidecar};

/// Bytes of a tensor that are asked for at most: an honest one is not much longer than its file.
const MOST: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first_chunk::<4>() else { return };
    let (trunk, tower) = rest.split_at((u32::from_le_bytes(*length) as usize).min(rest.len()));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, trunk).expect("a file");
    if !tower.is_empty() {
        std::fs::write(folder.path().join("mmproj.gguf"), tower).expect("a file");
    }
    let Ok(folder) = Folder::open(&path) else { return };
    Sidecar::ALL.into_iter().for_each(|sidecar| drop(folder.text(sidecar).expect("made of the files' keys")));
    let Ok(checkpoint) = folder.checkpoint() else { return };
    for (name, entry) in checkpoint.entries().filter(|(_, e)| e.length() <= MOST && e.elements() <= MOST) {
        let shape = match entry {
            Entry::Place(place) => place.shape,
            Entry::Made(made) => made.shape,
            Entry::Scaled(scaled) => scaled.shape,
            Entry::Foreign(_) => continue,
        };
        let Ok(piece) = checkpoint.claims().take(name, shape) else { continue };
        checkpoint.fill(&piece, &mut vec![0; piece.length() as usize]).expect("what was checked can be read");
    }
});
