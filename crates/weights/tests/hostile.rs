//! Files that lie: each is refused with a message that names the file, the tensor or both numbers.

mod common;

use common::{file, folder, honest, open};
use turbospark_weights::{Checkpoint, Folder, Sidecar};

fn assert_refused(case: &str, result: Result<Checkpoint, turbospark_weights::Error>, parts: &[&str]) {
    let message = match result {
        Ok(_) => panic!("{case}: was taken"),
        Err(e) => e.to_string(),
    };
    for part in parts {
        assert!(message.contains(part), "{case}: {message:?} lacks {part:?}");
    }
    assert!(message.len() < 1000, "{case}: a message of {} bytes", message.len());
}

#[test]
fn lying_headers_are_refused_by_name() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"F32","shape":[2],"data_offsets":{a}}},"b":{{"dtype":"F32","shape":[2],"data_offsets":{b}}}}}"#
        )
    };
    let long_name = "n".repeat(2000);
    let max = u64::MAX;
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty", vec![], &["x.safetensors", "0 bytes"]),
        ("seven bytes", vec![0; 7], &["7 bytes"]),
        ("no header", vec![0; 8], &["header"]),
        ("header length past the end", [&100u64.to_le_bytes()[..], b"{}"].concat(), &["100", "file of 10"]),
        ("header length of 2^64-1", [&max.to_le_bytes()[..], b"{}"].concat(), &["18446744073709551615", "100000000"]),
        ("header length above the cap", [&100_000_001u64.to_le_bytes()[..], b"{}"].concat(), &["100000001"]),
        ("not JSON", file("hello", 0), &["header", "expected"]),
        ("not UTF-8", [&3u64.to_le_bytes()[..], b"\"\xff\""].concat(), &["header"]),
        ("a list", file("[]", 0), &["an object of tensors"]),
        ("cut JSON", file(r#"{"w":{"dtype":"#, 0), &["w", "EOF"]),
        ("deep nesting", file(&format!(r#"{{"w":{}"#, "[".repeat(50_000)), 0), &["\"w\""]),
        ("deep nesting aside", file(&format!(r#"{{"w":{{"x":{}"#, "[".repeat(50_000)), 0), &["\"w\""]),
        ("metadata that is no text", file(r#"{"__metadata__":{"a":1}}"#, 0), &["header"]),
        ("metadata twice", file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), &["duplicate", "__metadata__"]),
        ("negative side", file(&one("F32", "[-1]", "[0,4]"), 4), &["w", "-1"]),
        ("fractional side", file(&one("F32", "[1.5]", "[0,4]"), 4), &["w", "1.5"]),
        ("side above 64 bits", file(&one("F32", "[18446744073709551616]", "[0,4]"), 4), &["w"]),
        ("no shape", file(r#"{"w":{"dtype":"F32","data_offsets":[0,4]}}"#, 4), &["w", "shape"]),
        ("one offset", file(&one("F32", "[1]", "[4]"), 4), &["w"]),
        ("offsets backwards", file(&one("F32", "[1]", "[4,0]"), 4), &["\"w\"", "[4, 0]"]),
        ("offsets past the end", file(&one("F32", "[2]", "[0,8]"), 4), &["\"w\"", "[0, 8]", "4 bytes"]),
        ("offset of 2^64-1", file(&one("F32", "[1]", &format!("[0,{max}]")), 4), &["\"w\"", "18446744073709551615"]),
        ("length unlike the shape", file(&one("F32", "[2]", "[0,4]"), 4), &["\"w\"", "4 bytes", "8", "F32 [2]"]),
        ("length unlike the type", file(&one("BF16", "[1]", "[0,4]"), 4), &["\"w\"", "4 bytes", "2", "BF16"]),
        ("length unlike a foreign type", file(&one("F8_E5M2", "[3]", "[0,4]"), 4), &["\"w\"", "3", "F8_E5M2"]),
        ("product above 64 bits", file(&one("F32", &format!("[{max},2]"), "[0,4]"), 4), &["\"w\"", "no size"]),
        ("bytes above 64 bits", file(&one("F32", &format!("[{max}]"), "[0,4]"), 4), &["\"w\"", "no size"]),
        ("product hidden by a zero", file(&one("F32", &format!("[{max},2,0]"), "[0,0]"), 0), &["\"w\"", "no size"]),
        ("half a byte", file(&one("F4", "[3]", "[0,1]"), 1), &["\"w\"", "no size"]),
        ("overlap", file(&two("[0,8]", "[4,12]"), 12), &["\"b\"", "begins at 4", "expected 8"]),
        ("same bytes twice", file(&two("[0,8]", "[0,8]"), 8), &["\"b\"", "begins at 0", "expected 8"]),
        ("a hole", file(&two("[0,8]", "[12,20]"), 20), &["\"b\"", "begins at 12", "expected 8"]),
        ("a hole at the beginning", file(&one("F32", "[1]", "[4,8]"), 8), &["\"w\"", "begins at 4", "expected 0"]),
        ("data that nobody owns", file(&one("F32", "[1]", "[0,4]"), 5), &["4", "5", "cut"]),
        ("an empty name", file(r#"{"":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#, 0), &["name", "0 bytes"]),
        (
            "a long name",
            file(&format!(r#"{{"{long_name}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}"#), 0),
            &["2000 bytes", "nnn..."],
        ),
        (
            "a name twice",
            file(
                r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
                8,
            ),
            &["\"w\"", "stored twice"],
        ),
        (
            "a name twice by an escape",
            file(
                r#"{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"\u0077":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#,
                0,
            ),
            &["\"w\"", "stored twice"],
        ),
    ];
    for (case, bytes, parts) in cases {
        assert_refused(case, open(bytes.clone()), parts);
        // The same from a file on disk.
        let dir = folder(&[("x.safetensors", &bytes)]);
        assert_refused(case, Checkpoint::open(dir.path()), parts);
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = honest(&[("a", "BF16", &[3, 5], 2), ("b", "F32", &[2], 4)]);
    assert_eq!(open(whole.clone()).unwrap().len(), 2);
    for length in 0..whole.len() {
        assert!(open(whole[..length].to_vec()).is_err(), "cut to {length}");
    }
    assert!(open([&whole[..], &[0]].concat()).is_err());
}

#[test]
fn a_large_header_length_allocates_nothing() {
    // A sparse file would satisfy a check of the length alone; the cap still holds.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, (1u64 << 40).to_le_bytes()).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len((1 << 40) + 8).unwrap();
    assert_refused("sparse", Checkpoint::open(&path), &["1099511627776", "limit of 100000000"]);
}

fn index(entries: &[(&str, &str)]) -> String {
    let map: Vec<_> = entries.iter().map(|(name, shard)| format!("{name:?}:{shard:?}")).collect();
    format!(r#"{{"metadata":{{"total_size":0}},"weight_map":{{{}}}}}"#, map.join(","))
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn a_shard_index_stays_in_its_folder() {
    let outer = folder(&[("secret.safetensors", &honest(&[("a", "F32", &[1], 4)]))]);
    let inner = outer.path().join("model");
    std::fs::create_dir(&inner).unwrap();
    let absolute = outer.path().join("secret.safetensors");
    for shard in [
        "../secret.safetensors",
        "..\\secret.safetensors",
        "./secret.safetensors",
        "sub/secret.safetensors",
        absolute.to_str().unwrap(),
        "C:secret.safetensors",
        "\\\\host\\share.safetensors",
        "..",
        "",
        ".safetensors",
        "secret",
        "/etc/passwd",
        "a\0.safetensors",
    ] {
        let escaped = shard.replace('\\', "\\\\").replace('\0', "\\u0000");
        let text = format!(r#"{{"weight_map":{{"a":"{escaped}"}}}}"#);
        std::fs::write(inner.join(INDEX), text).unwrap();
        assert_refused(shard, Checkpoint::open(&inner), &[INDEX, "not a plain .safetensors file name"]);
    }
}

#[test]
fn an_index_and_its_shards_agree_both_ways() {
    let a = honest(&[("a", "F32", &[1], 4)]);
    let b = honest(&[("b", "F32", &[1], 4)]);
    let ab = honest(&[("a", "F32", &[1], 4), ("b", "F32", &[1], 4)]);
    let (s1, s2) = ("s1.safetensors", "s2.safetensors");
    let right = index(&[("a", s1), ("b", s2)]);
    let twice = format!(r#"{{"weight_map":{{"a":"{s1}","a":"{s2}"}}}}"#);
    type Case<'a> = (&'a str, String, Vec<(&'a str, &'a [u8])>, &'a [&'a str]);
    let cases: Vec<Case> = vec![
        ("a shard is absent", right.clone(), vec![(s1, &a)], &["s2.safetensors is missing"]),
        ("swapped", right.clone(), vec![(s1, &b), (s2, &a)], &["\"a\" is not in s1", "but in s2"]),
        ("in both shards", right.clone(), vec![(s1, &a), (s2, &ab)], &["\"a\"", "twice", "s1", "s2"]),
        ("in no shard", index(&[("a", s1), ("c", s1)]), vec![(s1, &a)], &["\"c\" is not in s1.safetensors"]),
        ("not listed", index(&[("a", s1)]), vec![(s1, &ab)], &["s1.safetensors", "\"b\"", "not listed"]),
        ("listed twice", twice, vec![(s1, &a), (s2, &b)], &["\"a\" is listed twice"]),
        ("no map", "{}".into(), vec![], &[INDEX, "weight_map"]),
        ("no JSON", "weights".into(), vec![], &[INDEX]),
        ("a map of numbers", r#"{"weight_map":{"a":1}}"#.into(), vec![], &[INDEX]),
        ("an empty map", index(&[]), vec![], &["lists no tensor"]),
        (
            "a lying shard",
            right.clone(),
            vec![(s1, &a), (s2, &b[..b.len() - 1])],
            &["s2.safetensors", "\"b\"", "3 bytes"],
        ),
    ];
    for (case, index, files, parts) in cases {
        let mut files = files;
        files.push((INDEX, index.as_bytes()));
        assert_refused(case, Checkpoint::open(folder(&files).path()), parts);
    }
    let dir = folder(&[(INDEX, right.as_bytes()), (s1, &a), (s2, &b)]);
    assert_eq!(Checkpoint::open(dir.path()).unwrap().len(), 2);
    assert_eq!(Checkpoint::open(dir.path().join(INDEX)).unwrap().files().len(), 2);
    assert_eq!(Checkpoint::open(dir.path().join(s1)).unwrap().len(), 1);
}

#[test]
fn a_folder_says_what_it_lacks() {
    let a = honest(&[("a", "F32", &[1], 4)]);
    let dir = folder(&[("config.json", b"{}"), ("._model.safetensors", &a), ("notes.txt", b"")]);
    assert_refused("no weights", Checkpoint::open(dir.path()), &["no model.safetensors"]);
    let dir = folder(&[("p.safetensors", &a), ("q.safetensors", &a)]);
    assert_refused("two", Checkpoint::open(dir.path()), &["p.safetensors, q.safetensors", "name one"]);
    assert_refused("absent", Checkpoint::open(dir.path().join("none")), &["none"]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("model.safetensors")).unwrap();
    assert_refused("a folder", Checkpoint::open(dir.path()), &["model.safetensors", "not a regular file"]);
}

#[test]
fn texts_beside_the_weights_are_bounded() {
    let dir = folder(&[("config.json", b"{}"), ("tokenizer_config.json", b"ab\xffc")]);
    std::fs::create_dir(dir.path().join("tokenizer.json")).unwrap();
    let large = std::fs::File::create(dir.path().join("generation_config.json")).unwrap();
    large.set_len(1 << 40).unwrap();
    let model = Folder::open(dir.path()).unwrap();
    assert_eq!(model.require(Sidecar::Config).unwrap(), "{}");
    assert_eq!(model.text(Sidecar::ChatTemplate).unwrap(), None);
    for (sidecar, part) in [
        (Sidecar::ChatTemplate, "chat_template.jinja is missing"),
        (Sidecar::TokenizerConfig, "tokenizer_config.json: not UTF-8 text (byte 2)"),
        (Sidecar::Tokenizer, "not a regular file"),
        (Sidecar::GenerationConfig, "1099511627776 bytes, at most 4194304"),
    ] {
        let message = model.require(sidecar).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[cfg(unix)]
#[test]
fn a_file_cut_after_opening_is_noticed() {
    let dir = folder(&[("model.safetensors", &honest(&[("a", "F32", &[4], 4)]))]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let place = checkpoint.place("a").unwrap().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::File::options().write(true).open(path).unwrap().set_len(place.offset + 3).unwrap();
    let mapped = checkpoint.map(place.file).unwrap_err().to_string();
    assert!(mapped.contains("changed while open"), "{mapped}");
    assert!(checkpoint.read(&place, &mut [0; 16]).is_err());
}
