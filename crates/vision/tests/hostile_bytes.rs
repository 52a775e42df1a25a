//! Damaged files cost an error and nothing else.

mod common;

use common::*;
use turbospark_vision::{DecodeLimits, decode};

/// Small enough that a mutated header does not make the test slow.
const LIMITS: DecodeLimits = DecodeLimits { max_pixels: 300_000, max_alloc_bytes: 8 << 20, threads: 1 };
const MUTATIONS: u64 = 80;

fn samples() -> Vec<(String, Vec<u8>)> {
    let folders =
        [assets("fixtures/images"), assets("cases/inputs"), concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data").into()];
    let mut files: Vec<_> =
        folders.iter().flat_map(|f| std::fs::read_dir(f).unwrap().map(|e| e.unwrap().path())).collect();
    files.sort();
    files.iter().map(|p| (p.display().to_string(), std::fs::read(p).unwrap())).collect()
}

/// A small generator, so that a failure names a mutation that can be made again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides.max(1)
    }
}

fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..1 + dice.roll(4) {
        if bytes.is_empty() {
            return;
        }
        // Headers are where the trouble is.
        let reach = if dice.roll(2) == 0 { bytes.len().min(64) } else { bytes.len() };
        let at = dice.roll(reach);
        match dice.roll(5) {
            0 => bytes[at] ^= 1 << dice.roll(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][dice.roll(5)],
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..bytes.len().min(at + 1 + dice.roll(16)))),
            _ => bytes.insert(at, dice.roll(256) as u8),
        }
    }
}

#[test]
fn thousands_of_damaged_files_are_each_a_picture_or_an_error() {
    let mut tried = 0;
    for (i, (name, original)) in samples().into_iter().enumerate() {
        for n in 0..MUTATIONS {
            let mut bytes = original.clone();
            mutate(&mut bytes, &mut Dice((i as u64) << 32 | n));
            tried += 1;
            if let Ok(decoded) = decode(&bytes, &LIMITS) {
                let rgb = decoded.rgb;
                assert_eq!(rgb.data().len(), rgb.width() * rgb.height() * 3, "{name}, mutation {n}");
                assert!((rgb.width() * rgb.height()) as u64 <= LIMITS.max_pixels, "{name}, mutation {n}");
            }
        }
    }
    assert!(tried > 5000, "{tried}");
}
