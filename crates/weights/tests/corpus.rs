//! What fuzzing found and files near it: no reader panics, and none believes a place outside its file.
//!
//! A few changes to every file of the corpus each run; `TURBOSPARK_MUTATE=SECONDS` goes on for so long, with a seed of
//! its own, and prints the file that was being read where one panics.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use turbospark_testkit::Random;
use turbospark_weights::{Checkpoint, Entry, Folder, Sidecar, gguf};

/// Bytes of a tensor that are asked for at most.
const MOST: u64 = 1 << 20;

fn corpus(kind: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(kind);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

fn safetensors(data: &[u8]) {
    let Ok(checkpoint) = Checkpoint::from_bytes("x.safetensors", Arc::<[u8]>::from(data)) else { return };
    for (name, entry) in checkpoint.entries() {
        let Entry::Place(place) = entry else { continue };
        assert!(place.offset + place.length <= data.len() as u64, "{name} leaves the file");
        checkpoint.read(place, &mut vec![0; place.length as usize]).unwrap();
    }
}

fn gguf_file(data: &[u8]) {
    let Ok(set) = gguf::from_bytes("x.gguf", Arc::<[u8]>::from(data)) else { return };
    let m = &set.metadata;
    for (key, _) in m.iter() {
        let _ = (m.text(key), m.count(key), m.number(key), m.flag(key), m.texts(key), m.counts(key), m.numbers(key));
    }
    for (_, tensor) in &set.tensors {
        assert!(tensor.offset + tensor.length <= data.len() as u64, "{} leaves the file", tensor.name);
    }
    let _ = (gguf::tokenizer_config_json(m), gguf::tokenizer_json(m), gguf::generation_config_json(m));
}

/// The first byte says which text it is, the next two how long it is; the weights' file is the rest.
fn folder(data: &[u8]) {
    let [kind, low, high, rest @ ..] = data else { return };
    let (text, weights) = rest.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(rest.len()));
    let (text_name, weights_name) = match kind % 4 {
        0 => ("config.json", "model.safetensors"),
        1 => ("quantize_config.json", "model.safetensors"),
        2 => ("model.safetensors.index.json", "a.safetensors"),
        _ => ("turbospark.json", "weights-00001-of-00001.bin"),
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(text_name), text).unwrap();
    std::fs::write(folder.path().join(weights_name), weights).unwrap();
    if let Ok(checkpoint) = Checkpoint::open(folder.path()) {
        read_all(&checkpoint);
    }
}

/// The first four bytes say how long the trunk is; its tower, if it has one, is the rest.
fn gguf_model(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<4>() else { return };
    let (trunk, tower) = rest.split_at((u32::from_le_bytes(*length) as usize).min(rest.len()));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, trunk).unwrap();
    if !tower.is_empty() {
        std::fs::write(folder.path().join("mmproj.gguf"), tower).unwrap();
    }
    let Ok(folder) = Folder::open(&path) else { return };
    assert!(Sidecar::ALL.into_iter().all(|sidecar| folder.text(sidecar).is_ok()));
    if let Ok(checkpoint) = folder.checkpoint() {
        read_all(&checkpoint);
    }
}

/// Every tensor as floats: codes, scales and recipes are all read.
fn read_all(checkpoint: &Checkpoint) {
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
}

/// A file with one to four changes of the kinds that find the most: bits, counts, digits, lengths, and parts of others.
fn changed(file: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    const NUMBERS: [u64; 8] = [0, 1, 31, 1 << 16, 1 << 31, 1 << 32, 1 << 63, u64::MAX];
    let mut out = file.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(out.len().max(1));
        let length = random.below(64).min(out.len().saturating_sub(at));
        match random.below(8) {
            0 if !out.is_empty() => out[at] ^= 1 << random.below(8),
            1 if !out.is_empty() => out[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => {
                let number = NUMBERS[random.below(NUMBERS.len())].wrapping_sub(random.below(3) as u64);
                out.iter_mut().skip(at).zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
            }
            3 => {
                // A number of the text becomes another.
                let digit = out.iter().skip(at).position(u8::is_ascii_digit);
                if let Some(digit) = digit {
                    out[at + digit] = b'0' + random.below(10) as u8;
                }
            }
            4 => drop(out.drain(at..at + length)),
            5 => {
                let again = out[at..at + length].to_vec();
                out.splice(at..at, again);
            }
            6 => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len().max(1));
                let part = other[from.min(other.len())..other.len().min(from + 64)].to_vec();
                out.splice(at..at + length, part);
            }
            _ => out.truncate(at.max(out.len() / 2)),
        }
    }
    out
}

fn check(kind: &str, read: fn(&[u8])) {
    let files = corpus(kind);
    assert!(!files.is_empty());
    files.iter().for_each(|file| read(file));
    let seconds = std::env::var("TURBOSPARK_MUTATE").ok().map(|s| s.parse().expect("a number of seconds"));
    let until = Instant::now() + Duration::from_secs(seconds.unwrap_or(0));
    let start = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut random = Random::new(if seconds.is_some() { start } else { 7 });
    let mut runs = 0;
    while (runs < 8 * files.len() && seconds.is_none()) || (seconds.is_some() && Instant::now() < until) {
        let file = changed(&files[runs % files.len()], &files, &mut random);
        if let Err(panic) = std::panic::catch_unwind(|| read(&file)) {
            println!("{kind}: {file:?}");
            std::panic::resume_unwind(panic);
        }
        runs += 1;
    }
    println!("{kind}: {runs} files read");
}

#[test]
fn safetensors_near_the_corpus_are_read_or_refused() {
    check("safetensors", safetensors);
}

#[test]
fn gguf_files_near_the_corpus_are_read_or_refused() {
    check("gguf", gguf_file);
}

#[test]
fn folders_near_the_corpus_are_read_or_refused() {
    check("folder", folder);
}

#[test]
fn gguf_models_near_the_corpus_are_read_or_refused() {
    // Whole ones are among them: else the changes would be to files that are refused at once.
    for file in corpus("gguf_model") {
        let length = u32::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let folder = tempfile::tempdir().unwrap();
        let [trunk, tower] = ["model.gguf", "mmproj.gguf"].map(|name| folder.path().join(name));
        std::fs::write(&trunk, &file[4..4 + length]).unwrap();
        if file.len() > 4 + length {
            std::fs::write(tower, &file[4 + length..]).unwrap();
        }
        let folder = Folder::open(&trunk).unwrap();
        assert!(folder.checkpoint().unwrap().len() > 10 && folder.require(Sidecar::PreprocessorConfig).is_ok());
    }
    check("gguf_model", gguf_model);
}
