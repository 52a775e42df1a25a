//! GGUF files: what honest ones say, and how each kind of lie is refused.

mod common;

use std::sync::Arc;

use common::folder;
use turbospark_tensor::DType;
use turbospark_testkit::{GgufWriter, shared};
use turbospark_weights::{
    Error,
    gguf::{self, Array, GgufTensor, Set, Value},
};

fn open(bytes: Vec<u8>) -> Result<Set, Error> {
    gguf::from_bytes("x.gguf", Arc::<[u8]>::from(bytes))
}

fn assert_refused<T>(case: &str, result: Result<T, Error>, parts: &[&str]) {
    let message = match result {
        Ok(_) => panic!("{case}: was taken"),
        Err(e) => e.to_string(),
    };
    for part in parts {
        assert!(message.contains(part), "{case}: {message:?} lacks {part:?}");
    }
    assert!(message.len() < 1000, "{case}: a message of {} bytes", message.len());
}

fn small() -> GgufWriter {
    GgufWriter::new()
        .text("general.architecture", "qwen3vl")
        .u32("a.count", 7)
        .i32("a.negative", -1)
        .f32("a.number", 0.5)
        .flag("a.flag", true)
        .texts("a.texts", &["x", "yz"])
        .i32s("a.list", &[1, 2, 3])
        .f32s("a.numbers", &[0.25, 4.0])
        .raw_array("a.flags", 7, 2, &[0, 1])
        .raw("a.long", 10, &u64::MAX.to_le_bytes())
        .tensor("plain", 0, &[2, 3], &[1; 24])
        .tensor("blocks", 8, &[2, 64], &[2; 2 * 2 * 34])
        .tensor("empty", 0, &[0, 3], &[])
        .tensor("foreign", 9, &[32], &[3; 40])
        .tensor("unknown", 77, &[5], &[4; 11])
}

#[test]
fn an_honest_file_says_what_was_written() {
    let bytes = small().bytes();
    let set = open(bytes.clone()).unwrap();
    let m = &set.metadata;
    assert_eq!(m.iter().count(), 10);
    assert_eq!(m.iter().nth(1), Some(("a.count", &Value::U32(7))));
    assert_eq!(m.text("general.architecture").unwrap(), Some("qwen3vl"));
    assert_eq!(m.count("a.count").unwrap(), Some(7));
    assert_eq!(m.count("a.long").unwrap(), Some(u64::MAX));
    assert_eq!(m.number("a.number").unwrap(), Some(0.5));
    assert_eq!(m.number("a.negative").unwrap(), Some(-1.0));
    assert_eq!(m.flag("a.flag").unwrap(), Some(true));
    assert_eq!(m.texts("a.texts").unwrap().unwrap(), ["x", "yz"]);
    assert_eq!(m.counts("a.list").unwrap().unwrap(), [1, 2, 3]);
    assert_eq!(m.counts("a.count").unwrap().unwrap(), [7]);
    assert_eq!(m.numbers("a.numbers").unwrap().unwrap(), [0.25, 4.0]);
    assert_eq!(m.numbers("a.list").unwrap().unwrap(), [1.0, 2.0, 3.0]);
    assert_eq!(m.flags("a.flags").unwrap().unwrap(), [false, true]);
    assert_eq!(m.get("a.list"), Some(&Value::Array(Array::I32(vec![1, 2, 3]))));
    assert_eq!(m.count("absent").unwrap(), None);

    let by_name = |name: &str| -> &GgufTensor {
        let (file, tensor) = set.tensors.iter().find(|(_, t)| t.name == name).unwrap();
        assert_eq!(*file, 0);
        assert_eq!(tensor.offset % 32, 0);
        tensor
    };
    let data = |name: &str| {
        let t = by_name(name);
        &bytes[t.offset as usize..][..t.length as usize]
    };
    assert_eq!((by_name("plain").dtype, by_name("plain").dims.as_slice()), (Some(DType::F32), &[2, 3][..]));
    assert_eq!(data("plain"), [1; 24]);
    assert_eq!(by_name("blocks").dtype, Some(DType::Q8_0));
    assert_eq!(data("blocks"), [2; 136]);
    assert_eq!(data("empty"), [0; 0]);
    assert_eq!((by_name("foreign").dtype, by_name("foreign").type_name.as_str()), (None, "Q8_1"));
    assert_eq!(data("foreign"), [3; 40]);
    assert_eq!((by_name("unknown").dtype, by_name("unknown").type_name.as_str()), (None, "ggml type 77"));
    assert_eq!(data("unknown"), [4; 11]);
}

#[test]
fn a_getter_names_the_key_what_it_is_and_what_was_wanted() {
    let m = open(small().bytes()).unwrap().metadata;
    assert_refused("text", m.text("a.count"), &["x.gguf", "\"a.count\"", "u32 7", "a string"]);
    assert_refused("count", m.count("a.negative"), &["\"a.negative\"", "i32 -1", "a non-negative integer"]);
    assert_refused("count", m.count("a.number"), &["f32 0.5"]);
    assert_refused("count", m.count("a.flag"), &["bool true"]);
    assert_refused("number", m.number("general.architecture"), &["string \"qwen3vl\"", "a number"]);
    assert_refused("flag", m.flag("a.count"), &["a bool"]);
    assert_refused("texts", m.texts("a.list"), &["array of 3 i32", "an array of strings"]);
    assert_refused("counts", m.counts("a.numbers"), &["array of 2 f32", "non-negative integers"]);
    assert_refused("counts", m.counts("a.negative"), &["i32 -1"]);
    assert_refused("numbers", m.numbers("a.texts"), &["array of 2 string", "numbers"]);
    assert_refused("flags", m.flags("a.list"), &["array of 3 i32", "bools"]);
}

#[test]
fn lying_files_are_refused_by_name() {
    let w = GgufWriter::new;
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = small().bytes();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        file
    };
    let max = u64::MAX;
    let length = |n: u64| n.to_le_bytes();
    let long_name = "n".repeat(2000);
    let long_key = "k".repeat(70_000);
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["x.gguf", "header", "offset 0", "the file's 0", "cut"]),
        ("a magic alone", b"GGUF".to_vec(), &["header", "offset 4"]),
        ("another magic", patched(0, b"ggjt"), &["begins with \"ggjt\"", "not a GGUF file"]),
        ("version 1", patched(4, &[1, 0, 0, 0]), &["GGUF version 1", "only 2 and 3", "convert"]),
        ("version 4", patched(4, &[4, 0, 0, 0]), &["GGUF version 4"]),
        ("version 0", patched(4, &[0, 0, 0, 0]), &["GGUF version 0"]),
        ("big-endian", patched(4, &[0, 0, 0, 3]), &["big-endian"]),
        ("tensors above the file", patched(8, &length(max)), &["list of tensors", "18446744073709551615 x 24"]),
        ("keys above the file", patched(16, &length(max)), &["list of keys", "18446744073709551615 x 13"]),
        ("one key too many", patched(16, &length(11)), &["x.gguf"]),
        ("an empty key", w().u32("", 1).bytes(), &["key \"\"", "0 bytes"]),
        ("a long key", w().u32(&long_key, 1).bytes(), &["kkk...", "70000 bytes"]),
        ("a key twice", w().u32("a", 1).u32("b", 2).text("a", "x").bytes(), &["key \"a\"", "stored twice"]),
        ("an unknown type", w().raw("a", 13, &[0; 8]).bytes(), &["key \"a\"", "unknown type of value 13"]),
        ("an unknown type in an array", w().raw_array("a", 13, 1, &[0; 8]).bytes(), &["key \"a\"", "13"]),
        ("a nested array", w().raw_array("a", 9, 1, &[0; 12]).bytes(), &["key \"a\"", "array of arrays"]),
        ("a bool of 2", w().raw("a", 7, &[2]).bytes(), &["key \"a\"", "bool of 2"]),
        ("a bool of 2 in an array", w().raw_array("a", 7, 2, &[1, 2]).bytes(), &["key \"a\"", "bool of 2"]),
        ("a string above the file", w().raw("a", 8, &length(max)).bytes(), &["key \"a\"", "18446744073709551615 x 1"]),
        ("a string past the end", w().raw("a", 8, &length(9)).bytes(), &["key \"a\"", "9 x 1 bytes", "cut"]),
        (
            "an array above the file",
            w().raw_array("a", 12, max, &[]).bytes(),
            &["key \"a\"", "18446744073709551615 x 8"],
        ),
        ("an array past the end", w().raw_array("a", 4, 3, &[0; 11]).bytes(), &["key \"a\"", "3 x 4 bytes"]),
        ("strings past the end", w().raw_array("a", 8, 3, &[0; 16]).bytes(), &["key \"a\"", "3 x 8 bytes"]),
        (
            "a string that is none",
            w().raw("a", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 255]).bytes(),
            &["\"a\"", "UTF-8", "byte 0"],
        ),
        (
            "a string of an array that is none",
            w().raw_array("a", 8, 2, &[&length(0)[..], &length(2), b"a\xff"].concat()).bytes(),
            &["\"a\"", "element 1, byte 1"],
        ),
        ("a key that is no text", patched(32, &[255]), &["key \"number 0\"", "UTF-8"]),
        ("an alignment of 0", w().alignment(0).bytes(), &["general.alignment", "alignment 0"]),
        ("an alignment of 4", w().alignment(4).bytes(), &["general.alignment", "alignment 4"]),
        ("an alignment of 24", w().alignment(24).bytes(), &["alignment 24", "power of two"]),
        ("an alignment of 2^31", w().alignment(1 << 31).bytes(), &["alignment 2147483648"]),
        ("an alignment of text", w().text("general.alignment", "32").bytes(), &["general.alignment", "string"]),
        ("an empty name", w().tensor("", 0, &[1], &[0; 4]).bytes(), &["tensor \"\"", "0 bytes"]),
        ("a long name", w().tensor(&long_name, 0, &[1], &[0; 4]).bytes(), &["nnn...", "2000 bytes"]),
        ("a name twice", w().tensor("t", 0, &[1], &[0; 4]).tensor("t", 1, &[1], &[0; 2]).bytes(), &["\"t\"", "twice"]),
        ("nine sides", w().tensor("t", 0, &[1; 9], &[0; 4]).bytes(), &["\"t\"", "9 dimensions, at most 8"]),
        ("sides above 64 bits", w().info("t", 0, &[max, 2], 0).bytes(), &["\"t\"", "no size"]),
        ("foreign sides above 64 bits", w().info("t", 77, &[max, 2], 0).bytes(), &["\"t\"", "no size"]),
        ("bytes above 64 bits", w().info("t", 0, &[max], 0).bytes(), &["\"t\"", "no size"]),
        ("half a block", w().tensor("t", 8, &[2, 16], &[0; 34]).bytes(), &["\"t\"", "rows of 16", "Q8_0", "32"]),
        ("a block type without sides", w().tensor("t", 8, &[], &[0; 34]).bytes(), &["\"t\"", "rows of 1 "]),
        ("an unaligned offset", w().info("t", 0, &[1], 8).bytes(), &["\"t\"", "begins at 8", "alignment 32"]),
        ("data past the end", w().tensor("t", 0, &[2], &[0; 7]).bytes(), &["\"t\"", "[0, 8]", "7 bytes of data"]),
        ("an offset past the end", w().info("t", 0, &[1], max - 31).bytes(), &["\"t\"", "18446744073709551584"]),
        ("foreign data past the end", w().info("t", 77, &[1], 0).bytes(), &["\"t\"", "[0, 1]"]),
        (
            "an overlap",
            w().tensor("a", 0, &[16], &[0; 64]).info("b", 0, &[4], 32).bytes(),
            &["\"b\"", "begins at 32", "inside tensor \"a\"", "ends at 64"],
        ),
        (
            "the same bytes twice",
            w().tensor("a", 0, &[4], &[0; 16]).info("b", 0, &[4], 0).bytes(),
            &["\"b\"", "inside tensor \"a\""],
        ),
        (
            "an unknown type within another tensor",
            w().tensor("a", 0, &[16], &[0; 64]).info("b", 77, &[4], 32).bytes(),
            &["\"b\"", "inside tensor \"a\""],
        ),
        (
            "another tensor where an unknown type begins",
            w().tensor("a", 77, &[16], &[0; 64]).info("b", 0, &[4], 0).bytes(),
            &["begins at 0", "inside tensor"],
        ),
    ];
    for (case, bytes, parts) in cases {
        assert_refused(case, open(bytes.clone()), parts);
        // The same from a file on disk.
        let dir = folder(&[("x.gguf", &bytes)]);
        assert_refused(case, gguf::open(dir.path().join("x.gguf")), parts);
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = small().bytes();
    // Where all tensors but the last, whose size nobody knows, are complete.
    let needed = open(whole.clone()).unwrap().tensors.last().unwrap().1.offset as usize;
    for length in 0..=whole.len() {
        assert_eq!(open(whole[..length].to_vec()).is_ok(), length > needed, "cut to {length}");
    }
}

#[test]
fn any_byte_may_be_wrong_without_a_panic() {
    let whole = small().bytes();
    for at in 0..whole.len() {
        for value in [0, 1, 8, 9, 0x7f, 0xff] {
            let mut file = whole.clone();
            file[at] = value;
            let Ok(set) = open(file) else { continue };
            for (_, t) in &set.tensors {
                assert!(t.offset + t.length <= whole.len() as u64, "byte {at} = {value}: {t:?}");
            }
        }
    }
}

#[test]
fn numbers_in_a_sparse_file_allocate_nothing() {
    // The file is long enough for what it claims; the limit still holds.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    for (file, part) in [
        (GgufWriter::new().raw_array("a", 8, 1 << 36, &[]), "key \"a\""),
        (GgufWriter::new().raw("a", 8, &(1u64 << 36).to_le_bytes()), "key \"a\""),
    ] {
        std::fs::write(&path, file.bytes()).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert_refused("sparse", gguf::open(&path), &["x.gguf", part, "limit of 134217728"]);
    }
}

#[test]
fn an_alignment_moves_the_data() {
    let file = GgufWriter::new().alignment(256).tensor("a", 0, &[1], &[1; 4]).tensor("b", 0, &[1], &[2; 4]).bytes();
    let set = open(file.clone()).unwrap();
    for (i, (_, tensor)) in set.tensors.iter().enumerate() {
        assert_eq!(tensor.offset, 256 * (i as u64 + 1));
        assert_eq!(file[tensor.offset as usize], i as u8 + 1);
    }
}

fn shard(no: u16, count: u16, total: i32) -> GgufWriter {
    GgufWriter::new().u16("split.no", no).u16("split.count", count).i32("split.tensors.count", total)
}

const A: &str = "m-00001-of-00003.gguf";
const B: &str = "m-00002-of-00003.gguf";
const C: &str = "m-00003-of-00003.gguf";

#[test]
fn any_file_of_a_set_opens_the_set() {
    let a = shard(0, 3, 2).text("general.name", "first").bytes();
    let b = shard(1, 3, 2).tensor("b", 0, &[1], &[1; 4]).bytes();
    let c = shard(2, 3, 2).tensor("c", 0, &[1], &[2; 4]).bytes();
    let dir = folder(&[(A, &a), (B, &b), (C, &c)]);
    for name in [A, B, C] {
        let set = gguf::open(dir.path().join(name)).unwrap();
        assert_eq!(set.metadata.text("general.name").unwrap(), Some("first"));
        assert_eq!(set.files.iter().map(|f| f.name()).collect::<Vec<_>>(), [A, B, C]);
        let tensors: Vec<_> = set.tensors.iter().map(|(file, t)| (*file, t.name.as_str())).collect();
        assert_eq!(tensors, [(1, "b"), (2, "c")]);
    }
}

#[test]
fn files_that_do_not_belong_together_are_refused_by_name() {
    let a = shard(0, 3, 3).tensor("a", 0, &[1], &[0; 4]).bytes();
    let b = shard(1, 3, 3).tensor("b", 0, &[1], &[1; 4]).bytes();
    let c = shard(2, 3, 3).tensor("c", 0, &[1], &[2; 4]).bytes();
    let b_again = shard(2, 3, 3).tensor("b", 0, &[1], &[2; 4]).bytes();
    let c_empty = shard(2, 3, 3).bytes();
    let c_of_two = shard(2, 2, 3).bytes();
    let c_plain = GgufWriter::new().tensor("c", 0, &[1], &[2; 4]).bytes();
    type Case<'a> = (&'a str, &'a str, Vec<(&'a str, &'a [u8])>, &'a [&'a str]);
    let cases: Vec<Case> = vec![
        ("one is absent", A, vec![(A, &a), (C, &c)], &["m-00002-of-00003.gguf is missing"]),
        ("the first is absent", B, vec![(B, &b), (C, &c)], &["m-00001-of-00003.gguf is missing"]),
        ("swapped", A, vec![(A, &a), (B, &c), (C, &b)], &[B, "split.no is 2, expected 1"]),
        ("one that is whole", A, vec![(A, &a), (B, &b), (C, &c_plain)], &[C, "split.count is 1, expected 3"]),
        ("another count", A, vec![(A, &a), (B, &b), (C, &c_of_two)], &[C, "split.count is 2, expected 3"]),
        (
            "another count in the name",
            "m-00001-of-00002.gguf",
            vec![("m-00001-of-00002.gguf", &a)],
            &["is 3, expected 2"],
        ),
        ("renamed", "m.gguf", vec![("m.gguf", &a)], &["m.gguf", "one of 3 files", "-00001-of-00003.gguf"]),
        ("number 0", "m-00000-of-00003.gguf", vec![("m-00000-of-00003.gguf", &a)], &["one of 3 files"]),
        ("a tensor twice", A, vec![(A, &a), (B, &b), (C, &b_again)], &["\"b\"", "twice", B, C]),
        ("tensors missing", A, vec![(A, &a), (B, &b), (C, &c_empty)], &["hold 2 tensors", "split.tensors.count is 3"]),
        ("a lying file", A, vec![(A, &a), (B, &b[..b.len() - 1]), (C, &c)], &[B, "tensor \"b\"", "3 bytes of data"]),
    ];
    for (case, name, files, parts) in cases {
        assert_refused(case, gguf::open(folder(&files).path().join(name)), parts);
    }
    assert_refused("in memory", gguf::from_bytes(A, Arc::<[u8]>::from(a)), &[B, "missing"]);
}

#[test]
fn files_of_llama_cpp_open() {
    let Some(dir) = shared("models/gguf") else {
        println!("skipped: no ../shared/models/gguf");
        return;
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let set = gguf::open(&path).unwrap();
        assert!(!set.tensors.is_empty());
        let length = set.files[0].length();
        let mut end = 0;
        for (_, tensor) in &set.tensors {
            let dtype = tensor.dtype.unwrap_or_else(|| panic!("{tensor:?}"));
            let elements: u64 = tensor.dims.iter().product();
            assert_eq!(dtype.bytes(elements as usize), Some(tensor.length as usize), "{tensor:?}");
            end = end.max(tensor.offset + tensor.length);
        }
        assert!(length - end < 32, "{} bytes that no tensor owns", length - end);
        let architecture = set.metadata.text("general.architecture").unwrap().unwrap();
        names.push(format!("{architecture} {}", set.tensors.len()));
    }
    println!("{names:?}");
}
