//! A model split into numbered files, `NAME-00001-of-00003.gguf` and so on.
//!
//! The first file holds the metadata; each file holds `split.no`, `split.count` and tensors of its own.

use std::{collections::HashMap, io::ErrorKind, path::Path};

use super::{Gguf, GgufTensor, Metadata, read};
use crate::{Error, Mapping, Result, SplitError, WeightFile, error::shorten};

/// The files of one model.
#[derive(Debug)]
pub struct Set {
    /// The keys of the first file.
    pub metadata: Metadata,
    /// The files in their order.
    pub files: Vec<WeightFile>,
    /// All tensors, each with the index of its file.
    pub tensors: Vec<(usize, GgufTensor)>,
}

/// Opens a file in memory; `name` stands for it in messages.
pub fn from_bytes(name: &str, bytes: impl Into<Mapping>) -> Result<Set> {
    let mut bytes = Some(bytes.into());
    open_set(name, |wanted| match bytes.take() {
        Some(bytes) => Ok(WeightFile::in_memory(wanted, bytes)),
        None => Err(Error::MissingFile { folder: "memory".to_owned(), file: wanted.to_owned() }),
    })
}

/// Opens a file and, where it is one of several, its siblings in the same folder.
pub fn open(path: impl AsRef<Path>) -> Result<Set> {
    let path = path.as_ref();
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(Error::NotAFile(path.to_owned()));
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    open_set(name, |wanted| {
        WeightFile::open(&folder.join(wanted)).map_err(|e| match e {
            Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => {
                Error::MissingFile { folder: folder.display().to_string(), file: wanted.to_owned() }
            }
            other => other,
        })
    })
}

/// Opens the file `name` and, where it is one of several, its siblings; any of them may be named.
///
/// `open` opens a file by its name beside the others.
pub fn open_set(name: &str, mut open: impl FnMut(&str) -> Result<WeightFile>) -> Result<Set> {
    let file = open(name)?;
    let gguf = read(&file)?;
    let split = Split::of(&gguf.metadata)?;
    if split.count <= 1 {
        let tensors = gguf.tensors.into_iter().map(|tensor| (0, tensor)).collect();
        return Ok(Set { metadata: gguf.metadata, files: vec![file], tensors });
    }
    let refuse = |file: &str, problem| Error::Split { file: file.to_owned(), problem };
    let Some(number) = ShardName::parse(name) else {
        return Err(refuse(name, SplitError::Name { count: split.count }));
    };
    if number.count != split.count {
        return Err(refuse(name, SplitError::Count { key: split.count, expected: number.count }));
    }
    let mut named = Some((file, gguf));
    let mut set: Option<Set> = None;
    // Which file had a name first.
    let mut seen = HashMap::<String, usize>::new();
    for no in 0..split.count {
        let (file, Gguf { metadata, tensors }) = match named.take_if(|_| number.no == no) {
            Some(named) => named,
            None => {
                let file = open(&number.sibling(no))?;
                let gguf = read(&file)?;
                (file, gguf)
            }
        };
        let own = Split::of(&metadata)?;
        if own.count != split.count {
            return Err(refuse(file.name(), SplitError::Count { key: own.count, expected: split.count }));
        }
        if own.no != Some(no) {
            return Err(refuse(file.name(), SplitError::Number { key: own.no, expected: no }));
        }
        let set = set.get_or_insert_with(|| Set { metadata, files: Vec::new(), tensors: Vec::new() });
        let index = set.files.len();
        set.files.push(file);
        for tensor in tensors {
            if let Some(first) = seen.insert(tensor.name.clone(), index) {
                return Err(Error::DuplicateTensor {
                    name: shorten(&tensor.name),
                    first: set.files[first].name().to_owned(),
                    second: set.files[index].name().to_owned(),
                });
            }
            set.tensors.push((index, tensor));
        }
    }
    let set = set.expect("a count above 1 was checked");
    let expected = Split::of(&set.metadata)?.tensors;
    match expected {
        Some(expected) if expected != set.tensors.len() as u64 => {
            let problem = SplitError::Tensors { found: set.tensors.len() as u64, expected };
            Err(refuse(set.files[0].name(), problem))
        }
        _ => Ok(set),
    }
}

/// What the keys say; a file that isn't split has none of them.
struct Split {
    /// From 0 on, unlike the number in the name.
    no: Option<u64>,
    count: u64,
    /// In all files together.
    tensors: Option<u64>,
}

impl Split {
    fn of(metadata: &Metadata) -> Result<Self> {
        Ok(Split {
            no: metadata.count("split.no")?,
            count: metadata.count("split.count")?.unwrap_or(1),
            tensors: metadata.count("split.tensors.count")?,
        })
    }
}

/// `NAME-00001-of-00003.gguf`
struct ShardName<'a> {
    stem: &'a str,
    /// From 0 on.
    no: u64,
    count: u64,
}

impl<'a> ShardName<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let number = |digits: &str| match digits.len() {
            5 if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse::<u64>().ok(),
            _ => None,
        };
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, no) = rest.rsplit_once('-')?;
        let (no, count) = (number(no)?, number(count)?);
        (1..=count).contains(&no).then(|| ShardName { stem, no: no - 1, count })
    }

    fn sibling(&self, no: u64) -> String {
        format!("{}-{:05}-of-{:05}.gguf", self.stem, no + 1, self.count)
    }
}
