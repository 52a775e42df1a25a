//! Random and mutated bytes: no panic, no lie in the table, and the same verdict as the `safetensors` crate.

mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use common::{honest, open};
use proptest::prelude::*;
use safetensors::SafeTensors;
use turbospark_testkit::GgufWriter;
use turbospark_weights::{Checkpoint, Entry, Error, TensorError, gguf};

/// Counts what the current thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came; the counter is a plain cell of this thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ASKED.try_with(|asked| asked.set(asked.get() + layout.size() as u64));
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` above, so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Opens `bytes` and holds the outcome against every promise of the table.
fn check(bytes: &[u8]) -> Option<Checkpoint> {
    let copy = bytes.to_vec();
    let before = ASKED.get();
    let opened = open(copy);
    let asked = ASKED.get() - before;
    // One copy of the file, its header, and what a table costs beyond its text; never what a number in it says.
    assert!(asked < 64 * bytes.len() as u64 + 16_384, "{asked} bytes asked for to open {}", bytes.len());
    let theirs = SafeTensors::deserialize(bytes);
    let checkpoint = match opened {
        Ok(checkpoint) => checkpoint,
        Err(e) => {
            // We are stricter about names alone: the crate keeps the last of two equal ones.
            let about_a_name =
                matches!(e, Error::Tensor { problem: TensorError::Duplicate | TensorError::Name(_), .. });
            assert!(theirs.is_err() || about_a_name, "taken by the crate, but refused: {e}");
            return None;
        }
    };
    let mut covered = 0;
    for (_, entry) in checkpoint.entries() {
        covered += entry.length();
        let Entry::Place(place) = entry else { continue };
        assert_eq!(place.dtype.bytes(place.shape.elements()), Some(place.length as usize));
        let mapping = checkpoint.map(place.file).unwrap();
        assert!(mapping.slice(place.offset, place.length).is_some());
    }
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(8 + header + covered, bytes.len() as u64);
    // We take a type that the format doesn't define (and refuse it when asked for); the crate does not.
    let foreign = checkpoint.entries().any(|(_, entry)| matches!(entry, Entry::Foreign(_)));
    assert!(theirs.is_ok() || foreign, "taken, but refused by the crate: {:?}", theirs.err());
    Some(checkpoint)
}

/// Opens `bytes` as a GGUF file and holds the outcome against what it promises.
fn check_gguf(bytes: &[u8]) -> bool {
    let copy: std::sync::Arc<[u8]> = bytes.into();
    let before = ASKED.get();
    let opened = gguf::from_bytes("x.gguf", copy);
    let asked = ASKED.get() - before;
    assert!(asked < 64 * bytes.len() as u64 + 16_384, "{asked} bytes asked for to open {}", bytes.len());
    let Ok(set) = opened else { return false };
    let mut tensors: Vec<_> = set.tensors.iter().map(|(_, t)| t).collect();
    tensors.sort_by_key(|t| (t.offset, t.length));
    let mut end = 0;
    for t in tensors {
        assert!(t.offset >= end, "{} overlaps", t.name);
        end = t.offset + t.length;
        assert!(end <= bytes.len() as u64, "{} leaves the file", t.name);
        let elements = t.dims.iter().product::<u64>() as usize;
        assert!(t.dtype.is_none_or(|dtype| dtype.bytes(elements) == Some(t.length as usize)));
    }
    true
}

fn some_gguf() -> impl Strategy<Value = Vec<u8>> {
    let tensor = (prop::sample::select(vec![(0, 4), (24, 1), (8, 34), (77, 3)]), prop::collection::vec(0u64..4, 0..5));
    let key = ("[a-d.]{1,4}", prop::collection::vec(any::<i32>(), 0..4), prop::collection::vec("[a-d]{0,4}", 0..4));
    (prop::collection::btree_map("[a-d.]{1,4}", tensor, 0..5), prop::collection::vec(key, 0..3)).prop_map(
        |(tensors, keys)| {
            let mut file = GgufWriter::new();
            for (i, (key, numbers, texts)) in keys.iter().enumerate() {
                file = file
                    .i32s(&format!("{i}n{key}"), numbers)
                    .texts(&format!("{i}t{key}"), texts)
                    .text(&format!("{i}{key}"), key);
            }
            for (name, ((kind, size), mut dims)) in tensors {
                if kind == 8 {
                    dims.push(32);
                }
                let elements: u64 = dims.iter().product();
                let length = if kind == 8 { elements / 32 * size } else { elements * size };
                file = file.tensor(&name, kind, &dims, &vec![1; length as usize]);
            }
            file.bytes()
        },
    )
}

fn some_file() -> impl Strategy<Value = Vec<u8>> {
    let dtype = prop::sample::select(vec![("F32", 4), ("BF16", 2), ("I8", 1)]);
    let tensor = (dtype, prop::collection::vec(0u64..4, 0..7));
    prop::collection::btree_map("[a-d.]{1,4}", tensor, 0..5).prop_map(|tensors| {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, ((dtype, size), dims))| (name.as_str(), *dtype, dims.as_slice(), *size))
            .collect();
        honest(&tensors)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn honest_files_open(bytes in some_file()) {
        prop_assert!(check(&bytes).is_some());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&bytes);
    }

    #[test]
    fn random_headers_never_panic(json in "[\\[\\]{}\":,0-9a-eF._ -]{0,120}", data in 0usize..16) {
        check(&common::file(&json, data));
    }

    #[test]
    fn mutated_files_never_panic(
        mut bytes in some_file(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"0123456789\"{}[],:-eF\0\xff".to_vec())), 1..4),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check(&bytes);
    }

    #[test]
    fn honest_gguf_files_open(bytes in some_gguf()) {
        prop_assert!(check_gguf(&bytes));
    }

    #[test]
    fn mutated_gguf_files_never_panic(
        mut bytes in some_gguf(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check_gguf(&bytes);
    }
}
