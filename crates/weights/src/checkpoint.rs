use std::{
    collections::{BTreeMap, btree_map},
    path::Path,
    sync::Arc,
};

use turbospark_tensor::{DType, Shape};

use crate::{
    Claims, Error, Folder, Mapping, Result, WeightFile,
    error::{shorten, shorten_dims},
    header::{self, Described},
};

/// Which file of a checkpoint; an index into [`Checkpoint::files`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(u32);

impl FileId {
    /// The index into [`Checkpoint::files`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a tensor lies and what it is. `length` is always what `dtype` and `shape` take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Which file.
    pub file: FileId,
    /// First byte, counted from the file's beginning; not always aligned to the element.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// How an element is stored.
    pub dtype: DType,
    /// Its sides.
    pub shape: Shape,
}

/// A tensor that is there but can't be read: an element type or a rank that this build doesn't know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Which file.
    pub file: FileId,
    /// First byte, counted from the file's beginning.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// The element type as written.
    pub dtype: String,
    /// The sides as written.
    pub dims: Vec<u64>,
}

/// What a checkpoint holds under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A tensor that can be read.
    Place(Place),
    /// One that can't; it is an error only when it is asked for.
    Foreign(Foreign),
}

impl Entry {
    /// Which file holds it.
    pub fn file(&self) -> FileId {
        match self {
            Entry::Place(place) => place.file,
            Entry::Foreign(foreign) => foreign.file,
        }
    }

    /// Its size in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Entry::Place(place) => place.length,
            Entry::Foreign(foreign) => foreign.length,
        }
    }

    /// Element type and shape for a message, as in `BF16 [96, 48]`.
    pub fn describe(&self) -> String {
        match self {
            Entry::Place(place) => format!("{} {}", place.dtype, place.shape),
            Entry::Foreign(foreign) => format!("{} {}", shorten(&foreign.dtype), shorten_dims(&foreign.dims)),
        }
    }
}

/// A table from names to places over a set of files, in name order.
#[derive(Debug)]
pub struct Checkpoint {
    files: Vec<WeightFile>,
    table: BTreeMap<String, Entry>,
}

impl Checkpoint {
    /// Opens a folder as on the model hub, or one safetensors file. Reads headers alone.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Folder::open(path)?.checkpoint()
    }

    /// Opens a safetensors file that is in memory; `name` stands for it in messages.
    pub fn from_bytes(name: &str, bytes: impl Into<Mapping>) -> Result<Self> {
        Self::from_files(vec![WeightFile::in_memory(name, bytes.into())])
    }

    pub(crate) fn from_files(files: Vec<WeightFile>) -> Result<Self> {
        let mut table = BTreeMap::<String, Entry>::new();
        for (i, file) in files.iter().enumerate() {
            let id = FileId(u32::try_from(i).expect("fewer shards than an index of 64 MiB can name"));
            for described in header::read(file)? {
                let (name, entry) = entry(id, described);
                match table.entry(name) {
                    btree_map::Entry::Vacant(slot) => {
                        slot.insert(entry);
                    }
                    btree_map::Entry::Occupied(slot) => {
                        return Err(Error::DuplicateTensor {
                            name: shorten(slot.key()),
                            first: files[slot.get().file().index()].name().to_owned(),
                            second: file.name().to_owned(),
                        });
                    }
                }
            }
        }
        Ok(Checkpoint { files, table })
    }

    /// The files; a [`FileId`] is an index into them.
    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// All files, in the order of [`Checkpoint::files`].
    pub fn file_ids(&self) -> impl Iterator<Item = FileId> {
        (0..self.files.len() as u32).map(FileId)
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no tensor at all.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        self.table.values().map(Entry::length).sum()
    }

    /// Whether there is a tensor of this name, readable or not.
    pub fn contains(&self, name: &str) -> bool {
        self.table.contains_key(name)
    }

    /// What lies under `name`, readable or not.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.table.get(name)
    }

    /// Everything in name order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.table.iter().map(|(name, entry)| (name.as_str(), entry))
    }

    /// The tensor's own key, its place, or why it can't be read; `None` where there is no such tensor.
    pub(crate) fn lookup(&self, name: &str) -> Option<Result<(&str, Place)>> {
        let (key, entry) = self.table.get_key_value(name)?;
        Some(match entry {
            Entry::Place(place) => Ok((key, *place)),
            Entry::Foreign(foreign) => Err(Error::UnsupportedDType {
                name: shorten(name),
                dtype: shorten(&foreign.dtype),
                shape: shorten_dims(&foreign.dims),
            }),
        })
    }

    /// The place of a tensor, or `None` where there is no such tensor.
    ///
    /// A loader uses [`Checkpoint::claims`] instead, which also holds the shape against what it expects.
    pub fn place(&self, name: &str) -> Result<Option<Place>> {
        Ok(self.lookup(name).transpose()?.map(|(_, place)| place))
    }

    /// Begins to claim tensors for a model.
    pub fn claims(&self) -> Claims<'_> {
        Claims::new(self)
    }

    /// A file's bytes in place; see [`Mapping`] for what that asks of the file.
    ///
    /// # Panics
    /// When `file` comes from a checkpoint with more files.
    pub fn map(&self, file: FileId) -> Result<Arc<Mapping>> {
        self.files[file.index()].map()
    }

    /// Fills `out` from `offset` of a file, without mapping.
    ///
    /// # Panics
    /// When `file` comes from a checkpoint with more files.
    pub fn read_at(&self, file: FileId, offset: u64, out: &mut [u8]) -> Result<()> {
        self.files[file.index()].read_at(offset, out)
    }

    /// Copies a tensor into `out`, which has its length.
    ///
    /// # Panics
    /// When `out` has another length, or `place` comes from a checkpoint with more files.
    pub fn read(&self, place: &Place, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len() as u64, place.length, "the target has another length than the tensor");
        self.read_at(place.file, place.offset, out)
    }
}

fn entry(file: FileId, described: Described) -> (String, Entry) {
    let Described { name, dtype, dims, offset, length } = described;
    let sides: Option<Vec<usize>> = dims.iter().map(|&side| usize::try_from(side).ok()).collect();
    let shape = sides.and_then(|sides| Shape::try_new(&sides).ok());
    let entry = match (dtype.parse(), shape) {
        (Ok(dtype), Some(shape)) => Entry::Place(Place { file, offset, length, dtype, shape }),
        _ => Entry::Foreign(Foreign { file, offset, length, dtype, dims }),
    };
    (name, entry)
}
