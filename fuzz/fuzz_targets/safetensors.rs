//! A checkpoint file's header, and what the table says about each tensor.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use turbospark_weights::{Checkpoint, Entry};

fuzz_target!(|data: &[u8]| {
    let Ok(checkpoint) = Checkpoint::from_bytes("fuzz.safetensors", Arc::<[u8]>::from(data)) else { return };
    for (name, entry) in checkpoint.entries() {
        if let Entry::Place(place) = entry {
            assert!(place.offset + place.length <= data.len() as u64, "{name} leaves the file");
            assert_eq!(Some(place.length as usize), place.dtype.bytes(place.shape.elements()));
            let mut bytes = vec![0; place.length as usize];
            checkpoint.read(place, &mut bytes).expect("a place lies in its file");
        }
    }
    assert!(checkpoint.claims().finish(&[]).is_err() || checkpoint.is_empty());
});
